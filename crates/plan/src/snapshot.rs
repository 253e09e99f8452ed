//! The next step towards a snapshot.
//!
//! A snapshot freezes its sandbox, captures the writable layer and lets it go on. The two first
//! steps happen in one turn of the sandbox's own lane, so nothing thaws it in between; if the turn
//! dies half-way, the sandbox's own plan finds it frozen and thaws it. Where the runtime cannot freeze,
//! the capture does that, too.
//!
//! A snapshot is of one delivery: the one its spec names, and else the one that was there at the
//! first look. It waits for that one as long as it may still run or sleep, and never captures
//! another.

use model::{
    Name, Sandbox, SandboxSnapshot, Timestamp,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus, set_condition},
    sandbox::DesiredState,
    snapshot::{CapturedContainer, Recipe, SnapshotPhase, SnapshotStatus, Source},
    workload::{Abilities, Captured, Keeps, Observed, WorkloadState},
};

use crate::{Plan, failure::MAX_ATTEMPTS};

/// The container whose layer is captured.
pub const MAIN_CONTAINER: &str = "main";

const OVER: &str = "the delivery it was asked for is over";
const GONE: &str = "its sandbox does not exist";
const ENDED: &str = "its sandbox has ended";
const UNNAMED: &str = "its sandbox is a member of a pool and may have another owner by now: name the \
                       delivery in spec.sandboxId";
const NOTHING: &str = "there is nothing to capture";

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The snapshot.
    pub snapshot: &'a SandboxSnapshot,
    /// Its sandbox, if there is one.
    pub sandbox: Option<&'a Sandbox>,
    /// What the runtime shows of that sandbox.
    pub observed: &'a Observed,
    /// What that sandbox is made of.
    pub recipe: &'a Recipe,
    /// What the runtime can do.
    pub can: Abilities,
    /// Whether its time to be kept is over.
    pub expired: bool,
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
    /// Forget the snapshot, exactly as it was seen.
    DeleteRecord,
}

/// Decides the next step.
#[must_use]
pub fn plan_snapshot(view: View<'_>) -> Plan<Step> {
    let View {
        snapshot, sandbox, ..
    } = view;
    if snapshot.metadata.is_deleting() {
        return Plan::rest("its deletion was asked for");
    }
    if view.expired {
        return Plan::step(Step::DeleteRecord, "its time to be kept is over");
    }
    match snapshot.status.phase {
        SnapshotPhase::Ready => return Plan::rest("it is durable"),
        SnapshotPhase::Failed => return Plan::rest("it failed"),
        SnapshotPhase::Pending | SnapshotPhase::Capturing => {}
    }
    let Some(sandbox) = sandbox.filter(|s| !s.metadata.is_deleting()) else {
        return publish(view, SnapshotPhase::Failed, GONE, NOTHING);
    };
    if let Some(reason) = another(snapshot, sandbox) {
        return publish(view, SnapshotPhase::Failed, reason, NOTHING);
    }
    match standing(sandbox, view.observed) {
        Standing::Sleeps(layer) => {
            let mut status = captured_as(view, &layer);
            // Where its own spec names no registry, or nothing of it is here any more, it is had from
            // where its sandbox has it from.
            if snapshot.spec.registry.is_none() || view.can.keeps != Keeps::Here {
                status.image = sandbox.status.snapshot_image.clone();
                status.image_pull_secret_name = status.image.as_ref().and(pull_secret(sandbox));
            }
            let why = "its sandbox sleeps on a layer already";
            Plan::step(Step::Publish(Box::new(status)), why)
        }
        Standing::Ended => publish(view, SnapshotPhase::Failed, ENDED, NOTHING),
        Standing::NotYet(reason) => {
            let status = &snapshot.status;
            let said = status.source.is_some() && *status.reason == *reason;
            match said {
                true => Plan::rest(reason),
                false => publish(view, status.phase, reason, reason),
            }
        }
        Standing::Runs | Standing::Frozen if snapshot.status.phase == SnapshotPhase::Pending => {
            publish(
                view,
                SnapshotPhase::Capturing,
                "",
                "its sandbox can be captured",
            )
        }
        Standing::Runs if view.can.freeze => {
            Plan::step(Step::Freeze, "its sandbox must stand still")
        }
        Standing::Runs => Plan::step(Step::Capture, "its sandbox stands still for it"),
        Standing::Frozen => Plan::step(Step::Capture, "its sandbox stands still"),
    }
}

/// Why a sandbox as it stands is not what a snapshot was asked of, if it is not.
fn another(snapshot: &SandboxSnapshot, sandbox: &Sandbox) -> Option<&'static str> {
    let asked = &snapshot.spec.sandbox_id;
    if asked.is_some() && *asked != sandbox.spec.sandbox_id {
        return Some(OVER);
    }
    match &snapshot.status.source {
        Some(source) => (*source != source_of(sandbox)).then_some(OVER),
        None => (asked.is_none() && sandbox.spec.pool.is_some()).then_some(UNNAMED),
    }
}

fn source_of(sandbox: &Sandbox) -> Source {
    Source {
        uid: sandbox.uid(),
        epoch: sandbox.spec.epoch,
        sandbox_id: sandbox.spec.sandbox_id.clone(),
    }
}

/// How a sandbox stands to being captured.
enum Standing {
    /// It must stand still first.
    Runs,
    /// It can be.
    Frozen,
    /// It was, when it fell asleep.
    Sleeps(Captured),
    /// It may come to that.
    NotYet(&'static str),
    /// It will not be.
    Ended,
}

fn standing(sandbox: &Sandbox, observed: &Observed) -> Standing {
    let phase = sandbox.status.phase;
    if let (Phase::Paused, Some(layer)) = (phase, &sandbox.status.snapshot) {
        return Standing::Sleeps(Captured {
            digest: layer.clone(),
            size: sandbox.status.snapshot_size,
            parent: None,
            published: None,
        });
    }
    match (phase, observed) {
        (Phase::Stopped | Phase::Failed | Phase::Stopping, _) => Standing::Ended,
        // Its own pause closes the doors before anything freezes.
        (Phase::Running, _) if sandbox.spec.desired_state == DesiredState::Paused => {
            Standing::NotYet("waits until its sandbox sleeps")
        }
        (Phase::Running | Phase::Paused, Observed::Present(facts)) => match facts.state {
            WorkloadState::Cut => Standing::NotYet("waits until its sandbox sleeps on its files"),
            WorkloadState::Exited { .. } => Standing::Ended,
            // What stands there is not what its owner has written in.
            WorkloadState::Frozen | WorkloadState::Running if facts.epoch != sandbox.spec.epoch => {
                Standing::NotYet("waits until its sandbox is its owner's")
            }
            WorkloadState::Frozen => Standing::Frozen,
            WorkloadState::Running => Standing::Runs,
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
        ) => Standing::NotYet("waits until its sandbox runs or sleeps"),
    }
}

/// The status once the layer is durable.
#[must_use]
pub fn captured_as(view: View<'_>, captured: &Captured) -> SnapshotStatus {
    let mut status = becomes(view, SnapshotPhase::Ready, "");
    status.captured_at = Some(view.now);
    status.image.clone_from(&captured.published);
    status.recipe = Some(Box::new(view.recipe.clone()));
    let pushed = view.snapshot.spec.registry.is_some() || captured.published.is_some();
    status.image_pull_secret_name = view.sandbox.filter(|_| pushed).and_then(pull_secret);
    status.containers = vec![CapturedContainer {
        name: MAIN_CONTAINER.into(),
        digest: captured.digest.clone(),
        size: captured.size,
        parent: captured.parent.clone(),
    }];
    status
}

fn pull_secret(sandbox: &Sandbox) -> Option<Name> {
    let policy = sandbox.spec.pause_policy.as_ref()?;
    policy.resume_image_pull_secret_name.clone()
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

fn publish(view: View<'_>, phase: SnapshotPhase, reason: &str, why: &'static str) -> Plan<Step> {
    Plan::step(Step::Publish(Box::new(becomes(view, phase, reason))), why)
}

/// The status in a phase; the delivery that is captured is written down with the first one.
fn becomes(view: View<'_>, phase: SnapshotPhase, reason: &str) -> SnapshotStatus {
    let mut status = view.snapshot.status.clone();
    if phase != SnapshotPhase::Failed {
        status.source = status.source.or_else(|| view.sandbox.map(source_of));
    }
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
