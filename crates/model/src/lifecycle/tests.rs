use proptest::prelude::*;

use super::*;

const LIVE: [Phase; 8] = [
    Phase::Pending,
    Phase::Starting,
    Phase::Idle,
    Phase::Running,
    Phase::Pausing,
    Phase::Paused,
    Phase::Resuming,
    Phase::Unknown,
];

fn owned(phase: Phase, desired: DesiredState) -> Standing {
    Standing {
        phase,
        desired,
        deleting: false,
        owned: true,
        pooled: false,
        deadline_reached: false,
    }
}

#[test]
fn a_resume_that_arrives_while_pausing_is_deferred_never_refused() {
    for phase in [Phase::Running, Phase::Pausing] {
        let verdict = admit(Request::Resume, owned(phase, DesiredState::Paused));
        assert_eq!(verdict, Verdict::Deferred(OperationKind::Pause), "{phase}");
    }
}

#[test]
fn asking_twice_is_asking_once() {
    for phase in LIVE {
        let paused = owned(phase, DesiredState::Paused);
        assert_eq!(admit(Request::Pause, paused), Verdict::Already, "{phase}");
        let running = owned(phase, DesiredState::Running);
        assert_eq!(admit(Request::Resume, running), Verdict::Already, "{phase}");
    }
    let dying = Standing {
        deleting: true,
        ..owned(Phase::Running, DesiredState::Running)
    };
    assert_eq!(admit(Request::Kill, dying), Verdict::Already);
}

#[test]
fn only_an_idle_member_without_an_owner_can_be_claimed() {
    for phase in Phase::ALL {
        let free = Standing {
            owned: false,
            pooled: true,
            ..owned(phase, DesiredState::Running)
        };
        let verdict = admit(Request::Claim, free);
        assert_eq!(
            verdict == Verdict::Do,
            phase == Phase::Idle,
            "{phase}: {verdict:?}"
        );
        let taken = Standing {
            owned: true,
            ..free
        };
        assert!(
            matches!(admit(Request::Claim, taken), Verdict::Denied(_)),
            "{phase}"
        );
    }
}

#[test]
fn an_opportunistic_release_is_refused_when_the_phase_moved_on() {
    let member = Standing {
        pooled: true,
        ..owned(Phase::Pausing, DesiredState::Paused)
    };
    let seen = |phase| Request::Release {
        expected: Some(phase),
    };
    assert_eq!(
        admit(seen(Phase::Running), member),
        Verdict::Denied(DenyReason::Pausing)
    );
    let member = Standing {
        phase: Phase::Paused,
        ..member
    };
    assert_eq!(
        admit(seen(Phase::Running), member),
        Verdict::Denied(DenyReason::Conflict)
    );
    assert_eq!(admit(seen(Phase::Paused), member), Verdict::Do);
}

#[test]
fn a_paused_sandbox_past_its_deadline_does_not_wake() {
    let over = Standing {
        deadline_reached: true,
        ..owned(Phase::Paused, DesiredState::Paused)
    };
    assert_eq!(
        admit(Request::Resume, over),
        Verdict::Denied(DenyReason::DeadlineReached)
    );
}

#[test]
fn every_phase_is_reachable_and_can_end() {
    let mut reached = vec![Phase::Pending];
    while let Some(next) = Phase::ALL
        .into_iter()
        .find(|n| !reached.contains(n) && reached.iter().any(|p| p.may_become(*n)))
    {
        reached.push(next);
    }
    assert_eq!(reached.len(), Phase::ALL.len());
    for phase in Phase::ALL {
        assert!(
            phase.may_become(Phase::Stopping) || phase == Phase::Stopping,
            "{phase}"
        );
    }
}

/// An independent model: a list of rules, first match wins, written from the design's sentences
/// rather than from the code's structure.
fn model(request: Request, at: Standing) -> Verdict {
    use Verdict::{Already, Deferred, Denied, Do};
    type Rule = (fn(Request, Standing) -> bool, Verdict);
    let wants = |r: Request| match r {
        Request::Pause => Some(DesiredState::Paused),
        Request::Resume => Some(DesiredState::Running),
        Request::Claim | Request::Renew | Request::Release { .. } | Request::Kill => None,
    };
    let rules: &[Rule] = &[
        (|r, s| r == Request::Kill && s.deleting, Already),
        (|r, _| r == Request::Kill, Do),
        (|_, s| s.deleting, Denied(DenyReason::Terminating)),
        (
            |r, s| s.phase == Phase::Stopping && !matches!(r, Request::Release { .. }),
            Denied(DenyReason::Terminating),
        ),
        (
            |r, s| r == Request::Claim && s.owned,
            Denied(DenyReason::Conflict),
        ),
        (|r, s| r == Request::Claim && s.phase == Phase::Idle, Do),
        (
            |r, _| r == Request::Claim,
            Denied(DenyReason::PhaseNotAllowed),
        ),
        (
            |r, s| matches!(r, Request::Release { .. }) && !s.pooled,
            Denied(DenyReason::PhaseNotAllowed),
        ),
        (
            |r, s| matches!(r, Request::Release { .. }) && !s.owned,
            Already,
        ),
        (
            |r, s| {
                matches!(r, Request::Release { expected: Some(p) } if p != s.phase)
                    && s.phase == Phase::Pausing
            },
            Denied(DenyReason::Pausing),
        ),
        (
            |r, s| matches!(r, Request::Release { expected: Some(p) } if p != s.phase),
            Denied(DenyReason::Conflict),
        ),
        (
            |r, s| {
                matches!(r, Request::Pause | Request::Resume)
                    && matches!(s.phase, Phase::Stopped | Phase::Failed)
            },
            Denied(DenyReason::PhaseNotAllowed),
        ),
        (
            |r, s| !matches!(r, Request::Release { .. }) && !s.owned,
            Denied(DenyReason::NotOwned),
        ),
        (
            |r, s| r == Request::Renew && s.deadline_reached,
            Denied(DenyReason::DeadlineReached),
        ),
        (
            |r, s| r == Request::Renew && s.phase == Phase::Pausing,
            Denied(DenyReason::Pausing),
        ),
        (
            |r, s| {
                r == Request::Renew
                    && matches!(s.phase, Phase::Paused | Phase::Stopped | Phase::Failed)
            },
            Denied(DenyReason::PhaseNotAllowed),
        ),
        (|r, _| r == Request::Renew, Do),
    ];
    if let Some((_, verdict)) = rules.iter().find(|(applies, _)| applies(request, at)) {
        return *verdict;
    }
    if wants(request) == Some(at.desired) {
        return Already;
    }
    if request == Request::Resume && at.deadline_reached {
        return Denied(DenyReason::DeadlineReached);
    }
    match (at.phase, at.desired) {
        (Phase::Pending | Phase::Starting, _) => Deferred(OperationKind::Start),
        (Phase::Idle, _) => Deferred(OperationKind::Arm),
        (Phase::Pausing, _) | (Phase::Running, DesiredState::Paused) => {
            Deferred(OperationKind::Pause)
        }
        (Phase::Resuming, _) | (Phase::Paused, DesiredState::Running) => {
            Deferred(OperationKind::Resume)
        }
        (Phase::Unknown, _) => Deferred(OperationKind::Inspect),
        (Phase::Stopping, _) => Deferred(OperationKind::Stop),
        (Phase::Running | Phase::Paused | Phase::Stopped | Phase::Failed, _) => Do,
    }
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop::sample::select(Phase::ALL.to_vec())
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Claim),
        Just(Request::Pause),
        Just(Request::Resume),
        Just(Request::Renew),
        Just(Request::Kill),
        prop::option::of(any_phase()).prop_map(|expected| Request::Release { expected }),
    ]
}

fn any_standing() -> impl Strategy<Value = Standing> {
    let state = prop_oneof![Just(DesiredState::Running), Just(DesiredState::Paused)];
    (any_phase(), state, any::<[bool; 4]>()).prop_map(|(phase, desired, flags)| Standing {
        phase,
        desired,
        deleting: flags[0],
        owned: flags[1],
        pooled: flags[2],
        deadline_reached: flags[3],
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn admission_agrees_with_an_independent_model(request in any_request(), at in any_standing()) {
        prop_assert_eq!(admit(request, at), model(request, at));
    }

    /// Any sequence of admitted pauses and resumes ends with the last one asked for.
    #[test]
    fn the_last_admitted_wish_wins(
        start in any_standing(),
        wishes in prop::collection::vec((any::<bool>(), any_phase()), 1..20),
    ) {
        let mut at = start;
        let mut last = None;
        for (sleep, phase) in wishes {
            at.phase = phase;
            let (request, wanted) = if sleep {
                (Request::Pause, DesiredState::Paused)
            } else {
                (Request::Resume, DesiredState::Running)
            };
            match admit(request, at) {
                Verdict::Do | Verdict::Deferred(_) => { at.desired = wanted; last = Some(wanted); }
                Verdict::Already => last = Some(wanted),
                Verdict::Denied(_) => {}
            }
        }
        if let Some(wanted) = last {
            prop_assert_eq!(at.desired, wanted);
        }
    }
}
