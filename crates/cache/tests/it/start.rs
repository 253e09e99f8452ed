use std::{sync::Arc, time::Duration};

use cache::{Cache, Health, Names, NoIndex, SandboxCache, StartError, StopReason, View, WaitError};
use model::{KindName, Spec as _, sandbox::Sandbox, sandbox::SandboxSpec};
use store::{Record, StoreError};
use tokio::time::{Instant, sleep};

use crate::{
    flaky::Trouble,
    world::{World, at, settle, within},
};

async fn try_start(world: &World, seconds: u64) -> Result<SandboxCache, StartError> {
    Cache::start(
        world.store.clone(),
        world.options(),
        within(seconds),
        &world.tasks,
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_started_has_everything_that_was_there() {
    let world = World::new();
    world.create("a").await;
    world.create("b").await;
    let cache = world.sandboxes().await;
    assert_eq!(cache.len(), 2);
    assert_eq!(cache.version(), world.memory.version());
    assert!(cache.is_ready());
}

#[tokio::test(start_paused = true)]
async fn an_empty_store_is_a_first_sync_too() {
    let cache = World::new().sandboxes().await;
    assert!(cache.is_empty() && cache.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_ends_at_its_deadline() {
    let world = World::new();
    world.store.list_troubles.lock().push_back(Trouble::Hangs);
    let began = Instant::now();
    let error = try_start(&world, 5).await.unwrap_err();
    assert!(
        matches!(error, StartError::DeadlineReached { last: None }),
        "{error}"
    );
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_keeps_failing_says_with_what() {
    let world = World::new();
    let troubles = std::iter::repeat_n(Trouble::Unavailable, 1000);
    world.store.list_troubles.lock().extend(troubles);
    let error = try_start(&world, 5).await.unwrap_err();
    let StartError::DeadlineReached { last: Some(last) } = error else {
        panic!("{error}")
    };
    assert!(matches!(last, StoreError::Unavailable { .. }));
    assert!(world.store.lists() > 3, "it tried more than once");
}

#[tokio::test(start_paused = true)]
async fn a_start_survives_failures_that_pass() {
    let world = World::new();
    world.create("a").await;
    world
        .store
        .list_troubles
        .lock()
        .extend([Trouble::Unavailable; 3]);
    let cache = try_start(&world, 60).await.unwrap();
    assert_eq!(cache.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_refused_says_so_at_once() {
    let world = World::new();
    world.store.list_troubles.lock().push_back(Trouble::Refused);
    let began = Instant::now();
    let error = try_start(&world, 60).await.unwrap_err();
    assert!(
        matches!(error, StartError::Refused(StoreError::NotFound(_))),
        "{error}"
    );
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_start_can_be_called_off() {
    let world = World::new();
    world.store.list_troubles.lock().push_back(Trouble::Hangs);
    let tasks = world.tasks.clone();
    let stopping = world.tasks.spawn(async move {
        sleep(Duration::from_secs(1)).await;
        tasks.stopping().cancel();
    });
    let error = try_start(&world, 60).await.unwrap_err();
    assert!(matches!(error, StartError::Told), "{error}");
    stopping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reflector_that_is_refused_later_drops_readiness_and_says_why() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let mut health = cache.watch_health();
    let mut changes = cache.subscribe();
    assert_eq!(changes.next().await.unwrap(), at("a"));
    let waiting = {
        let cache = cache.clone();
        let wait = async move {
            cache
                .wait_for(&at("b"), |b| b.is_some(), within(3600))
                .await
        };
        world.tasks.spawn(wait)
    };
    settle().await;

    world
        .store
        .watch_troubles
        .lock()
        .push_back(Trouble::Refused);
    world.store.cut_watches();
    health.wait_for(|health| !health.is_ready()).await.unwrap();

    assert!(!cache.is_ready());
    let Health::Stopped(StopReason::Refused(error)) = cache.health() else {
        panic!("{:?}", cache.health())
    };
    assert!(matches!(*error, StoreError::NotFound(_)));
    let waited = waiting.await.unwrap();
    assert!(matches!(
        waited,
        Err(WaitError::CacheStopped(StopReason::Refused(_)))
    ));
    assert!(matches!(changes.next().await, Err(StopReason::Refused(_))));
}

/// A view with a defect.
enum Exploding {}

impl View for Exploding {
    type Value = Sandbox;
    type Index = NoIndex;
    const KIND: KindName = SandboxSpec::KIND;

    fn project(record: &Record, _: &mut Names) -> Result<Sandbox, StoreError> {
        assert!(record.meta.labels.is_empty(), "did not expect labels");
        record.decode()
    }
}

#[tokio::test(start_paused = true)]
async fn a_reflector_that_panics_drops_readiness_and_says_why() {
    let world = World::new();
    world.create("a").await;
    let cache: Cache<Exploding> = world.start(world.options()).await;
    settle().await;
    assert!(cache.is_ready());

    world.label("a", "some", "label").await;
    let waited = cache.wait_for(&at("b"), |b| b.is_some(), within(60)).await;
    assert!(matches!(
        waited,
        Err(WaitError::CacheStopped(StopReason::Panicked(_)))
    ));
    assert!(!cache.is_ready());
    let Health::Stopped(reason) = cache.health() else {
        panic!()
    };
    assert!(
        reason.to_string().contains("did not expect labels"),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cache_stops_with_its_owner_and_leaves_no_task() {
    let world = World::new();
    let cache = world.sandboxes().await;
    world.tasks.drain(Duration::from_secs(1)).await.unwrap();
    assert!(matches!(cache.health(), Health::Stopped(StopReason::Told)));
    let waited = cache.wait_for_version(cache.version(), within(1)).await;
    assert!(matches!(
        waited,
        Err(WaitError::CacheStopped(StopReason::Told))
    ));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_takes_the_reflector_with_it() {
    let world = World::new();
    let cache = world.sandboxes().await;
    let another = cache.clone();
    drop(cache);
    settle().await;
    assert!(another.is_ready());
    drop(another);
    settle().await;
    assert_eq!(
        Arc::strong_count(&world.store),
        1,
        "nobody follows the store any more"
    );
}
