//! What becomes of a delivery that nobody will hear of.

use model::{
    Epoch,
    sandbox::{Lease, StopCause},
};

use super::*;

const LATE: Due = Due {
    end: false,
    idle: false,
    descend: false,
    retention: false,
    retry: false,
    lease: true,
    claimer_lost: false,
};

fn leased(mut sandbox: Sandbox) -> Sandbox {
    sandbox.spec.epoch = Epoch(1);
    sandbox.spec.lease = Some(Box::new(Lease {
        until: Timestamp::from_micros(1),
        holder: Some("a process".into()),
    }));
    sandbox
}

fn step(sandbox: &Sandbox, due: Due) -> Step {
    let steps = sights(sandbox)
        .iter()
        .map(|seen| next(sandbox, seen, due, RecyclePolicy::Recycle))
        .find_map(|plan| plan.steps.into_iter().next());
    steps.expect("there is something to do")
}

#[test]
fn a_member_that_is_not_ready_in_time_goes_back_and_says_why() {
    let member = leased(member(Phase::Idle, true));
    let release = |cause| Step::Intend(Intent::Release(cause));
    assert_eq!(step(&member, LATE), release(StopCause::StartupTimeout));
    let lost = Due {
        claimer_lost: true,
        ..LATE
    };
    assert_eq!(step(&member, lost), release(StopCause::ClaimerLost));
    assert_ne!(
        step(&member, Due::default()),
        release(StopCause::StartupTimeout)
    );
}

#[test]
fn a_sandbox_of_its_own_that_is_not_ready_in_time_ends() {
    let slow = leased(standing(Phase::Starting));
    assert!(matches!(step(&slow, LATE), Step::DeleteRecord(_)));
}

#[test]
fn a_lease_ends_with_being_ready() {
    let mut running = leased(standing(Phase::Running));
    running.status.armed_epoch = running.spec.epoch;
    for seen in sights(&running) {
        let plan = next(&running, &seen, LATE, RecyclePolicy::Recycle);
        let ends = |s: &Step| matches!(s, Step::DeleteRecord(_) | Step::Intend(Intent::Release(_)));
        assert!(!plan.steps.iter().any(ends), "{plan:?}");
    }
}

#[test]
fn what_ends_when_it_is_ready_has_ended_as_its_owners() {
    let member = leased(member(Phase::Idle, true));
    let facts = |epoch| {
        let state = WorkloadState::Exited { code: 1 };
        Observed::Present(facts(state, epoch, member.spec.wanted_images()))
    };
    let stopped = |seen: &Observed| {
        let plan = next(&member, seen, Due::default(), RecyclePolicy::Recycle);
        match plan.steps.into_iter().next() {
            Some(Step::Publish(status, _)) => status,
            other => panic!("{other:?}"),
        }
    };
    let mut after = member.clone();
    after.status = *stopped(&facts(Epoch(1)));
    assert_eq!(after.status.phase, Phase::Stopped);
    assert_eq!(after.status.armed_epoch, Epoch(1));
    let plan = next(&after, &Observed::Absent, LATE, RecyclePolicy::Recycle);
    assert_eq!(plan.steps, [], "its owner may ask for it");
    // One that was not ready is nobody's, and goes with its lease.
    after.status = *stopped(&facts(Epoch(0)));
    assert_eq!(after.status.armed_epoch, Epoch(0));
    let plan = next(&after, &Observed::Absent, LATE, RecyclePolicy::Recycle);
    assert!(
        matches!(plan.steps[..], [Step::DeleteRecord(_)]),
        "{plan:?}"
    );
}
