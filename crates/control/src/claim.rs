//! Drives one declarative claim, and makes the write that every claim is.

use cache::SandboxIndex;
use model::{
    Key, Name, Namespace, Sandbox, SandboxClaim, SandboxId, Spec as _, pool::PoolSpec,
    sandbox::Owner,
};
use plan::claim::{CLAIM_UID_ANNOTATION, Delivery, Step, View, claimed, plan_claim, released};
use std::time::Duration;
use store::{StoreError, StoreExt as _};

use crate::{
    deadlines::Timer,
    world::{Done, World, lost},
};

/// Brings a claim as far as it will go.
pub(crate) async fn drive(world: &World, key: &Key) -> Done {
    if !world.caught_up(key).await {
        return Done::Retry;
    }
    let Some(claim) = world.caches.claims.find(key) else {
        world.forget(key);
        return Done::Gone;
    };
    let Some(namespace) = claim.metadata.namespace.clone() else {
        return Done::Rest(None);
    };
    let taken = taken_by(world, &namespace, &claim);
    let wait = Duration::from_secs(claim.spec.timeout_seconds.into());
    let until = claim.metadata.creation_timestamp.map(|t| t.plus(wait));
    let waiting = world.deadlines.judge(key, "wait", until, Some(wait));
    let keep = claim
        .spec
        .keep_seconds
        .map(|s| Duration::from_secs(s.into()));
    let kept = claim
        .status
        .completed_at
        .zip(keep)
        .map(|(t, keep)| t.plus(keep));
    let keeping = world.deadlines.judge(key, "keep", kept, keep);
    let plan = plan_claim(View {
        claim: &claim,
        taken: &taken,
        timed_out: waiting == Timer::Over,
        expired: keeping == Timer::Over,
        now: world.now(),
    });
    for step in plan.steps {
        if let Err(done) = perform(world, &namespace, &claim, step).await {
            return done;
        }
    }
    let next = match (waiting, keeping) {
        (_, Timer::In(left)) | (Timer::In(left), _) => Some(left),
        (Timer::Off | Timer::Over, Timer::Off | Timer::Over) => None,
    };
    Done::Rest(next)
}

async fn perform(
    world: &World,
    namespace: &Namespace,
    claim: &SandboxClaim,
    step: Step,
) -> Result<(), Done> {
    match step {
        Step::Take(count) => {
            for _ in 0..count {
                match take_one(world, namespace, claim).await? {
                    Some(version) => world.wrote(&claim.key(), version),
                    // The event that frees a member brings the claim back here.
                    None => return Ok(()),
                }
            }
            Err(Done::Again)
        }
        Step::GiveBack(names) => {
            for name in names {
                give_back(world, namespace, claim, name).await?;
            }
            Err(Done::Again)
        }
        Step::Publish(status) => {
            let mut next = claim.clone();
            next.status = *status;
            world.write_status(&next).await?;
            Err(Done::Again)
        }
        Step::DeleteRecord => {
            world
                .ports
                .store
                .delete_object(claim)
                .await
                .map_err(|e| lost(&claim.key(), &e))?;
            Ok(())
        }
    }
}

/// Claims one member with a single write; `None` if there is none to claim.
async fn take_one(
    world: &World,
    namespace: &Namespace,
    claim: &SandboxClaim,
) -> Result<Option<model::Version>, Done> {
    let candidates = world
        .caches
        .sandboxes
        .find_by(SandboxIndex::Claimable, (namespace, &claim.spec.pool));
    // From a random place on, so that claimers do not all try the same one first.
    let start = world.ports.entropy.below(candidates.len());
    for member in candidates.iter().cycle().skip(start).take(candidates.len()) {
        let delivery = delivery(world, namespace, claim);
        let Some(next) = claimed(member, &delivery, world.now()) else {
            continue;
        };
        match world.ports.store.update_spec(&next).await {
            Ok(written) => return Ok(Some(written.version())),
            Err(
                StoreError::Conflict { .. } | StoreError::NotFound(_) | StoreError::OtherUid { .. },
            ) => {}
            Err(error) => return Err(lost(&member.key(), &error)),
        }
    }
    Ok(None)
}

async fn give_back(
    world: &World,
    namespace: &Namespace,
    claim: &SandboxClaim,
    name: Name,
) -> Result<(), Done> {
    let key = Key::namespaced(model::sandbox::SandboxSpec::KIND, namespace.clone(), name);
    let Some(member) = world.caches.sandboxes.find(&key) else {
        return Ok(());
    };
    match world.ports.store.update_spec(&released(&member)).await {
        Ok(written) => {
            world.wrote(&claim.key(), written.version());
            Ok(())
        }
        Err(
            StoreError::Conflict { .. } | StoreError::NotFound(_) | StoreError::OtherUid { .. },
        ) => Ok(()),
        Err(error) => Err(lost(&key, &error)),
    }
}

fn delivery(world: &World, namespace: &Namespace, claim: &SandboxClaim) -> Delivery {
    let pool = Key::namespaced(PoolSpec::KIND, namespace.clone(), claim.spec.pool.clone());
    let defaults = world
        .caches
        .pools
        .find(&pool)
        .map(|p| p.spec.default_timeouts);
    Delivery {
        owner: Owner {
            team: namespace.clone(),
            user: None,
            key: None,
        },
        id: SandboxId::from_random(world.ports.entropy.u128()),
        env: claim.spec.env.clone(),
        images: claim.spec.images.clone(),
        metadata: claim.spec.metadata.clone(),
        timeouts: claim.spec.timeouts.or(defaults).unwrap_or_default(),
        claim: Some((claim.metadata.name.clone(), claim.uid())),
    }
}

/// Members that carry the claim's name, whether or not the claim has recorded them.
fn taken_by(world: &World, namespace: &Namespace, claim: &SandboxClaim) -> Vec<Name> {
    let uid = claim.uid().to_string();
    let is_taken = |s: &Sandbox| {
        s.spec.owner.is_some() && s.metadata.annotations.get(CLAIM_UID_ANNOTATION) == Some(&uid)
    };
    let members = world
        .caches
        .sandboxes
        .find_by(SandboxIndex::Pool, (namespace, &claim.spec.pool));
    members
        .iter()
        .filter(|s| is_taken(s))
        .map(|s| s.metadata.name.clone())
        .collect()
}
