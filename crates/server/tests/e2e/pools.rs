//! Pools that follow demand, stay within quotas, and survive what clients get wrong.

use serde_json::{Value, json};

use crate::{
    sandboxes::{json as parsed, until},
    server::Server,
};

fn start() -> Server {
    Server::start_with(tempfile::tempdir().unwrap(), &["--runtime", "fake"])
}

fn pool(name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": {"name": name}, "spec": spec,
    })
    .to_string()
}

fn claim(name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": "SandboxClaim",
        "metadata": {"name": name}, "spec": spec,
    })
    .to_string()
}

fn get(server: &Server, what: &str) -> Value {
    parsed(&server.run(&format!("get {what} -o json")).ok())
}

#[test]
fn a_burst_of_claims_raises_a_pool_and_quiet_lowers_it_across_a_restart() {
    let server = start();
    let mut spec = json!({
        "template": "base", "minIdle": 1, "maxIdle": 8, "max": 20,
        "autoscale": {
            "upCooldownSeconds": 1, "downCooldownSeconds": 3600,
            "claimRate": {"windowSeconds": 1, "coverSeconds": 0},
        },
    });
    server.run_with("apply -f -", &pool("busy", &spec)).ok();
    let status = |server: &Server| get(server, "sbp busy")["status"].take();
    until("one idle member", || {
        (status(&server)["idle"] == 1).then_some(())
    });
    let burst = json!({"pool": "busy", "count": 6});
    server.run_with("apply -f -", &claim("burst", &burst)).ok();
    let raised = until("more are kept idle", || {
        let status = status(&server);
        let kept = status["autoscale"]["minIdle"].as_u64().unwrap();
        (kept > 1 && status["idle"] == kept && status["claimed"] == 6).then_some(status)
    });
    assert_eq!(raised["autoscale"]["reason"], "Queue", "{raised}");
    until("that it was raised is told", || {
        let told = server.run("describe sbp busy").ok();
        told.contains("ScaledUp").then_some(())
    });

    // What it knows is in its record.
    let server = Server::start_with(server.kill(), &["--runtime", "fake"]);
    spec["autoscale"]["downCooldownSeconds"] = json!(2);
    server.run_with("apply -f -", &pool("busy", &spec)).ok();
    let lowered = until("what is kept is as before", || {
        let status = status(&server);
        let kept = &status["autoscale"]["minIdle"];
        (*kept == 1 && status["idle"] == 1).then_some(status)
    });
    assert_eq!(lowered["claimed"], 6, "nobody's sandbox went: {lowered}");
    assert_eq!(lowered["autoscale"]["reason"], "Quiet", "{lowered}");
    until("that it was lowered is told", || {
        let told = server.run("describe sbp busy").ok();
        told.contains("ScaledDown").then_some(())
    });
    server.stop();
}

#[test]
fn a_claim_for_more_than_its_team_may_have_gets_what_is_left_and_the_rest_later() {
    let server = start();
    server.run("key create ci -n blue --new-team").ok();
    let quota = |most: u32| {
        let patch = format!("{{\"spec\":{{\"quotas\":{{\"sandboxes\":{most}}}}}}}");
        server
            .kubectl(&format!("patch team blue --type=merge -p {patch}"))
            .ok();
    };
    quota(6);
    let spec = json!({"template": "base", "minIdle": 8, "maxIdle": 8, "max": 20});
    server
        .run_with("apply -n blue -f -", &pool("wide", &spec))
        .ok();
    let status = |what: &str| get(&server, &format!("{what} -n blue"))["status"].take();
    // No more wait than the team could ever have.
    let limited = until("as many members as the quota", || {
        let status = status("sbp wide");
        (status["idle"] == 6 && status["why"].is_string()).then_some(status)
    });
    let why = limited["why"].as_str().unwrap();
    assert!(why.starts_with("team-quota admits "), "{why}");
    let wanted = json!({"pool": "wide", "count": 8, "timeoutSeconds": 600});
    server
        .run_with("apply -n blue -f -", &claim("eight", &wanted))
        .ok();
    let bound = |status: &Value| status["bound"].as_array().map_or(0, Vec::len);
    let part = until("six of eight", || {
        let status = status("sbc eight");
        (bound(&status) == 6 && status["reason"] == "Limited").then_some(status)
    });
    let said = part["conditions"].as_array().unwrap();
    let said = said.iter().find(|c| c["type"] == "Admitted").unwrap();
    assert_eq!(said["status"], "False");
    let message = said["message"].as_str().unwrap();
    assert!(
        message.starts_with("team-quota: the team may have 6 sandboxes"),
        "{message}"
    );
    let told = server.run("describe sbc eight -n blue").ok();
    assert!(told.contains("Limited"), "{told}");
    server
        .run("sandbox create -n blue")
        .failed_saying(&["may have 6 sandboxes"]);
    // More is allowed: the rest comes by itself.
    quota(8);
    let all = until("all eight", || {
        let status = status("sbc eight");
        (status["phase"] == "Completed").then_some(status)
    });
    assert_eq!((bound(&all), &all["reason"]), (8, &json!("Bound")), "{all}");
    server.stop();
}
