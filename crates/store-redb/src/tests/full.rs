//! A full disk: writers are told, readers do not notice, and room is all it takes to go on.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use store::{Outcome, StoreError, StoreExt as _};
use tempfile::TempDir;

use super::{OPTIONS, all, assert_indexes_agree, find, number, numbered, open_on, open_with};
use crate::{Options, RedbStore, tests::platter::Platter};

/// Creates records until the store says that there is no room; returns how many there are.
async fn fill(store: &RedbStore, from: usize) -> usize {
    for n in from..100_000 {
        let mut draft = numbered(&format!("box-{n}"), n);
        draft
            .metadata
            .annotations
            .insert("padding", "x".repeat(2000));
        match store.create_object(&draft).await {
            Ok(_) => {}
            Err(StoreError::Unavailable { outcome, reason }) => {
                assert_eq!(outcome, Outcome::NotApplied, "{reason}");
                assert!(reason.contains("make room"), "{reason}");
                return n;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("the disk did not fill up");
}

/// Tries until the store is open again, which it is soon.
async fn write_again(store: &RedbStore, n: usize) {
    for _ in 0..10_000 {
        match store.create_object(&numbered(&format!("box-{n}"), n)).await {
            Ok(_) => return,
            Err(StoreError::Unavailable {
                outcome: Outcome::NotApplied,
                ..
            }) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("writes did not resume");
}

async fn assert_holds(store: &RedbStore, count: usize) {
    let all = all(store).await;
    assert_eq!(all.len(), count);
    for n in 0..count {
        assert_eq!(number(&find(store, &format!("box-{n}")).await.unwrap()), n);
    }
    assert_indexes_agree(store).await;
}

#[tokio::test]
async fn writes_go_on_by_themselves_when_a_full_disk_has_room_again() {
    let platter = Platter::new(1);
    let store = open_on(platter.clone()).unwrap();
    let mut count = 0;
    for room in [40, 7, 1, 25] {
        platter.leave_room_for(room);
        count = fill(&store, count).await;
        assert_holds(&store, count).await;
        // Full it stays, and that is what writers are told, each time.
        for _ in 0..3 {
            assert_eq!(fill(&store, count).await, count);
            assert_holds(&store, count).await;
        }
        platter.leave_room_for(1000);
        write_again(&store, count).await;
        count += 1;
        assert_holds(&store, count).await;
    }
    drop(store);
    let store = open_on(platter).unwrap();
    assert_holds(&store, count).await;
}

/// A real file system of a few megabytes.
struct SmallDisk {
    directory: TempDir,
}

impl SmallDisk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = c"size=6m,mode=0700";
        mount(
            "tmpfs",
            directory.path(),
            "tmpfs",
            MountFlags::empty(),
            options,
        )
        .expect("mount a tmpfs of 6 MiB: this test has to run as root, with CAP_SYS_ADMIN");
        Self { directory }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A failed unmount shows when the directory cannot be removed.
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

fn take_room(path: &Path, bytes: usize) {
    kit::durable::write_file(path, &vec![1; bytes], 0o600).unwrap();
}

async fn fill_a_small_disk(headroom_bytes: u64) {
    let disk = SmallDisk::new();
    let options = Options {
        headroom_bytes,
        ..OPTIONS
    };
    let ballast = disk.directory.path().join("ballast");
    take_room(&ballast, 2 << 20);
    let store = open_with(&disk.data(), options).unwrap();
    let count = fill(&store, 0).await;
    assert!(count > 50, "only {count} records in 4 MiB");
    assert_holds(&store, count).await;
    assert_eq!(fill(&store, count).await, count);
    assert_holds(&store, count).await;
    fs::remove_file(&ballast).unwrap();
    write_again(&store, count).await;
    assert_holds(&store, count + 1).await;
    drop(store);
    let store = open_with(&disk.data(), options).unwrap();
    assert_holds(&store, count + 1).await;
    assert!(store.version().sequence() > count as u64);
}

#[tokio::test]
async fn a_nearly_full_file_system_refuses_writes_before_they_fail() {
    fill_a_small_disk(1 << 20).await;
}

#[tokio::test]
async fn a_file_system_that_fills_up_during_a_write_loses_nothing() {
    fill_a_small_disk(0).await;
}
