use std::{collections::BTreeSet, time::Duration};

use model::lifecycle::Phase;
use tokio::time::timeout;

use crate::world::{World, at, settle};

#[tokio::test(start_paused = true)]
async fn a_subscription_begins_with_every_key_and_goes_on_with_changes() {
    let world = World::new();
    world.create("a").await;
    world.create("b").await;
    let cache = world.sandboxes().await;
    let mut changes = cache.subscribe();
    assert_eq!(changes.next().await.unwrap(), at("a"));
    assert_eq!(changes.next().await.unwrap(), at("b"));
    world.delete("a").await;
    world.create("c").await;
    assert_eq!(changes.next().await.unwrap(), at("a"));
    assert!(cache.find(&at("a")).is_none(), "a removal is a change");
    assert_eq!(changes.next().await.unwrap(), at("c"));
    let nothing = timeout(Duration::from_secs(60), changes.next()).await;
    assert!(nothing.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_changes_take_no_more_room_than_there_are_keys() {
    const KEYS: usize = 20;
    let world = World::new();
    for n in 0..KEYS {
        world.create(&format!("n{n}")).await;
    }
    let cache = world.sandboxes().await;
    let mut changes = cache.subscribe();
    let mut most = 0;
    for n in 0..100_000 {
        world.touch(&format!("n{}", n % KEYS)).await;
        if n % 1000 == 0 {
            tokio::task::yield_now().await;
            most = most.max(changes.pending());
        }
    }
    world.caught_up(&cache).await;
    assert_eq!(most, KEYS);
    let told: BTreeSet<_> = changes
        .next_batch(usize::MAX)
        .await
        .unwrap()
        .into_iter()
        .collect();
    assert_eq!(told.len(), KEYS, "and none was lost");
    assert_eq!(changes.pending(), 0);
    for key in told {
        assert_eq!(
            cache.find(&key).unwrap().spec.epoch.0,
            1 + 100_000 / KEYS as u32
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_does_not_starve_the_others() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.create(name).await;
    }
    let cache = world.sandboxes().await;
    let mut changes = cache.subscribe();
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(changes.next().await.unwrap());
        world.touch("a").await;
        settle().await;
    }
    assert_eq!(taken, ["a", "b", "c"].map(at));
}

#[tokio::test(start_paused = true)]
async fn a_key_taken_and_changed_again_is_told_again() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let mut changes = cache.subscribe();
    changes.next().await.unwrap();
    for phase in [Phase::Starting, Phase::Running] {
        world.set_phase("a", phase).await;
        assert_eq!(changes.next().await.unwrap(), at("a"));
        assert_eq!(cache.find(&at("a")).unwrap().status.phase, phase);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_dropped_leaves_nothing_behind() {
    let world = World::new();
    let cache = world.sandboxes().await;
    let (one, two) = (cache.subscribe(), cache.subscribe());
    assert_eq!(cache.stats().subscriptions, 2);
    drop(one);
    assert_eq!(cache.stats().subscriptions, 1);
    drop(two);
    assert_eq!(cache.stats().subscriptions, 0);
}
