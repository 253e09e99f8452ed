//! Hooks of templates and pools, in real sandboxes of a real server.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::{
    sandboxes::{json as parsed, start, until},
    server::Server,
    swaps::clear,
};

fn apply(server: &Server, kind: &str, name: &str, spec: &Value) {
    let text = json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    });
    server.run_with("apply -f -", &text.to_string()).ok();
}

/// A template of the base image with a small web server, and these hooks.
fn template(server: &Server, name: &str, hooks: &Value) {
    let serve = "mkdir -p /tmp/www; echo ok > /tmp/www/ready; \
                 exec busybox httpd -f -p 127.0.0.1:8099 -h /tmp/www";
    let spec = json!({
        "image": "base", "imagePullPolicy": "Never", "user": "user", "hooks": hooks,
        "startCommand": ["/bin/sh", "-c", serve],
        "readyCommand": ["/bin/sh", "-c", "busybox wget -q -O /dev/null http://127.0.0.1:8099/ready"],
    });
    apply(server, "SandboxTemplate", name, &spec);
}

fn shell(script: &str) -> Value {
    json!({"command": ["/bin/sh", "-c", script]})
}

fn said(server: &Server, id: &str, path: &str) -> String {
    server.run(&format!("sandbox exec {id} cat {path}")).ok()
}

fn idle(server: &Server, pool: &str) {
    until("the pool is filled", || {
        let pool = parsed(&server.run(&format!("get sandboxpool {pool} -o json")).ok());
        (pool["status"]["idle"] == 1).then_some(())
    });
}

#[test]
fn hooks_run_for_every_delivery_before_its_owner_hears_of_it_and_not_for_a_wake() {
    let server = start();
    template(
        &server,
        "hooked",
        &json!([
            {"name": "greet", "required": true, "exec": shell("echo $GREETING by $(id -un) >> /tmp/greeted")},
            {"name": "serves", "required": true, "retries": 5, "http": {"port": 8099, "path": "/ready"}},
        ]),
    );
    let create = |of: &str| {
        let words = format!("sandbox create {of} --env GREETING=hello");
        server.run(&words).ok().trim().to_owned()
    };
    let cold = create("hooked");
    assert_eq!(said(&server, &cold, "/tmp/greeted"), "hello by user\n");
    for words in ["pause", "resume"] {
        server.run(&format!("sandbox {words} {cold}")).ok();
    }
    assert_eq!(
        said(&server, &cold, "/tmp/greeted"),
        "hello by user\n",
        "once"
    );
    server.run(&format!("sandbox kill {cold}")).ok();

    // A pool's hook takes the place of its template's, and others come after it.
    let pool = json!({
        "template": "hooked", "minIdle": 1, "maxIdle": 1, "max": 1, "recyclePolicy": "Recycle",
        "whenEmpty": "Queue",
        "hooks": [
            {"name": "greet", "exec": {"command": ["/bin/sh", "-c", "echo $FROM > /tmp/greeted"],
                "user": "root", "env": {"FROM": "the pool"}}},
            {"name": "after", "exec": shell("cp /tmp/greeted /tmp/after")},
        ],
    });
    apply(&server, "SandboxPool", "warm", &pool);
    for _ in 0..2 {
        idle(&server, "warm");
        let warm = create("warm");
        assert_eq!(said(&server, &warm, "/tmp/after"), "the pool\n");
        server.run(&format!("sandbox kill {warm}")).ok();
    }
    clear(&server);
    server.stop();
}

#[test]
fn a_hook_that_fails_is_told_by_its_name_and_only_a_required_one_keeps_the_sandbox_back() {
    let server = start();
    let optional = json!({"name": "seed", "retries": 1, "exec": shell("echo no data >&2; exit 3")});
    template(&server, "optional", &json!([optional]));
    let id = server.run("sandbox create optional").ok().trim().to_owned();
    // Its owner may hear that it is ready before its record says so.
    let told = until("its record says how it went", || {
        let record = parsed(&server.run(&format!("get sandbox {id} -o json")).ok());
        let conditions = record["status"]["conditions"].as_array()?.clone();
        let told = conditions
            .into_iter()
            .find(|c| c["type"] == "HooksSucceeded")?;
        Some(told["message"].as_str()?.to_owned())
    });
    assert!(
        told.contains("hook \"seed\" failed: exit status 3: no data"),
        "{told}"
    );
    until("the warning", || {
        let told = server.run(&format!("describe sandbox {id}")).ok();
        told.contains("HookFailed").then_some(())
    });
    server.run(&format!("sandbox kill {id}")).ok();

    for (name, hook, parts) in [
        (
            "failing",
            json!({"exec": shell("echo no data >&2; exit 3"), "retries": 1}),
            [
                "hook \"failing\" failed",
                "exit status 3: no data (the last of 2 tries)",
            ],
        ),
        (
            "stuck",
            json!({"exec": shell("sleep 1000"), "timeoutSeconds": 1, "retries": 0}),
            ["hook \"stuck\" failed", "1 s"],
        ),
        (
            "refused",
            json!({"http": {"port": 8099, "path": "/nothing"}, "retries": 4}),
            ["hook \"refused\" failed", "port 8099 answered 404"],
        ),
        (
            "closed",
            json!({"http": {"port": 8098}, "retries": 0}),
            ["hook \"closed\" failed", "port 8098"],
        ),
    ] {
        let mut hook = hook;
        hook["name"] = name.into();
        hook["required"] = true.into();
        template(&server, name, &json!([hook]));
        let words = format!("sandbox create {name}");
        server.run(&words).failed_saying(&parts);
    }
    assert_eq!(server.run("sandbox ls -q").ok(), "", "nothing is left");
    let wrong = json!({"apiVersion": "dormouse.dev/v1alpha1", "kind": "SandboxTemplate",
        "metadata": {"name": "wrong"},
        "spec": {"image": "base", "hooks": [{"name": "both", "exec": shell("true"), "http": {"port": 1}}]}});
    let refused = server.run_with("apply -f -", &wrong.to_string());
    refused.failed_saying(&["spec.hooks[0]", "leave out one of exec and http"]);
    clear(&server);
    server.stop();
}

#[test]
fn a_server_that_dies_between_a_claim_and_its_being_ready_leaves_nobody_an_owner() {
    let server = start();
    template(&server, "slow", &json!([]));
    let pool = json!({
        "template": "slow", "minIdle": 1, "maxIdle": 1, "max": 2, "recyclePolicy": "Recycle",
        "hooks": [{"name": "slow", "required": true, "exec": shell("sleep 30")}],
    });
    apply(&server, "SandboxPool", "warm", &pool);
    idle(&server, "warm");
    let mut waits = server
        .program(&["sandbox", "create", "warm"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let owned = |server: &Server| {
        let all = parsed(&server.run("get sandboxes -o json").ok());
        let owned = all["items"].as_array().unwrap().iter();
        let owned = owned.filter(|s| s["spec"]["owner"].is_object()).cloned();
        owned.collect::<Vec<Value>>()
    };
    let claimed = until("it is claimed", || owned(&server).pop());
    assert_eq!(claimed["status"]["phase"], "Idle", "it is not ready");
    let home = server.kill();
    assert!(!waits.wait().unwrap().success(), "nobody was told of it");
    let server = Server::start_with(home, &["--runtime", "local"]);
    until("nobody owns it", || owned(&server).is_empty().then_some(()));
    until("it is gone, as it was not proven clean", || {
        let all = parsed(&server.run("get sandboxes -o json").ok());
        let uids = all["items"].as_array().unwrap().iter();
        let mut uids = uids.map(|s| &s["metadata"]["uid"]);
        (!uids.any(|uid| *uid == claimed["metadata"]["uid"])).then_some(())
    });
    idle(&server, "warm");
    assert_eq!(server.run("sandbox ls -q").ok(), "");
    until("nothing of it is left", || {
        let kept = std::fs::read_dir(server.data().join("sandboxes")).unwrap();
        (kept.count() == 1).then_some(())
    });
    clear(&server);
    server.stop();
}
