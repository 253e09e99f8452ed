//! What a step writes into a sandbox's record: operations begun and ended, phases, conditions.

use model::{
    Timestamp,
    event::Severity,
    lifecycle::{OperationKind, Phase},
    meta::{Condition, ConditionStatus, set_condition},
    sandbox::{BOOTED_CONDITION, HOOKS_CONDITION, Operation, OperationState, SandboxStatus},
    workload::{BootFailure, Facts},
};

use super::View;
use crate::Note;

/// Whether an operation was given up. A change of what is wanted makes it worth trying again, but
/// for a start: its remains are on their way out.
pub(crate) fn operation_failed(view: View<'_>, kind: OperationKind) -> bool {
    let operation = view.sandbox.status.last_operation.as_ref();
    operation.is_some_and(|op| {
        op.kind == kind
            && op.state == OperationState::Failed
            && (op.generation == view.sandbox.metadata.generation || kind == OperationKind::Start)
    })
}

pub(crate) fn error_of(view: View<'_>) -> Box<str> {
    let operation = view.sandbox.status.last_operation.as_ref();
    operation
        .and_then(|op| op.error.clone())
        .unwrap_or_else(|| "it failed".into())
}

pub(crate) fn next_id(status: &SandboxStatus) -> model::OperationId {
    status
        .last_operation
        .as_ref()
        .map(|op| op.id)
        .unwrap_or_default()
        .next()
}

/// The status that records an operation before it is begun.
pub(crate) fn begin(view: View<'_>, kind: OperationKind, phase: Phase) -> Box<SandboxStatus> {
    let mut status = settle(view, phase, None);
    status.last_operation = Some(Box::new(Operation {
        kind,
        id: next_id(&view.sandbox.status),
        generation: view.sandbox.metadata.generation,
        state: OperationState::InFlight,
        started_at: view.now,
        attempts: 0,
        error: None,
    }));
    status
}

/// The status in a new phase; an operation of the kind that led there has succeeded.
pub(crate) fn settle(
    view: View<'_>,
    phase: Phase,
    done: Option<OperationKind>,
) -> Box<SandboxStatus> {
    let mut status = Box::new(view.sandbox.status.clone());
    status.phase = phase;
    status.observed_generation = view.sandbox.metadata.generation;
    if let Some(kind) = done {
        finish(&mut status, kind);
    }
    let ready = match phase {
        Phase::Running | Phase::Idle => ConditionStatus::True,
        Phase::Unknown => ConditionStatus::Unknown,
        Phase::Pending
        | Phase::Starting
        | Phase::Pausing
        | Phase::Paused
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Failed => ConditionStatus::False,
    };
    set_condition(
        &mut status.conditions,
        Condition {
            kind: "Ready".into(),
            status: ready,
            reason: phase.as_str().into(),
            message: Box::default(),
            last_transition_time: view.now,
            observed_generation: view.sandbox.metadata.generation,
        },
    );
    if matches!(phase, Phase::Running | Phase::Idle) {
        // What a failed try has left there is no longer so.
        let came_up = Condition {
            kind: BOOTED_CONDITION.into(),
            status: ConditionStatus::True,
            reason: "Booted".into(),
            message: Box::default(),
            last_transition_time: view.now,
            observed_generation: view.sandbox.metadata.generation,
        };
        if status.conditions.iter().any(|c| c.kind == came_up.kind) {
            set_condition(&mut status.conditions, came_up);
        }
    }
    status
}

/// The status that also says why its template's commands did not bring it up.
pub fn not_up(
    mut status: SandboxStatus,
    failure: BootFailure,
    detail: &str,
    now: Timestamp,
) -> SandboxStatus {
    let observed_generation = status.observed_generation;
    set_condition(
        &mut status.conditions,
        Condition {
            kind: BOOTED_CONDITION.into(),
            status: ConditionStatus::False,
            reason: failure.reason().into(),
            message: detail.into(),
            last_transition_time: now,
            observed_generation,
        },
    );
    status
}

/// Notes which hooks have failed for a delivery that goes out all the same. What is said of the last
/// delivery goes.
pub(crate) fn hooked(status: &mut SandboxStatus, facts: &Facts, now: Timestamp) -> Option<Note> {
    status.conditions.retain(|c| &*c.kind != HOOKS_CONDITION);
    let failed = facts.hooked.as_ref().map(|hooked| hooked.failed.as_slice());
    let failed = failed.unwrap_or_default();
    if failed.is_empty() {
        return None;
    }
    let told: Vec<_> = failed
        .iter()
        .map(|hook| format!("hook {:?} failed: {}", hook.name, hook.why))
        .collect();
    let message = told.join("; ");
    let observed_generation = status.observed_generation;
    set_condition(
        &mut status.conditions,
        Condition {
            kind: HOOKS_CONDITION.into(),
            status: ConditionStatus::False,
            reason: "HookFailed".into(),
            message: message.as_str().into(),
            last_transition_time: now,
            observed_generation,
        },
    );
    Some(note(Severity::Warning, "HookFailed", &message))
}

pub(crate) fn finish(status: &mut SandboxStatus, kind: OperationKind) {
    if let Some(op) = status.last_operation.as_mut().filter(|op| op.kind == kind) {
        op.state = OperationState::Succeeded;
        op.error = None;
    }
}

pub(crate) fn note(severity: Severity, reason: &'static str, message: &str) -> Note {
    Note {
        severity,
        reason,
        message: message.into(),
    }
}

pub(crate) fn timed_out(what: &str) -> Note {
    note(
        Severity::Normal,
        "TimedOut",
        &format!("{what}: its deadline has passed"),
    )
}
