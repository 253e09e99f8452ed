//! The design's rules for starting, claiming and giving back, one test each.

use model::{Epoch, lifecycle::Request, sandbox::Lease};

use super::{
    super::*,
    rules::{GIVE_UP, ask, at, idle, operation, then, until},
    words,
    world::{Fault, World, record},
};
use crate::failure::MAX_ATTEMPTS;

#[test]
fn a_released_member_is_destroyed_or_recycled_as_its_pool_says() {
    for (recycle, ends) in [
        (RecyclePolicy::Destroy, true),
        (RecyclePolicy::Recycle, false),
    ] {
        let mut world = idle();
        world.recycle = recycle;
        ask(&mut world, Request::Claim);
        world.settle();
        assert_eq!(
            (at(&world), world.record.status.armed_epoch),
            (Phase::Running, Epoch(1))
        );
        ask(&mut world, Request::Release { expected: None });
        world.settle();
        assert_eq!(world.gone, ends, "{recycle:?}");
        assert!(ends || at(&world) == Phase::Idle);
    }
}

#[test]
fn a_recycled_member_starts_its_next_delivery_with_nothing_of_the_last() {
    let mut world = idle();
    ask(&mut world, Request::Claim);
    world.settle();
    ask(&mut world, Request::Pause);
    world.settle();
    ask(&mut world, Request::Release { expected: None });
    world.settle();
    let status = &world.record.status;
    assert_eq!(
        (status.phase, status.recycled_epoch),
        (Phase::Idle, Epoch(1))
    );
    assert_eq!(
        (status.started_at, status.paused_at, status.last_active_at),
        (None, None, None)
    );
    ask(&mut world, Request::Claim);
    world.settle();
    assert_eq!(world.inside.0, [Epoch(2)]);
}

#[test]
fn a_member_that_cannot_be_cleaned_is_destroyed() {
    let mut world = idle();
    ask(&mut world, Request::Claim);
    world.settle();
    ask(&mut world, Request::Release { expected: None });
    until(&mut world, "Reset");
    world.tick(GIVE_UP);
    world.settle();
    assert!(world.gone);
}

#[test]
fn a_member_released_before_it_was_ready_does_not_go_back() {
    let mut world = idle();
    ask(&mut world, Request::Claim);
    world.tick(Fault::Later);
    ask(&mut world, Request::Release { expected: None });
    world.land();
    world.settle();
    assert!(world.gone, "its arming was on its way");
}

#[test]
fn a_member_that_ran_another_image_goes_back_on_the_one_it_idles_on() {
    let mut world = idle();
    let images = [("main", "theirs:2")].into_iter().collect();
    assert!(world.ask(Request::Claim, &images));
    until(&mut world, "SwapImages");
    world.settle();
    assert_eq!(world.record.status.images.get("main"), Some("theirs:2"));
    ask(&mut world, Request::Release { expected: None });
    until(&mut world, "Reset");
    world.settle();
    // That it is on its own image again is checked where it becomes idle.
    assert_eq!((at(&world), world.gone), (Phase::Idle, false));
}

#[test]
fn an_image_that_runs_already_is_not_swapped_whatever_it_is_called() {
    let mut world = idle();
    let digest = format!("sha256:{:064x}", 7);
    let Observed::Present(facts) = &mut world.workload else {
        panic!("it has a workload");
    };
    let known = Digest::new(digest.as_str()).unwrap();
    facts.digests.insert("main".into(), known);
    for (image, first) in [
        (format!("another/name@{digest}"), "Arm"),
        (format!("idle@sha256:{:064x}", 8), "SwapImages"),
    ] {
        let mut world = world.clone();
        let images = [("main", image.as_str())].into_iter().collect();
        assert!(world.ask(Request::Claim, &images));
        assert_eq!(then(&world), first, "{image}");
    }
}

#[test]
fn hooks_are_run_once_for_each_delivery_and_not_for_a_wake() {
    let mut world = idle();
    world.hooks = true;
    ask(&mut world, Request::Claim);
    until(&mut world, "RunHooks");
    assert_eq!(at(&world), Phase::Idle, "nobody hears of it before");
    world.settle();
    assert_eq!(at(&world), Phase::Running);
    for request in [Request::Pause, Request::Resume] {
        ask(&mut world, request);
        world.settle();
    }
    let runs = |world: &World| world.log.iter().filter(|l| l.contains("RunHooks")).count();
    assert_eq!(runs(&world), 1, "{:#?}", world.log);
    ask(&mut world, Request::Release { expected: None });
    world.settle();
    ask(&mut world, Request::Claim);
    world.settle();
    assert_eq!(runs(&world), 2, "{:#?}", world.log);
}

#[test]
fn a_hook_that_must_succeed_and_does_not_ends_the_delivery() {
    for pooled in [true, false] {
        let mut world = World::new(record(pooled));
        world.hooks = true;
        if pooled {
            world.settle();
            ask(&mut world, Request::Claim);
        }
        until(&mut world, "RunHooks");
        world.tick(GIVE_UP);
        world.settle();
        let ended = if pooled {
            Phase::Stopped
        } else {
            Phase::Failed
        };
        assert_eq!((at(&world), &world.workload), (ended, &Observed::Absent));
    }
}

#[test]
fn a_delivery_that_is_ready_is_not_late_for_its_owner_may_have_heard() {
    let mut world = idle();
    world.hooks = true;
    ask(&mut world, Request::Claim);
    world.record.spec.lease = Some(Box::new(Lease {
        until: Timestamp::from_micros(1),
        holder: Some("who died".into()),
    }));
    const LATE: &str = "Intend Release(ClaimerLost)";
    let due = Due {
        claimer_lost: true,
        ..Due::default()
    };
    let next = |world: &World| {
        words(&plan_sandbox(View {
            due,
            ..world.view()
        }))
    };
    assert_eq!(next(&world), LATE, "nobody can have heard of it");
    until(&mut world, "RunHooks");
    assert_eq!(next(&world), LATE, "nor as long as its hooks have not run");
    world.tick(Fault::None);
    assert_eq!(next(&world), "→Running");
}

#[test]
fn a_start_that_is_given_up_removes_its_remains_first() {
    let mut world = World::new(record(false));
    until(&mut world, "Create");
    for _ in 0..MAX_ATTEMPTS {
        world.tick(Fault::HalfWay);
        assert_eq!(
            (at(&world), then(&world)),
            (Phase::Starting, "DeleteWorkload".into())
        );
        // A clean-up that fails does not start it anew.
        world.tick(Fault::Before(false));
        if operation(&world).state == OperationState::Failed {
            break;
        }
        world.tick(Fault::None);
    }
    assert_eq!(operation(&world).state, OperationState::Failed);
    world.settle();
    assert_eq!(
        (at(&world), &world.workload),
        (Phase::Failed, &Observed::Absent)
    );
    assert_eq!(operation(&world).kind, OperationKind::Start);
}

#[test]
fn a_claim_that_cannot_be_armed_ends_the_member() {
    let mut world = idle();
    ask(&mut world, Request::Claim);
    until(&mut world, "Arm");
    world.tick(GIVE_UP);
    world.settle();
    assert_eq!(at(&world), Phase::Stopped);
    let stopped = world.record.status.stopped.as_ref();
    assert_eq!(stopped.map(|s| &*s.message), Some("before"));
}

#[test]
fn a_workload_of_another_delivery_is_never_handed_over() {
    let mut sandbox = super::member(Phase::Idle, true);
    sandbox.spec.epoch = Epoch(2);
    let seen = super::facts(
        WorkloadState::Running,
        Epoch(1),
        sandbox.spec.wanted_images(),
    );
    let plan = super::next(
        &sandbox,
        &Observed::Present(seen),
        Due::default(),
        RecyclePolicy::Recycle,
    );
    assert_eq!(words(&plan), "→Stopped");
}
