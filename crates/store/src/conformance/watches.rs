//! Watching: order, scope, no gaps, and being told when there would be one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kit::Tasks;
use model::{
    Incarnation, Spec as _, Version, lifecycle::Phase, pool::PoolSpec, sandbox::SandboxSpec,
};

use super::{
    KIND, created, namespace, next, next_change, pool, sandbox, set_env, set_phase, watch_from_now,
};
use crate::{Draft, Query, Scope, Store, StoreError, StoreExt as _, WatchEvent};

/// More changes than any store should have to remember.
const VERY_MANY: usize = 40_000;

pub async fn a_watch_sees_every_change_in_order_with_what_was_before(store: Arc<dyn Store>) {
    let mut watch = watch_from_now(&*store).await;
    let made = created(&*store, "t", "box").await;
    let mut changed = made.clone();
    set_env(&mut changed, 1);
    let changed = store.update_spec(&changed).await.unwrap();
    let mut moved = changed.clone();
    set_phase(&*store, &mut moved, Phase::Running).await;
    let mut before = None;
    for expected in [made, changed, moved] {
        match next_change(&mut *watch).await {
            WatchEvent::Put { record, previous } => {
                assert_eq!(record.decode::<SandboxSpec>().unwrap(), expected);
                if let Some(previous) = previous {
                    assert_eq!(Some(previous.decode::<SandboxSpec>().unwrap()), before);
                }
                before = Some(expected);
            }
            other => panic!("{other:?}"),
        }
    }
}

pub async fn a_removal_is_seen_with_its_last_content(store: Arc<dyn Store>) {
    let mut draft = sandbox("t", "box");
    draft.metadata.labels.insert("a", "b");
    let made = store.create_object(&draft).await.unwrap();
    let mut watch = watch_from_now(&*store).await;
    store.delete_object(&made).await.unwrap();
    match next_change(&mut *watch).await {
        WatchEvent::Removed { record } => {
            assert!(record.version() > made.version());
            assert_eq!(record.uid(), made.uid());
            assert_eq!(record.meta.labels, made.metadata.labels);
        }
        other => panic!("{other:?}"),
    }
}

pub async fn a_watch_is_of_its_kind_and_namespace_only(store: Arc<dyn Store>) {
    let version = store.list(&Query::kind(KIND)).await.unwrap().version;
    let mut scope = Scope::kind(KIND);
    scope.namespace = Some(namespace("mine"));
    let mut narrow = store.watch(scope, version).await.unwrap();
    let mut wide = store.watch(Scope::kind(KIND), version).await.unwrap();
    let pools = Scope::kind(PoolSpec::KIND);
    let mut pools = store.watch(pools, version).await.unwrap();
    let theirs = created(&*store, "theirs", "box").await;
    let pool = store.create_object(&pool("mine", "pool")).await.unwrap();
    let mine = created(&*store, "mine", "box").await;
    assert_eq!(next_change(&mut *narrow).await.version(), mine.version());
    assert_eq!(next_change(&mut *wide).await.version(), theirs.version());
    assert_eq!(next_change(&mut *wide).await.version(), mine.version());
    assert_eq!(next_change(&mut *pools).await.version(), pool.version());
}

pub async fn changes_of_no_interest_move_a_watch_on_by_bookmarks(store: Arc<dyn Store>) {
    let mut watch = watch_from_now(&*store).await;
    let mut last = Version::ZERO;
    for n in 0..10 {
        last = store
            .create_object(&pool("t", &format!("pool-{n}")))
            .await
            .unwrap()
            .version();
    }
    loop {
        match next(&mut *watch).await {
            WatchEvent::Bookmark(at) if at >= last => break,
            WatchEvent::Bookmark(_) => {}
            other => panic!("{other:?}"),
        }
    }
    // And the bookmark is a place to go on from.
    let mut again = store.watch(Scope::kind(KIND), last).await.unwrap();
    let made = created(&*store, "t", "box").await;
    assert_eq!(next_change(&mut *again).await.version(), made.version());
    assert_eq!(next_change(&mut *watch).await.version(), made.version());
}

pub async fn a_listing_and_a_watch_from_it_leave_no_gap(store: Arc<dyn Store>) {
    const WRITERS: usize = 4;
    const EACH: usize = 30;
    let tasks = Tasks::default();
    let writers: Vec<_> = (0..WRITERS)
        .map(|w| {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for n in 0..EACH {
                    let made = created(&*store, "t", &format!("box-{w}-{n}")).await;
                    if n % 3 == 0 {
                        store.delete_object(&made).await.unwrap();
                    }
                }
            })
        })
        .collect();
    // Listings begin at different moments of the writing.
    let readers: Vec<_> = (0..8)
        .map(|r| {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                let listing = loop {
                    let listing = store.list(&Query::kind(KIND)).await.unwrap();
                    if listing.records.len() >= r * 8 {
                        break listing;
                    }
                    tokio::task::yield_now().await;
                };
                let mut state: BTreeMap<_, _> = listing
                    .records
                    .into_iter()
                    .map(|record| (record.key(), record))
                    .collect();
                let mut at = listing.version;
                let mut watch = store.watch(Scope::kind(KIND), at).await.unwrap();
                let ended = model::Key::namespaced(KIND, namespace("t"), super::name("end"));
                while !state.contains_key(&ended) {
                    let change = next(&mut *watch).await;
                    assert!(change.version() > at, "versions go forward");
                    at = change.version();
                    match change {
                        WatchEvent::Put { record, .. } => drop(state.insert(record.key(), record)),
                        WatchEvent::Removed { record } => drop(state.remove(&record.key())),
                        WatchEvent::Bookmark(_) => {}
                    }
                }
                state
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    created(&*store, "t", "end").await;
    let mut states = Vec::new();
    for reader in readers {
        states.push(reader.await.unwrap());
    }
    let truth = store.list(&Query::kind(KIND)).await.unwrap().records;
    for state in states {
        assert_eq!(state.into_values().collect::<Vec<_>>(), truth);
    }
}

pub async fn cancelling_a_wait_loses_nothing(store: Arc<dyn Store>) {
    let mut watch = watch_from_now(&*store).await;
    let tasks = Tasks::default();
    let writer = {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut made = Vec::new();
            for n in 0..60 {
                made.push(created(&*store, "t", &format!("box-{n}")).await.version());
                tokio::task::yield_now().await;
            }
            made
        })
    };
    let mut seen = Vec::new();
    let mut impatient = 0;
    while seen.len() < 60 {
        impatient += 1;
        // Most waits are given up at their first or a later point of waiting.
        let next = tokio::select! {
            biased;
            next = watch.next() => next.unwrap(),
            () = give_up_after(impatient % 4) => continue,
        };
        if let WatchEvent::Put { record, .. } = next {
            seen.push(record.version());
        }
    }
    assert_eq!(seen, writer.await.unwrap());
}

/// Ends after this many turns, or for none of them after a moment, so that waiting gets its chance.
async fn give_up_after(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    if turns == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub async fn a_watch_from_another_incarnation_is_told_to_list_again(store: Arc<dyn Store>) {
    let made = created(&*store, "t", "box").await;
    let now = made.version();
    let other = Incarnation(now.incarnation().0 + 1);
    let foreign = Version::new(other, now.sequence());
    match store.watch(Scope::kind(KIND), foreign).await {
        Err(StoreError::Expired { after }) => assert_eq!(after, foreign),
        other => panic!("{other:?}"),
    }
}

/// Changes something until a watch from `after` is refused.
async fn outlive_memory(store: &Arc<dyn Store>, after: Version) {
    let tasks = Tasks::default();
    for round in 0..VERY_MANY / 256 {
        let writes: Vec<_> = (0..256)
            .map(|n| {
                let store = Arc::clone(store);
                tasks.spawn(async move {
                    let draft = Draft::of(&sandbox("many", &format!("box-{round}-{n}")));
                    store.create(draft).await.unwrap();
                })
            })
            .collect();
        for write in writes {
            write.await.unwrap();
        }
        match store.watch(Scope::kind(KIND), after).await {
            Ok(_) => {}
            Err(StoreError::Expired { after: said }) => {
                assert_eq!(said, after);
                return;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("a store that remembers {VERY_MANY} changes will run out of memory");
}

pub async fn a_watch_from_before_what_is_remembered_is_told_to_list_again(store: Arc<dyn Store>) {
    let made = created(&*store, "t", "box").await;
    outlive_memory(&store, made.version()).await;
    // Listing again is the way on.
    let mut watch = watch_from_now(&*store).await;
    let made = created(&*store, "t", "box-2").await;
    assert_eq!(next_change(&mut *watch).await.version(), made.version());
}

pub async fn a_watch_that_falls_behind_is_told_to_list_again(store: Arc<dyn Store>) {
    let made = created(&*store, "t", "box").await;
    let mut slow = store
        .watch(Scope::kind(KIND), made.version())
        .await
        .unwrap();
    outlive_memory(&store, made.version()).await;
    let mut last = made.version();
    loop {
        // It may still be given what it took out of the store's memory, in order; then it is told.
        match slow.next().await {
            Ok(event) => {
                assert!(event.version() > last);
                last = event.version();
            }
            Err(StoreError::Expired { .. }) => break,
            Err(other) => panic!("{other:?}"),
        }
    }
}
