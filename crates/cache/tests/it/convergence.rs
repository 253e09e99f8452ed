//! Whatever happens to the store and to the watch, the cache ends as the store's list, never goes
//! back on the way, and tells its subscribers enough to end there too.

use std::collections::BTreeMap;

use cache::{Cache, Full, Indexes as _, SandboxCache, SandboxIndex, Term};
use model::{Key, Version, lifecycle::Phase, sandbox::SandboxSpec};
use proptest::prelude::*;
use store::{Query, record::LabelTerm};

use crate::{
    flaky::Trouble,
    world::{World, at, sandbox, settle},
};

#[derive(Clone, Debug)]
enum Op {
    Create(u8),
    Touch(u8),
    Phase(u8, u8),
    Label(u8, bool),
    Delete(u8),
    Garbage(u8),
    LoseWatches,
    CutWatches,
    ExpireWatches,
    FailLists(u8),
    FailWatches(u8),
    StaleReads(u8),
    Lag,
    CatchUp,
    Settle,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = 0..6u8;
    let op = prop_oneof![
        6 => name.clone().prop_map(Op::Create),
        6 => name.clone().prop_map(Op::Touch),
        4 => (name.clone(), 0..11u8).prop_map(|(n, p)| Op::Phase(n, p)),
        4 => (name.clone(), any::<bool>()).prop_map(|(n, l)| Op::Label(n, l)),
        5 => name.clone().prop_map(Op::Delete),
        1 => name.prop_map(Op::Garbage),
        2 => Just(Op::LoseWatches),
        2 => Just(Op::CutWatches),
        2 => Just(Op::ExpireWatches),
        1 => (1..3u8).prop_map(Op::FailLists),
        1 => (1..3u8).prop_map(Op::FailWatches),
        2 => (0..8u8).prop_map(Op::StaleReads),
        1 => Just(Op::Lag),
        2 => Just(Op::CatchUp),
        5 => Just(Op::Settle),
    ];
    prop::collection::vec(op, 0..80)
}

async fn perform(world: &World, op: &Op) {
    let exists = |n: u8| {
        let truth = world.memory.truth();
        let name = format!("n{n}");
        truth
            .iter()
            .any(|r| r.meta.name.as_str() == name && &*r.spec != r#"{"epoch":"many"}"#)
    };
    let taken = |n: u8| {
        let name = format!("n{n}");
        world
            .memory
            .truth()
            .iter()
            .any(|r| r.meta.name.as_str() == name)
    };
    let name = |n: &u8| format!("n{n}");
    match op {
        Op::Create(n) if !taken(*n) => {
            let mut new = sandbox(&name(n));
            new.metadata.labels.insert("in", "yes");
            world.put(new).await;
        }
        Op::Garbage(n) if !taken(*n) => world.put_garbage(&name(n)).await,
        Op::Touch(n) if exists(*n) => {
            world.touch(&name(n)).await;
        }
        Op::Phase(n, p) if exists(*n) => {
            world.set_phase(&name(n), Phase::ALL[usize::from(*p)]).await;
        }
        Op::Label(n, l) if exists(*n) => {
            world
                .label(&name(n), "in", if *l { "yes" } else { "no" })
                .await;
        }
        Op::Delete(n) if taken(*n) => {
            use store::Store as _;
            let key = at(&name(n));
            world.memory.delete(&key, Default::default()).await.unwrap();
        }
        Op::Create(_)
        | Op::Touch(_)
        | Op::Phase(..)
        | Op::Label(..)
        | Op::Delete(_)
        | Op::Garbage(_) => {}
        Op::LoseWatches => world.memory.lose_watches(),
        Op::CutWatches => world.store.cut_watches(),
        Op::ExpireWatches => world.store.expire_watches(),
        Op::FailLists(n) => {
            let troubles = std::iter::repeat_n(Trouble::Unavailable, usize::from(*n));
            world.store.list_troubles.lock().extend(troubles);
        }
        Op::FailWatches(n) => {
            let troubles = std::iter::repeat_n(Trouble::Unavailable, usize::from(*n));
            world.store.watch_troubles.lock().extend(troubles);
        }
        Op::StaleReads(n) => {
            let behind = usize::from(*n);
            world.memory.faults().on_read(move || behind);
        }
        Op::Lag => world.memory.lag(),
        Op::CatchUp => world.memory.catch_up(),
        Op::Settle => settle().await,
    }
}

/// What a subscriber knows that looks up each key it is told of.
#[derive(Default)]
struct Mirror {
    now: BTreeMap<Key, Version>,
    /// The newest version ever seen of each key.
    newest: BTreeMap<Key, Version>,
    version: Version,
}

impl Mirror {
    fn look(&mut self, cache: &SandboxCache, told: Vec<Key>) {
        assert!(cache.version() >= self.version, "the cache went back");
        self.version = cache.version();
        for key in told {
            let Some(value) = cache.find(&key) else {
                self.now.remove(&key);
                continue;
            };
            let known = self.newest.insert(key.clone(), value.version());
            let back = match known {
                None => false,
                // What was gone and is there again must be newer than what went.
                Some(known) if !self.now.contains_key(&key) => known >= value.version(),
                Some(known) => known > value.version(),
            };
            assert!(!back, "{key} went back");
            self.now.insert(key, value.version());
        }
    }
}

async fn run(ops: Vec<Op>) {
    let world = World::new();
    let yes = LabelTerm::In("in".into(), vec!["yes".into()]);
    let cache: Cache<Full<SandboxSpec, SandboxIndex>> =
        world.start(world.options().matching(yes.clone())).await;
    let mut changes = cache.subscribe();
    let mut mirror = Mirror::default();
    for op in &ops {
        perform(&world, op).await;
        if changes.pending() > 0 {
            let told = changes.next_batch(3).await.unwrap();
            mirror.look(&cache, told);
        }
    }
    world.memory.faults().clear();
    world.memory.catch_up();
    world.caught_up(&cache).await;
    while changes.pending() > 0 {
        let told = changes.next_batch(usize::MAX).await.unwrap();
        mirror.look(&cache, told);
    }

    use model::Spec as _;
    let query = Query {
        labels: vec![yes],
        ..Query::kind(SandboxSpec::KIND)
    };
    let truth: BTreeMap<_, _> = world
        .memory
        .truth()
        .into_iter()
        .filter(|r| query.matches(r) && r.decode::<SandboxSpec>().is_ok())
        .map(|r| (r.key(), r.version()))
        .collect();
    let all = cache.find_all();
    let cached: BTreeMap<_, _> = all.iter().map(|s| (s.key(), s.version())).collect();
    assert_eq!(cached, truth, "the cache is the store's list");
    assert_eq!(mirror.now, truth, "and so is what subscribers were told of");

    for index in SandboxIndex::ALL {
        for phase in Phase::ALL.map(Phase::as_str).into_iter().chain(["default"]) {
            let term = Term::from(phase);
            let by_scan: Vec<_> = all
                .iter()
                .filter(|s| {
                    let mut has = false;
                    index.terms(s, &mut |t| has |= t == term);
                    has
                })
                .map(|s| s.key())
                .collect();
            let by_index: Vec<_> = cache
                .find_by(*index, term)
                .iter()
                .map(|s| s.key())
                .collect();
            assert_eq!(by_index, by_scan, "{index:?} {phase}");
        }
    }
}

proptest! {
    #[test]
    fn a_cache_ends_as_the_stores_list_whatever_happened(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(ops));
    }
}
