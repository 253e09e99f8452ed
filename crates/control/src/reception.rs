//! Sandboxes that came by themselves: from clients whom nobody of ours has asked anything.
//!
//! On one machine every client goes through the APIs, which complete what it sends, check it, ask
//! plugins, and write then. Where records come through somebody else's API server, as with `kubectl` on
//! Kubernetes, all that is done here, before the first step: a record that is not ours yet is checked
//! and weighed like one that is applied, and gets its owner (the team that its namespace is), an id and
//! what its ports demand in one write. What is refused says so in its conditions and its events, and is
//! looked at again when it changes or the plugin said.
//!
//! A record is ours if it has the hashes of tokens that only the seal gives for its id. So nobody gets
//! around a quota, or into another's id, by writing an owner or an id into a manifest: that is taken out
//! first. Members of pools
//! are made by pools and claimed through the desk, which is where they are weighed.

use std::fmt::Debug;

use model::{
    Sandbox, SandboxId,
    event::Severity,
    kinds::Minting,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus, set_condition},
    sandbox::{Access, SandboxSpec},
    validate::{Problems, Rules as _},
};
use plan::{Note, limit::ADMITTED};

use crate::{
    events::about,
    limits::{self, Partly},
    world::{Done, World},
};

/// Knows which records are ours, and makes others so.
pub trait Reception: Send + Sync + Debug {
    /// Whether a record was written by one of our processes.
    fn is_ours(&self, sandbox: &Sandbox) -> bool;

    /// What the ports of a sandbox with this id demand.
    fn access(&self, id: &SandboxId) -> Access;
}

/// Receives a sandbox, if that is to be done: answers it as it was written then.
pub(crate) async fn receive(world: &World, sandbox: &Sandbox) -> Result<Option<Sandbox>, Done> {
    let Some(reception) = &world.ports.reception else {
        return Ok(None);
    };
    if !is_new(sandbox) || reception.is_ours(sandbox) {
        return Ok(None);
    }
    let bare = stripped(sandbox);
    if bare.spec != sandbox.spec {
        // First: what it claims to be would count for it, or against it.
        world.write_spec(&bare).await?;
        return Err(Done::Again);
    }
    let id = SandboxId::from_random(world.ports.entropy.u128());
    let next = completed(sandbox, &id, reception.access(&id), world);
    if let Some(why) = broken_rule(&next) {
        refuse(world, sandbox, "Invalid", &why).await?;
        // Only a change of it can mend that.
        return Err(Done::Rest(None));
    }
    let holds = match limits::for_applied(world, &next, &id).await {
        Ok(holds) => holds,
        Err(Partly { limited, left, .. }) => {
            refuse(world, sandbox, "Limited", &limited.to_string()).await?;
            return Err(Done::Rest(Some(left)));
        }
    };
    let mut written = world.write_spec(&next).await?;
    holds.written(written.version());
    if written
        .status
        .conditions
        .iter()
        .any(|c| &*c.kind == ADMITTED)
    {
        say(world, &mut written, ConditionStatus::True, "Admitted", "");
        written = world.write_status(&written).await?;
    }
    Ok(Some(written))
}

/// Whether nothing was done for it yet, and it belongs to no pool.
fn is_new(sandbox: &Sandbox) -> bool {
    sandbox.status.phase == Phase::Pending
        && sandbox.status.last_operation.is_none()
        && sandbox.spec.pool.is_none()
        && !sandbox.metadata.is_deleting()
}

/// Without what a client has no say in.
fn stripped(sandbox: &Sandbox) -> Sandbox {
    let mut bare = sandbox.clone();
    bare.spec.owner = None;
    bare.spec.sandbox_id = None;
    bare.spec.access = None;
    bare.spec.claimed_at = None;
    bare.spec.lease = None;
    bare
}

/// As the API would have completed it.
fn completed(bare: &Sandbox, id: &SandboxId, access: Access, world: &World) -> Sandbox {
    let mut next = bare.clone();
    let minting = Minting {
        now: world.now(),
        sandbox_id: id.clone(),
    };
    SandboxSpec::complete(&mut next, &minting);
    next.spec.access = Some(Box::new(access));
    next
}

fn broken_rule(sandbox: &Sandbox) -> Option<String> {
    let mut problems = Problems::default();
    SandboxSpec::check(sandbox, &mut problems);
    let problem = problems.into_vec().into_iter().next()?;
    Some(problem.to_string())
}

async fn refuse(
    world: &World,
    sandbox: &Sandbox,
    reason: &'static str,
    why: &str,
) -> Result<(), Done> {
    let mut next = sandbox.clone();
    say(world, &mut next, ConditionStatus::False, reason, why);
    if next.status == sandbox.status {
        return Ok(());
    }
    let note = Note {
        severity: Severity::Warning,
        reason,
        message: why.into(),
    };
    world.ports.events.record(about(sandbox), note);
    world.write_status(&next).await?;
    Ok(())
}

fn say(world: &World, sandbox: &mut Sandbox, status: ConditionStatus, reason: &str, message: &str) {
    let observed_generation = sandbox.metadata.generation;
    set_condition(
        &mut sandbox.status.conditions,
        Condition {
            kind: ADMITTED.into(),
            status,
            reason: reason.into(),
            message: message.into(),
            last_transition_time: world.now(),
            observed_generation,
        },
    );
}
