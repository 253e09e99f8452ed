//! The data directory: formats, locks, interrupted beginnings.

use std::{fs, os::unix::fs::PermissionsExt as _};

use model::{Spec as _, sandbox::SandboxSpec};
use store::{Outcome, Query, Store as _, StoreError, StoreExt as _};

use super::{all, find, number, numbered, open};
use crate::OpenError;

#[tokio::test]
async fn a_store_opens_again_with_what_it_held() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("made/on/demand");
    let store = open(&data).unwrap();
    for n in 0..50 {
        store
            .create_object(&numbered(&format!("box-{n}"), n))
            .await
            .unwrap();
    }
    let (before, version) = (all(&store).await, store.version());
    drop(store);
    assert_eq!(fs::read_to_string(data.join("FORMAT")).unwrap(), "1\n");
    let mode = fs::metadata(data.join("store/records.redb"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "records may hold secrets of their owners");
    let store = open(&data).unwrap();
    assert_eq!((all(&store).await, store.version()), (before, version));
}

#[tokio::test]
async fn a_second_opening_is_refused_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    store.create_object(&numbered("box", 1)).await.unwrap();
    match open(directory.path()) {
        Err(OpenError::InUse(path)) => assert_eq!(path, directory.path()),
        other => panic!("{other:?}"),
    }
    let mut sandbox = find(&store, "box").await.unwrap();
    super::set_number(&mut sandbox, 2);
    store.update_spec(&sandbox).await.unwrap();
    drop(store);
    let store = open(directory.path()).unwrap();
    assert_eq!(number(&find(&store, "box").await.unwrap()), 2);
}

#[tokio::test]
async fn a_store_that_was_closed_opens_elsewhere_while_its_holders_are_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    store.create_object(&numbered("box", 1)).await.unwrap();
    store.close().await;
    store.close().await;
    let next = open(directory.path()).unwrap();
    assert_eq!(number(&find(&next, "box").await.unwrap()), 1);
    let late = store.create_object(&numbered("late", 2)).await.unwrap_err();
    assert!(
        matches!(
            late,
            StoreError::Unavailable {
                outcome: Outcome::NotApplied,
                ..
            }
        ),
        "{late:?}"
    );
    assert!(store.list(&Query::kind(SandboxSpec::KIND)).await.is_err());
    next.create_object(&numbered("late", 3)).await.unwrap();
    drop(store);
    assert_eq!(all(&next).await.len(), 2);
}

#[tokio::test]
async fn a_newer_format_is_refused_with_both_numbers() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let database = directory.path().join("store/records.redb");
    let before = fs::read(&database).unwrap();
    kit::durable::write_file(&directory.path().join("FORMAT"), b"7\n", 0o644).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::NewerFormat {
                found: 7,
                supported: 1,
                ..
            }
        ),
        "{error:?}"
    );
    let message = error.to_string();
    assert!(
        message.contains("format 7") && message.contains("format 1"),
        "{message}"
    );
    assert_eq!(fs::read(&database).unwrap(), before);
}

#[tokio::test]
async fn a_format_that_is_no_number_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    for content in ["", "one", "0", "-1"] {
        let format = directory.path().join("FORMAT");
        kit::durable::write_file(&format, content.as_bytes(), 0o644).unwrap();
        match open(directory.path()) {
            Err(OpenError::UnreadableFormat { path, .. }) => assert_eq!(path, format),
            other => panic!("{content:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_missing_database_is_not_replaced_by_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let database = directory.path().join("store/records.redb");
    fs::remove_file(&database).unwrap();
    match open(directory.path()) {
        Err(OpenError::Missing(path)) => assert_eq!(path, database),
        other => panic!("{other:?}"),
    }
    assert!(!database.exists());
}

#[tokio::test]
async fn a_beginning_that_was_interrupted_is_taken_up_again() {
    let directory = tempfile::tempdir().unwrap();
    // Interrupted while the database was being made …
    fs::create_dir(directory.path().join("store")).unwrap();
    let half = directory.path().join("store/records.redb.new");
    kit::durable::write_file(&half, b"half of a database", 0o600).unwrap();
    let store = open(directory.path()).unwrap();
    store.create_object(&numbered("box", 1)).await.unwrap();
    drop(store);
    assert!(!half.exists());
    // … and after that, before FORMAT.
    fs::remove_file(directory.path().join("FORMAT")).unwrap();
    let store = open(directory.path()).unwrap();
    assert_eq!(number(&find(&store, "box").await.unwrap()), 1);
    assert!(directory.path().join("FORMAT").exists());
}
