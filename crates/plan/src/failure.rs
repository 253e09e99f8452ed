//! What a failed step leaves in a sandbox's record.
//!
//! A failure is counted in `lastOperation`, with its error for people to read. After a few tries
//! the operation is given up, and [`crate::sandbox::plan_sandbox`] turns back: a pause that cannot
//! be leaves it running, a resume that cannot be leaves it asleep. Ending is never given up.

use model::{
    Sandbox, Timestamp,
    lifecycle::{OperationKind, Phase},
    sandbox::{Operation, OperationState, SandboxStatus},
};

use crate::sandbox::Step;

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
    let same = last.filter(|op| {
        op.kind == kind && op.generation == generation && op.state != OperationState::Succeeded
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

/// The operation that a step belongs to, by the phase it was taken in.
fn operation_of(sandbox: &Sandbox, step: &Step) -> Option<OperationKind> {
    Some(match step {
        // Removing what an attempt left belongs to the attempt.
        Step::DeleteWorkload => match sandbox.status.phase {
            Phase::Starting => OperationKind::Start,
            Phase::Resuming => OperationKind::Resume,
            Phase::Pending
            | Phase::Idle
            | Phase::Running
            | Phase::Pausing
            | Phase::Paused
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Failed
            | Phase::Unknown => OperationKind::Stop,
        },
        Step::Reset => OperationKind::Release,
        Step::Freeze | Step::Capture => OperationKind::Pause,
        Step::Create(_) | Step::Arm | Step::SwapImages | Step::Thaw => match sandbox.status.phase {
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
        Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::Publish(..)
        | Step::Intend(_)
        | Step::DeleteRecord(_) => return None,
    })
}
