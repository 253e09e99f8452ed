//! Starting from a snapshot.
//!
//! What is needed of the snapshot is copied into the sandbox's own record with the first write of its
//! start. Until then it waits for the snapshot; from then on the snapshot may go.

use model::{
    Digest, Name, SandboxSnapshot,
    event::Severity,
    lifecycle::{OperationKind, Phase},
    meta::{Condition, ConditionStatus, set_condition},
    sandbox::OperationState,
    snapshot::{Origin, SnapshotPhase},
};

use super::{
    Step, View,
    record::{begin, note, settle},
};
use crate::Plan;

/// What a sandbox that was not started yet starts from.
#[derive(Clone, Copy, Debug, Default)]
pub enum Base<'a> {
    /// Its images.
    #[default]
    Images,
    /// A snapshot that is not there.
    Missing(&'a Name),
    /// A snapshot, in whichever state it is.
    Snapshot(&'a SandboxSnapshot),
}

/// The step of a sandbox that is new.
pub(super) fn pending(view: View<'_>) -> Plan<Step> {
    let snapshot = match view.base {
        Base::Images => return start(view, None),
        Base::Missing(name) => return fail(view, &format!("snapshot {name} does not exist")),
        Base::Snapshot(snapshot) => snapshot,
    };
    let name = &snapshot.metadata.name;
    let status = &snapshot.status;
    if snapshot.metadata.is_deleting() {
        return fail(view, &format!("snapshot {name} is being deleted"));
    }
    match (status.phase, status.containers.first(), &status.recipe) {
        (SnapshotPhase::Ready, Some(captured), Some(recipe)) => {
            let origin = Origin {
                snapshot: name.clone(),
                uid: snapshot.uid(),
                layer: captured.digest.clone(),
                image: status.image.clone(),
                image_pull_secret_name: status.image_pull_secret_name.clone(),
                recipe: (**recipe).clone(),
            };
            start(view, Some(origin))
        }
        (SnapshotPhase::Ready, _, _) => {
            let why = format!("snapshot {name} does not say what it was taken of: take another");
            fail(view, &why)
        }
        (SnapshotPhase::Failed, _, _) => {
            fail(view, &format!("snapshot {name} failed: {}", status.reason))
        }
        (SnapshotPhase::Pending | SnapshotPhase::Capturing, _, _) => wait(view, name),
    }
}

/// The layer that its first start goes on from; none means its images alone. The error is the step of
/// one that cannot know.
pub(super) fn first_layer(view: View<'_>) -> Result<Option<Digest>, Plan<Step>> {
    let (spec, status) = (&view.sandbox.spec, &view.sandbox.status);
    match (&spec.snapshot, &status.origin) {
        (_, Some(origin)) => Ok(Some(origin.layer.clone())),
        (None, None) => Ok(None),
        (Some(name), None) => {
            let why = format!("it was begun without its snapshot {name}");
            Err(fail(view, &why))
        }
    }
}

fn start(view: View<'_>, origin: Option<Origin>) -> Plan<Step> {
    let mut status = begin(view, OperationKind::Start, Phase::Starting);
    status.origin = origin.map(Box::new);
    Plan::step(Step::Publish(status, None), "it is new")
}

fn wait(view: View<'_>, name: &Name) -> Plan<Step> {
    let message = format!("waits for snapshot {name}");
    let mut status = settle(view, Phase::Pending, None);
    set_condition(
        &mut status.conditions,
        Condition {
            kind: "Ready".into(),
            status: ConditionStatus::False,
            reason: "WaitsForSnapshot".into(),
            message: message.as_str().into(),
            last_transition_time: view.now,
            observed_generation: view.sandbox.metadata.generation,
        },
    );
    if *status == view.sandbox.status {
        return Plan::rest(message);
    }
    Plan::step(Step::Publish(status, None), message)
}

fn fail(view: View<'_>, error: &str) -> Plan<Step> {
    let mut status = begin(view, OperationKind::Start, Phase::Failed);
    if let Some(operation) = &mut status.last_operation {
        operation.state = OperationState::Failed;
        operation.error = Some(error.into());
    }
    let note = note(Severity::Warning, "StartFailed", error);
    Plan::step(
        Step::Publish(status, Some(note)),
        "there is nothing to start from",
    )
}
