//! What a failed step leaves in a sandbox's record.
//!
//! A failure is counted in `lastOperation`, with its error for people to read. After a few tries
//! the operation is given up, and [`crate::sandbox::plan_sandbox`] turns back: a pause that cannot
//! be leaves it running, a resume that cannot be leaves it asleep. Ending is never given up.

use std::time::Duration;

use model::{
    Sandbox, Timestamp,
    lifecycle::{OperationKind, Phase},
    sandbox::{Operation, OperationState, SandboxStatus},
    trouble::Trouble,
};

use crate::{sandbox::Step, trouble};

/// Tries before an operation is given up.
pub const MAX_ATTEMPTS: u32 = 5;

/// The status after `step` failed; `hopeless` errors are not tried again. A record that could not
/// be written says nothing of the sandbox: the status stays as it is.
#[must_use]
pub fn after_failure(
    sandbox: &Sandbox,
    step: &Step,
    error: &str,
    hopeless: bool,
    now: Timestamp,
) -> SandboxStatus {
    let mut status = sandbox.status.clone();
    let Some(kind) = operation_of(sandbox, step) else {
        return status;
    };
    let generation = sandbox.metadata.generation;
    let last = status.last_operation.take();
    // A call that failed may take effect later: the next one must make it stale.
    let id = last.as_ref().map(|op| op.id).unwrap_or_default().next();
    // One that was given up stays so: a clean-up that fails must not start it anew.
    let cleans_up = *step == Step::DeleteWorkload;
    let same = last.filter(|op| {
        op.kind == kind
            && op.state != OperationState::Succeeded
            && (op.generation == generation || cleans_up)
    });
    let mut operation = same.unwrap_or_else(|| {
        Box::new(Operation {
            kind,
            id,
            generation,
            state: OperationState::InFlight,
            started_at: now,
            attempts: 0,
            error: None,
        })
    });
    operation.id = id;
    operation.attempts += 1;
    operation.error = Some(error.into());
    let gives_up = match kind {
        OperationKind::Stop | OperationKind::Inspect => false,
        // Until it holds, a sandbox may reach what it should not.
        OperationKind::Network => hopeless,
        OperationKind::Start
        | OperationKind::Arm
        | OperationKind::Pause
        | OperationKind::Resume
        | OperationKind::Release => hopeless || operation.attempts >= MAX_ATTEMPTS,
    };
    if gives_up {
        operation.state = OperationState::Failed;
    }
    status.last_operation = Some(operation);
    status
}

/// The status with which a new control loop takes over an operation that another began: under an
/// id of its own, so that what the other may still be doing is stale. `None` if there is none.
#[must_use]
pub fn taken_over(sandbox: &Sandbox) -> Option<SandboxStatus> {
    let mut status = sandbox.status.clone();
    let operation = status.last_operation.as_mut()?;
    if operation.state != OperationState::InFlight {
        return None;
    }
    operation.id = operation.id.next();
    Some(status)
}

/// How long after its last failure a step is worth another try; none if it has not failed, or
/// something else is wanted by now. What has to be fetched is tried less often than what is here.
#[must_use]
pub fn again(sandbox: &Sandbox, step: &Step) -> Option<Duration> {
    let operation = sandbox.status.last_operation.as_deref()?;
    let failed = operation.state == OperationState::InFlight
        && operation.attempts > 0
        && operation.generation == sandbox.metadata.generation
        && operation_of(sandbox, step) == Some(operation.kind);
    let first = match trouble::find(&sandbox.status) {
        _ if !failed => return None,
        Some((Trouble::PullBackOff, _)) => Duration::from_secs(2),
        Some(_) | None => Duration::from_millis(20),
    };
    Some((first * (1 << (operation.attempts - 1).min(16))).min(LONGEST))
}

/// The longest pause between two tries.
const LONGEST: Duration = Duration::from_secs(30);

/// The operation that a step belongs to, by the phase it was taken in.
fn operation_of(sandbox: &Sandbox, step: &Step) -> Option<OperationKind> {
    Some(match step {
        // Removing what an attempt left belongs to the attempt.
        Step::DeleteWorkload => match (sandbox.status.phase, &sandbox.status.last_operation) {
            (Phase::Starting, _) => OperationKind::Start,
            (Phase::Resuming, _) => OperationKind::Resume,
            (Phase::Paused, Some(op)) if op.state == OperationState::Failed => op.kind,
            (_, _) => OperationKind::Stop,
        },
        Step::Reset => OperationKind::Release,
        Step::Freeze | Step::Capture => OperationKind::Pause,
        Step::SetNetwork if sandbox.status.phase == Phase::Running => OperationKind::Network,
        Step::Boot if sandbox.status.phase == Phase::Stopping => OperationKind::Release,
        Step::Create(_)
        | Step::Boot
        | Step::Arm
        | Step::RunHooks
        | Step::SwapImages
        | Step::SetNetwork
        | Step::Thaw => match sandbox.status.phase {
            Phase::Pending | Phase::Starting => OperationKind::Start,
            Phase::Idle => OperationKind::Arm,
            Phase::Pausing => OperationKind::Pause,
            Phase::Running
            | Phase::Paused
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Failed
            | Phase::Unknown => OperationKind::Resume,
        },
        Step::IfUnused(_)
        | Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::Publish(..)
        | Step::Intend(_)
        | Step::DeleteRecord(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use model::{Generation, Metadata, Name, Namespace, OperationId, sandbox::SandboxSpec};

    use super::*;
    use crate::sandbox::Intent;

    const T0: Timestamp = Timestamp::from_micros(1);

    fn at(phase: Phase) -> Sandbox {
        let meta = Metadata::new(Some(Namespace::new("t").unwrap()), Name::new("a").unwrap());
        let mut sandbox = Sandbox::new(meta, SandboxSpec::default());
        sandbox.status.phase = phase;
        sandbox
    }

    fn fail(sandbox: &mut Sandbox, step: &Step, hopeless: bool) -> Operation {
        sandbox.status = after_failure(sandbox, step, "no", hopeless, T0);
        let operation = sandbox.status.last_operation.as_deref();
        operation.expect("a failure is recorded").clone()
    }

    #[test]
    fn a_failure_belongs_to_the_operation_it_happened_in() {
        use OperationKind::{Arm, Network, Pause, Release, Resume, Start, Stop};
        for (phase, step, kind) in [
            (Phase::Starting, Step::Create(None), Start),
            (Phase::Starting, Step::Arm, Start),
            (Phase::Starting, Step::Boot, Start),
            (Phase::Idle, Step::Boot, Arm),
            (Phase::Resuming, Step::Boot, Resume),
            (Phase::Stopping, Step::Boot, Release),
            (Phase::Starting, Step::DeleteWorkload, Start),
            (Phase::Idle, Step::SwapImages, Arm),
            (Phase::Idle, Step::Arm, Arm),
            (Phase::Idle, Step::RunHooks, Arm),
            (Phase::Starting, Step::RunHooks, Start),
            (Phase::Running, Step::Freeze, Pause),
            (Phase::Running, Step::Thaw, Resume),
            (Phase::Running, Step::SetNetwork, Network),
            (Phase::Idle, Step::SetNetwork, Arm),
            (Phase::Pausing, Step::Capture, Pause),
            (Phase::Pausing, Step::Thaw, Pause),
            (Phase::Paused, Step::Capture, Pause),
            (Phase::Paused, Step::Thaw, Resume),
            (Phase::Paused, Step::DeleteWorkload, Stop),
            (Phase::Resuming, Step::Create(None), Resume),
            (Phase::Resuming, Step::DeleteWorkload, Resume),
            (Phase::Stopping, Step::Reset, Release),
            (Phase::Stopping, Step::DeleteWorkload, Stop),
        ] {
            let operation = fail(&mut at(phase), &step, false);
            assert_eq!(operation.kind, kind, "{step:?} in {phase}");
            assert_eq!(operation.state, OperationState::InFlight);
        }
    }

    #[test]
    fn it_is_given_up_after_a_few_tries_or_at_once_if_hopeless() {
        let mut sandbox = at(Phase::Running);
        for attempt in 1..MAX_ATTEMPTS {
            let operation = fail(&mut sandbox, &Step::Freeze, false);
            assert_eq!(
                (operation.attempts, operation.state),
                (attempt, OperationState::InFlight)
            );
        }
        let last = fail(&mut sandbox, &Step::Freeze, false);
        assert_eq!(last.state, OperationState::Failed);
        let hopeless = fail(&mut at(Phase::Running), &Step::Freeze, true);
        assert_eq!(hopeless.state, OperationState::Failed);
    }

    #[test]
    fn another_try_is_made_later_each_time_unless_something_else_is_wanted() {
        let mut sandbox = at(Phase::Starting);
        let create = Step::Create(None);
        assert_eq!(again(&sandbox, &create), None, "it was not tried yet");
        let mut pauses = Vec::new();
        for _ in 1..MAX_ATTEMPTS {
            fail(&mut sandbox, &create, false);
            pauses.push(again(&sandbox, &create).unwrap().as_millis());
        }
        assert_eq!(pauses, [20, 40, 80, 160]);
        let status = sandbox.status.clone();
        sandbox.status = trouble::troubled(status, Trouble::PullBackOff, "no", T0);
        assert_eq!(again(&sandbox, &create).unwrap().as_secs(), 16);
        // Another step, another wish, or none: nothing to wait for.
        assert_eq!(again(&sandbox, &Step::Freeze), None);
        sandbox.metadata.generation = Generation(9);
        assert_eq!(again(&sandbox, &create), None);
    }

    #[test]
    fn ending_is_never_given_up() {
        let mut sandbox = at(Phase::Stopping);
        for _ in 0..3 * MAX_ATTEMPTS {
            let operation = fail(&mut sandbox, &Step::DeleteWorkload, true);
            assert_eq!(operation.state, OperationState::InFlight);
        }
    }

    #[test]
    fn what_was_given_up_stays_so_until_something_else_is_wanted() {
        let mut sandbox = at(Phase::Starting);
        fail(&mut sandbox, &Step::Create(None), true);
        let cleanup = fail(&mut sandbox, &Step::DeleteWorkload, false);
        assert_eq!(
            (cleanup.kind, cleanup.state),
            (OperationKind::Start, OperationState::Failed)
        );
        sandbox.metadata.generation = Generation(2);
        let anew = fail(&mut sandbox, &Step::Create(None), false);
        assert_eq!((anew.attempts, anew.state), (1, OperationState::InFlight));
    }

    #[test]
    fn each_try_fences_the_one_before() {
        let mut sandbox = at(Phase::Running);
        for id in 1..4 {
            let operation = fail(&mut sandbox, &Step::Freeze, false);
            assert_eq!(operation.id, OperationId(id));
        }
        let other = fail(&mut sandbox, &Step::Thaw, false);
        assert_eq!((other.id, other.attempts), (OperationId(4), 1));
    }

    #[test]
    fn a_record_that_could_not_be_written_says_nothing_of_the_sandbox() {
        let sandbox = at(Phase::Running);
        for step in [
            Step::AddFinalizer,
            Step::RemoveFinalizer,
            Step::Intend(Intent::Pause),
        ] {
            assert_eq!(
                after_failure(&sandbox, &step, "no", true, T0),
                sandbox.status
            );
        }
    }
}
