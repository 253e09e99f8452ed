//! The design's rules for sleep, time and doubt, one test each, played in the mini-world.

use model::{
    StringMap,
    lifecycle::Request,
    sandbox::{PausePolicy, Timeouts},
    workload::Keeps,
};

use super::{
    super::*,
    T0, standing, words,
    world::{Fault, World, record},
};
use crate::failure::MAX_ATTEMPTS;

pub(super) const GIVE_UP: Fault = Fault::Before(true);

/// A sandbox that runs, and sleeps by this rung.
pub(super) fn running(snapshot_type: SnapshotType) -> World {
    let mut record = record(false);
    record.spec.pause_policy = Some(Box::new(PausePolicy {
        snapshot_type,
        ..PausePolicy::default()
    }));
    let mut world = World::new(record);
    world.settle();
    assert_eq!(world.record.status.phase, Phase::Running);
    world
}

/// A member that waits, in a pool that recycles.
pub(super) fn idle() -> World {
    let mut world = World::new(record(true));
    world.settle();
    assert_eq!(world.record.status.phase, Phase::Idle);
    world
}

pub(super) fn ask(world: &mut World, request: Request) {
    assert!(world.ask(request, &StringMap::new()), "{request:?}");
}

pub(super) fn at(world: &World) -> Phase {
    world.record.status.phase
}

/// What it would do next.
pub(super) fn then(world: &World) -> String {
    words(&plan_sandbox(world.view()))
}

/// Goes on until this is the next thing to do.
pub(super) fn until(world: &mut World, wanted: &str) {
    for _ in 0..20 {
        if then(world) == wanted {
            return;
        }
        assert!(world.tick(Fault::None), "never {wanted}: {:?}", world.log);
    }
    panic!("never {wanted}: {:?}", world.log);
}

pub(super) fn operation(world: &World) -> &Operation {
    let operation = world.record.status.last_operation.as_ref();
    operation.expect("something was done")
}

#[test]
fn a_failed_pause_leaves_it_running_and_takes_the_intent_back() {
    for (rung, call) in [
        (SnapshotType::Freeze, "Freeze"),
        (SnapshotType::Rootfs, "Freeze"),
        (SnapshotType::Rootfs, "Capture"),
    ] {
        let mut world = running(rung);
        ask(&mut world, Request::Pause);
        until(&mut world, call);
        world.tick(GIVE_UP);
        world.settle();
        assert_eq!(at(&world), Phase::Running, "{rung:?} {call}");
        assert_eq!(world.record.spec.desired_state, DesiredState::Running);
        let last = operation(&world);
        assert_eq!(
            (last.kind, last.state),
            (OperationKind::Pause, OperationState::Failed)
        );
        assert_eq!(last.error.as_deref(), Some("before"), "people can read why");
        ask(&mut world, Request::Pause);
        world.settle();
        assert_eq!(at(&world), Phase::Paused, "and it can be asked for again");
    }
}

/// One that runs where nothing can be frozen.
fn running_without_freezing(keeps: Keeps) -> World {
    let mut world = running(SnapshotType::Freeze);
    world.can = Abilities {
        freeze: false,
        keeps,
    };
    world
}

#[test]
fn what_cannot_be_frozen_is_captured_and_never_thawed_before_it_goes() {
    let mut world = running_without_freezing(Keeps::InRegistry);
    ask(&mut world, Request::Pause);
    let mut steps = Vec::new();
    while then(&world) != "rest" {
        steps.push(then(&world));
        world.tick(Fault::None);
    }
    assert_eq!(steps, ["→Pausing", "Capture", "DeleteWorkload"]);
    assert_eq!(at(&world), Phase::Paused);
    assert!(world.record.status.snapshot.is_some());
    ask(&mut world, Request::Resume);
    world.settle();
    assert_eq!(at(&world), Phase::Running);
}

#[test]
fn a_capture_that_is_given_up_is_thawed_where_nothing_can_be_frozen_too() {
    for fault in [Fault::After, Fault::Later, Fault::Before(false)] {
        let mut world = running_without_freezing(Keeps::InRegistry);
        ask(&mut world, Request::Pause);
        until(&mut world, "Capture");
        for _ in 0..MAX_ATTEMPTS {
            world.tick(fault);
        }
        world.land();
        world.settle();
        assert_eq!(at(&world), Phase::Running, "{fault:?}");
        assert_eq!(operation(&world).state, OperationState::Failed);
    }
}

#[test]
fn a_pause_without_a_place_for_its_files_is_refused_and_says_what_to_name() {
    let mut world = running_without_freezing(Keeps::Nowhere);
    ask(&mut world, Request::Pause);
    world.settle();
    assert_eq!(at(&world), Phase::Running);
    assert_eq!(world.record.spec.desired_state, DesiredState::Running);
    let error = operation(&world).error.as_deref().unwrap_or_default();
    assert!(
        error.starts_with("pausePolicy.snapshotRegistry: "),
        "{error}"
    );
    let policy = world.record.spec.pause_policy.as_mut().unwrap();
    policy.snapshot_registry = Some("r.example".into());
    ask(&mut world, Request::Pause);
    world.settle();
    assert_eq!(at(&world), Phase::Paused);
}

#[test]
fn what_was_frozen_is_captured_when_nothing_can_be_kept_frozen_any_more() {
    let mut world = running(SnapshotType::Freeze);
    ask(&mut world, Request::Pause);
    world.settle();
    assert_eq!(world.record.status.snapshot, None);
    world.can.freeze = false;
    world.settle();
    assert_eq!(at(&world), Phase::Paused);
    assert!(world.record.status.snapshot.is_some());
}

#[test]
fn a_failed_resume_goes_back_to_sleep_and_stays_retryable() {
    for (rung, call) in [
        (SnapshotType::Freeze, "Thaw"),
        (SnapshotType::Rootfs, "Create from layer"),
        (SnapshotType::Rootfs, "Arm"),
    ] {
        let mut world = running(rung);
        world.write();
        ask(&mut world, Request::Pause);
        world.settle();
        ask(&mut world, Request::Resume);
        until(&mut world, call);
        world.tick(GIVE_UP);
        world.settle();
        assert_eq!(at(&world), Phase::Paused, "{rung:?} {call}");
        assert_eq!(world.record.spec.desired_state, DesiredState::Paused);
        assert_eq!(operation(&world).state, OperationState::Failed);
        ask(&mut world, Request::Resume);
        world.settle();
        assert_eq!(at(&world), Phase::Running, "nothing was lost");
    }
}

#[test]
fn a_process_that_ends_while_it_wakes_leaves_it_asleep() {
    let mut world = running(SnapshotType::Rootfs);
    ask(&mut world, Request::Pause);
    world.settle();
    ask(&mut world, Request::Resume);
    until(&mut world, "Arm");
    world.exit(0);
    world.settle();
    assert_eq!(at(&world), Phase::Paused);
    let error = operation(&world).error.as_deref();
    assert!(
        error.is_some_and(|e| e.contains("ended with code 0")),
        "{error:?}"
    );
}

#[test]
fn a_captured_sandbox_survives_the_end_of_its_remnant() {
    let mut world = running(SnapshotType::Rootfs);
    ask(&mut world, Request::Pause);
    until(&mut world, "DeleteWorkload");
    world.exit(137);
    world.settle();
    assert_eq!(at(&world), Phase::Paused);
}

#[test]
fn a_resume_after_the_capture_follows_the_pause_and_before_it_cancels() {
    let mut world = running(SnapshotType::Rootfs);
    ask(&mut world, Request::Pause);
    until(&mut world, "Capture");
    ask(&mut world, Request::Resume);
    assert_eq!(then(&world), "Thaw", "not yet captured");
    world.settle();
    ask(&mut world, Request::Pause);
    until(&mut world, "DeleteWorkload");
    ask(&mut world, Request::Resume);
    assert_eq!(
        then(&world),
        "DeleteWorkload",
        "captured: its memory goes first"
    );
    world.settle();
    assert_eq!(at(&world), Phase::Running);
}

#[test]
fn a_capture_whose_publication_was_lost_is_made_again() {
    let mut world = running(SnapshotType::Rootfs);
    ask(&mut world, Request::Pause);
    until(&mut world, "Capture");
    world.tick(Fault::DieAfter);
    assert_eq!(
        (at(&world), then(&world)),
        (Phase::Pausing, "Capture".into())
    );
}

#[test]
fn a_deadline_kills_or_pauses_and_stands_still_while_asleep() {
    let end_at = Some(T0);
    let due = Due {
        end: true,
        ..Due::default()
    };
    for (on_timeout, expected) in [
        (OnTimeout::Kill, "DeleteRecord"),
        (OnTimeout::Pause, "Intend Pause"),
    ] {
        for phase in Phase::ALL {
            let mut sandbox = standing(phase);
            sandbox.spec.timeouts = Timeouts {
                end_at,
                on_timeout,
                ..Timeouts::default()
            };
            let seen = &super::sights(&sandbox)[2];
            let plan = super::next(&sandbox, seen, due, RecyclePolicy::Destroy);
            let expected = match phase {
                Phase::Paused => "→Running",
                Phase::Stopped | Phase::Failed => "DeleteWorkload",
                _ => expected,
            };
            assert_eq!(words(&plan), expected, "{phase}");
            sandbox.spec.desired_state = DesiredState::Paused;
            let plan = super::next(&sandbox, seen, due, RecyclePolicy::Destroy);
            assert!(
                !words(&plan).contains("Record"),
                "{phase} on its way to sleep: {plan:?}"
            );
        }
    }
}

#[test]
fn an_ended_sandbox_is_forgotten_at_its_deadline() {
    let due = Due {
        end: true,
        ..Due::default()
    };
    let plan = super::next(
        &standing(Phase::Stopped),
        &Observed::Absent,
        due,
        RecyclePolicy::Destroy,
    );
    assert_eq!(words(&plan), "DeleteRecord");
}

#[test]
fn an_idle_sandbox_pauses_or_is_closed_to_end_or_go_back() {
    let due = Due {
        idle: true,
        ..Due::default()
    };
    for (idle_action, idle) in [
        (IdleAction::Pause, "Intend Pause"),
        (IdleAction::Kill, "→Running"),
        (IdleAction::Release, "→Running"),
    ] {
        let cases = [
            (standing(Phase::Running), idle),
            (super::member(Phase::Running, true), idle),
            (standing(Phase::Paused), "→Running"),
            (standing(Phase::Starting), "Arm"),
        ];
        for (mut sandbox, expected) in cases {
            sandbox.spec.timeouts.idle_action = idle_action;
            let seen = &super::sights(&sandbox)[2];
            let plan = super::next(&sandbox, seen, due, RecyclePolicy::Destroy);
            assert_eq!(words(&plan), expected, "{idle_action:?}");
        }
    }
}

#[test]
fn a_resume_is_not_swallowed_by_the_idle_timer_that_asked_for_the_pause() {
    for rung in [SnapshotType::Freeze, SnapshotType::Rootfs] {
        let mut world = running(rung);
        world.record.spec.timeouts.idle_seconds = Some(60);
        world.wait(60);
        assert!(world.tick(Fault::None));
        assert_eq!(
            world.record.spec.desired_state,
            DesiredState::Paused,
            "it was idle"
        );
        if rung == SnapshotType::Rootfs {
            until(&mut world, "Freeze");
        }
        ask(&mut world, Request::Resume);
        world.settle();
        assert_eq!(at(&world), Phase::Running, "{rung:?}");
        world.wait(60);
        world.settle();
        assert_eq!(at(&world), Phase::Paused, "and its patience starts anew");
    }
}

#[test]
fn a_failed_pause_on_a_standing_order_is_tried_again_only_after_a_while() {
    let mut world = running(SnapshotType::Freeze);
    world.record.spec.timeouts.on_timeout = OnTimeout::Pause;
    ask(&mut world, Request::Renew);
    world.wait(301);
    until(&mut world, "Freeze");
    world.tick(GIVE_UP);
    world.settle();
    assert_eq!((at(&world), then(&world)), (Phase::Running, "rest".into()));
    world.wait(60);
    world.settle();
    assert_eq!(at(&world), Phase::Paused);
}

#[test]
fn it_descends_only_where_its_policy_says_so_and_keeps_its_files() {
    let mut world = running(SnapshotType::Freeze);
    world.write();
    ask(&mut world, Request::Pause);
    world.settle();
    world.wait(3600);
    assert_eq!(then(&world), "rest", "its policy does not say so");
    let policy = world.record.spec.pause_policy.as_mut().expect("it has one");
    policy.descend_after = Some(60);
    assert_eq!(then(&world), "Capture");
    world.tick(GIVE_UP);
    assert_eq!(
        (at(&world), then(&world)),
        (Phase::Paused, "rest".into()),
        "not at once again"
    );
    world.wait(60);
    world.settle();
    assert_eq!(world.workload, Observed::Absent);
    ask(&mut world, Request::Resume);
    world.settle();
    assert_eq!(at(&world), Phase::Running);
}

#[test]
fn what_sleeps_is_ended_only_after_its_retention_and_never_while_it_wakes() {
    for rung in [SnapshotType::Freeze, SnapshotType::Rootfs] {
        let mut world = running(rung);
        ask(&mut world, Request::Pause);
        world.settle();
        world.wait(3600);
        assert_eq!(then(&world), "rest", "it is kept for ever: {rung:?}");
        world.record.spec.timeouts.paused_retention_seconds = Some(7200);
        assert_eq!(then(&world), "rest", "not yet: {rung:?}");
        world.wait(3600);
        assert_eq!(then(&world), "DeleteRecord", "{rung:?}");
        ask(&mut world, Request::Resume);
        world.settle();
        assert_eq!(at(&world), Phase::Running, "who wakes it is first");
        world.wait(7200);
        assert_eq!(then(&world), "rest", "what runs is not ended by it");
        ask(&mut world, Request::Pause);
        world.settle();
        assert_eq!(then(&world), "rest", "each sleep counts from its start");
        world.wait(7200);
        world.settle();
        assert!(world.gone, "{rung:?}");
    }
}

#[test]
fn who_could_not_wake_a_sandbox_at_the_last_moment_can_try_again() {
    let mut world = running(SnapshotType::Rootfs);
    ask(&mut world, Request::Pause);
    world.settle();
    world.record.spec.timeouts.paused_retention_seconds = Some(30);
    world.wait(29);
    ask(&mut world, Request::Resume);
    until(&mut world, "Create from layer");
    world.tick(GIVE_UP);
    world.wait(5);
    world.settle();
    assert_eq!((at(&world), then(&world)), (Phase::Paused, "rest".into()));
    world.wait(60);
    assert_eq!(then(&world), "DeleteRecord");
}

#[test]
fn nobody_can_tell_is_recorded_once_and_resolved() {
    let mut world = running(SnapshotType::Freeze);
    world.tick(Fault::Blind);
    assert_eq!(
        (at(&world), operation(&world).kind),
        (Phase::Unknown, OperationKind::Inspect)
    );
    world.settle();
    assert_eq!(
        (at(&world), operation(&world).state),
        (Phase::Running, OperationState::Succeeded)
    );
    world.exit(3);
    world.settle();
    world.tick(Fault::Blind);
    assert_eq!(at(&world), Phase::Stopped, "what has ended stays so");
    world.settle();
    let stopped = world.record.status.stopped.as_ref();
    assert_eq!(stopped.and_then(|s| s.exit_code), Some(3));
}

#[test]
fn every_try_has_an_id_of_its_own() {
    let mut world = running(SnapshotType::Rootfs);
    ask(&mut world, Request::Pause);
    let mut last = operation(&world).id;
    until(&mut world, "Freeze");
    for _ in 0..MAX_ATTEMPTS {
        world.tick(Fault::Later);
        let id = operation(&world).id;
        assert!(id > last, "{id:?} after {last:?}");
        last = id;
    }
    assert_eq!(operation(&world).attempts, MAX_ATTEMPTS);
    assert_eq!(operation(&world).state, OperationState::Failed);
}

#[test]
fn after_a_restart_of_the_host_an_owners_sandbox_sleeps_on_its_files() {
    for asleep in [false, true] {
        let mut world = running(SnapshotType::Freeze);
        world.write();
        if asleep {
            ask(&mut world, Request::Pause);
            world.settle();
        }
        world.restart_host();
        world.settle();
        assert_eq!(at(&world), Phase::Paused);
        assert!(world.record.status.snapshot.is_some());
        ask(&mut world, Request::Resume);
        world.settle();
        assert_eq!(
            at(&world),
            Phase::Running,
            "it wakes with what it had written"
        );
    }
}

#[test]
fn after_a_restart_of_the_host_what_is_nobodys_is_made_again_or_ends() {
    let mut waiting = idle();
    waiting.restart_host();
    waiting.settle();
    assert_eq!(at(&waiting), Phase::Stopped);
    let mut new = World::new(record(false));
    until(&mut new, "Arm");
    new.restart_host();
    new.settle();
    assert_eq!(at(&new), Phase::Running);
}
