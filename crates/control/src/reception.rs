//! Sandboxes that came by themselves: from clients whom nobody of ours has asked anything.
//!
//! On one machine every client goes through the APIs, which complete what it sends, check it, ask
//! plugins, and write then. Where records come through somebody else's API server, as with `kubectl` on
//! Kubernetes, all that is done here, before the first step: a record that is nobody's yet is checked
//! and weighed like one that is applied, and gets its owner (the team that its namespace is), an id and
//! what its ports demand in one write. What is refused says so in its conditions and its events, and is
//! looked at again when it changes or the plugin said.
//!
//! An owner, an id or a pool that somebody else wrote is in no record that gets here: the store knows
//! what our processes have signed, and tells of the rest ([`Standing`]). What was changed is written back
//! as it was. A member that its pool has not made is refused. A record that has lost its proof while
//! something runs for it counts for its namespace and is left alone until it is deleted: whose it is
//! under which id is not to be guessed. Members of pools are made by pools and claimed through the desk,
//! which is where they are weighed.

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
use plugins::Purpose;
use store::Standing;

use crate::{
    events::about,
    limits::{self, Partly},
    world::{Done, World},
};

/// Knows which records are ours, and makes others so.
pub trait Reception: Send + Sync + Debug {
    /// How a record stands.
    fn standing(&self, sandbox: &Sandbox) -> Standing;

    /// What the ports of a sandbox with this id demand.
    fn access(&self, id: &SandboxId) -> Access;
}

/// Receives a sandbox, if that is to be done: answers it as it was written then.
pub(crate) async fn receive(world: &World, sandbox: &Sandbox) -> Result<Option<Sandbox>, Done> {
    let Some(reception) = &world.ports.reception else {
        return Ok(None);
    };
    if sandbox.metadata.is_deleting() {
        return Ok(None);
    }
    let is_nobodys = sandbox.spec.owner.is_none() && sandbox.spec.pool.is_none();
    match reception.standing(sandbox) {
        Standing::Ours if !is_nobodys => return Ok(None),
        Standing::Made if !is_nobodys => return look_again(world, sandbox).await,
        Standing::Ours | Standing::Made => {}
        Standing::Altered(fields) => return write_back(world, sandbox, &fields).await.map(Some),
        Standing::Unproven(fields) => {
            if let Some((reason, why)) = unacceptable(sandbox, &fields) {
                refuse(world, sandbox, reason, why).await?;
                return Err(Done::Rest(None));
            }
        }
    }
    let id = SandboxId::from_random(world.ports.entropy.u128());
    let next = completed(sandbox, &id, reception.access(&id), world);
    if let Some(why) = broken_rule(&next) {
        refuse(world, sandbox, "Invalid", &why).await?;
        // Only a change of it can mend that.
        return Err(Done::Rest(None));
    }
    let holds = match limits::for_one(world, Purpose::Applied, &next, &id).await {
        Ok(holds) => holds,
        Err(Partly { limited, left, .. }) => {
            refuse(world, sandbox, "Limited", &limited.to_string()).await?;
            return Err(Done::Rest(Some(left)));
        }
    };
    let written = world.write_spec(&next).await?;
    holds.written(written.version());
    let welcomed = welcome(world, &written).await?;
    Ok(Some(welcomed.unwrap_or(written)))
}

/// Takes back that it was refused, if it was.
async fn welcome(world: &World, sandbox: &Sandbox) -> Result<Option<Sandbox>, Done> {
    let was_refused = |c: &Condition| &*c.kind == ADMITTED && c.status == ConditionStatus::False;
    if !sandbox.status.conditions.iter().any(was_refused) {
        return Ok(None);
    }
    let mut next = sandbox.clone();
    say(world, &mut next, ConditionStatus::True, "Admitted", "");
    world.write_status(&next).await.map(Some)
}

/// Weighs one that another process has made, before its first step: that process knew only what it had seen
/// and promised itself.
async fn look_again(world: &World, sandbox: &Sandbox) -> Result<Option<Sandbox>, Done> {
    let Some(id) = sandbox.spec.sandbox_id.as_ref().filter(|_| is_new(sandbox)) else {
        return Ok(None);
    };
    match limits::for_one(world, Purpose::Promised, sandbox, id).await {
        Ok(_) => welcome(world, sandbox).await,
        Err(Partly { limited, left, .. }) => {
            refuse(world, sandbox, "Limited", &limited.to_string()).await?;
            Err(Done::Rest(Some(left)))
        }
    }
}

/// Whether nothing was done for it yet.
fn is_new(sandbox: &Sandbox) -> bool {
    sandbox.status.phase == Phase::Pending && sandbox.status.last_operation.is_none()
}

/// Writes back what somebody else changed and only we may.
async fn write_back(world: &World, sandbox: &Sandbox, fields: &[String]) -> Result<Sandbox, Done> {
    let message = format!(
        "{} cannot be changed, and is what it was: use a SandboxClaim, or the E2B API",
        fields.join(", ")
    );
    let note = Note {
        severity: Severity::Warning,
        reason: "ChangeIgnored",
        message: message.into(),
    };
    world.ports.events.record(about(sandbox), note);
    world.write_spec(sandbox).await
}

/// Why a record that nobody of ours has written cannot be received, if so.
fn unacceptable(sandbox: &Sandbox, fields: &[String]) -> Option<(&'static str, &'static str)> {
    if !is_new(sandbox) {
        return Some((
            "Unproven",
            "what proved whose it is was taken out of its annotations: nobody reaches it any more; delete it",
        ));
    }
    let names_pool = fields.iter().any(|field| field == "spec.pool");
    names_pool.then_some((
        "Invalid",
        "spec.pool: members are made by their pool: leave it out, or use a SandboxClaim",
    ))
}

/// As the API would have completed it.
fn completed(bare: &Sandbox, id: &SandboxId, access: Access, world: &World) -> Sandbox {
    let mut next = bare.clone();
    next.spec.sandbox_id = None;
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
