//! What clients get wrong about pools and claims: each mistake is told by the name of its field, a
//! pool beside it keeps serving, and nothing is left behind.

use std::process::Command;

use serde_json::{Value, json};

use crate::{
    sandboxes::{json as parsed, start, until},
    server::{Server, run},
};

fn object(kind: &str, name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
    .to_string()
}

fn status(server: &Server, what: &str) -> Value {
    parsed(&server.run(&format!("get {what} -o json")).ok())["status"].take()
}

/// What the server answers to an object, as a status code and a body.
fn post(server: &Server, path: &str, body: &str) -> (String, Value) {
    server.write("body.json", body);
    let token = std::fs::read_to_string(server.data().join("token")).unwrap();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--write-out", "\n%{http_code}"])
        .arg("--cacert")
        .arg(server.data().join("pki/ca.crt"))
        .args(["-H", &format!("Authorization: Bearer {}", token.trim())])
        .args(["-H", "Content-Type: application/json"])
        .arg("--data-binary")
        .arg(format!(
            "@{}",
            server.home.path().join("body.json").display()
        ))
        .arg(format!(
            "https://localhost:{}/apis/dormouse.dev/v1alpha1/namespaces/default/{path}",
            server.port()
        ));
    let said = run(&mut curl, "").ok();
    let (body, code) = said.rsplit_once('\n').unwrap();
    (code.to_owned(), parsed(body))
}

fn fields(answer: &Value) -> Vec<&str> {
    let causes = answer["details"]["causes"].as_array();
    let causes = causes.map_or(&[][..], Vec::as_slice);
    causes.iter().filter_map(|c| c["field"].as_str()).collect()
}

#[test]
fn each_mistake_is_told_and_the_pool_beside_it_keeps_serving() {
    let server = start();
    let good = json!({"template": "base", "minIdle": 1, "maxIdle": 1, "max": 4});
    server
        .run_with("apply -f -", &object("SandboxPool", "good", &good))
        .ok();
    let serves = || {
        let id = server.run("sandbox create good").ok().trim().to_owned();
        server.run(&format!("sandbox exec {id} true")).ok();
        server.run(&format!("sandbox kill {id}")).ok();
    };
    let with = |change: Value| {
        let mut spec = good.clone();
        for (field, value) in change.as_object().unwrap() {
            spec[field] = value.clone();
        }
        object("SandboxPool", "bad", &spec)
    };
    let without = object(
        "SandboxPool",
        "bad",
        &json!({"minIdle": 1, "maxIdle": 1, "max": 1}),
    );
    let cron = json!({"schedules": [{"cron": "at noon", "durationSeconds": 600, "minIdle": 1}]});
    for (what, body, code, field) in [
        ("no template", without, "422", "spec.template"),
        (
            "no range",
            with(json!({"minIdle": 3})),
            "422",
            "spec.minIdle",
        ),
        ("max below", with(json!({"max": 0})), "422", "spec.maxIdle"),
        (
            "no crontab",
            with(json!({"autoscale": cron})),
            "422",
            "spec.autoscale.schedules[0].cron",
        ),
        (
            "no such field",
            with(json!({"warm": 1})),
            "400",
            "spec.warm",
        ),
    ] {
        let (answered, said) = post(&server, "sandboxpools?fieldValidation=Strict", &body);
        assert_eq!(answered, code, "{what}: {said}");
        assert!(fields(&said).contains(&field), "{what}: {said}");
        serves();
    }
    // Ten megabytes of environment, by both doors.
    let env = json!({"A": "x".repeat(10 << 20)});
    let claim = object(
        "SandboxClaim",
        "large",
        &json!({"pool": "good", "env": env}),
    );
    let (answered, said) = post(&server, "sandboxclaims", &claim);
    assert_eq!(
        (answered.as_str(), &said["reason"]),
        ("413", &json!("RequestEntityTooLarge"))
    );
    let body = json!({"templateID": "good", "envVars": env}).to_string();
    server.write("create.json", &body);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--write-out", "\n%{http_code}"])
        .args([
            "-H",
            &format!("X-API-Key: {}", server.exported("E2B_API_KEY")),
        ])
        .args(["-H", "Content-Type: application/json"])
        .arg("--data-binary")
        .arg(format!(
            "@{}",
            server.home.path().join("create.json").display()
        ))
        .arg(format!("{}/sandboxes", server.exported("E2B_API_URL")));
    let said = run(&mut curl, "").ok();
    assert!(said.ends_with("\n413"), "{said}");
    serves();

    // Another team's pool is like none.
    server.run("key create ci -n blue --new-team").ok();
    let foreign = object(
        "SandboxClaim",
        "foreign",
        &json!({"pool": "good", "timeoutSeconds": 1}),
    );
    server.run_with("apply -n blue -f -", &foreign).ok();
    let told = until("why it waits, or has ended", || {
        let status = status(&server, "sbc foreign -n blue");
        (status["reason"] == "NoSuchPool" || status["phase"] == "Completed").then_some(status)
    });
    assert!(told["bound"].is_null(), "{told}");
    server
        .run("sandbox create good -n blue")
        .failed_saying(&["good"]);
    let ended = until("its time is over", || {
        let status = status(&server, "sbc foreign -n blue");
        (status["phase"] == "Completed").then_some(status)
    });
    assert_eq!(ended["reason"], "TimedOut");
    serves();

    let all = server.run("get sbp -A").ok();
    assert!(!all.contains("bad"), "{all}");
    assert_eq!(server.run("sandbox ls -q").ok(), "");
    server.stop();
}

#[test]
fn a_pool_whose_members_cannot_be_made_tries_less_and_less_and_says_why() {
    let server = start();
    let good = json!({"template": "base", "minIdle": 1, "maxIdle": 1, "max": 2});
    server
        .run_with("apply -f -", &object("SandboxPool", "good", &good))
        .ok();
    // A template that does not exist is waited for.
    let mut spec = json!({"template": "later", "minIdle": 2, "maxIdle": 2, "max": 4});
    server
        .run_with("apply -f -", &object("SandboxPool", "early", &spec))
        .ok();
    let why = until("what it lacks", || {
        let why = status(&server, "sbp early")["why"].take();
        why.as_str().map(str::to_owned)
    });
    assert!(why.contains("template later does not exist"), "{why}");
    // So is one whose image does not exist.
    let image = json!({"image": "no-such-image", "imagePullPolicy": "Never"});
    server
        .run_with("apply -f -", &object("SandboxTemplate", "later", &image))
        .ok();
    let failing = until("it has failed more than once", || {
        let status = status(&server, "sbp early");
        (status["failing"]["times"].as_u64()? >= 2).then_some(status)
    });
    let message = failing["failing"]["message"].as_str().unwrap();
    assert!(message.contains("no-such-image"), "{message}");
    let told = server.run("describe sbp early").ok();
    assert!(told.contains("MembersFail"), "{told}");
    // They are few, however long it goes on.
    assert!(failing["total"].as_u64().unwrap() <= 4, "{failing}");
    // The one beside it serves meanwhile.
    let id = server.run("sandbox create good").ok().trim().to_owned();
    server.run(&format!("sandbox kill {id}")).ok();
    // Put right, it is as any other, at once.
    spec["template"] = "base".into();
    server
        .run_with("apply -f -", &object("SandboxPool", "early", &spec))
        .ok();
    until("two idle members", || {
        let status = status(&server, "sbp early");
        (status["idle"] == 2 && status["failing"].is_null()).then_some(())
    });
    server.run("delete sbp early good").ok();
    until("nothing is left", || {
        let left = server.run("get sandboxes -A -o json").ok();
        parsed(&left)["items"].as_array()?.is_empty().then_some(())
    });
    server.stop();
}
