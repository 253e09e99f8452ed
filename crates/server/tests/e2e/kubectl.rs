//! Stock kubectl with the kubeconfig as it is written: looking.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::server::{FIVE, Server, sandbox};

#[test]
fn kubectl_discovers_the_kinds_and_explains_them() {
    let server = Server::start();
    let resources = server
        .kubectl("api-resources --api-group=dormouse.dev")
        .ok();
    for line in [
        "sandboxclaims sbc dormouse.dev/v1alpha1 true SandboxClaim",
        "sandboxes sbx dormouse.dev/v1alpha1 true Sandbox",
        "sandboxpools sbp dormouse.dev/v1alpha1 true SandboxPool",
        "sandboxsnapshots sbs dormouse.dev/v1alpha1 true SandboxSnapshot",
        "sandboxtemplates sbt dormouse.dev/v1alpha1 false SandboxTemplate",
    ] {
        let found = resources
            .lines()
            .any(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        assert!(found, "no {line} in {resources}");
    }
    let versions = server.kubectl("api-versions").ok();
    assert!(versions.contains("dormouse.dev/v1alpha1\n"), "{versions}");
    server.kubectl("version").ok();

    let explained = server.kubectl("explain sandbox.spec").ok();
    for part in [
        "Sandbox",
        "dormouse.dev",
        "v1alpha1",
        "template",
        "desiredState",
        "wakeOnTraffic",
    ] {
        assert!(explained.contains(part), "no {part} in {explained}");
    }
    let field = server.kubectl("explain sbx.spec.desiredState").ok();
    assert!(field.contains("Awake or asleep"), "{field}");
    let all = server.kubectl("explain sandboxpools --recursive").ok();
    assert!(all.contains("minIdle"), "{all}");
    server
        .kubectl("explain sandbox.spec.nonsense")
        .failed_saying(&["nonsense"]);
}

#[test]
fn kubectl_gets_in_every_form() {
    let server = Server::start();
    server.kubectl_with("create -f -", FIVE).ok();
    let table = server.kubectl("get sandboxes").ok();
    assert!(table.starts_with("NAME   PHASE"), "{table}");
    assert!(table.contains("one    Pending"), "{table}");
    let wide = server.kubectl("get sbx one -o wide").ok();
    assert!(wide.len() > table.len(), "{wide}");
    let yaml = server.kubectl("get sbx one -o yaml").ok();
    assert!(yaml.contains("GREETING: \"yes\""), "{yaml}");
    let json: Value = serde_json::from_str(&server.kubectl("get sbx one -o json").ok()).unwrap();
    assert_eq!(json["spec"]["env"]["GREETING"], "yes");
    assert_eq!(
        server.kubectl("get sbx -o name").ok(),
        "sandbox.dormouse.dev/one\n"
    );
    assert_eq!(
        server
            .kubectl("get sbx one -o jsonpath={.spec.template}")
            .ok(),
        "base"
    );
    let columns = server
        .kubectl("get sbx -o custom-columns=N:.metadata.name,P:.status.phase")
        .ok();
    assert_eq!(columns, "N     P\none   Pending\n");
    let all = server
        .kubectl("get sbx -A --show-labels --sort-by=.metadata.name")
        .ok();
    assert!(
        all.contains("default") && all.contains("team=blue"),
        "{all}"
    );
    let chosen = server
        .kubectl("get sbx -l team=blue --field-selector metadata.name=one -o name")
        .ok();
    assert_eq!(chosen, "sandbox.dormouse.dev/one\n");
    let both = server.kubectl("get sbx,sbp -o name").ok();
    assert_eq!(both.lines().count(), 2, "{both}");
    let group = server.kubectl("get dormouse -o name").ok();
    assert_eq!(group.lines().count(), 5, "by category: {group}");
    let described = server.kubectl("describe sbx one").ok();
    for part in [
        "Name:         one",
        "Template:    base",
        "Phase:",
        "Events:",
    ] {
        assert!(described.contains(part), "no {part} in {described}");
    }
    server.kubectl("get events").ok();
    server
        .kubectl("get sbx nothing")
        .failed_saying(&["NotFound", "\"nothing\" not found"]);
    server.kubectl("get pods").failed_saying(&["pods"]);
    server.kubectl("get --raw /healthz").ok();
    server.kubectl("get --raw /readyz").ok();
    server.stop();
}

#[test]
fn kubectl_watches() {
    let server = Server::start();
    server.kubectl_with("create -f -", &sandbox("one")).ok();
    let mut child = server
        .kubectl_command()
        .args(["get", "sbx", "-w", "--output-watch-events"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || {
        let line = lines.next().unwrap().unwrap();
        line.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(next(), "EVENT NAME");
    assert_eq!(next(), "ADDED one");
    server.kubectl_with("create -f -", &sandbox("two")).ok();
    assert_eq!(next(), "ADDED two");
    server.kubectl("annotate sbx two a=b").ok();
    assert_eq!(next(), "MODIFIED two");
    server.kubectl("delete sbx one").ok();
    assert_eq!(next(), "DELETED one");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn kubectl_waits_for_a_value_and_for_the_end() {
    let server = Server::start();
    server.kubectl_with("create -f -", &sandbox("one")).ok();
    let words = "wait sbx/one --for=jsonpath={.spec.desiredState}=Paused --timeout=200s";
    let value = server.kubectl_command().args(words.split(' ')).spawn();
    let end = server
        .kubectl_command()
        .args("wait sbx/one --for=delete --timeout=200s".split(' '))
        .spawn();
    let (mut value, mut end) = (value.unwrap(), end.unwrap());
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(value.try_wait().unwrap().is_none(), "it is not so yet");
    server
        .kubectl("patch sbx one --type=merge -p {\"spec\":{\"desiredState\":\"Paused\"}}")
        .ok();
    assert!(value.wait().unwrap().success());
    assert!(end.try_wait().unwrap().is_none(), "it is still there");
    server.kubectl("delete sbx one --wait=false").ok();
    assert!(end.wait().unwrap().success());
    server
        .kubectl("wait sbx/one --for=jsonpath={.status.phase}=Running --timeout=1s")
        .failed_saying(&["not found"]);
}
