//! What is told of a sandbox before its record says it.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use model::{
    Sandbox,
    lifecycle::{Phase, Traffic},
    sandbox::DesiredState,
};
use routes::Route;
use runtime::fake::{Call, CallFault};
use store::{StoreExt as _, memory::WriteFault};
use tokio::time::Instant;
use wake::{
    Options,
    stats::{Rung, Whom},
};

use crate::world::{World, soon};

/// Its record as it will be once it is awake.
async fn awake(world: &World, sandbox: &Sandbox) -> Sandbox {
    let mut next = world.read(sandbox).await;
    next.spec.desired_state = DesiredState::Running;
    next.status.phase = Phase::Running;
    next
}

#[tokio::test(start_paused = true)]
async fn requests_go_on_when_it_is_seen_awake_and_its_record_follows() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let flights = world.flights(Options::default());
    world.told.0.set(flights.clone()).unwrap();
    // The intent can be written, and nothing after it.
    let intent = world.store.faults().writes() + 1;
    world.store.faults().on_write(move |write| match write {
        write if write <= intent => WriteFault::None,
        _ => WriteFault::FailBefore,
    });
    let all = join_all((0..10).map(|_| flights.wake(&route, soon()))).await;
    let record = world.read(&sandbox).await;
    assert_eq!(record.status.phase, Phase::Paused, "not written yet");
    assert_eq!(world.thaws(&sandbox), 1);
    for woken in all {
        let woken = woken.unwrap();
        assert_eq!(woken.state, Traffic::Running);
        assert_eq!(woken.version, record.version(), "an answer to the intent");
    }
    let runtime = || flights.stats().waited(Rung::Freeze, Whom::Runtime);
    let noted = || runtime().buckets.iter().sum::<u64>();
    assert_eq!(
        noted(),
        0,
        "what the runtime took is in a record that is to come"
    );
    world.store.faults().clear();
    let now = world.becomes(&sandbox, Phase::Running).await;
    assert_eq!((now.status.sleeps.woken, world.thaws(&sandbox)), (1, 1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(noted(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_before_it_was_told_to_wake_is_no_answer() {
    const SLOW: Duration = Duration::from_secs(5);
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::Slow(SLOW),
        _ => CallFault::None,
    });
    let flights = world.flights(Options::default());
    let old = awake(&world, &sandbox).await;
    let started = Instant::now();
    let telling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        flights.awake(&old);
    };
    let (woken, ()) = tokio::join!(flights.wake(&route, soon()), telling);
    assert!(woken.unwrap().version > old.version());
    assert!(started.elapsed() >= SLOW, "by virtual time");
    assert_eq!(world.thaws(&sandbox), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_of_another_delivery_or_of_one_that_does_not_run_is_no_answer() {
    const SLOW: Duration = Duration::from_secs(5);
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::Slow(SLOW),
        _ => CallFault::None,
    });
    let flights = world.flights(Options::default());
    let started = Instant::now();
    let telling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut other = awake(&world, &sandbox).await;
        other.spec.epoch.0 += 1;
        other.status.armed_epoch = other.spec.epoch;
        flights.awake(&other);
        let asleep = world.read(&sandbox).await;
        flights.awake(&asleep);
    };
    let (woken, ()) = tokio::join!(flights.wake(&route, soon()), telling);
    assert_eq!(woken.unwrap().state, Traffic::Running);
    assert!(started.elapsed() >= SLOW, "by virtual time");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_put_to_sleep_again_before_its_record_says_awake_sleeps() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let flights = world.flights(Options::default());
    world.told.0.set(flights.clone()).unwrap();
    let intent = world.store.faults().writes() + 1;
    world.store.faults().on_write(move |write| match write {
        write if write <= intent => WriteFault::None,
        _ => WriteFault::FailBefore,
    });
    flights.wake(&route, soon()).await.unwrap();
    world.store.faults().clear();
    let mut next = world.read(&sandbox).await;
    assert_eq!(next.status.phase, Phase::Paused);
    next.spec.desired_state = DesiredState::Paused;
    world.store.update_spec(&next).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let now = world.read(&sandbox).await;
    assert_eq!(now.spec.desired_state, DesiredState::Paused);
    assert_eq!(now.status.phase, Phase::Paused);
    assert_eq!(
        world.runtime.truth()[&sandbox.uid()].facts.state,
        runtime::WorkloadState::Frozen
    );
}

#[tokio::test(start_paused = true)]
async fn a_flight_that_others_overtook_leaves_the_next_pause_alone() {
    let world = World::new().await;
    let (sandbox, asleep) = world.asleep(|_| {}).await;
    let flights = world.flights(Options::default());
    let mut waiting = Box::pin(flights.wake(&asleep, soon()));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    // Before its flight looks, another process has woken it; the request goes on by what that told.
    world.wants(&sandbox, DesiredState::Running).await;
    let running = awake(&world, &sandbox).await;
    flights.heard(&Arc::new(Route::of(&running).unwrap()));
    drop(waiting);
    // Its owner is through and puts it to sleep.
    world.wants(&sandbox, DesiredState::Paused).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let now = world.read(&sandbox).await;
    assert_eq!(now.spec.desired_state, DesiredState::Paused);
    assert_eq!(now.status.phase, Phase::Paused);
    // Who comes now has seen it asleep later, and wakes it.
    let asleep = Route::of(&now).unwrap();
    let woken = flights.wake(&asleep, soon()).await.unwrap();
    assert_eq!(woken.state, Traffic::Running);
}
