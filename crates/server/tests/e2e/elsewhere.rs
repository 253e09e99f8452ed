//! Sandboxes and snapshots that go on where only their records and the registry are: the disk that
//! they were made on is gone.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use tempfile::TempDir;

use crate::kept::Kept;

/// Another home with the records and secrets of one, and none of its images, layers and sandboxes.
pub(crate) fn records_only(from: &Path) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let (from, to) = (from.join("data"), home.path().join("data"));
    for entry in fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let of_this_disk = [
            "layers",
            "images",
            "sandboxes",
            "run",
            "base",
            "disks",
            "lock",
            "handover",
        ];
        if !of_this_disk.iter().any(|left_out| name == *left_out) {
            copy(&entry.path(), &to.join(name));
        }
    }
    fs::set_permissions(&to, fs::Permissions::from_mode(0o700)).unwrap();
    home
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    if !from.is_dir() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy(&entry.path(), &to.join(entry.file_name()));
    }
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
}

#[test]
fn what_sleeps_wakes_on_another_disk_with_the_same_id_and_token() {
    let mut kept = Kept::start();
    let id = kept.create();
    kept.becomes("sandbox", &id, "Running");
    kept.said(&id, "echo written > /data/file");
    kept.turn(&id, "Paused");
    let before = kept.becomes("sandbox", &id, "Paused");
    let hash = &before["spec"]["access"]["agentToken"];
    assert!(hash.is_string(), "{before}");
    let home = kept.server.take().unwrap().stop();

    kept.start_in(records_only(home.path()), &[]);
    kept.becomes("sandbox", &id, "Paused");
    kept.turn(&id, "Running");
    let after = kept.becomes("sandbox", &id, "Running");
    assert_eq!(after["spec"]["sandboxId"], id);
    assert_eq!(after["spec"]["access"]["agentToken"], *hash);
    // Said with that token.
    assert_eq!(kept.said(&id, "cat /data/file"), "written\n");
    kept.server().run(&format!("delete sandbox {id}")).ok();
    kept.server.take().unwrap().stop();
}

#[test]
fn what_starts_from_a_snapshot_fetches_its_layer_where_it_is_not_there() {
    let mut kept = Kept::start();
    kept.want("one", "Running");
    kept.becomes("sandbox", "one", "Running");
    kept.said("one", "head -c 100000 /dev/urandom > /data/file");
    let written = kept.said("one", "sha256sum /data/file");
    kept.snapshot("running", "one");
    let running = kept.becomes("sandboxsnapshot", "running", "Ready");
    kept.want("one", "Paused");
    kept.becomes("sandbox", "one", "Paused");
    // Its sandbox sleeps on a layer that was pushed already.
    let asleep = "apiVersion: dormouse.dev/v1alpha1\nkind: SandboxSnapshot\nmetadata:\n  name: asleep\n\
                  spec:\n  sandbox: one\n";
    kept.server().run_with("apply -f -", asleep).ok();
    let asleep = kept.becomes("sandboxsnapshot", "asleep", "Ready");
    for taken in [&running, &asleep] {
        let status = &taken["status"];
        assert!(status["image"].is_string(), "{status}");
        assert!(
            status["containers"][0]["size"].as_u64() > Some(100_000),
            "{status}"
        );
    }
    let home = kept.server.take().unwrap().stop();

    kept.start_in(records_only(home.path()), &[]);
    for (child, snapshot) in [("first", "running"), ("second", "asleep")] {
        let manifest = format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata:\n  name: {child}\nspec:\n  \
             snapshot: {snapshot}\n  access:\n    agentIsOpen: true\n"
        );
        kept.server().run_with("apply -f -", &manifest).ok();
        kept.becomes("sandbox", child, "Running");
        assert_eq!(kept.said(child, "sha256sum /data/file"), written);
        kept.server().run(&format!("delete sandbox {child}")).ok();
    }
    kept.server().run("delete sandbox one").ok();
    kept.server.take().unwrap().stop();
}
