//! Snapshots and forks of real sandboxes, by command, and a server that dies in the middle of them.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    run::agent,
    sandboxes::{json, until},
    server::{Server, run},
};

fn start_in(home: TempDir) -> Server {
    agent();
    Server::start_with(home, &["--runtime", "local"])
}

/// What a script inside says.
fn said_in(server: &Server, id: &str, script: &str) -> String {
    let words = ["sandbox", "exec", id, "--", "sh", "-c", script];
    run(&mut server.program(&words), "").ok()
}

fn snapshots(server: &Server) -> Vec<Value> {
    let all = json(&server.run("get sandboxsnapshots -o json").ok());
    all["items"].as_array().unwrap().clone()
}

fn listed(server: &Server) -> Vec<String> {
    let text = server.run("sandbox ls -q").ok();
    text.lines().map(str::to_owned).collect()
}

fn workloads(data: &Path) -> usize {
    let found = std::fs::read_dir(data.join("sandboxes"));
    found.map_or(0, Iterator::count)
}

/// The uids of those that were ready for their owner when their server died: what the runtime keeps of
/// each says for which delivery it was armed. A record may not say so yet.
fn ready(data: &Path) -> BTreeSet<String> {
    let found = std::fs::read_dir(data.join("sandboxes")).unwrap();
    let found = found.map(|entry| entry.unwrap());
    found
        .filter(|entry| {
            let ledger = std::fs::read(entry.path().join("ledger")).unwrap_or_default();
            let epoch = ledger.get(16..20).unwrap_or_default();
            epoch.iter().any(|byte| *byte != 0)
        })
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// The names of those with these uids.
fn named(server: &Server, uids: &BTreeSet<String>) -> Vec<String> {
    let all = json(&server.run("get sandboxes -o json").ok());
    let all = all["items"].as_array().unwrap().iter();
    let metadata = all.map(|record| &record["metadata"]);
    metadata
        .filter(|its| uids.contains(its["uid"].as_str().unwrap()))
        .map(|its| its["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn files_are_kept_created_from_forked_and_forgotten_by_command() {
    let server = start_in(tempfile::tempdir().unwrap());
    let id = server.run("sandbox create --env COLOUR=blue").ok();
    let id = id.trim();
    said_in(&server, id, "echo first > kept");
    let snapshot = server.run(&format!("snapshot create {id} --name app"));
    assert_eq!(snapshot.ok(), "default/app:default\n");
    said_in(&server, id, "echo second > kept");
    let tagged = server.run(&format!("sandbox snapshot {id} --name app:v2"));
    assert_eq!(tagged.ok(), "default/app:v2\n");
    let ids = server.run("snapshot ls -q --name app").ok();
    assert_eq!(ids, "default/app:v2\ndefault/app:default\n");
    for (name, text) in [("app", "first\n"), ("app:v2", "second\n")] {
        let child = server
            .run(&format!("sandbox create --snapshot {name}"))
            .ok();
        assert_eq!(said_in(&server, child.trim(), "cat kept"), text);
    }
    let shown = server.run("snapshot describe app:v2").ok();
    assert!(
        shown.contains("app:v2") && shown.contains("Ready"),
        "{shown}"
    );

    let children = server.run(&format!("sandbox fork {id} --count 3")).ok();
    assert_eq!(children.lines().count(), 3);
    let mut boots = std::collections::BTreeSet::new();
    for child in children.lines() {
        let said = said_in(&server, child, "cat kept; echo $COLOUR");
        assert_eq!(said, "second\nblue\n");
        boots.insert(said_in(
            &server,
            child,
            "cat /proc/sys/kernel/random/boot_id",
        ));
        said_in(&server, child, "echo own > kept");
    }
    assert_eq!(boots.len(), 3);
    assert_eq!(said_in(&server, id, "cat kept"), "second\n");
    until("the fork's own snapshot goes", || {
        (snapshots(&server).len() == 2).then_some(())
    });

    server.run("snapshot rm app app:v2").ok();
    server
        .run("snapshot rm app")
        .failed_saying(&["app", "not found"]);
    assert_eq!(server.run("snapshot ls -q").ok(), "");
    server
        .run("sandbox create --snapshot app")
        .failed_saying(&["app"]);
    for id in listed(&server) {
        server.run(&format!("sandbox kill {id}")).ok();
    }
    server.stop();
}

/// After a crash at any moment: its source has all that was written, and runs; a snapshot is ready, or
/// failed with a reason; children that were not ready go, and those that were are listed.
#[test]
fn a_server_killed_at_any_moment_of_a_snapshot_or_a_fork_loses_and_leaks_nothing() {
    let mut server = start_in(tempfile::tempdir().unwrap());
    let id = server.run("sandbox create --timeout 1h").ok();
    let id = id.trim().to_owned();
    said_in(
        &server,
        &id,
        "head -c 3000000 /dev/urandom > big; sha256sum big > sum",
    );
    for (round, delay) in [0, 10, 20, 40, 60, 90, 130, 200, 400]
        .into_iter()
        .enumerate()
    {
        said_in(&server, &id, &format!("echo {round} >> log; sync"));
        let fork = format!("sandbox fork {id} --count 3 --timeout 1h");
        let snapshot = format!("snapshot create {id} --name at-{round}");
        let words = if round % 2 == 0 { fork } else { snapshot };
        let words: Vec<&str> = words.split(' ').collect();
        let mut client = server.program(&words);
        let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let client = client.unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let home = server.kill();
        let were_ready = ready(&home.path().join("data"));
        server = start_in(home);
        let told = client.wait_with_output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let told: Vec<&str> = told.lines().filter(|line| line.starts_with('i')).collect();
        let mut children = named(&server, &were_ready);
        assert_eq!(children.len(), were_ready.len(), "{were_ready:?}");
        children.retain(|child| *child != id);
        until("those that were ready are listed", || {
            let listed = listed(&server);
            children.iter().all(|c| listed.contains(c)).then_some(())
        });
        for child in told {
            assert!(children.iter().any(|c| c == child), "{child}: {children:?}");
        }
        until("every snapshot is ready or says why not", || {
            let settled = |s: &Value| match s["status"]["phase"].as_str() {
                Some("Ready") => true,
                Some("Failed") => s["status"]["reason"]
                    .as_str()
                    .is_some_and(|r| !r.is_empty()),
                _ => false,
            };
            snapshots(&server).iter().all(settled).then_some(())
        });
        for snapshot in snapshots(&server) {
            let is_fork = snapshot["metadata"]["annotations"]["dormouse.dev/fork"].is_string();
            let expires = snapshot["spec"]["expireAfterSeconds"].is_number();
            assert_eq!(
                is_fork, expires,
                "what a fork leaves goes by itself: {snapshot}"
            );
        }
        for child in &children {
            assert_eq!(said_in(&server, child, "sha256sum -c --quiet sum"), "");
            until("one that was ready is ended by its owner", || {
                let killed = server.run(&format!("sandbox kill {child}"));
                let is_gone = killed.code == Some(0) || killed.stderr.contains("not found");
                is_gone.then_some(())
            });
        }
        assert_eq!(
            said_in(&server, &id, "sha256sum -c --quiet sum; tail -n 1 log"),
            format!("{round}\n")
        );
        until("those that were not ready go, and leave nothing", || {
            let is_alone = listed(&server) == [id.as_str()] && workloads(&server.data()) == 1;
            is_alone.then_some(())
        });
    }
    // What was acknowledged is there to start from.
    for name in server.run("snapshot ls -q").ok().lines() {
        let child = server
            .run(&format!("sandbox create --snapshot {name}"))
            .ok();
        let child = child.trim();
        assert_eq!(said_in(&server, child, "sha256sum -c --quiet sum"), "");
        server.run(&format!("sandbox kill {child}")).ok();
        server.run(&format!("snapshot rm {name}")).ok();
    }
    server.run(&format!("sandbox kill {id}")).ok();
    drop(server);
}
