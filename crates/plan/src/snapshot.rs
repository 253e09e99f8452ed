//! The next step towards a snapshot.
//!
//! A snapshot freezes its sandbox, captures the writable layer and lets it go on. The two first
//! steps happen in one turn of the sandbox's own lane, so nothing thaws it in between; if the turn
//! dies half-way, the sandbox's own plan finds it frozen and thaws it.

use model::{
    Sandbox, SandboxSnapshot, Timestamp,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus, set_condition},
    snapshot::{CapturedContainer, SnapshotPhase, SnapshotStatus},
    workload::{Captured, Observed, WorkloadState},
};

use crate::{Plan, failure::MAX_ATTEMPTS};

/// The container whose layer is captured.
pub const MAIN_CONTAINER: &str = "main";

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The snapshot.
    pub snapshot: &'a SandboxSnapshot,
    /// Its sandbox, if there is one.
    pub sandbox: Option<&'a Sandbox>,
    /// What the runtime shows of that sandbox.
    pub observed: &'a Observed,
    /// For stamping records.
    pub now: Timestamp,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write what is observed.
    Publish(Box<SnapshotStatus>),
    /// Stop the sandbox's processes where they are.
    Freeze,
    /// Keep its writable layer.
    Capture,
}

/// Decides the next step.
#[must_use]
pub fn plan_snapshot(view: View<'_>) -> Plan<Step> {
    let View {
        snapshot,
        sandbox,
        observed,
        now,
    } = view;
    if snapshot.metadata.is_deleting() {
        return Plan::rest("its deletion was asked for");
    }
    match snapshot.status.phase {
        SnapshotPhase::Ready => return Plan::rest("it is durable"),
        SnapshotPhase::Failed => return Plan::rest("it failed"),
        SnapshotPhase::Pending | SnapshotPhase::Capturing => {}
    }
    let publish = |phase, reason: &str, why: &'static str| {
        Plan::step(Step::Publish(Box::new(becomes(view, phase, reason))), why)
    };
    let Some(sandbox) = sandbox.filter(|s| !s.metadata.is_deleting()) else {
        return publish(
            SnapshotPhase::Failed,
            "its sandbox does not exist",
            "there is nothing to capture",
        );
    };
    if let (Phase::Paused, Some(layer)) = (sandbox.status.phase, &sandbox.status.snapshot) {
        let captured = Captured {
            digest: layer.clone(),
            size: 0,
            parent: None,
        };
        let status = captured_as(snapshot, &captured, now);
        return Plan::step(
            Step::Publish(Box::new(status)),
            "its sandbox sleeps on a layer already",
        );
    }
    let frozen = match (sandbox.status.phase, observed) {
        (Phase::Stopped | Phase::Failed | Phase::Stopping, _) => {
            return publish(
                SnapshotPhase::Failed,
                "its sandbox has ended",
                "there is nothing to capture",
            );
        }
        (Phase::Running | Phase::Paused, Observed::Present(facts)) => match facts.state {
            WorkloadState::Frozen => true,
            WorkloadState::Running => false,
            WorkloadState::Cut => return Plan::rest("waits until its sandbox sleeps on its files"),
            WorkloadState::Exited { .. } => {
                return publish(
                    SnapshotPhase::Failed,
                    "its sandbox has ended",
                    "there is nothing to capture",
                );
            }
        },
        (
            Phase::Pending
            | Phase::Starting
            | Phase::Idle
            | Phase::Running
            | Phase::Pausing
            | Phase::Paused
            | Phase::Resuming
            | Phase::Unknown,
            _,
        ) => return Plan::rest("waits until its sandbox runs or sleeps"),
    };
    if snapshot.status.phase == SnapshotPhase::Pending {
        return publish(SnapshotPhase::Capturing, "", "its sandbox can be captured");
    }
    if frozen {
        Plan::step(Step::Capture, "its sandbox stands still")
    } else {
        Plan::step(Step::Freeze, "its sandbox must stand still")
    }
}

/// The status once the layer is durable.
#[must_use]
pub fn captured_as(
    snapshot: &SandboxSnapshot,
    captured: &Captured,
    now: Timestamp,
) -> SnapshotStatus {
    let mut status = snapshot.status.clone();
    status.phase = SnapshotPhase::Ready;
    status.observed_generation = snapshot.metadata.generation;
    status.captured_at = Some(now);
    status.reason = Box::default();
    status.containers = vec![CapturedContainer {
        name: MAIN_CONTAINER.into(),
        digest: captured.digest.clone(),
        size: captured.size,
        parent: captured.parent.clone(),
    }];
    ready(&mut status, snapshot, now);
    status
}

/// The status after a step failed.
#[must_use]
pub fn after_failure(
    snapshot: &SandboxSnapshot,
    error: &str,
    hopeless: bool,
    now: Timestamp,
) -> SnapshotStatus {
    let mut status = snapshot.status.clone();
    status.attempts += 1;
    status.reason = error.into();
    if hopeless || status.attempts >= MAX_ATTEMPTS {
        status.phase = SnapshotPhase::Failed;
    }
    ready(&mut status, snapshot, now);
    status
}

fn becomes(view: View<'_>, phase: SnapshotPhase, reason: &str) -> SnapshotStatus {
    let mut status = view.snapshot.status.clone();
    status.phase = phase;
    status.observed_generation = view.snapshot.metadata.generation;
    status.reason = reason.into();
    ready(&mut status, view.snapshot, view.now);
    status
}

fn ready(status: &mut SnapshotStatus, snapshot: &SandboxSnapshot, now: Timestamp) {
    let (is, reason) = match status.phase {
        SnapshotPhase::Pending => (ConditionStatus::False, "Pending"),
        SnapshotPhase::Capturing => (ConditionStatus::False, "Capturing"),
        SnapshotPhase::Ready => (ConditionStatus::True, "Durable"),
        SnapshotPhase::Failed => (ConditionStatus::False, "Failed"),
    };
    set_condition(
        &mut status.conditions,
        Condition {
            kind: "Ready".into(),
            status: is,
            reason: reason.into(),
            message: status.reason.clone(),
            last_transition_time: now,
            observed_generation: snapshot.metadata.generation,
        },
    );
}

#[cfg(test)]
mod tests;
