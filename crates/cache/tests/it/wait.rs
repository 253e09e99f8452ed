use std::time::Duration;

use cache::{SandboxCache, WaitError, condition};
use model::{Key, lifecycle::Phase, sandbox::Sandbox};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{World, at, in_phase, settle, within};

type Waited = Result<Option<std::sync::Arc<Sandbox>>, WaitError>;

fn spawn_wait(
    world: &World,
    cache: &SandboxCache,
    key: Key,
    condition: impl Fn(Option<&Sandbox>) -> bool + Send + Sync + 'static,
) -> tokio::task::JoinHandle<Waited> {
    let cache = cache.clone();
    let wait = async move { cache.wait_for(&key, condition, within(60)).await };
    world.tasks.spawn(wait)
}

#[tokio::test(start_paused = true)]
async fn a_level_that_is_there_already_is_answered_at_once() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let began = Instant::now();
    let found = cache
        .wait_for(&at("a"), in_phase(Phase::Pending), began)
        .await
        .unwrap();
    assert_eq!(found.unwrap().metadata.name.as_str(), "a");
    assert!(
        cache
            .wait_for(&at("b"), |b| b.is_none(), began)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_level_that_comes_later_is_answered_then() {
    let world = World::new();
    let cache = world.sandboxes().await;
    let waiting = spawn_wait(&world, &cache, at("a"), in_phase(Phase::Starting));
    sleep(Duration::from_secs(1)).await;
    world.create("a").await;
    sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    let written = world.set_phase("a", Phase::Starting).await;
    let found = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(found.version(), written.version());
}

#[tokio::test(start_paused = true)]
async fn a_level_that_never_comes_ends_at_the_deadline_with_what_was_seen() {
    let world = World::new();
    let written = world.create("a").await;
    let cache = world.sandboxes().await;
    let began = Instant::now();
    let waited = cache
        .wait_for(&at("a"), in_phase(Phase::Paused), within(5))
        .await;
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    let Err(WaitError::DeadlineReached { last }) = waited else {
        panic!("{waited:?}")
    };
    assert_eq!(last, Some(written.version()));
    let waited = cache.wait_for(&at("b"), |b| b.is_some(), within(5)).await;
    assert!(matches!(
        waited,
        Err(WaitError::DeadlineReached { last: None })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_removed_object_ends_the_wait_for_its_going() {
    let world = World::new();
    let uid = world.create("a").await.uid();
    let cache = world.sandboxes().await;
    let waiting = spawn_wait(&world, &cache, at("a"), condition::gone(uid));
    settle().await;
    world.delete("a").await;
    assert!(waiting.await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn another_object_of_the_same_name_is_not_the_one_that_is_gone() {
    let world = World::new();
    let uid = world.create("a").await.uid();
    let cache = world.sandboxes().await;
    settle().await;
    world.memory.lag();
    world.delete("a").await;
    let second = world.create("a").await;
    world.memory.catch_up();
    let found = cache
        .wait_for(&at("a"), condition::gone(uid), within(5))
        .await;
    let found = found.unwrap();
    assert!(found.is_none_or(|found| found.uid() == second.uid()));
    let still = condition::both(
        condition::gone(uid),
        condition::not(|a: Option<&Sandbox>| a.is_none()),
    );
    let found = cache
        .wait_for(&at("a"), still, within(5))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.uid(), second.uid());
}

#[tokio::test(start_paused = true)]
async fn two_waiters_on_one_object_each_get_their_own_level() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let starting = spawn_wait(&world, &cache, at("a"), in_phase(Phase::Starting));
    let running = spawn_wait(&world, &cache, at("a"), in_phase(Phase::Running));
    settle().await;
    assert_eq!(cache.stats().waited_keys, 1);

    world.set_phase("a", Phase::Starting).await;
    let first = starting.await.unwrap().unwrap().unwrap();
    assert_eq!(first.status.phase, Phase::Starting);
    settle().await;
    assert!(!running.is_finished());
    world.set_phase("a", Phase::Running).await;
    let second = running.await.unwrap().unwrap().unwrap();
    assert_eq!(second.status.phase, Phase::Running);
    assert_eq!(cache.stats().waited_keys, 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_leaves_nothing_behind_and_disturbs_nobody() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let staying = spawn_wait(&world, &cache, at("a"), in_phase(Phase::Starting));
    let key = at("a");
    let leaving = cache.wait_for(&key, in_phase(Phase::Starting), within(60));
    assert!(timeout(Duration::from_secs(1), leaving).await.is_err());
    let key = at("b");
    let leaving = cache.wait_for(&key, |b| b.is_some(), within(60));
    assert!(timeout(Duration::from_secs(1), leaving).await.is_err());
    let leaving = cache.wait_for_version(cache.version().next(), within(60));
    assert!(timeout(Duration::from_secs(1), leaving).await.is_err());
    let stats = cache.stats();
    assert_eq!((stats.waited_keys, stats.waited_versions), (1, 0));
    world.set_phase("a", Phase::Starting).await;
    assert!(staying.await.unwrap().is_ok());
    assert_eq!(cache.stats().waited_keys, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_can_be_read_once_its_version_is_waited_for() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    settle().await;
    world.memory.lag();
    let written = world.set_phase("a", Phase::Starting).await;
    let waited = cache.wait_for_version(written.version(), within(1)).await;
    let Err(WaitError::DeadlineReached { last }) = waited else {
        panic!("{waited:?}")
    };
    assert_eq!(last, Some(cache.version()));

    world.memory.catch_up();
    cache
        .wait_for_version(written.version(), within(1))
        .await
        .unwrap();
    assert_eq!(cache.find(&at("a")).unwrap().status.phase, Phase::Starting);
    let at_least = condition::version_at_least(written.version());
    let found = cache.wait_for(&at("a"), at_least, within(1)).await.unwrap();
    assert_eq!(found.unwrap().version(), written.version());
}

#[tokio::test(start_paused = true)]
async fn conditions_combine() {
    let world = World::new();
    let uid = world.create("a").await.uid();
    let cache = world.sandboxes().await;
    let awake = |s: &Sandbox| s.status.phase == Phase::Running;
    let end = condition::either(condition::present(awake), condition::gone(uid));
    let waiting = spawn_wait(&world, &cache, at("a"), end);
    settle().await;
    world.delete("a").await;
    assert!(waiting.await.unwrap().unwrap().is_none());
}
