//! Any life: requests, failures and time in any order, then quiet.

use model::{
    StringMap,
    lifecycle::Request,
    sandbox::{IdleAction, OnTimeout, PausePolicy, Timeouts},
};
use proptest::prelude::*;

use super::{
    super::*,
    world::{Fault, World, record},
};

#[derive(Clone, Debug)]
enum Event {
    Ask(Request),
    ClaimWithImage,
    Tick(Fault),
    Wait(u64),
    Write,
    Rewire(bool),
    Lose,
    Restart,
    Exit(i32),
    Freeze,
    Land,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        8 => Just(Fault::None),
        1 => any::<bool>().prop_map(Fault::Before),
        1 => Just(Fault::After),
        1 => Just(Fault::Later),
        1 => Just(Fault::HalfWay),
        1 => Just(Fault::DieBefore),
        1 => Just(Fault::DieAfter),
        1 => Just(Fault::Blind),
    ]
}

fn request() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Ask(Request::Claim)),
        Just(Event::ClaimWithImage),
        Just(Event::Ask(Request::Pause)),
        Just(Event::Ask(Request::Resume)),
        Just(Event::Ask(Request::Renew)),
        Just(Event::Ask(Request::Release { expected: None })),
        Just(Event::Write),
        any::<bool>().prop_map(Event::Rewire),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => fault().prop_map(Event::Tick),
        10 => request(),
        2 => (1..400_u64).prop_map(Event::Wait),
        1 => Just(Event::Freeze),
        2 => Just(Event::Land),
        1 => prop_oneof![
            Just(Event::Ask(Request::Kill)),
            Just(Event::Lose),
            Just(Event::Restart),
            (0..2).prop_map(Event::Exit),
        ],
    ]
}

fn world() -> impl Strategy<Value = World> {
    let timeouts = (
        prop::sample::select(vec![OnTimeout::Kill, OnTimeout::Pause]),
        prop::sample::select(vec![
            IdleAction::Pause,
            IdleAction::Kill,
            IdleAction::Release,
        ]),
        prop::option::of(Just(60)),
        prop::option::of(Just(30)),
        prop::option::weighted(0.2, Just(500)),
    );
    (any::<[bool; 5]>(), timeouts).prop_map(|(flags, timeouts)| {
        let [pooled, recycle, rootfs, hooks, freeze] = flags;
        let mut record = record(pooled);
        let (on_timeout, idle_action, idle_seconds, descend_after, paused_retention_seconds) =
            timeouts;
        let timeouts = Timeouts {
            end_at: None,
            seconds: None,
            on_timeout,
            idle_seconds,
            idle_action,
            paused_retention_seconds,
            startup_seconds: None,
        };
        if !pooled {
            record.spec.timeouts = timeouts;
        }
        record.spec.pause_policy = Some(Box::new(PausePolicy {
            snapshot_type: if rootfs {
                SnapshotType::Rootfs
            } else {
                SnapshotType::Freeze
            },
            descend_after: descend_after.filter(|_| !rootfs),
            ..PausePolicy::default()
        }));
        let mut world = World::new(record);
        world.timeouts = timeouts;
        world.hooks = hooks;
        world.can.freeze = freeze;
        if !recycle {
            world.recycle = RecyclePolicy::Destroy;
        }
        world
    })
}

fn live(world: &mut World, event: &Event) {
    match event {
        Event::Ask(request) => drop(world.ask(*request, &StringMap::new())),
        Event::ClaimWithImage => {
            let images = [("main", "theirs:2")].into_iter().collect();
            world.ask(Request::Claim, &images);
        }
        Event::Tick(fault) => drop(world.tick(*fault)),
        Event::Wait(seconds) => world.wait(*seconds),
        Event::Write => world.write(),
        Event::Rewire(internet) => world.rewire(*internet),
        Event::Lose => world.workload = Observed::Absent,
        Event::Restart => world.restart_host(),
        Event::Exit(code) => world.exit(*code),
        Event::Freeze => world.freeze(),
        Event::Land => world.land(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The checks are in the world; here is only that whatever happened, it comes to rest, and
    /// again after every timer that still runs.
    #[test]
    fn every_life_comes_to_rest(mut world in world(), events in prop::collection::vec(event(), 1..80)) {
        for event in events {
            live(&mut world, &event);
        }
        world.land();
        for _ in 0..8 {
            world.settle();
            world.wait(120);
        }
    }

    /// Without failures and timers, a sandbox ends as it was last wanted.
    #[test]
    fn the_last_wish_is_never_lost(
        rootfs in any::<bool>(),
        freeze in any::<bool>(),
        wishes in prop::collection::vec((any::<bool>(), 0..6), 1..12),
    ) {
        let mut record = record(false);
        let snapshot_type = if rootfs { SnapshotType::Rootfs } else { SnapshotType::Freeze };
        record.spec.pause_policy = Some(Box::new(PausePolicy { snapshot_type, ..PausePolicy::default() }));
        let mut world = World::new(record);
        world.can.freeze = freeze;
        world.settle();
        let mut last = Phase::Running;
        for (sleep, steps) in wishes {
            let (request, phase) = if sleep {
                (Request::Pause, Phase::Paused)
            } else {
                (Request::Resume, Phase::Running)
            };
            prop_assert!(world.ask(request, &StringMap::new()), "{request:?} was refused");
            last = phase;
            for _ in 0..steps {
                world.tick(Fault::None);
            }
        }
        world.settle();
        prop_assert_eq!(world.record.status.phase, last, "{:#?}", world.log);
    }
}
