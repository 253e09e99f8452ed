//! Files that are not what they were: refused by name, never mended by force, never misread.

use std::{fs, path::Path};

use kit::Entropy;
use model::{Sandbox, sandbox::SandboxSpec};
use store::{Query, Store as _, StoreExt as _};
use tempfile::TempDir;

use super::{KIND, all, numbered, open};
use crate::OpenError;

const RECORDS: usize = 300;

/// A store that was closed, what it holds, and its file.
async fn closed_store() -> (TempDir, Vec<Sandbox>, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    for n in 0..RECORDS {
        store
            .create_object(&numbered(&format!("box-{n}"), n))
            .await
            .unwrap();
    }
    let records = all(&store).await;
    drop(store);
    let content = fs::read(file(&directory)).unwrap();
    (directory, records, content)
}

fn file(directory: &TempDir) -> std::path::PathBuf {
    directory.path().join("store/records.redb")
}

fn put(path: &Path, content: &[u8]) {
    kit::durable::write_file(path, content, 0o600).unwrap();
}

fn assert_refused_untouched(directory: &TempDir, content: &[u8], what: &str) {
    match open(directory.path()) {
        Err(error @ OpenError::Damaged { .. }) => {
            let message = error.to_string();
            assert!(
                message.contains("records.redb") && message.contains("restore"),
                "{message}"
            );
        }
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(
        fs::read(file(directory)).unwrap(),
        content,
        "{what}: the file was changed"
    );
}

#[tokio::test]
async fn an_empty_file_is_refused_and_not_taken_for_a_new_store() {
    let (directory, ..) = closed_store().await;
    put(&file(&directory), b"");
    assert_refused_untouched(&directory, b"", "empty");
}

#[tokio::test]
async fn a_truncated_file_is_refused_and_not_changed() {
    let (directory, _, whole) = closed_store().await;
    let dice = Entropy::from_os();
    let mut lengths = vec![1, 8, 100, 511, 4096, 8192, whole.len() / 2, whole.len() - 1];
    lengths.extend((0..20).map(|_| 1 + dice.below(whole.len() - 1)));
    for length in lengths {
        put(&file(&directory), &whole[..length]);
        assert_refused_untouched(&directory, &whole[..length], &format!("{length} bytes"));
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_not_changed() {
    let (directory, _, whole) = closed_store().await;
    for content in [
        vec![0; whole.len()],
        b"#!/bin/sh\n".repeat(1000),
        vec![0xff; 4096],
    ] {
        put(&file(&directory), &content);
        assert_refused_untouched(&directory, &content, "not a database");
    }
}

#[tokio::test]
async fn bytes_changed_anywhere_are_refused_or_harmless_but_never_believed() {
    let (directory, records, whole) = closed_store().await;
    let seed = Entropy::from_os().u64();
    println!("seed {seed}");
    let dice = Entropy::seeded(seed);
    let (mut refused, mut harmless) = (0, 0);
    for round in 0..300 {
        let mut content = whole.clone();
        // A few bytes, a sector, a page.
        let length = [1, 4, 512, 4096][dice.below(4)];
        // The header is small and matters most.
        let within = if round % 3 == 0 {
            512
        } else {
            content.len() - length
        };
        let at = dice.below(within);
        dice.fill(&mut content[at..at + length]);
        put(&file(&directory), &content);
        let context = format!("seed {seed}, round {round}: {length} bytes at {at}");
        let store = match open(directory.path()) {
            Ok(store) => store,
            Err(OpenError::Damaged { .. }) => {
                refused += 1;
                assert_eq!(fs::read(file(&directory)).unwrap(), content, "{context}");
                continue;
            }
            Err(other) => panic!("{context}: {other:?}"),
        };
        match store.list_objects::<SandboxSpec>(&Query::kind(KIND)).await {
            Ok((found, _)) => {
                assert_eq!(found, records, "{context}");
                harmless += 1;
            }
            Err(_) => refused += 1,
        }
        for sandbox in records.iter().step_by(37) {
            if let Ok(found) = store.get(&sandbox.key()).await {
                let found = found.map(|record| record.decode::<SandboxSpec>().unwrap());
                assert_eq!(found.as_ref(), Some(sandbox), "{context}");
            }
        }
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 0 && harmless > 0);
}
