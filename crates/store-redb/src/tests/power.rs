//! Power cuts and single disk errors at every step: nothing acknowledged is lost, and nothing is
//! acknowledged or seen that is not on the disk.

use std::{collections::BTreeMap, io, sync::Arc};

use kit::{Entropy, Tasks};
use model::{Sandbox, Version, sandbox::SandboxSpec};
use store::{Outcome, Scope, Store, StoreError, StoreExt as _, Watch, WatchEvent};

use super::{
    KIND, all, assert_indexes_agree, find, number, numbered, open_on,
    platter::{Fault, Platter},
    set_number,
};
use crate::RedbStore;

const WRITERS: usize = 4;
const CUTS: usize = 250;

/// What one writer knows of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    /// The last number that was acknowledged, and the version of that.
    acknowledged: Option<(usize, Version)>,
    /// The last number that was tried.
    tried: usize,
}

/// Raises the number in one record until the store fails.
async fn write_until_it_fails(store: Arc<RedbStore>, name: String, mut known: Known) -> Known {
    let Ok(mut current) = store.find::<SandboxSpec>(&super::key(&name)).await else {
        return known;
    };
    for _ in 0..200 {
        known.tried += 1;
        let written = match current {
            None => store.create_object(&numbered(&name, known.tried)).await,
            Some(mut sandbox) => {
                set_number(&mut sandbox, known.tried);
                store.update_spec(&sandbox).await
            }
        };
        match written {
            Ok(sandbox) => {
                known.acknowledged = Some((known.tried, sandbox.version()));
                current = Some(sandbox);
            }
            Err(StoreError::Unavailable { .. }) => return known,
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("the power did not fail");
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_in_250_power_cuts() {
    let seed = Entropy::from_os().u64();
    println!("seed {seed}");
    let dice = Entropy::seeded(seed);
    let platter = Platter::new(seed);
    let mut known = [Known::default(); WRITERS];
    let mut head = Version::ZERO;
    let (mut while_opening, mut in_doubt) = (0, 0);
    for cut in 0..CUTS {
        // Early steps are those of opening and repairing.
        platter.plan(dice.below([12, 60, 400][cut % 3]), Fault::PowerCut);
        match open_on(platter.clone()) {
            Err(_) => while_opening += 1,
            Ok(store) => {
                let store = Arc::new(store);
                let tasks = Tasks::default();
                let writers: Vec<_> = (0..WRITERS)
                    .map(|w| {
                        let store = Arc::clone(&store);
                        tasks.spawn(write_until_it_fails(store, format!("box-{w}"), known[w]))
                    })
                    .collect();
                for (w, writer) in writers.into_iter().enumerate() {
                    known[w] = writer.await.unwrap();
                }
            }
        }
        platter.power_cycle();
        let context = format!("seed {seed}, cut {cut}");
        let store = open_on(platter.clone()).unwrap_or_else(|e| panic!("{context}: {e}"));
        for (w, known) in known.iter_mut().enumerate() {
            let found = find(&store, &format!("box-{w}")).await;
            let Some(found) = found else {
                assert_eq!(known.acknowledged, None, "{context}: box-{w} is gone");
                continue;
            };
            let at = (number(&found), found.version());
            if let Some(acknowledged) = known.acknowledged {
                assert!(
                    at.0 >= acknowledged.0 && at.1 >= acknowledged.1,
                    "{context}: {at:?} {known:?}"
                );
                in_doubt += usize::from(at != acknowledged);
            }
            assert!(at.0 <= known.tried, "{context}: {at:?} was never written");
            known.acknowledged = Some(at);
            head = head.max(at.1);
        }
        assert!(store.version() >= head, "{context}: the sequence went back");
        head = store.version();
        assert_indexes_agree(&store).await;
    }
    println!("{while_opening} cuts while opening; {in_doubt} writes were stored, not acknowledged");
    assert!(
        while_opening > 0 && while_opening < CUTS / 2,
        "{while_opening} of {CUTS}"
    );
}

/// What a cache that follows a watch holds.
#[derive(Default)]
struct Seen {
    at: Version,
    records: BTreeMap<model::Key, Sandbox>,
}

impl Seen {
    async fn follow(&mut self, watch: &mut dyn Watch, to: Version) {
        while self.at < to {
            let patience = std::time::Duration::from_secs(30);
            let event = tokio::time::timeout(patience, watch.next()).await;
            let event = event.expect("a change was not seen").unwrap();
            self.at = event.version();
            match event {
                WatchEvent::Put { record, .. } => {
                    self.records.insert(record.key(), record.decode().unwrap());
                }
                WatchEvent::Removed { record } => {
                    self.records.remove(&record.key());
                }
                WatchEvent::Bookmark(_) => {}
            }
        }
    }
}

/// The record, as soon as the store is open again.
async fn find_soon(store: &RedbStore) -> Sandbox {
    for _ in 0..5000 {
        match store.find::<SandboxSpec>(&super::key("box")).await {
            Ok(found) => return found.unwrap(),
            Err(StoreError::Unavailable { .. }) => {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("the store did not open again");
}

/// Makes each step of a write fail once, and checks what the caller was told, what is there, and
/// what watchers saw.
async fn fail_each_step(kind: io::ErrorKind) {
    let platter = Platter::new(Entropy::from_os().u64());
    let store = open_on(platter.clone()).unwrap();
    let mut watch = store
        .watch(Scope::kind(KIND), store.version())
        .await
        .unwrap();
    let mut seen = Seen::default();
    let mut sandbox = store.create_object(&numbered("box", 0)).await.unwrap();
    let (mut not_applied, mut applied) = (0, 0);
    for step in 0..30 {
        let before = number(&sandbox);
        let mut wanted = sandbox.clone();
        set_number(&mut wanted, before + 1);
        platter.plan(step % 15, Fault::Error(kind));
        let steps = platter.steps();
        let answer = store.update_spec(&wanted).await;
        if !platter.is_past_its_fault() {
            assert!(platter.steps() - steps <= step % 15);
            platter.plan(usize::MAX, Fault::Error(kind));
        }
        // Whatever happened, the store reopens by itself.
        let found = find_soon(&store).await;
        match answer {
            Ok(written) => {
                assert_eq!(found, written, "step {step}");
                applied += 1;
            }
            Err(StoreError::Unavailable { outcome, reason }) => {
                if outcome == Outcome::NotApplied {
                    assert_eq!(found, sandbox, "step {step}: {reason}");
                }
                not_applied += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
        sandbox = found;
        seen.follow(&mut *watch, store.version()).await;
        assert_eq!(
            seen.records.get(&sandbox.key()),
            Some(&sandbox),
            "step {step}"
        );
    }
    assert!(
        not_applied > 0 && applied > 0,
        "{not_applied} failed, {applied} succeeded"
    );
    drop(store);
    platter.power_cycle();
    let store = open_on(platter).unwrap();
    assert_eq!(all(&store).await, [sandbox]);
    assert_indexes_agree(&store).await;
}

#[tokio::test]
async fn a_disk_error_at_any_step_of_a_write_is_answered_as_it_is() {
    fail_each_step(io::ErrorKind::Other).await;
}

#[tokio::test]
async fn a_full_disk_at_any_step_of_a_write_is_answered_as_it_is() {
    fail_each_step(io::ErrorKind::StorageFull).await;
}
