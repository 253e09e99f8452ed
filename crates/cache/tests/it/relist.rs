use std::time::Duration;

use cache::{Health, condition};
use model::{Namespace, Spec as _, lifecycle::Phase, sandbox::SandboxSpec};
use store::{Query, Store as _, StoreExt as _, record::LabelTerm};
use tokio::time::sleep;

use crate::{
    flaky::Trouble,
    world::{World, at, content, in_phase, sandbox_in, settle, within},
};

#[tokio::test(start_paused = true)]
async fn a_lost_watch_resumes_from_its_version() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    settle().await;
    world.create("b").await;
    settle().await;
    let seen = cache.version();
    let lists = world.store.lists();

    world.store.cut_watches();
    world.create("c").await;
    world.delete("a").await;
    world.caught_up(&cache).await;

    assert_eq!(
        content(&cache).iter().map(|(n, _)| n).collect::<Vec<_>>(),
        ["b", "c"]
    );
    assert_eq!(world.store.lists(), lists, "nothing was listed again");
    assert_eq!(world.store.watched_from.lock().last(), Some(&seen));
    assert_eq!(cache.stats().lost_watches, 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_lists_again_and_misses_nothing() {
    let world = World::new();
    for name in ["changed", "kept", "removed"] {
        world.create(name).await;
    }
    let cache = world.sandboxes().await;
    settle().await;
    let mut changes = cache.subscribe();
    changes.next_batch(10).await.unwrap();

    world.memory.lag();
    world.set_phase("changed", Phase::Starting).await;
    world.delete("removed").await;
    world.create("added").await;
    world.memory.lose_watches();
    world.memory.catch_up();
    world.caught_up(&cache).await;

    assert_eq!(
        cache.find(&at("changed")).unwrap().status.phase,
        Phase::Starting
    );
    assert!(cache.find(&at("removed")).is_none());
    assert!(cache.find(&at("added")).is_some());
    assert_eq!(cache.stats().relists, 1);
    let mut told: Vec<_> = changes.next_batch(10).await.unwrap();
    told.sort();
    assert_eq!(
        told,
        ["added", "changed", "removed"].map(at),
        "and only what changed is told"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_removal_is_served_by_a_relist() {
    let world = World::new();
    let uid = world.create("a").await.uid();
    let cache = world.sandboxes().await;
    settle().await;
    let waiting = {
        let cache = cache.clone();
        let gone = async move {
            cache
                .wait_for(&at("a"), condition::gone(uid), within(60))
                .await
        };
        world.tasks.spawn(gone)
    };
    settle().await;

    world.memory.lag();
    world.delete("a").await;
    world.memory.lose_watches();
    world.memory.catch_up();

    assert!(waiting.await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_resync_is_silent() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.create(name).await;
    }
    let cache = world.sandboxes().await;
    settle().await;
    let mut changes = cache.subscribe();
    changes.next_batch(10).await.unwrap();
    let before = cache.find_all();

    for _ in 0..3 {
        world.memory.lose_watches();
        world.caught_up(&cache).await;
    }

    assert_eq!(cache.stats().relists, 3);
    assert_eq!(changes.pending(), 0);
    let after = cache.find_all();
    let same = before
        .iter()
        .zip(&after)
        .all(|(a, b)| std::sync::Arc::ptr_eq(a, b));
    assert!(same, "values were not even replaced by equal ones");
}

#[tokio::test(start_paused = true)]
async fn a_stale_list_cannot_regress_or_resurrect() {
    let world = World::new();
    world.create("kept").await;
    world.create("removed").await;
    let cache = world.sandboxes().await;
    settle().await;
    world.set_phase("kept", Phase::Starting).await;
    world.delete("removed").await;
    world.create("added").await;
    world.caught_up(&cache).await;
    let (before, version) = (content(&cache), cache.version());
    let mut changes = cache.subscribe();
    changes.next_batch(10).await.unwrap();

    // Lists answer as of before all of that, for a while.
    world.memory.faults().on_read(|| 3);
    world.memory.lose_watches();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(content(&cache), before);
    assert_eq!(cache.version(), version);
    assert_eq!(changes.pending(), 0);
    assert!(cache.stats().stale_lists > 0);
    assert!(cache.is_ready(), "it serves what it has");

    world.memory.faults().clear();
    world.touch("kept").await;
    world.caught_up(&cache).await;
    assert_eq!(changes.next_batch(10).await.unwrap(), [at("kept")]);
}

#[tokio::test(start_paused = true)]
async fn changes_replayed_after_a_stale_list_are_old_news() {
    let world = World::new();
    world.create("kept").await;
    let cache = world.sandboxes().await;
    settle().await;
    world.create("short-lived").await;
    world.delete("short-lived").await;
    world.touch("kept").await;
    world.caught_up(&cache).await;
    let mut changes = cache.subscribe();
    changes.next_batch(10).await.unwrap();

    // The list is from before all of that, and the watch after it tells it all again.
    world.memory.faults().on_read(|| 3);
    world.store.expire_watches();
    settle().await;
    world.memory.faults().clear();
    let stale = cache.stats();
    assert_eq!((stale.stale_lists, stale.relists), (1, 1));
    assert!(*world.store.watched_from.lock().last().unwrap() < cache.version());
    assert_eq!(changes.pending(), 0, "nothing of it is told again");

    world.create("new").await;
    world.caught_up(&cache).await;
    assert_eq!(changes.next_batch(10).await.unwrap(), [at("new")]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_first_list_is_caught_up_by_the_watch() {
    let world = World::new();
    world.create("a").await;
    world.create("b").await;
    world.delete("a").await;
    world.memory.faults().on_read(|| 2);
    let cache = world.sandboxes().await;
    assert!(
        cache.find(&at("a")).is_some(),
        "as of the list's version it was there"
    );
    world.caught_up(&cache).await;
    assert!(cache.find(&at("a")).is_none());
    assert!(cache.find(&at("b")).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selector_leaves_the_cache_as_a_removal() {
    let world = World::new();
    world.create("a").await;
    world.label("a", "tier", "gold").await;
    world.create("b").await;
    let gold = LabelTerm::In("tier".into(), vec!["gold".into()]);
    let cache: cache::SandboxCache = world.start(world.options().matching(gold)).await;
    assert_eq!(cache.len(), 1);
    settle().await;

    let key = at("a");
    let wait = cache.wait_for(&key, |a| a.is_none(), within(60));
    let (left, _) = tokio::join!(wait, world.label("a", "tier", "lead"));
    assert!(left.unwrap().is_none());

    world.label("a", "tier", "gold").await;
    world.label("b", "tier", "gold").await;
    world.caught_up(&cache).await;
    assert_eq!(cache.len(), 2, "and comes in again");

    // The same across a relist.
    world.memory.lag();
    world.label("b", "tier", "lead").await;
    world.memory.lose_watches();
    world.memory.catch_up();
    world.caught_up(&cache).await;
    assert_eq!(cache.len(), 1);
    assert!(cache.find(&at("b")).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_cache_of_one_namespace_sees_no_other() {
    let world = World::new();
    world.put(sandbox_in("ours", "a")).await;
    world.put(sandbox_in("theirs", "a")).await;
    let ours = Namespace::new("ours").unwrap();
    let cache: cache::SandboxCache = world.start(world.options().within(ours)).await;
    world.put(sandbox_in("theirs", "b")).await;
    world.caught_up(&cache).await;
    assert_eq!(cache.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_left_out_and_shown() {
    let world = World::new();
    world.create("good").await;
    world.put_garbage("listed").await;
    let cache = world.sandboxes().await;
    settle().await;
    world.put_garbage("watched").await;
    world.create("later").await;
    world.caught_up(&cache).await;

    assert!(cache.is_ready());
    assert_eq!(cache.len(), 2);
    let left_out: Vec<_> = cache
        .stats()
        .undecodable
        .into_iter()
        .map(|u| u.key)
        .collect();
    assert_eq!(left_out, [at("listed"), at("watched")]);

    // Once removed they are forgotten, by a watch or by a relist.
    world
        .memory
        .delete(&at("watched"), Default::default())
        .await
        .unwrap();
    world.caught_up(&cache).await;
    assert_eq!(cache.stats().undecodable.len(), 1);
    world.memory.lag();
    world
        .memory
        .delete(&at("listed"), Default::default())
        .await
        .unwrap();
    world.memory.lose_watches();
    world.memory.catch_up();
    world.caught_up(&cache).await;
    assert!(cache.stats().undecodable.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_became_unreadable_keeps_its_last_value() {
    let world = World::new();
    let good = world.create("a").await;
    let cache = world.sandboxes().await;
    settle().await;
    let mut change = store::Change::status(&good);
    change.half = store::Half::Status {
        status: r#"{"phase":"Levitating"}"#.into(),
    };
    world.memory.update(change).await.unwrap();
    world.caught_up(&cache).await;
    assert_eq!(cache.find(&at("a")).unwrap().version(), good.version());
    assert_eq!(cache.stats().undecodable.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_the_cache_serves_stays_ready_and_shows_its_lag() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    settle().await;
    assert_eq!(cache.stats().lag, Duration::ZERO);

    let troubles = std::iter::repeat_n(Trouble::Unavailable, 10);
    world.store.watch_troubles.lock().extend(troubles);
    world.store.cut_watches();
    sleep(Duration::from_secs(5)).await;

    assert!(cache.is_ready());
    assert_eq!(cache.len(), 1);
    assert!(
        cache.stats().lag >= Duration::from_secs(4),
        "{:?}",
        cache.stats().lag
    );
    let Health::Retrying { failures, .. } = cache.health() else {
        panic!("{:?}", cache.health())
    };
    assert!(
        (3..20).contains(&failures),
        "backed off, {failures} failures"
    );

    let key = at("a");
    let wait = cache.wait_for(&key, in_phase(Phase::Starting), within(3600));
    let (seen, _) = tokio::join!(wait, world.set_phase("a", Phase::Starting));
    assert!(seen.unwrap().is_some());
    assert!(matches!(cache.health(), Health::Live));
    assert_eq!(cache.stats().lag, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgets_at_once_is_not_hammered_with_lists() {
    let world = World::new();
    let cache = world.sandboxes().await;
    settle().await;
    // Every list is behind what the store can still be watched from.
    for _ in 0..4 {
        world.create(&format!("n{}", world.memory.version())).await;
    }
    world.caught_up(&cache).await;
    world.memory.faults().on_read(|| 2);
    world.memory.lose_watches();
    let before = world.store.lists();
    sleep(Duration::from_secs(30)).await;
    let lists = world.store.lists() - before;
    assert!((5..40).contains(&lists), "{lists} lists in 30 s");
}

#[tokio::test(start_paused = true)]
async fn versions_advance_with_changes_of_other_kinds() {
    let world = World::new();
    let cache = world.sandboxes().await;
    settle().await;
    let spec = model::pool::PoolSpec::new(model::Name::new("t").unwrap(), 0, 0, 0);
    let metadata = sandbox_in("default", "p").metadata;
    let pool = world
        .memory
        .create_object(&model::Object::new(metadata, spec))
        .await
        .unwrap();
    cache
        .wait_for_version(pool.version(), within(5))
        .await
        .unwrap();
    assert!(cache.is_empty());
    let listed = world
        .memory
        .list(&Query::kind(SandboxSpec::KIND))
        .await
        .unwrap();
    assert_eq!(cache.version(), listed.version);
}
