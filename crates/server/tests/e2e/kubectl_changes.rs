//! Stock kubectl with the kubeconfig as it is written: changing.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::server::{FIVE, Server, sandbox};

fn object(server: &Server, words: &str) -> Value {
    serde_json::from_str(&server.kubectl(&format!("get {words} -o json")).ok()).unwrap()
}

#[test]
fn kubectl_applies() {
    let server = Server::start();
    server.write("five.yaml", FIVE);
    let dry = server.kubectl("apply --dry-run=server -f five.yaml").ok();
    assert_eq!(dry.matches("created (server dry run)").count(), 5, "{dry}");
    assert_eq!(server.kubectl("get sbx -o name").ok(), "");

    let applied = server.kubectl("apply -f five.yaml").ok();
    assert_eq!(applied.matches(" created\n").count(), 5, "{applied}");
    let applied = server.kubectl("apply -f five.yaml").ok();
    assert_eq!(applied.matches(" unchanged\n").count(), 5, "{applied}");
    server.write("five.yaml", &FIVE.replace("maxIdle: 2", "maxIdle: 3"));
    let applied = server.kubectl("apply -f five.yaml").ok();
    assert_eq!(applied.matches(" unchanged\n").count(), 4, "{applied}");
    assert!(
        applied.contains("sandboxpool.dormouse.dev/warm configured\n"),
        "{applied}"
    );
    let pool = object(&server, "sbp warm");
    assert_eq!(
        (&pool["spec"]["maxIdle"], &pool["metadata"]["generation"]),
        (&3.into(), &2.into())
    );

    let diff = server.kubectl("diff -f five.yaml");
    assert_eq!(
        (diff.code, diff.stdout.as_str()),
        (Some(0), ""),
        "{}",
        diff.stderr
    );
    server.kubectl("delete -f five.yaml").ok();
    assert_eq!(server.kubectl("get dormouse -A -o name").ok(), "");
    server.stop();
}

#[test]
fn kubectl_is_refused_by_field_and_nothing_is_written() {
    let server = Server::start();
    let unknown = format!("{}  nonsense: 1\n", sandbox("one"));
    server
        .kubectl_with("apply -f -", &unknown)
        .failed_saying(&["spec.nonsense"]);
    let wrong = sandbox("one").replace("template: base", "template: 7");
    server
        .kubectl_with("apply -f -", &wrong)
        .failed_saying(&["spec.template"]);
    let value = format!("{}  desiredState: Asleep\n", sandbox("one"));
    server
        .kubectl_with("apply --validate=false -f -", &value)
        .failed_saying(&["desiredState"]);
    server
        .kubectl_with("create -f -", &sandbox("Bad_Name"))
        .failed_saying(&["metadata.name"]);
    let huge = format!(
        "{}  env: {{A: \"{}\"}}\n",
        sandbox("one"),
        "x".repeat(2 << 20)
    );
    server.write("huge.yaml", &huge);
    server
        .kubectl("create -f huge.yaml")
        .failed_saying(&["limit"]);
    assert_eq!(server.kubectl("get sbx -o name").ok(), "");

    server.kubectl_with("create -f -", &sandbox("one")).ok();
    server
        .kubectl_with("create -f -", &sandbox("one"))
        .failed_saying(&["AlreadyExists"]);
    // A stale version.
    let stale = server.kubectl("get sbx one -o yaml").ok();
    server.kubectl("label sbx one a=b").ok();
    server
        .kubectl_with("replace -f -", &stale)
        .failed_saying(&["Conflict"]);
    server
        .kubectl_with("apply --server-side -f -", &sandbox("one"))
        .failed_saying(&["Server-side apply not available on the server"]);
    server.stop();
}

#[test]
fn kubectl_patches_labels_and_annotates() {
    let server = Server::start();
    server.kubectl_with("create -f -", FIVE).ok();
    let one = || object(&server, "sbx one");
    server
        .kubectl("patch sbx one --type=merge -p {\"spec\":{\"env\":{\"A\":\"1\"}}}")
        .ok();
    assert_eq!(one()["spec"]["env"]["A"], "1");
    let operations =
        r#"[{"op":"test","path":"/spec/env/A","value":"1"},{"op":"remove","path":"/spec/env/A"}]"#;
    server
        .kubectl(&format!("patch sbx one --type=json -p {operations}"))
        .ok();
    assert_eq!(one()["spec"]["env"]["A"], Value::Null);
    server
        .kubectl(&format!("patch sbx one --type=json -p {operations}"))
        .failed_saying(&["/spec/env/A"]);
    server
        .kubectl("patch sbx one --type=merge -p {\"spec\":{\"nonsense\":1}}")
        .failed_saying(&["nonsense"]);

    server.kubectl("label sbx one tier=gold").ok();
    server
        .kubectl("label sbx one tier=silver")
        .failed_saying(&["overwrite"]);
    server
        .kubectl("label sbx one tier=silver --overwrite team-")
        .ok();
    server
        .kubectl("annotate sbx one example.test/note=hello")
        .ok();
    let metadata = one()["metadata"].clone();
    assert_eq!(metadata["labels"], serde_json::json!({"tier": "silver"}));
    assert_eq!(metadata["annotations"]["example.test/note"], "hello");
    server.kubectl("label sbx one bad/label/key=1").failed();
    server.stop();
}

#[test]
fn kubectl_edits_through_an_editor() {
    let server = Server::start();
    server.kubectl_with("create -f -", &sandbox("one")).ok();
    server.write(
        "editor",
        "#!/bin/sh\nsed -i 's/^spec:/spec:\\n  desiredState: Paused/' \"$1\"\n",
    );
    let editor = server.home.path().join("editor");
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = server.kubectl_command();
    command
        .env("KUBE_EDITOR", &editor)
        .args(["edit", "sbx", "one"]);
    let edited = crate::server::run(&mut command, "").ok();
    assert_eq!(edited, "sandbox.dormouse.dev/one edited\n");
    assert_eq!(object(&server, "sbx one")["spec"]["desiredState"], "Paused");
}

#[test]
fn kubectl_deletes_by_name_label_and_all() {
    let server = Server::start();
    for name in ["a", "b", "c", "d"] {
        let text = sandbox(name);
        server.kubectl_with("create -f -", &text).ok();
    }
    server.kubectl("label sbx b c doomed=yes").ok();
    let deleted = server.kubectl("delete sbx a").ok();
    assert!(deleted.contains("\"a\" deleted"), "{deleted}");
    server.kubectl("delete sbx -l doomed=yes").ok();
    assert_eq!(
        server.kubectl("get sbx -o name").ok(),
        "sandbox.dormouse.dev/d\n"
    );
    server.kubectl("delete sbx --all").ok();
    assert_eq!(server.kubectl("get sbx -o name").ok(), "");
    server.kubectl("delete sbx a").failed_saying(&["NotFound"]);
    server.kubectl("delete sbx a --ignore-not-found").ok();

    let held = sandbox("held").replace(
        "name: held",
        "name: held\n  finalizers: [example.test/hold]",
    );
    server.kubectl_with("create -f -", &held).ok();
    server.kubectl("delete sbx held --wait=false").ok();
    assert!(object(&server, "sbx held")["metadata"]["deletionTimestamp"].is_string());
    server
        .kubectl(
            "patch sbx held --type=json -p [{\"op\":\"remove\",\"path\":\"/metadata/finalizers\"}]",
        )
        .ok();
    server.kubectl("get sbx held").failed_saying(&["NotFound"]);
}

#[test]
fn kubectl_changes_the_status_half_only_through_its_subresource() {
    let server = Server::start();
    server.kubectl_with("create -f -", &sandbox("one")).ok();
    let patch = "{\"status\":{\"phase\":\"Running\"}}";
    server
        .kubectl(&format!("patch sbx one --type=merge -p {patch}"))
        .ok();
    assert_eq!(object(&server, "sbx one")["status"]["phase"], "Pending");
    server
        .kubectl(&format!(
            "patch sbx one --subresource=status --type=merge -p {patch}"
        ))
        .ok();
    assert_eq!(object(&server, "sbx one")["status"]["phase"], "Running");
    server
        .kubectl("wait sbx/one --for=jsonpath={.status.phase}=Running --timeout=60s")
        .ok();
}
