//! Copies of a running store, and taking them back.

use std::{fs, sync::Arc};

use kit::Tasks;
use model::Incarnation;
use store::{Scope, Store as _, StoreError, StoreExt as _};

use super::{KIND, all, assert_indexes_agree, find, number, numbered, open, set_number};
use crate::{BackupError, OpenError, restore};

#[tokio::test]
async fn a_backup_of_a_store_being_written_is_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&directory.path().join("data")).unwrap());
    for name in ["first", "second"] {
        store.create_object(&numbered(name, 0)).await.unwrap();
    }
    let tasks = Tasks::default();
    let stop = tasks.stopping().clone();
    let writer = {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for n in 1.. {
                // First one, then the other: at no moment is the second ahead.
                for name in ["first", "second"] {
                    let mut sandbox = find(&store, name).await.unwrap();
                    set_number(&mut sandbox, n);
                    store.update_spec(&sandbox).await.unwrap();
                }
                if stop.is_cancelled() {
                    return;
                }
            }
        })
    };
    for n in 0..5 {
        let backup = directory.path().join(format!("backup-{n}"));
        let version = store.backup(&backup).await.unwrap();
        let restored = directory.path().join(format!("restored-{n}"));
        let begins = restore(&backup, &restored).unwrap();
        assert_eq!(begins.sequence(), version.sequence());
        let copy = open(&restored).unwrap();
        let first = number(&find(&copy, "first").await.unwrap());
        let second = number(&find(&copy, "second").await.unwrap());
        assert!(
            first == second || first == second + 1,
            "{first} and {second}"
        );
        assert_indexes_agree(&copy).await;
    }
    tasks.stopping().cancel();
    writer.await.unwrap();
}

#[tokio::test]
async fn a_restored_store_is_a_new_incarnation_and_old_watchers_are_told_to_list_again() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let backup = directory.path().join("backup");
    let store = open(&data).unwrap();
    let kept = store.create_object(&numbered("kept", 1)).await.unwrap();
    store.backup(&backup).await.unwrap();
    let lost = store
        .create_object(&numbered("made-after", 2))
        .await
        .unwrap();
    let seen = store.version();
    // Not while it runs.
    assert!(matches!(
        restore(&backup, &data),
        Err(BackupError::Directory(OpenError::InUse(_)))
    ));
    drop(store);

    let begins = restore(&backup, &data).unwrap();
    assert_eq!(begins.incarnation(), Incarnation(1));
    assert!(begins > seen && begins > lost.version());
    let store = open(&data).unwrap();
    assert_eq!(store.version(), begins);
    assert_eq!(all(&store).await, std::slice::from_ref(&kept));
    for old in [seen, kept.version(), lost.version()] {
        match store.watch(Scope::kind(KIND), old).await {
            Err(StoreError::Expired { after }) => assert_eq!(after, old),
            other => panic!("{other:?}"),
        }
    }
    let mut changed = kept.clone();
    set_number(&mut changed, 3);
    let changed = store.update_spec(&changed).await.unwrap();
    assert_eq!(changed.version(), begins.next());
    drop(store);

    // The same backup again is newer still, even though it says incarnation 0 itself.
    let again = restore(&backup, &data).unwrap();
    assert_eq!(again.incarnation(), Incarnation(2));
    assert!(again > changed.version());
    // What was replaced is still there.
    for n in 0..2 {
        assert!(
            data.join(format!("store/records.redb.replaced-{n}"))
                .exists()
        );
    }
}

#[tokio::test]
async fn a_damaged_store_can_be_restored_and_stays_newer() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let backup = directory.path().join("backup");
    let store = open(&data).unwrap();
    store.create_object(&numbered("box", 1)).await.unwrap();
    store.backup(&backup).await.unwrap();
    drop(store);
    restore(&backup, &data).unwrap();
    let database = data.join("store/records.redb");
    kit::durable::write_file(&database, b"damaged", 0o600).unwrap();
    assert!(matches!(open(&data), Err(OpenError::Damaged { .. })));
    assert_eq!(
        restore(&backup, &data).unwrap().incarnation(),
        Incarnation(2)
    );
    let store = open(&data).unwrap();
    assert_eq!(number(&find(&store, "box").await.unwrap()), 1);
    let aside = data.join("store/records.redb.replaced-1");
    assert_eq!(fs::read(aside).unwrap(), b"damaged");
}

#[tokio::test]
async fn a_backup_never_overwrites() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("data")).unwrap();
    let backup = directory.path().join("backup");
    store.backup(&backup).await.unwrap();
    let before = fs::read(&backup).unwrap();
    assert!(matches!(
        store.backup(&backup).await,
        Err(BackupError::Exists(_))
    ));
    assert_eq!(fs::read(&backup).unwrap(), before);
}

#[tokio::test]
async fn what_is_no_backup_is_refused_and_the_store_stays() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let store = open(&data).unwrap();
    store.create_object(&numbered("box", 1)).await.unwrap();
    drop(store);
    let not_a_backup = directory.path().join("file");
    for content in [&b""[..], b"text", &[0; 10_000]] {
        kit::durable::write_file(&not_a_backup, content, 0o600).unwrap();
        match restore(&not_a_backup, &data) {
            Err(BackupError::NotABackup { path, .. }) => assert_eq!(path, not_a_backup),
            other => panic!("{other:?}"),
        }
    }
    // A backup that has suffered since it was made.
    let store = open(&data).unwrap();
    let backup = directory.path().join("backup");
    store.backup(&backup).await.unwrap();
    drop(store);
    let mut content = fs::read(&backup).unwrap();
    let at = content.windows(5).position(|w| w == b"\"box\"").unwrap();
    content[at + 1] = b'f';
    kit::durable::write_file(&backup, &content, 0o600).unwrap();
    assert!(matches!(
        restore(&backup, &data),
        Err(BackupError::NotABackup { .. })
    ));
    assert!(matches!(
        restore(&directory.path().join("nothing"), &data),
        Err(BackupError::Io { .. })
    ));
    let store = open(&data).unwrap();
    assert_eq!(number(&find(&store, "box").await.unwrap()), 1);
}

#[tokio::test]
async fn records_of_a_kind_that_is_not_known_are_kept_and_backed_up() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let store = open(&data).unwrap();
    // As a later version would write it.
    let later = model::KindName("SandboxVolume");
    let mut draft = store::Draft::of(&numbered("box", 1));
    draft.kind = later;
    let made = store.create(draft).await.unwrap();
    store.create_object(&numbered("box", 2)).await.unwrap();
    let backup = directory.path().join("backup");
    store.backup(&backup).await.unwrap();
    drop(store);
    restore(&backup, &data).unwrap();
    let store = open(&data).unwrap();
    // Whoever knows no such kind sees none of it …
    assert_eq!(all(&store).await.len(), 1);
    // … and whoever does finds it as it was.
    let found = store.get(&made.key()).await.unwrap();
    assert_eq!(found, Some(made));
}
