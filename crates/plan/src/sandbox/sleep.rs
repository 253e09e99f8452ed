//! Falling asleep, sleeping and waking, on either rung.
//!
//! Where the runtime cannot freeze there is one rung: a capture stops the processes itself, and they
//! are let go on only if the pause is called off.

use model::{
    event::Severity,
    lifecycle::{OperationKind, Phase},
    sandbox::{DesiredState, OperationState, SnapshotType},
    workload::{Captured, Facts, Keeps, Observed, WorkloadState},
};

use super::{
    Intent, NOT_UP, Step, View, awake, lost, network, note,
    record::{begin, error_of, finish, operation_failed, settle},
};
use crate::{Plan, failure::after_failure};

const TO_SLEEP: &str = "it should sleep";
const NO_PLACE: &str = "pausePolicy.snapshotRegistry: nothing here keeps the files of a sandbox that \
                        sleeps: name a registry for them, there or in the server's settings";
const UNDRAINED: &str = "it was frozen before what is inside could end";

pub(super) fn running(view: View<'_>) -> Plan<Step> {
    let Observed::Present(facts) = view.observed else {
        return lost(view);
    };
    if let Some(plan) = network(view, facts) {
        return plan;
    }
    match (view.sandbox.spec.desired_state, facts.state) {
        (DesiredState::Running, WorkloadState::Frozen) => {
            Plan::step(Step::Thaw, "it should be awake")
        }
        (DesiredState::Running, _) => Plan::rest("it runs as wanted"),
        (DesiredState::Paused, _) if operation_failed(view, OperationKind::Pause) => {
            // The workload decides: it runs, so that is what is wanted from here on.
            Plan::step(Step::Intend(Intent::Resume), "it could not be put to sleep")
        }
        (DesiredState::Paused, _) if rung(view) == SnapshotType::Rootfs && !has_place(view) => {
            let status = after_failure(view.sandbox, &Step::Capture, NO_PLACE, true, view.now);
            let note = note(Severity::Warning, "PauseFailed", NO_PLACE);
            let publish = Step::Publish(Box::new(status), Some(note));
            Plan::step(publish, "there is no place for its files")
        }
        (DesiredState::Paused, _) if rung(view) == SnapshotType::Rootfs => {
            let status = begin(view, OperationKind::Pause, Phase::Pausing);
            Plan::step(Step::Publish(status, None), TO_SLEEP)
        }
        (DesiredState::Paused, WorkloadState::Frozen) if view.undrained => {
            Plan::step(Step::Thaw, UNDRAINED)
        }
        (DesiredState::Paused, WorkloadState::Frozen) => asleep(view, None),
        (DesiredState::Paused, _) => Plan::step(Step::Freeze, TO_SLEEP),
    }
}

pub(super) fn pausing(view: View<'_>) -> Plan<Step> {
    let Observed::Present(facts) = view.observed else {
        return lost(view);
    };
    let abort = view.sandbox.spec.desired_state == DesiredState::Running
        || operation_failed(view, OperationKind::Pause);
    match (abort, facts.state) {
        (true, WorkloadState::Frozen) => Plan::step(Step::Thaw, "its pause was called off"),
        (true, _) => {
            let failed = operation_failed(view, OperationKind::Pause);
            let mut status = settle(view, Phase::Running, None);
            if !failed {
                finish(&mut status, OperationKind::Pause);
                status.last_active_at = status.last_active_at.max(Some(view.now));
            }
            let note = note(
                if failed {
                    Severity::Warning
                } else {
                    Severity::Normal
                },
                if failed {
                    "PauseFailed"
                } else {
                    "PauseCalledOff"
                },
                if failed {
                    "it could not be put to sleep"
                } else {
                    "it was woken while falling asleep"
                },
            );
            Plan::step(
                Step::Publish(status, Some(note)),
                "its pause was called off",
            )
        }
        (false, WorkloadState::Frozen) if view.undrained => Plan::step(Step::Thaw, UNDRAINED),
        (false, WorkloadState::Frozen) => {
            Plan::step(Step::Capture, "it sleeps without its processes")
        }
        (false, _) => Plan::step(stop_it(view), TO_SLEEP),
    }
}

/// The record of a sandbox that has fallen asleep, with the layer it can resume from.
#[must_use]
pub fn asleep(view: View<'_>, captured: Option<&Captured>) -> Plan<Step> {
    let mut status = settle(view, Phase::Paused, Some(OperationKind::Pause));
    // Descending a rung is no other sleep.
    if view.sandbox.status.phase != Phase::Paused {
        status.sleeps.slept = status.sleeps.slept.saturating_add(1);
    }
    status.paused_at.get_or_insert(view.now);
    status.snapshot = captured.map(|captured| captured.digest.clone());
    status.snapshot_size = captured.map_or(0, |captured| captured.size);
    let how = if status.snapshot.is_some() {
        "asleep; its files are kept"
    } else {
        "asleep, frozen"
    };
    Plan::step(
        Step::Publish(status, Some(note(Severity::Normal, "Paused", how))),
        "it has fallen asleep",
    )
}

pub(super) fn paused(view: View<'_>) -> Plan<Step> {
    let has_layer = view.sandbox.status.snapshot.is_some();
    match (view.sandbox.spec.desired_state, view.observed) {
        // Captured, published, and now released: never thawed in between.
        (_, Observed::Present(_) | Observed::Coming) if has_layer => Plan::step(
            Step::DeleteWorkload,
            "its layer is durable; its memory goes",
        ),
        (_, Observed::Absent | Observed::Coming | Observed::Partial) if !has_layer => lost(view),
        (DesiredState::Paused, Observed::Present(facts)) => match facts.state {
            WorkloadState::Frozen if view.due.descend && may_try_to_sleep(view) => Plan::step(
                Step::Capture,
                "it has slept long enough to give up its memory",
            ),
            WorkloadState::Frozen if !view.can.freeze && may_try_to_sleep(view) => {
                Plan::step(Step::Capture, "it cannot be kept frozen any more")
            }
            WorkloadState::Frozen => Plan::rest("it sleeps as wanted"),
            WorkloadState::Running | WorkloadState::Cut | WorkloadState::Exited { .. } => {
                Plan::step(stop_it(view), TO_SLEEP)
            }
        },
        (DesiredState::Paused, Observed::Absent | Observed::Coming | Observed::Partial) => {
            Plan::rest("it sleeps as wanted")
        }
        (DesiredState::Running, Observed::Present(facts))
            if facts.state != WorkloadState::Frozen =>
        {
            awake(view, facts, "it is awake")
        }
        (DesiredState::Running, _) if operation_failed(view, OperationKind::Resume) => {
            // It stays asleep and retryable.
            Plan::step(Step::Intend(Intent::StayPaused), "it could not be woken")
        }
        (DesiredState::Running, Observed::Present(facts)) => {
            network(view, facts).unwrap_or_else(|| Plan::step(Step::Thaw, "it should wake"))
        }
        (DesiredState::Running, Observed::Absent | Observed::Coming | Observed::Partial) => {
            let status = begin(view, OperationKind::Resume, Phase::Resuming);
            Plan::step(Step::Publish(status, None), "it should wake")
        }
    }
}

pub(super) fn resuming(view: View<'_>) -> Plan<Step> {
    let back = view.sandbox.spec.desired_state == DesiredState::Paused
        || operation_failed(view, OperationKind::Resume);
    match view.observed {
        // What it would write from here on is not in the layer, so its files stay as they were. A
        // workload goes only once that is published: a removal that is late must never meet one
        // that was let live after all.
        _ if back => {
            let failed = operation_failed(view, OperationKind::Resume);
            let mut status = settle(view, Phase::Paused, None);
            if !failed {
                finish(&mut status, OperationKind::Resume);
            }
            let note = failed.then(|| note(Severity::Warning, "ResumeFailed", &error_of(view)));
            Plan::step(Step::Publish(status, note), "it stays asleep")
        }
        Observed::Absent | Observed::Coming | Observed::Partial => {
            let layer = view.sandbox.status.snapshot.clone();
            Plan::step(Step::Create(layer), "it wakes from its layer")
        }
        Observed::Present(Facts {
            state: WorkloadState::Exited { code },
            ..
        }) => {
            let error = format!("its first process ended with code {code} while it woke");
            let layer = Step::Create(view.sandbox.status.snapshot.clone());
            let status = after_failure(view.sandbox, &layer, &error, true, view.now);
            Plan::step(
                Step::Publish(Box::new(status), None),
                "it could not be woken",
            )
        }
        // A belated effect of its first start: none of its files are in there.
        Observed::Present(facts) if facts.layer != view.sandbox.status.snapshot => {
            Plan::step(Step::DeleteWorkload, "it did not wake from its layer")
        }
        Observed::Present(facts) if facts.state == WorkloadState::Frozen => {
            Plan::step(Step::Thaw, "it should wake")
        }
        Observed::Present(facts) if !facts.booted => Plan::step(Step::Boot, NOT_UP),
        Observed::Present(facts) if facts.epoch != view.sandbox.spec.epoch => {
            Plan::step(Step::Arm, "its owner's settings are not in place")
        }
        Observed::Present(facts) => {
            network(view, facts).unwrap_or_else(|| awake(view, facts, "it is awake"))
        }
    }
}

/// A pause that failed a moment ago is not tried again at once.
pub(super) fn may_try_to_sleep(view: View<'_>) -> bool {
    let failed = view
        .sandbox
        .status
        .last_operation
        .as_ref()
        .is_some_and(|op| op.kind == OperationKind::Pause && op.state == OperationState::Failed);
    !failed || view.due.retry
}

/// How deep it sleeps.
pub(super) fn rung(view: View<'_>) -> SnapshotType {
    if !view.can.freeze {
        return SnapshotType::Rootfs;
    }
    let policy = view.sandbox.spec.pause_policy.as_ref();
    policy.map_or(SnapshotType::Freeze, |policy| policy.snapshot_type)
}

/// What stops its processes where they are.
const fn stop_it(view: View<'_>) -> Step {
    match view.can.freeze {
        true => Step::Freeze,
        false => Step::Capture,
    }
}

/// Whether there is somewhere to keep its files.
fn has_place(view: View<'_>) -> bool {
    let policy = view.sandbox.spec.pause_policy.as_ref();
    view.can.keeps != Keeps::Nowhere
        || policy.is_some_and(|policy| policy.snapshot_registry.is_some())
}
