//! Why a sandbox, a pool or a claim is not ready or has ended: one word for each reason, from real
//! failures of real sandboxes.

use serde_json::{Value, json};

use crate::{
    sandboxes::{json as parsed, start, until},
    server::Server,
};

fn apply(server: &Server, kind: &str, name: &str, spec: &Value) {
    let object = json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    });
    server.run_with("apply -f -", &object.to_string()).ok();
}

fn get(server: &Server, what: &str) -> Value {
    parsed(&server.run(&format!("get {what} -o json")).ok())
}

/// What is wrong with an object, in one word and a sentence.
fn trouble(object: &Value) -> Option<(String, String)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let said = conditions.iter().find(|c| c["type"] == "Troubled")?;
    let text = |field: &str| said[field].as_str().unwrap().to_owned();
    Some((text("reason"), text("message")))
}

fn until_trouble(server: &Server, what: &str, word: &str) -> (Value, String) {
    until(&format!("{word} of {what}"), || {
        let object = get(server, what);
        let (said, message) = trouble(&object)?;
        (said == word).then_some((object, message))
    })
}

#[test]
fn a_sandbox_says_why_it_did_not_start() {
    let server = start();
    for (name, image, policy, word, part) in [
        (
            "nowhere",
            "no-such-image",
            "Never",
            "ImageUnusable",
            "no-such-image",
        ),
        (
            "unreachable",
            "127.0.0.1:1/no/such:1",
            "Always",
            "PullBackOff",
            "127.0.0.1:1",
        ),
    ] {
        let spec = json!({"images": {"main": image}, "imagePullPolicy": policy});
        apply(&server, "Sandbox", name, &spec);
        let (_, message) = until_trouble(&server, &format!("sbx {name}"), word);
        assert!(message.contains(part), "{message}");
    }
    let command = json!({
        "image": "base", "imagePullPolicy": "Never",
        "startCommand": ["/bin/sh", "-c", "echo no port >&2; exit 3"], "readyCommand": ["false"],
    });
    apply(&server, "SandboxTemplate", "broken", &command);
    apply(
        &server,
        "Sandbox",
        "crashed",
        &json!({"template": "broken"}),
    );
    let (_, message) = until_trouble(&server, "sbx crashed", "StartCommandFailed");
    assert!(message.contains("no port"), "{message}");
    let failed = until("its failure is told", || {
        let object = get(&server, "sbx crashed");
        let warnings = object["status"]["recentWarnings"].as_array()?.clone();
        (object["status"]["phase"] == "Failed").then_some(warnings)
    });
    assert_eq!(failed[0]["reason"], "StartFailed", "{failed:?}");
    // A list looks at nothing but what it lists.
    let listed = get(&server, "sbx");
    for object in listed["items"].as_array().unwrap() {
        assert!(object["status"]["recentWarnings"].is_null(), "{object}");
    }
    let told = server.run("describe sbx crashed").ok();
    assert!(
        told.contains("Trouble:         StartCommandFailed:"),
        "{told}"
    );
    let hook = json!({
        "image": "base", "imagePullPolicy": "Never",
        "hooks": [{"name": "warm-up", "exec": {"command": ["false"]}, "required": true, "retries": 0}],
    });
    apply(&server, "SandboxTemplate", "hooked", &hook);
    apply(&server, "Sandbox", "cold", &json!({"template": "hooked"}));
    let (_, message) = until_trouble(&server, "sbx cold", "HookFailed");
    assert!(message.contains("warm-up"), "{message}");
    // Again and again, where a pool makes another.
    let spec = json!({"template": "broken", "minIdle": 1, "maxIdle": 1, "max": 1});
    apply(&server, "SandboxPool", "loops", &spec);
    let (_, message) = until_trouble(&server, "sbp loops", "CrashLoop");
    assert!(message.contains("no port"), "{message}");
    server.run("delete sbp loops").ok();
    server.stop();
}

#[test]
fn a_sandbox_whose_memory_ran_out_says_so() {
    let server = start();
    let small = json!({
        "image": "base", "imagePullPolicy": "Never", "user": "user",
        "resources": {"memoryMiB": 64},
    });
    apply(&server, "SandboxTemplate", "small", &small);
    let id = server.run("sandbox create small").ok().trim().to_owned();
    // It keeps all of what it reads.
    let mut hungry = server.program(&[
        "sandbox",
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "head -c 400000000 /dev/zero | tail",
    ]);
    hungry.output().unwrap();
    let (object, message) = until_trouble(&server, &format!("sbx {id}"), "OomKilled");
    assert!(message.contains("memory ran out"), "{message}");
    assert_eq!(object["status"]["phase"], "Running", "the rest goes on");
    assert!(object["status"]["oomKills"].as_u64().unwrap() >= 1);
    let told = server.run(&format!("describe sbx {id}")).ok();
    assert!(told.contains("Trouble:         OomKilled:"), "{told}");
    server.run(&format!("sandbox kill {id}")).ok();
    server.stop();
}

#[test]
fn a_claim_says_that_its_pool_is_at_its_max() {
    let server = start();
    let spec = json!({"template": "base", "minIdle": 1, "maxIdle": 1, "max": 1});
    apply(&server, "SandboxPool", "one", &spec);
    apply(&server, "SandboxClaim", "first", &json!({"pool": "one"}));
    until("it is bound", || {
        (get(&server, "sbc first")["status"]["reason"] == "Bound").then_some(())
    });
    let more = json!({"pool": "one", "timeoutSeconds": 600});
    apply(&server, "SandboxClaim", "second", &more);
    until("it says why it waits", || {
        (get(&server, "sbc second")["status"]["reason"] == "NoCapacity").then_some(())
    });
    let (_, message) = until_trouble(&server, "sbp one", "NoCapacity");
    assert!(message.contains("at its max of 1"), "{message}");
    server.run("delete sbc first second").ok();
    server.run("delete sbp one").ok();
    server.stop();
}
