//! The whole of it over real containers. They need root; without it these tests fail and say so.

use crate::{
    run::agent,
    server::{FIVE, Server, sandbox},
};

fn start(home: tempfile::TempDir) -> Server {
    agent();
    Server::start_with(home, &["--runtime", "local"])
}

/// The first processes of the sandboxes in a server's data directory.
fn first_processes(server: &Server) -> Vec<i32> {
    let inside = server.data().join("sandboxes");
    let ours = |pid: &i32| {
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let sandboxes = std::fs::read_dir(&inside).into_iter().flatten().flatten();
        sandboxes
            .map(|entry| entry.file_name().into_string().unwrap())
            .any(|uid| mounts.contains(&uid))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| ours(pid))
        .collect()
}

/// Whether it runs. What its host has not buried yet does not.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state.is_some_and(|state| state != b'Z')
}

#[test]
fn a_real_sandbox_sleeps_wakes_outlives_its_server_and_goes_without_a_trace() {
    let server = start(tempfile::tempdir().unwrap());
    let template = FIVE.split("---").next().unwrap();
    let image = template
        .lines()
        .map(|line| match line.split_once("image:") {
            Some((indent, _)) => format!("{indent}image: base"),
            None => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n");
    server.kubectl_with("apply -f -", &image).ok();
    server.kubectl_with("apply -f -", &sandbox("one")).ok();
    let becomes = |server: &Server, phase: &str| {
        let words = format!("wait sbx/one --for=jsonpath={{.status.phase}}={phase} --timeout=120s");
        server.kubectl(&words).ok();
    };
    let wants = |server: &Server, state: &str| {
        let patch = format!("{{\"spec\":{{\"desiredState\":\"{state}\"}}}}");
        let words = format!("patch sbx one --type=merge -p {patch}");
        server.kubectl(&words).ok();
    };
    becomes(&server, "Running");
    let alive = first_processes(&server);
    assert!(!alive.is_empty(), "it is a process");
    wants(&server, "Paused");
    becomes(&server, "Paused");

    let server = start(server.kill());
    becomes(&server, "Paused");
    wants(&server, "Running");
    becomes(&server, "Running");
    assert_eq!(first_processes(&server), alive, "the same processes go on");

    server.run("delete sbx one").ok();
    assert!(!alive.into_iter().any(is_alive), "nothing of it runs");
    server.stop();
}
