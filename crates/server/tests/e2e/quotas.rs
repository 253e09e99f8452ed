//! A team has no more sandboxes awake than it may, whoever wakes them.

use std::process::Command;

use crate::{
    sandboxes::start,
    server::{Ran, run},
};

#[test]
fn traffic_does_not_wake_more_than_a_team_may_have() {
    let server = start();
    server.run("key create ci -n blue --new-team").ok();
    let patch = r#"{"spec":{"quotas":{"runningSandboxes":1}}}"#;
    server
        .kubectl(&format!("patch team blue --type=merge -p {patch}"))
        .ok();
    let create = |flags: &str| server.run(&format!("sandbox create -n blue {flags}"));
    let first = create("--auto-resume").ok().trim().to_owned();
    let full = create("").failed();
    assert!(full.contains("dormouse sandbox kill"), "{full}");
    server.run(&format!("sandbox pause -n blue {first}")).ok();
    let second = create("").ok().trim().to_owned();

    let url = server
        .run(&format!("sandbox url -n blue {first} 8000"))
        .ok();
    let ask = || -> Ran {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ]);
        run(curl.arg(url.trim()), "")
    };
    assert_eq!(ask().ok(), "429");
    server.run(&format!("sandbox kill -n blue {second}")).ok();
    // Nothing listens there, but it is awake.
    assert_eq!(ask().ok(), "502");
    let listed = server.run("sandbox ls -n blue --state running -q").ok();
    assert_eq!(listed.trim(), first);
    server.run(&format!("sandbox kill -n blue {first}")).ok();
    server.stop();
}
