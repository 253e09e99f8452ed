//! Many writers at once.

use std::sync::Arc;

use kit::Tasks;
use model::{Generation, lifecycle::Phase};

use super::{created, find, sandbox, set_env};
use crate::{Store, StoreError, StoreExt as _};

pub async fn of_many_creators_of_one_name_one_succeeds(store: Arc<dyn Store>) {
    let tasks = Tasks::default();
    let creators: Vec<_> = (0..32)
        .map(|n| {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                let mut draft = sandbox("t", "box");
                set_env(&mut draft, n);
                store.create_object(&draft).await
            })
        })
        .collect();
    let mut winners = Vec::new();
    for creator in creators {
        match creator.await.unwrap() {
            Ok(made) => winners.push(made),
            Err(StoreError::AlreadyExists(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(winners.len(), 1);
    let winner = winners.pop().unwrap();
    assert_eq!(find(&*store, &winner.key()).await, Some(winner));
}

pub async fn of_many_writers_of_one_version_one_succeeds(store: Arc<dyn Store>) {
    let seen = created(&*store, "t", "box").await;
    let tasks = Tasks::default();
    let writers: Vec<_> = (0..32)
        .map(|n| {
            let store = Arc::clone(&store);
            let mut mine = seen.clone();
            tasks.spawn(async move {
                set_env(&mut mine, n);
                mine.status.phase = Phase::Running;
                // The halves race with each other too.
                if n % 2 == 0 {
                    store.update_spec(&mine).await
                } else {
                    store.update_status(&mine).await
                }
            })
        })
        .collect();
    let mut winners = Vec::new();
    for writer in writers {
        match writer.await.unwrap() {
            Ok(written) => winners.push(written),
            Err(StoreError::Conflict {
                expected, actual, ..
            }) => {
                assert_eq!(expected, seen.version());
                assert!(actual > expected);
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(winners.len(), 1);
    let winner = winners.pop().unwrap();
    assert_eq!(find(&*store, &winner.key()).await, Some(winner));
}

pub async fn no_acknowledged_change_of_64_writers_is_lost(store: Arc<dyn Store>) {
    const WRITERS: usize = 64;
    const EACH: usize = 4;
    let counter = created(&*store, "t", "counter").await;
    let key = counter.key();
    let tasks = Tasks::default();
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = Arc::clone(&store);
            let key = key.clone();
            tasks.spawn(async move {
                let mut versions = Vec::new();
                while versions.len() < EACH {
                    let mut seen = find(&*store, &key).await.unwrap();
                    let count: usize = seen.spec.env.get("N").map_or(0, |n| n.parse().unwrap());
                    set_env(&mut seen, count + 1);
                    match store.update_spec(&seen).await {
                        Ok(written) => versions.push(written.version()),
                        Err(StoreError::Conflict { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                versions
            })
        })
        .collect();
    let mut versions = Vec::new();
    for writer in writers {
        versions.extend(writer.await.unwrap());
    }
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(
        versions.len(),
        WRITERS * EACH,
        "each success is a version of its own"
    );
    let end = find(&*store, &key).await.unwrap();
    assert_eq!(
        end.spec.env.get("N"),
        Some((WRITERS * EACH).to_string().as_str())
    );
    assert_eq!(
        end.metadata.generation,
        Generation(1 + (WRITERS * EACH) as u64)
    );
    assert_eq!(end.version(), versions[versions.len() - 1]);
}
