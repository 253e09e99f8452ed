//! Registries that are down, or want other credentials, when a sandbox falls asleep or wakes.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    elsewhere::records_only,
    kept::Kept,
    sandboxes::until,
    servers::{PASSWORD, Registry, USER},
};

const WRITTEN: &str = "echo written > /data/file";

/// A secret of the data directory.
fn put_secret(data: &Path, name: &str, registry: &str, password: &str) {
    let auth = BASE64_STANDARD.encode(format!("{USER}:{password}"));
    let text = json!({"auths": {registry: {"auth": auth}}}).to_string();
    fs::create_dir_all(data.join("secrets")).unwrap();
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(data.join("secrets").join(name));
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// Asks for sleep, and waits until it is given up. Answers why.
fn cannot_sleep(kept: &Kept, policy: &str) -> String {
    kept.want_with("one", "Paused", policy);
    let told = until("the pause is given up", || {
        let found = kept.find("sandbox", "one");
        let failed = found["status"]["lastOperation"]["state"] == "Failed";
        let running = [&Value::Null, &Value::from("Running")];
        let taken_back = running.contains(&&found["spec"]["desiredState"]);
        (failed && taken_back && found["status"]["phase"] == "Running").then_some(found)
    });
    assert_eq!(kept.said("one", "cat /data/file"), "written\n");
    let error = &told["status"]["lastOperation"]["error"];
    error.as_str().unwrap().to_owned()
}

#[test]
fn a_registry_that_is_down_or_refuses_leaves_it_running_with_the_reason() {
    let mut kept = Kept::start();
    let closed = Registry::with_users();
    kept.want("one", "Running");
    kept.becomes("sandbox", "one", "Running");
    kept.said("one", WRITTEN);

    let error = cannot_sleep(&kept, "    snapshotRegistry: \"127.0.0.1:1/kept\"\n");
    assert!(
        error.contains("registry 127.0.0.1:1 did not deliver"),
        "{error}"
    );

    let address = &closed.address;
    let policy = format!(
        "    snapshotRegistry: \"{address}/kept\"\n    snapshotPushSecretName: push\n    \
         resumeImagePullSecretName: pull\n"
    );
    put_secret(&kept.data(), "push", address, "guessed");
    let error = cannot_sleep(&kept, &policy);
    assert!(error.contains(address.as_str()), "{error}");
    let encoded = BASE64_STANDARD.encode(format!("{USER}:guessed"));
    for secret in ["guessed", &encoded] {
        assert!(!error.contains(secret), "{error}");
        assert!(!kept.server().log().contains(secret), "a secret was logged");
    }

    put_secret(&kept.data(), "push", address, PASSWORD);
    kept.want_with("one", "Paused", &policy);
    kept.becomes("sandbox", "one", "Paused");

    // On another disk it has to be fetched, which needs the other secret.
    let home = kept.server.take().unwrap().kill();
    kept.start_in(records_only(home.path()), &[]);
    put_secret(&kept.data(), "pull", address, "guessed");
    kept.want_with("one", "Running", &policy);
    let told = until("the resume is given up", || {
        let found = kept.find("sandbox", "one");
        let failed = found["status"]["lastOperation"]["state"] == "Failed";
        (failed && found["status"]["phase"] == "Paused").then_some(found)
    });
    let error = told["status"]["lastOperation"]["error"].as_str().unwrap();
    assert!(error.contains(address.as_str()), "{error}");
    until("its intent is taken back", || {
        let found = kept.find("sandbox", "one");
        (found["spec"]["desiredState"] == "Paused").then_some(())
    });
    put_secret(&kept.data(), "pull", address, PASSWORD);
    kept.want_with("one", "Running", &policy);
    kept.becomes("sandbox", "one", "Running");
    assert_eq!(kept.said("one", "cat /data/file"), "written\n");
    kept.server().run("delete sandbox one").ok();
}

#[test]
fn fifty_sleeps_change_nothing_of_its_files() {
    let mut kept = Kept::start();
    kept.want_with("one", "Running", "");
    kept.becomes("sandbox", "one", "Running");
    kept.said(
        "one",
        "cd /data; mkdir -p a/b c; head -c 70000 /dev/urandom > a/b/noise; echo text > 'c/odd name'; \
         ln -s ../a c/link; ln a/b/noise c/hard; mkfifo c/pipe; chmod 6711 c/hard; chmod 700 a; \
         busybox touch -d '2001-02-03 04:05:06' c/old; busybox truncate -s 5000000 c/hole",
    );
    let tree = "set -e; cd /data; find . | sort | while read -r f; do \
                busybox stat -c '%n %f %u %g %s %Y %h' \"$f\"; \
                if [ -f \"$f\" ]; then sha256sum \"$f\"; fi; \
                if [ -L \"$f\" ]; then busybox readlink \"$f\"; fi; done";
    let before = kept.said("one", tree);
    for name in [
        "a/b/noise",
        "c/odd name",
        "c/link",
        "c/hard",
        "c/pipe",
        "c/old",
        "c/hole",
    ] {
        let told = format!("./{name} ");
        assert!(before.contains(&told), "{name} is missing: {before}");
    }
    let text = "b9e68e1bea3e5b19ca6b2f98b73a54b73daafaa250484902e09982e07a12e733  ./c/odd name";
    assert!(before.contains(text), "{before}");
    for _ in 0..50 {
        kept.want_with("one", "Paused", "");
        kept.becomes("sandbox", "one", "Paused");
        kept.want_with("one", "Running", "");
        kept.becomes("sandbox", "one", "Running");
    }
    assert_eq!(kept.said("one", tree), before);
    let sandbox = kept.find("sandbox", "one");
    assert_eq!(sandbox["status"]["sleeps"]["slept"], 50, "{sandbox}");
    kept.server().run("delete sandbox one").ok();
    kept.server.take().unwrap().stop();
}
