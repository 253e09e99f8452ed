//! Flights.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use model::{
    Epoch, Sandbox, Timestamp, Version,
    lifecycle::{Phase, Traffic},
    sandbox::{DesiredState, PausePolicy, SnapshotType},
};
use routes::Route;
use runtime::fake::{Call, CallFault};
use store::StoreExt as _;
use tokio::time::Instant;
use wake::{
    Flights, Options, Quota, Reserved, TeamLimit, WakeError,
    stats::{Ending, Rung, Whom},
};

use crate::world::{NOW, World, soon};

#[tokio::test(start_paused = true)]
async fn however_many_ask_there_is_one_resume_and_nobody_is_lost() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let before = world.read(&sandbox).await.metadata.generation;
    let flights = world.flights(Options::default());
    let all = join_all((0..1000).map(|_| flights.wake(&route, soon()))).await;
    for woken in all {
        assert_eq!(woken.unwrap().state, Traffic::Running);
    }
    assert_eq!(world.thaws(&sandbox), 1);
    let now = world.read(&sandbox).await.metadata.generation;
    assert_eq!(now.0, before.0 + 1, "one write of intent");
    assert_eq!(flights.parked(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_new_deadline_is_in_the_same_write_and_never_stays_never() {
    for (seconds, end_at, expected) in [
        (Some(60), Some(NOW + 60_000_000), Some(NOW + 300_000_000)),
        (Some(900), Some(NOW + 60_000_000), Some(NOW + 900_000_000)),
        (Some(60), None, None),
    ] {
        let world = World::new().await;
        let (sandbox, route) = world
            .asleep(|spec| {
                spec.timeouts.seconds = seconds;
                spec.timeouts.end_at = end_at.map(Timestamp::from_micros);
            })
            .await;
        let flights = world.flights(Options::default());
        flights.wake(&route, soon()).await.unwrap();
        let end = world.read(&sandbox).await.spec.timeouts.end_at;
        assert_eq!(end.map(Timestamp::as_micros), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_falls_asleep_is_waited_out_and_woken() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let flights = world.flights(Options::default());
    flights.wake(&route, soon()).await.unwrap();
    // Its next sleep takes a while, and the request comes in the middle of it.
    world.runtime.on_call(|call, _| match call {
        Call::Freeze => CallFault::Slow(Duration::from_secs(3)),
        _ => CallFault::None,
    });
    world.wants(&sandbox, DesiredState::Paused).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let woken = flights.wake(&route, soon()).await.unwrap();
    assert_eq!(woken.state, Traffic::Running);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_being_closed_is_waited_for_and_asked_for_nothing() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|spec| spec.wake_on_traffic = false).await;
    let before = world.read(&sandbox).await.metadata.generation;
    // Also where traffic wakes nobody.
    let flights = world.flights(Options {
        enabled: false,
        ..Options::default()
    });
    let closing = Route {
        state: Traffic::Pausing,
        is_closing: true,
        ..Route::clone(&route)
    };
    assert_eq!(
        flights.wake(&closing, soon()).await.unwrap_err(),
        WakeError::NotFound,
        "it sleeps"
    );
    assert_eq!(world.read(&sandbox).await.metadata.generation, before);
    world.wants(&sandbox, DesiredState::Running).await;
    let now = world.read(&sandbox).await;
    let closing = Route {
        version: now.version(),
        ..closing
    };
    let open = flights.wake(&closing, soon()).await.unwrap();
    assert_eq!(open.state, Traffic::Running);
    assert_eq!(
        flights.look_on(&closing, soon()).await.unwrap().state,
        Traffic::Running
    );
    let after = world.read(&sandbox).await.metadata.generation;
    assert_eq!(after, now.metadata.generation, "nothing was written");
    let stats = flights.stats();
    let ended = [Ending::NotFound, Ending::Woken].map(|how| stats.ended(how));
    assert_eq!((stats.flights(), ended, flights.parked()), (0, [1, 2], 0));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_cancels_nothing() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    let flights = world.flights(Options::default());
    let short = Instant::now() + Duration::from_secs(1);
    assert_eq!(
        flights.wake(&route, short).await.unwrap_err(),
        WakeError::Timeout
    );
    assert_eq!(flights.parked(), 0, "its seat is free");
    world.becomes(&sandbox, Phase::Running).await;
    assert_eq!(world.thaws(&sandbox), 1);
}

#[tokio::test(start_paused = true)]
async fn too_many_are_refused_before_anything_is_asked() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let before = world.read(&sandbox).await.metadata.generation;
    let none = world.flights(Options {
        max_parked: 0,
        ..Options::default()
    });
    assert_eq!(
        none.wake(&route, soon()).await.unwrap_err(),
        WakeError::Overloaded {
            retry_after: Duration::from_secs(1)
        }
    );
    assert_eq!(world.read(&sandbox).await.metadata.generation, before);
    let few = world.flights(Options {
        max_parked_per_sandbox: 3,
        ..Options::default()
    });
    let all = join_all((0..10).map(|_| few.wake(&route, soon()))).await;
    let woken = all.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(woken, 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_or_did_not_opt_in_is_not_found_and_not_touched() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let flights = world.flights(Options::default());
    let mut stranger = Route::clone(&route);
    stranger.epoch = Epoch(7);
    assert_eq!(
        flights.wake(&stranger, soon()).await.unwrap_err(),
        WakeError::NotFound
    );
    let off = world.flights(Options {
        enabled: false,
        ..Options::default()
    });
    assert_eq!(
        off.wake(&route, soon()).await.unwrap_err(),
        WakeError::NotFound
    );
    let mut next = world.read(&sandbox).await;
    next.spec.wake_on_traffic = false;
    world.store.update_spec(&next).await.unwrap();
    assert_eq!(
        flights.wake(&route, soon()).await.unwrap_err(),
        WakeError::NotFound
    );
    let now = world.read(&sandbox).await;
    assert_eq!(now.spec.desired_state, DesiredState::Paused);
    world.store.delete_object(&now).await.unwrap();
    assert_eq!(
        flights.wake(&route, soon()).await.unwrap_err(),
        WakeError::NotFound
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_reaches_all_and_the_next_try_is_a_new_one() {
    let world = World::new().await;
    let (_, route) = world.asleep(|_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::FailBefore,
        _ => CallFault::None,
    });
    let flights = world.flights(Options::default());
    let all = join_all((0..5).map(|_| flights.wake(&route, soon()))).await;
    for outcome in all {
        assert_eq!(outcome.unwrap_err(), WakeError::Failed);
    }
    world.runtime.clear_faults();
    flights.wake(&route, soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn from_files_alone_it_wakes_only_where_its_policy_says_so() {
    for wake_from_filesystem in [false, true] {
        let world = World::new().await;
        let (_, route) = world
            .asleep(|spec| {
                spec.pause_policy = Some(Box::new(PausePolicy {
                    snapshot_type: SnapshotType::Rootfs,
                    wake_from_filesystem,
                    ..PausePolicy::default()
                }));
            })
            .await;
        let flights = world.flights(Options::default());
        let outcome = flights.wake(&route, soon()).await;
        assert_eq!(outcome.is_ok(), wake_from_filesystem, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_ends_the_wait_at_once() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::Slow(Duration::from_secs(30)),
        _ => CallFault::None,
    });
    let flights = world.flights(Options::default());
    let kill = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = world.read(&sandbox).await;
        world.store.delete_object(&now).await.unwrap();
    };
    let started = Instant::now();
    let (outcome, ()) = tokio::join!(flights.wake(&route, soon()), kill);
    assert_eq!(outcome.unwrap_err(), WakeError::NotFound);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "by virtual time"
    );
}

/// A team with room for so many more.
#[derive(Clone, Debug)]
struct Room {
    free: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Quota for Room {
    fn reserve(&self, _: &Sandbox) -> Result<Box<dyn Reserved>, TeamLimit> {
        let one_less = |free: u64| free.checked_sub(1);
        self.free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .map_err(|_| TeamLimit)?;
        Ok(Box::new(self.clone()))
    }
}

impl Reserved for Room {
    fn written(self: Box<Self>, _: Version) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_team_without_room_is_told_so_and_its_sandbox_sleeps_on() {
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    let room = Room {
        free: Arc::new(AtomicU64::new(0)),
        written: Arc::default(),
    };
    let flights = Flights::within(
        Arc::new(room.clone()),
        world.store.clone(),
        world.routes.clone(),
        world.clock.clone(),
        world.tasks.clone(),
        Options::default(),
    );
    let before = world.read(&sandbox).await.metadata.generation;
    let all = join_all((0..3).map(|_| flights.wake(&route, soon()))).await;
    for outcome in all {
        assert_eq!(
            outcome.unwrap_err(),
            WakeError::TeamLimit {
                retry_after: Duration::from_secs(30)
            }
        );
    }
    assert_eq!(world.read(&sandbox).await.metadata.generation, before);
    room.free.store(1, Ordering::SeqCst);
    flights.wake(&route, soon()).await.unwrap();
    assert_ne!(
        room.written.load(Ordering::SeqCst),
        0,
        "it was told of the write"
    );
    // One that is awake already asks for nothing.
    flights.wake(&route, soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_time_is_told_apart_by_whom_it_was_waited_for() {
    const SLOW: Duration = Duration::from_secs(3);
    let world = World::new().await;
    let (sandbox, route) = world.asleep(|_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::Slow(SLOW),
        _ => CallFault::None,
    });
    let flights = world.flights(Options::default());
    flights.wake(&route, soon()).await.unwrap();
    let sleeps = world.read(&sandbox).await.status.sleeps;
    let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap();
    let runtime = u64::from(sleeps.last_wake_runtime_micros.unwrap());
    let control = u64::from(sleeps.last_wake_control_micros.unwrap());
    assert!(
        runtime >= micros(SLOW),
        "{runtime} of the runtime, {control} of control"
    );
    assert!(control < micros(SLOW));
    // Whoever keeps the books reads the record once more.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waited = |whom| flights.stats().waited(Rung::Freeze, whom);
    for whom in Whom::ALL {
        assert_eq!(waited(whom).buckets.iter().sum::<u64>(), 1, "{whom:?}");
    }
    assert_eq!(waited(Whom::Runtime).micros, runtime);
    assert!(waited(Whom::Control).micros < micros(SLOW));
}
