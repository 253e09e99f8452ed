//! Workloads that come by themselves, and such as are taken away.

use super::*;

fn taken(loss: Loss) -> Observed {
    let exited = WorkloadState::Exited { code: 137 };
    let images = record(false).spec.images;
    Observed::Present(Facts {
        loss: Some(loss),
        ..facts(exited, Epoch(0), &images)
    })
}

fn planned(sandbox: &Sandbox, observed: &Observed) -> Plan<Step> {
    next(sandbox, observed, Due::default(), RecyclePolicy::Recycle)
}

#[test]
fn what_was_taken_away_leaves_a_record_of_why() {
    for (loss, cause) in [
        (Loss::Evicted, StopCause::Evicted),
        (Loss::NodeLost, StopCause::NodeLost),
        (Loss::Removed, StopCause::Lost),
    ] {
        for phase in [
            Phase::Idle,
            Phase::Running,
            Phase::Pausing,
            Phase::Paused,
            Phase::Unknown,
        ] {
            let plan = planned(&standing(phase), &taken(loss));
            let Some(Step::Publish(status, _)) = plan.steps.first() else {
                panic!("{phase}: {plan:?}");
            };
            let stopped = status.stopped.as_ref().unwrap();
            assert_eq!(
                (stopped.cause, stopped.exit_code),
                (Some(cause), None),
                "{phase}"
            );
            assert_eq!(stopped.reason, StopReason::Failed);
            assert_eq!(&*stopped.message, loss.message());
        }
        // Its files are elsewhere: only an attempt was lost.
        let woken = planned(&standing(Phase::Resuming), &taken(loss));
        assert_eq!(words(&woken), "→Resuming");
    }
}

#[test]
fn what_is_coming_is_waited_for_while_it_is_wanted_and_removed_when_it_is_not() {
    let then = |sandbox: &Sandbox| words(&planned(sandbox, &Observed::Coming));
    assert_eq!(then(&standing(Phase::Starting)), "Create");
    assert_eq!(then(&standing(Phase::Resuming)), "Create from layer");
    assert_eq!(then(&with_layer(standing(Phase::Paused))), "DeleteWorkload");
    for phase in [Phase::Stopped, Phase::Failed] {
        assert_eq!(then(&standing(phase)), "DeleteWorkload");
        assert!(!agrees(&standing(phase), &Observed::Coming));
    }
    assert_eq!(then(&deleting(standing(Phase::Starting))), "→Stopping");
    assert_eq!(then(&deleting(standing(Phase::Stopping))), "DeleteWorkload");
    assert!(agrees(&standing(Phase::Starting), &Observed::Coming));
}

#[test]
fn what_ends_while_it_is_frozen_says_so_in_its_record() {
    let sandbox = standing(Phase::Paused);
    let exited = WorkloadState::Exited { code: 137 };
    let ended = Observed::Present(facts(exited, Epoch(0), &sandbox.spec.images));
    let plan = planned(&sandbox, &ended);
    let Some(Step::Publish(status, Some(note))) = plan.steps.first() else {
        panic!("{plan:?}");
    };
    let stopped = status.stopped.as_ref().unwrap();
    assert_eq!(stopped.cause, Some(StopCause::Exited));
    assert_eq!(
        (stopped.reason, stopped.exit_code),
        (StopReason::Failed, Some(137))
    );
    assert!(stopped.message.contains("while it was frozen"));
    assert_eq!((note.severity, note.reason), (Severity::Warning, "Stopped"));
}
