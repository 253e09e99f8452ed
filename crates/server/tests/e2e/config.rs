//! Configuration through the real command line and environment.

use std::time::Duration;

use serde_json::Value;

use crate::{
    https::Https,
    server::{Ran, Server, dormouse, run},
};

fn config(variables: &[(&str, &str)], flags: &[&str], file: Option<&str>) -> Ran {
    let home = tempfile::tempdir().unwrap();
    let mut command = dormouse(home.path());
    command
        .arg("config")
        .args(flags)
        .envs(variables.iter().copied());
    if let Some(text) = file {
        std::io::Write::write_all(
            &mut std::fs::File::create(home.path().join("d.toml")).unwrap(),
            text.as_bytes(),
        )
        .unwrap();
        command.args(["--config", "d.toml"]);
    }
    run(&mut command, "")
}

#[test]
fn each_layer_wins_over_the_one_before_and_says_so() {
    let file = "listen = \"127.0.0.1:1\"\n[log]\nlevel = \"warn\"\nformat = \"json\"\n";
    let variables = [
        ("DORMOUSE_LISTEN", "127.0.0.1:2"),
        ("DORMOUSE_LOG_LEVEL", "error"),
    ];
    let flags = ["--listen", "127.0.0.1:3", "--output", "json"];
    let shown: Value = serde_json::from_str(&config(&variables, &flags, Some(file)).ok()).unwrap();
    let of = |key: &str| {
        let text = |name: &str| shown[key][name].as_str().unwrap().to_owned();
        (text("value"), text("from"))
    };
    let pair = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(of("listen"), pair("127.0.0.1:3", "--listen"));
    assert_eq!(of("log.level"), pair("error", "DORMOUSE_LOG_LEVEL"));
    assert_eq!(of("log.format"), pair("json", "d.toml:4"));
    assert_eq!(of("drain_timeout"), pair("10s", "default"));
}

#[test]
fn the_table_lists_every_key_once() {
    let table = config(&[], &[], None).ok();
    let keys: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(table.starts_with("KEY "), "{table}");
    for key in [
        "listen",
        "data_dir",
        "log.level",
        "api.max_watches",
        "drain_timeout",
    ] {
        assert_eq!(keys.iter().filter(|k| **k == key).count(), 1, "{table}");
    }
}

#[test]
fn what_is_unknown_or_malformed_refuses_by_name() {
    config(&[("DORMOUSE_LISTN", "x")], &[], None).failed_saying(&["DORMOUSE_LISTN"]);
    config(&[("DORMOUSE_API_MAX_WATCHES", "many")], &[], None)
        .failed_saying(&["DORMOUSE_API_MAX_WATCHES", "`many`"]);
    config(&[], &[], Some("[log]\nlevle = \"info\"\n")).failed_saying(&["d.toml:2", "`log.levle`"]);
    config(&[], &[], Some("listen = 7\n")).failed_saying(&["d.toml:1", "listen"]);
    config(&[], &[], Some("listen = \n")).failed_saying(&["d.toml:1"]);

    // A wrong flag is a wrong use of the command.
    let ran = config(&[], &["--listen", "nowhere"], None);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--listen"), "{}", ran.stderr);
    let ran = config(&[], &["--lisen", "x"], None);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--lisen"), "{}", ran.stderr);
}

#[test]
fn serve_and_commands_refuse_what_config_refuses() {
    let home = tempfile::tempdir().unwrap();
    let mut command = dormouse(home.path());
    command.arg("serve").env("DORMOUSE_NONSENSE", "1");
    run(&mut command, "").failed_saying(&["DORMOUSE_NONSENSE"]);
    let mut command = dormouse(home.path());
    command
        .args(["get", "sandboxes"])
        .env("DORMOUSE_KUBECONFG", "x");
    run(&mut command, "").failed_saying(&["DORMOUSE_KUBECONFG"]);
    assert_eq!(
        std::fs::read_dir(home.path()).unwrap().count(),
        0,
        "nothing was made"
    );
}

#[test]
fn logs_are_json_where_asked() {
    let server = Server::start_with(tempfile::tempdir().unwrap(), &["--log-format", "json"]);
    for line in server.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string(), "{line}");
    }
}

#[test]
fn the_limits_that_are_configured_are_in_force() {
    let flags = ["--api-max-body-bytes", "300", "--api-max-watches", "1"];
    let server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    server
        .run_with("apply -f -", &crate::server::sandbox(&"x".repeat(60)))
        .failed_saying(&["300 bytes"]);
    let path = "/apis/dormouse.dev/v1alpha1/sandboxes?watch=true";
    let first = Https::watch(&server, path);
    let mut second = Https::connect(&server);
    let (status, answer) = second.call("GET", path, "").unwrap();
    assert_eq!(status, 429, "{answer}");
    drop(first);
}

#[test]
fn connections_above_the_limit_wait_for_one_to_end() {
    let flags = ["--api-max-connections", "1"];
    let server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    let mut first = Https::connect(&server);
    first.call("GET", "/healthz", "").unwrap();
    // It is in the kernel's queue, and has its time to be served too.
    let mut second = Https::connect(&server);
    second.be_patient_for(Duration::from_secs(1));
    assert_eq!(second.call("GET", "/healthz", ""), None);
    drop(first);
    second.be_patient_for(Duration::from_secs(20));
    let (status, answer) = second.call("GET", "/healthz", "").unwrap();
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_server_on_all_addresses_is_reached_through_its_kubeconfig() {
    let flags = ["--listen", "0.0.0.0:0"];
    let server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    assert!(
        server.announced.contains("https://127.0.0.1:"),
        "{}",
        server.announced
    );
    server.kubectl("get sandboxes").ok();
    // From elsewhere, only the address changes.
    let text = std::fs::read_to_string(server.data().join("kubeconfig")).unwrap();
    server.write("copy", &text.replace("127.0.0.1", "127.0.0.2"));
    server.kubectl("get sandboxes --kubeconfig copy").ok();
    server.run("get sandboxes --kubeconfig copy").ok();
}

#[test]
fn help_and_version_teach() {
    let home = tempfile::tempdir().unwrap();
    let help = run(dormouse(home.path()).arg("--help"), "").ok();
    assert!(
        help.contains("Examples:") && help.contains("dormouse serve"),
        "{help}"
    );
    for command in [
        "serve", "get", "describe", "apply", "delete", "watch", "config",
    ] {
        let help = run(dormouse(home.path()).args([command, "--help"]), "").ok();
        assert!(help.contains("Example"), "{command}: {help}");
    }
    let version = run(dormouse(home.path()).arg("version"), "").ok();
    assert_eq!(version, format!("dormouse {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&mut dormouse(home.path()), "").code, Some(2));
}
