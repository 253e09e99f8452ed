//! A pause that finds the disk full: the sandbox goes on, its record says why, and once there is room
//! the same pause works.

use std::{fs::File, io::Write as _, path::PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

use crate::{kept::Kept, sandboxes::until};

/// A file system in memory; it goes with this.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        let none = MountFlags::empty();
        mount("small", &at, "tmpfs", none, Some(c"size=256m,mode=700"))
            .expect("this test needs root: it mounts a small file system");
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_pause_on_a_full_disk_leaves_it_running_with_the_reason_and_works_once_there_is_room() {
    let mut kept = Kept::without_a_server();
    let home = tempfile::tempdir().unwrap();
    let small = Small::mount(home.path().join("data"));
    kept.import_into(home.path());
    kept.start_in(home, &[]);
    kept.want("one", "Running");
    kept.becomes("sandbox", "one", "Running");
    kept.said(
        "one",
        "head -c 60000000 /dev/urandom > /data/big; sha256sum /data/big > /data/sum",
    );
    let filler = small.0.join("filler");
    let mut file = File::create(&filler).unwrap();
    let block = vec![7; 1 << 16];
    let mut left = rustix::fs::statvfs(&small.0).unwrap();
    // Enough for records, which want some in reserve, and not for the layer.
    while left.f_bavail * left.f_frsize > 44 << 20 {
        file.write_all(&block).unwrap();
        left = rustix::fs::statvfs(&small.0).unwrap();
    }
    drop(file);
    kept.want("one", "Paused");
    let told = until("the pause is given up", || {
        let found = kept.find("sandbox", "one");
        let failed = found["status"]["lastOperation"]["state"] == "Failed";
        (failed && found["status"]["phase"] == "Running").then_some(found)
    });
    let error = told["status"]["lastOperation"]["error"].as_str().unwrap();
    assert!(error.contains("No space left"), "{error}");
    assert!(error.starts_with("no room"), "{error}");
    assert_eq!(
        kept.said("one", "sha256sum -c /data/sum"),
        "/data/big: OK\n"
    );
    let half = crate::kept::entries(&small.0.join("layers/sha256"));
    let half: Vec<_> = half
        .iter()
        .filter(|path| path.extension().is_some())
        .collect();
    assert!(half.is_empty(), "{half:?}");

    std::fs::remove_file(filler).unwrap();
    // It runs, so that was what was wanted meanwhile.
    until("its intent is taken back", || {
        let found = kept.find("sandbox", "one");
        let running = [&Value::Null, &Value::from("Running")];
        running
            .contains(&&found["spec"]["desiredState"])
            .then_some(())
    });
    kept.want("one", "Paused");
    kept.becomes("sandbox", "one", "Paused");
    kept.want("one", "Running");
    kept.becomes("sandbox", "one", "Running");
    assert_eq!(
        kept.said("one", "sha256sum -c /data/sum"),
        "/data/big: OK\n"
    );
    kept.server().run("delete sandbox one").ok();
    until("it is gone", || {
        let left = kept.server().run("get sandboxes -A").ok();
        left.is_empty().then_some(())
    });
    let home = kept.server().home.path().to_owned();
    drop(kept.server.take());
    // Only now can all of it go.
    drop(small);
    std::fs::remove_dir_all(home).unwrap();
}
