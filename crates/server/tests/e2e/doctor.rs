//! `dormouse doctor` on this host, and on hosts that were made poor: each lack is named with what
//! to do about it. They need root; without it these tests fail and say so.

use std::{
    fs,
    process::{Output, Stdio},
};

use serde_json::Value;

use crate::{
    run::agent,
    server::{command, dormouse},
};

/// The doctor below other programs: `poverty` ends where the command to run is to follow.
fn doctor_under(poverty: &[&str]) -> Output {
    agent();
    let home = tempfile::tempdir().unwrap();
    command(poverty[0], home.path())
        .args(&poverty[1..])
        .args([
            env!("CARGO_BIN_EXE_dormouse"),
            "doctor",
            "--json",
            "--data-dir",
        ])
        .arg(home.path())
        .output()
        .unwrap()
}

/// The same in a mount namespace, after a script has changed what is mounted.
fn doctor_after(script: &str) -> Output {
    let script = format!("{script} && exec \"$0\" \"$@\"");
    doctor_under(&["unshare", "--mount", "sh", "-ec", &script])
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}: {text} {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn find<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["capabilities"].as_array().unwrap();
    let found = all.iter().find(|capability| capability["name"] == name);
    found.unwrap_or_else(|| panic!("nothing is said of {name}"))
}

/// What is missing, with what was seen and what to do.
#[track_caller]
fn is_missing(output: &Output, name: &str, remedy: &str) {
    let report = report(output);
    let capability = find(&report, name);
    assert_eq!(capability["state"], "missing", "{report:#}");
    assert!(
        capability["remedy"].as_str().unwrap().contains(remedy),
        "{capability:#}"
    );
    if capability["essential"] == true {
        assert_eq!(report["canRunSandboxes"], false);
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_host_that_can_run_sandboxes_is_told_so_and_left_as_it_was() {
    agent();
    let home = tempfile::tempdir().unwrap();
    let output = dormouse(home.path())
        .args(["doctor", "--json", "--data-dir"])
        .arg(home.path().join("not/there/yet"))
        .output()
        .unwrap();
    let said = report(&output);
    assert!(output.status.success(), "{said:#}");
    assert_eq!(said["canRunSandboxes"], true);
    for capability in said["capabilities"].as_array().unwrap() {
        let unwell = capability["state"] != "ok";
        assert_eq!(unwell, capability["meaning"].is_string(), "{capability:#}");
        assert_eq!(unwell, capability["remedy"].is_string(), "{capability:#}");
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);

    let text = dormouse(home.path()).arg("doctor").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.lines()
            .any(|line| line.starts_with("ok        overlayfs")),
        "{text}"
    );
    assert!(text.ends_with("This host can run sandboxes.\n"), "{text}");
}

#[test]
fn without_capabilities_there_are_no_sandboxes() {
    let poor = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
    let output = doctor_under(&poor);
    is_missing(&output, "privileges", "Run it as root");
    is_missing(&output, "overlayfs", "modprobe overlay");
}

#[test]
fn root_of_a_user_namespace_is_not_enough() {
    let poor = ["unshare", "--user", "--map-root-user"];
    let output = doctor_under(&poor);
    is_missing(&output, "privileges", "on the host itself");
    is_missing(&output, "idmapped mounts", "data directory");
}

#[test]
fn no_user_namespaces_are_named_with_their_setting() {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let poor = ["unshare", "--user", "--map-root-user", "sh", "-ec", script];
    let output = doctor_under(&poor);
    is_missing(&output, "user namespaces", "user.max_user_namespaces");
}

#[test]
fn cgroups_that_are_hidden_are_missed() {
    let output = doctor_after("mount -t tmpfs none /sys/fs/cgroup");
    is_missing(&output, "cgroup limits", "controllers cpu, memory and pids");
    is_missing(&output, "clone into a cgroup", "mount -t cgroup2");
    is_missing(&output, "freeze and kill", "mount -t cgroup2");
}

#[test]
fn a_host_without_proc_is_told_what_it_lacks() {
    let output = doctor_after("mount -t tmpfs none /proc");
    is_missing(&output, "privileges", "Run it as root");
    is_missing(&output, "user namespaces", "user.max_user_namespaces");
    is_missing(&output, "cgroup limits", "controllers cpu, memory and pids");
}

#[test]
fn what_is_not_installed_is_named_and_no_reason_to_stop() {
    let hide = "for p in runc runsc curl mkfs.btrfs; do \
                  for d in $(echo $PATH | tr : ' ') /usr/local/sbin /usr/sbin; do \
                    if [ -e $d/$p ]; then mount --bind /dev/null $d/$p; fi; \
                  done; \
                done";
    let output = doctor_after(hide);
    is_missing(&output, "runc", "apt-get install runc");
    is_missing(&output, "runsc", "gVisor");
    is_missing(&output, "disk limits", "btrfs-progs");
    let said = report(&output);
    let programs = find(&said, "programs of base");
    assert_eq!(programs["state"], "degraded", "{programs:#}");
    assert!(programs["remedy"].as_str().unwrap().contains("curl"));
    assert!(output.status.success(), "{said:#}");
}

#[test]
fn a_data_directory_that_cannot_hold_sandboxes_is_missed() {
    let output = doctor_after("mount -t tmpfs -o ro none \"$HOME\"");
    is_missing(&output, "data directory", "--data-dir");
}

#[test]
fn a_server_refuses_to_start_in_the_same_words() {
    agent();
    let home = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"";
    let output = command("unshare", home.path())
        .args(["--mount", "sh", "-ec", script])
        .arg(env!("CARGO_BIN_EXE_dormouse"))
        .args(["serve", "--runtime", "local", "--listen", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(home.path().join("data"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("this host cannot run sandboxes"), "{said}");
    let line = said
        .lines()
        .find(|line| line.starts_with("missing   freeze and kill"));
    assert!(
        line.unwrap_or_default().contains("mount -t cgroup2"),
        "{said}"
    );
}

/// Containers that share the host's cgroups and a data directory, and of which each has a first process.
#[test]
fn probes_with_the_same_process_number_do_not_meet() {
    agent();
    let home = tempfile::tempdir().unwrap();
    let probe = || {
        let mut probe = command("unshare", home.path());
        probe.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        probe.arg(env!("CARGO_BIN_EXE_dormouse"));
        probe
            .args(["doctor", "--json", "--data-dir"])
            .arg(home.path());
        probe.stdout(Stdio::piped()).stderr(Stdio::piped());
        probe.spawn().unwrap()
    };
    for _ in 0..10 {
        let probes: Vec<_> = (0..8).map(|_| probe()).collect();
        for probe in probes {
            let output = probe.wait_with_output().unwrap();
            assert!(output.status.success(), "{:#}", report(&output));
        }
    }
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
