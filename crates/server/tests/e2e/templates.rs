//! `dormouse template build`, `ls` and `rm` on a real server, with an image that has nothing but
//! busybox: no bash, no user, no package manager.

use std::{fs, os::unix::fs::symlink, path::Path, process::Stdio};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    run::agent,
    sandboxes::{json, start, until},
    server::{Server, run},
};

/// Where busybox is on the host, statically linked.
const BUSYBOX: &str = "/usr/bin/busybox";

/// An image of busybox, as `docker save` would write it.
fn saved(home: &Path) {
    let (root, saved) = (home.join("root"), home.join("saved"));
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::create_dir(&saved).unwrap();
    for directory in ["tmp", "etc", "root"] {
        fs::create_dir(root.join(directory)).unwrap();
    }
    fs::copy(BUSYBOX, root.join("bin/busybox")).unwrap_or_else(|error| {
        panic!("this test needs {BUSYBOX} (apt-get install busybox-static): {error}")
    });
    for name in [
        "sh", "tar", "mkdir", "cat", "echo", "chown", "chmod", "find", "stat", "dirname", "cp",
        "rm", "sleep", "tail", "date", "id", "pwd", "ls", "test", "[",
    ] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    // An agent that is built for tests is not static.
    let needs = run(std::process::Command::new("ldd").arg(agent()), "").ok();
    for word in needs
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let inside = root.join(&word[1..]);
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::copy(word, inside).unwrap();
    }
    let layer = saved.join("layer.tar");
    let mut pack = std::process::Command::new("tar");
    pack.args(["--owner=0", "--group=0", "-cf"]).arg(&layer);
    run(pack.arg("-C").arg(&root).arg("."), "").ok();
    let sum = Sha256::digest(fs::read(&layer).unwrap());
    let sum: String = sum.iter().map(|b| format!("{b:02x}")).collect();
    let config = json!({
        "architecture": "", "os": "", "config": {"Env": ["PATH=/bin", "OF=image"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
    });
    let list = json!([{"Config": "config.json", "RepoTags": ["small:1"], "Layers": ["layer.tar"]}]);
    for (name, value) in [("config.json", config), ("manifest.json", list)] {
        let text = value.to_string();
        kit::durable::write_file(&saved.join(name), text.as_bytes(), 0o600).unwrap();
    }
}

/// A server with the template `small`, and a context to build from.
fn prepared() -> Server {
    let server = start();
    saved(server.home.path());
    server.run("image import saved --data-dir data").ok();
    let template = json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": "SandboxTemplate",
        "metadata": {"name": "small"},
        "spec": {"image": "small:1", "imagePullPolicy": "Never", "user": "root", "workdir": "/"},
    });
    server.run_with("apply -f -", &template.to_string()).ok();
    fs::create_dir_all(server.home.path().join("context/sub")).unwrap();
    server.write("context/a.txt", "copied");
    server.write("context/sub/b.txt", "below");
    server
}

fn build(server: &Server, name: &str, dockerfile: &str) -> crate::server::Ran {
    server.write("context/Dockerfile", dockerfile);
    server.run(&format!(
        "template build {name} context --from-template small"
    ))
}

#[test]
fn a_dockerfile_becomes_a_template_that_is_used_listed_and_removed() {
    let server = prepared();
    let dockerfile = "FROM none\nENV COLOUR=blue WAS=$OF\nRUN echo $COLOUR $WAS > /said\n\
                      COPY a.txt sub /srv/copies/\nUSER root\nWORKDIR /srv\n";
    let first = build(&server, "app", dockerfile);
    assert!(!first.stderr.contains("CACHED"), "{}", first.stderr);
    let id = first.ok().trim().to_owned();
    let again = build(&server, "app:v2", dockerfile);
    assert!(again.stderr.contains("CACHED RUN echo"), "{}", again.stderr);
    assert!(again.stderr.contains("CACHED COPY sub"), "{}", again.stderr);
    assert_eq!(again.ok().trim(), id, "one template has many builds");
    let sandbox = server.run("sandbox create app").ok().trim().to_owned();
    let said = server.run(&format!(
        "sandbox exec {sandbox} -- cat /said /srv/copies/a.txt /srv/copies/b.txt"
    ));
    assert_eq!(said.ok(), "blue image\ncopiedbelow");
    assert_eq!(
        server.run(&format!("sandbox exec {sandbox} pwd")).ok(),
        "/srv\n"
    );
    let listed = server.run("template ls").ok();
    assert!(listed.contains("app") && listed.contains(&id), "{listed}");
    server
        .run("template rm app")
        .failed_saying(&["in use", &sandbox]);
    server.run(&format!("sandbox kill {sandbox}")).ok();
    until("nothing uses it", || {
        (server.run("template rm app").code == Some(0)).then_some(())
    });
    server
        .run("sandbox create app")
        .failed_saying(&["not found"]);
    server
        .run("template rm small")
        .failed_saying(&["installation"]);
    server.stop();
}

#[test]
fn what_cannot_be_built_says_why_and_leaves_nothing() {
    let server = prepared();
    build(&server, "app", "FROM none\nRUN echo bye; exit 3\n").failed_saying(&[
        "step 3",
        "exit status 3",
        "bye",
    ]);
    build(&server, "app", "FROM none\nCOPY none.txt /\n").failed_saying(&["no file none.txt"]);
    build(&server, "app", "FROM none\nCOPY ../x /\n").failed_saying(&["leaves the context"]);
    server.write("context/Dockerfile", "FROM 127.0.0.1:1/none:1\n");
    server
        .run("template build app context")
        .failed_saying(&["step base", "127.0.0.1:1"]);
    server
        .run("template build small context")
        .failed_saying(&["\"small\""]);
    let templates = server.run("get sandboxtemplates -o name").ok();
    assert_eq!(templates.lines().count(), 2, "{templates}");
    until("no sandbox is left", || {
        server
            .run("get sandboxes -A -o name")
            .ok()
            .is_empty()
            .then_some(())
    });
    server.stop();
}

#[test]
fn a_build_counts_against_the_quota_of_its_team() {
    let server = prepared();
    server.run("key create ci -n blue --new-team").ok();
    let patch = r#"{"spec":{"quotas":{"runningSandboxes":1}}}"#;
    let patched = format!("patch team blue --type=merge -p {patch}");
    server.kubectl(&patched).ok();
    let first = server.run("sandbox create -n blue").ok();
    server.write("context/Dockerfile", "FROM none\nRUN true\n");
    let words = "template build app context --from-template small -n blue";
    server
        .run(words)
        .failed_saying(&["as much as it may have", "dormouse sandbox kill"]);
    server
        .run(&format!("sandbox kill -n blue {}", first.trim()))
        .ok();
    until("there is room", || {
        let left = server.kubectl("get sandboxes -n blue -o name").ok();
        left.trim().is_empty().then_some(())
    });
    server.run(words).ok();
    server
        .run("sandbox create app")
        .failed_saying(&["not found"]);
    server.run("template rm app -n blue").ok();
    server.stop();
}

#[test]
fn a_build_whose_server_dies_has_failed_and_goes_on_from_its_last_step_when_asked_again() {
    let server = prepared();
    let dockerfile = |seconds: u32| {
        format!("FROM none\nRUN date > /when; echo kept\nRUN echo sleeping; sleep {seconds}\n")
    };
    server.write("context/Dockerfile", &dockerfile(600));
    let words = [
        "template",
        "build",
        "app",
        "context",
        "--from-template",
        "small",
    ];
    let mut client = server.program(&words);
    let log = fs::File::create(server.home.path().join("client")).unwrap();
    let mut client = client.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let said = |home: &Path| fs::read_to_string(home.join("client")).unwrap();
    until("the second step", || {
        said(server.home.path())
            .contains("] sleeping")
            .then_some(())
    });
    let home = server.kill();
    client.wait().unwrap();
    agent();
    let server = Server::start_with(home, &["--runtime", "local"]);
    until("no sandbox is left", || {
        server
            .run("get sandboxes -A -o name")
            .ok()
            .is_empty()
            .then_some(())
    });
    let templates = server.run("get sandboxtemplates -o name").ok();
    assert_eq!(templates.lines().count(), 2, "{templates}");
    let records = fs::read_dir(server.data().join("builds/records")).unwrap();
    let records: Vec<_> = records.flatten().map(|entry| entry.path()).collect();
    let [record] = records.as_slice() else {
        panic!("{records:?}");
    };
    let record = json(&fs::read_to_string(record.join("build.json")).unwrap());
    assert_eq!(record["state"], "error", "{record}");
    let why = record["reason"]["message"].as_str().unwrap();
    assert!(why.contains("the server was stopped"), "{why}");
    let again = build(&server, "app", &dockerfile(0));
    assert!(again.stderr.contains("CACHED RUN date"), "{}", again.stderr);
    again.ok();
    server.run("template rm app").ok();
    server.stop();
}
