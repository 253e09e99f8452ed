//! The design's rules for starting, claiming and giving back, one test each.

use model::{Epoch, lifecycle::Request};

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
fn a_member_that_ran_another_image_does_not_go_back() {
    let mut world = idle();
    let images = [("main", "theirs:2")].into_iter().collect();
    assert!(world.ask(Request::Claim, &images));
    world.settle();
    ask(&mut world, Request::Release { expected: None });
    world.settle();
    assert!(world.gone);
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
    let seen = super::facts(WorkloadState::Running, Epoch(1), &sandbox.spec.images);
    let plan = super::next(
        &sandbox,
        &Observed::Present(seen),
        Due::default(),
        RecyclePolicy::Recycle,
    );
    assert_eq!(words(&plan), "→Stopped");
}
