//! Commands of templates, in real sandboxes of a real server.

use crate::{
    sandboxes::{json, start, until},
    server::Server,
};

fn template(server: &Server, name: &str, start: &str, ready: &str) {
    let text = serde_json::json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": "SandboxTemplate",
        "metadata": {"name": name},
        "spec": {
            "image": "base", "imagePullPolicy": "Never", "user": "user",
            "env": {"COLOUR": "blue"},
            "startCommand": ["/bin/sh", "-c", start],
            "readyCommand": ["/bin/sh", "-c", ready],
        },
    });
    server.run_with("apply -f -", &text.to_string()).ok();
}

#[test]
fn a_sandbox_is_made_ready_by_its_template_and_keeps_what_its_command_says() {
    let server = start();
    template(
        &server,
        "served",
        "echo x >> ~/starts; echo paint it $COLOUR; sleep 0.5; touch /tmp/up; exec sleep 1000",
        "test -e /tmp/up",
    );
    let id = server.run("sandbox create served").ok().trim().to_owned();
    let starts = |expected: &str| {
        until("it was started so often", || {
            let said = server.run(&format!("sandbox exec {id} cat /tmp/up /home/user/starts"));
            // Until it has run there is no such file.
            (said.code == Some(0) && said.stdout == expected).then_some(())
        });
    };
    starts("x\n");
    let said = || {
        let lines = server.run(&format!("sandbox logs {id} --json")).ok();
        let said: Vec<_> = lines.lines().map(json).collect();
        said.iter()
            .filter(|line| line["fields"]["logger"] == "process")
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until("what it said is kept", || {
        (said() == ["paint it blue"]).then_some(())
    });
    server.run(&format!("sandbox pause {id}")).ok();
    assert_eq!(said(), ["paint it blue"], "also while it sleeps");
    server.run(&format!("sandbox resume {id}")).ok();
    starts("x\n");
    server.run(&format!("sandbox pause {id} --no-memory")).ok();
    server.run(&format!("sandbox resume {id}")).ok();
    starts("x\nx\n");
    until("and what it said next", || {
        (said() == ["paint it blue"; 2]).then_some(())
    });
    server.run(&format!("sandbox kill {id}")).ok();
    server.stop();
}

#[test]
fn a_sandbox_that_cannot_be_made_ready_says_why_and_is_gone() {
    let server = start();
    template(&server, "broken", "echo no port >&2; exit 3", "false");
    server.run("sandbox create broken").failed_saying(&[
        "the sandbox could not be started",
        "its start command failed",
        "exit status 3: no port",
    ]);
    assert_eq!(server.run("sandbox ls -q").ok(), "");
    // A record that nobody removes keeps the reason.
    let text = serde_json::json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": "Sandbox",
        "metadata": {"name": "kept", "namespace": "default"}, "spec": {"template": "broken"},
    });
    server.run_with("apply -f -", &text.to_string()).ok();
    let record = until("its failure", || {
        let record = json(&server.run("get sandbox kept -o json").ok());
        (record["status"]["phase"] == "Failed").then_some(record)
    });
    let conditions = record["status"]["conditions"].as_array().unwrap();
    let booted = conditions.iter().find(|c| c["type"] == "Booted").unwrap();
    assert_eq!(booted["reason"], "StartCommandFailed", "{booted}");
    let events = server.run("describe sandbox kept").ok();
    assert!(events.contains("StartFailed"), "{events}");
    server.stop();
}
