//! What wakes, weighed by who lets it.
//!
//! On one machine whoever wakes a sandbox weighs it first: the E2B API, and the flights of traffic. In a
//! cluster gateways know no teams. So where records come through another's API server, what is wanted awake
//! is weighed here, before its first step. One for which there is no room stays asleep, as one that could
//! not be woken: whoever asked hears that.

use model::{
    Sandbox, SandboxId,
    event::Severity,
    lifecycle::{OperationKind, Phase},
    sandbox::{DesiredState, Operation, OperationState},
};
use plan::Note;
use plugins::{Creation, Holds, Limited, Purpose};

use crate::{
    events::about,
    world::{Done, World},
};

/// What became of one that is to wake.
#[derive(Debug)]
pub(crate) enum Weighed {
    /// It goes on. What is set aside for it is to be told when its wake is written.
    Goes(Holds),
    /// It stays asleep, as it is written now.
    Stays(Box<Sandbox>),
}

/// Weighs a sandbox, if it is one that is to wake.
pub(crate) async fn weigh(world: &World, sandbox: &Sandbox) -> Result<Weighed, Done> {
    let goes = Ok(Weighed::Goes(Holds::default()));
    if world.ports.reception.is_none() || !is_to_wake(sandbox) {
        return goes;
    }
    let (Some(owner), Some(id)) = (&sandbox.spec.owner, &sandbox.spec.sandbox_id) else {
        return goes;
    };
    let wanted = Creation {
        purpose: Purpose::Woken,
        team: &owner.team,
        spec: &sandbox.spec,
        count: 1,
        ids: std::slice::from_ref::<SandboxId>(id),
    };
    let mut admitted = world.plugins.before_create(&wanted).await;
    match admitted.limited.take() {
        None => Ok(Weighed::Goes(admitted.next_holds())),
        Some(limited) => {
            let asleep = stays(world, sandbox, &limited).await?;
            Ok(Weighed::Stays(Box::new(asleep)))
        }
    }
}

fn is_to_wake(sandbox: &Sandbox) -> bool {
    let given_up = sandbox.status.last_operation.as_deref().is_some_and(|op| {
        op.kind == OperationKind::Resume
            && op.state == OperationState::Failed
            && op.generation == sandbox.metadata.generation
    });
    sandbox.status.phase == Phase::Paused
        && sandbox.spec.desired_state == DesiredState::Running
        && !sandbox.metadata.is_deleting()
        && !given_up
}

async fn stays(world: &World, sandbox: &Sandbox, limited: &Limited) -> Result<Sandbox, Done> {
    let note = Note {
        severity: Severity::Warning,
        reason: "Limited",
        message: limited.to_string().into(),
    };
    world.ports.events.record(about(sandbox), note);
    let mut next = sandbox.clone();
    let last = sandbox.status.last_operation.as_ref();
    next.status.last_operation = Some(Box::new(Operation {
        kind: OperationKind::Resume,
        id: last.map(|op| op.id).unwrap_or_default().next(),
        generation: sandbox.metadata.generation,
        state: OperationState::Failed,
        started_at: world.now(),
        attempts: 0,
        error: Some(limited.to_string().into()),
    }));
    world.write_status(&next).await
}
