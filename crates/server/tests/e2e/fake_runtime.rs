//! The whole of it over the fake runtime: intent goes in, observation comes out.

use crate::server::{FIVE, Server, sandbox};

fn start() -> Server {
    Server::start_with(tempfile::tempdir().unwrap(), &["--runtime", "fake"])
}

#[test]
fn a_sandbox_runs_sleeps_wakes_and_goes_and_its_events_tell() {
    let server = start();
    let template = FIVE.split("---").next().unwrap();
    server.kubectl_with("apply -f -", template).ok();
    server.kubectl_with("apply -f -", &sandbox("one")).ok();
    let phase = |phase: &str| {
        let words = format!("wait sbx/one --for=jsonpath={{.status.phase}}={phase} --timeout=120s");
        server.kubectl(&words).ok();
    };
    let desire = |state: &str| {
        let patch = format!("{{\"spec\":{{\"desiredState\":\"{state}\"}}}}");
        server
            .kubectl(&format!("patch sbx one --type=merge -p {patch}"))
            .ok();
    };
    phase("Running");
    desire("Paused");
    phase("Paused");
    desire("Running");
    phase("Running");
    // Both tools show what happened.
    let described = server.kubectl("describe sbx one").ok();
    let (_, events) = described.split_once("Events:").unwrap();
    assert!(events.contains("Normal"), "{described}");
    let described = server.run("describe sbx one").ok();
    let (_, events) = described.split_once("Events:").unwrap();
    assert!(events.contains("Normal"), "{described}");
    assert!(described.contains("Last operation:"), "{described}");
    server.run("delete sbx one").ok();
    server.kubectl("get --raw /readyz").ok();
    server.stop();
}

#[test]
fn a_pool_fills_and_a_claim_is_bound() {
    let server = start();
    let pool = FIVE.replace("minIdle: 0", "minIdle: 2");
    let documents: Vec<&str> = pool.split("---\n").collect();
    server
        .run_with("apply -f -", &[documents[0], documents[1]].join("---\n"))
        .ok();
    server
        .kubectl("wait sbp/warm --for=jsonpath={.status.idle}=2 --timeout=120s")
        .ok();
    server.run_with("apply -f -", documents[3]).ok();
    server
        .kubectl("wait sbc/mine --for=jsonpath={.status.phase}=Completed --timeout=120s")
        .ok();
    server.stop();
}
