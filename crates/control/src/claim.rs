//! Drives one declarative claim. It stands in the pool's line like any other claimer, and is called
//! for a turn when a member is offered to it.

use std::{sync::Arc, time::Duration};

use cache::SandboxIndex;
use claims::{
    ClaimError,
    claim::{Tried, attempt},
};
use model::{
    Key, Name, Namespace, Sandbox, SandboxClaim, SandboxId, Spec as _, StringMap, Timestamp,
    claim::ClaimPhase,
    pool::PoolSpec,
    sandbox::{Lease, Owner, StopReason},
    template::ImagePullPolicy,
};
use plan::{
    claim::{
        CLAIM_UID_ANNOTATION, Delivery, Ending, STARTUP, Step, Supply, View, claimed,
        delivered_hooks, delivered_images, plan_claim, released,
    },
    limit::Limit,
};
use store::{StoreError, StoreExt as _};
use tokio::time::Instant;

use crate::{
    control::Work,
    deadlines::Timer,
    limits::{self, Partly},
    pool,
    queue::WorkQueue,
    recipe,
    registries::{NotPinned, Wanted},
    world::{Done, World, lost},
};

/// Declarative claims are made by a team, not by one of its users: they share their turns.
const TENANT: &str = "";

type Queue = WorkQueue<Work, Key>;

/// Brings a claim as far as it will go.
pub(crate) async fn drive(world: &World, queue: &Arc<Queue>, key: &Key) -> Done {
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
    let (admitted, partly) = admission(world, &namespace, &claim, taken.len()).await;
    let plan = plan_claim(View {
        claim: &claim,
        taken: &taken,
        supply: supply(world, &namespace, &claim),
        admitted,
        limit: partly.as_ref().map(|partly| Limit {
            admitted: partly.admitted,
            by: partly.limited.by,
            why: &partly.limited.why,
        }),
        timed_out: waiting == Timer::Over,
        expired: keeping == Timer::Over,
        now: world.now(),
    });
    if !plan.steps.iter().any(|step| matches!(step, Step::Take(_))) {
        world.tickets.lock().remove(key);
        world.pins.forget(key);
    }
    let left = partly.map(|partly| partly.left);
    for step in plan.steps {
        if let Err(done) = perform(world, queue, &namespace, &claim, step).await {
            return done;
        }
    }
    let next = match (waiting, keeping) {
        (_, Timer::In(left)) | (Timer::In(left), _) => Some(left),
        (Timer::Off | Timer::Over, Timer::Off | Timer::Over) => None,
    };
    Done::Rest(next.into_iter().chain(left).min())
}

fn supply(world: &World, namespace: &Namespace, claim: &SandboxClaim) -> Supply {
    let pool = Key::namespaced(PoolSpec::KIND, namespace.clone(), claim.spec.pool.clone());
    if world.caches.pools.find(&pool).is_none() {
        return Supply::NoPool;
    }
    let stock = world.desk.stock(&pool);
    let coming = stock.idle + stock.starting + stock.stopping > 0;
    if !coming && stock.claimed >= stock.max {
        Supply::AtMax
    } else {
        Supply::Coming
    }
}

/// How many more members a claim may take now, and who admits no more.
async fn admission(
    world: &World,
    namespace: &Namespace,
    claim: &SandboxClaim,
    taken: usize,
) -> (u32, Option<Partly>) {
    let taken = u32::try_from(taken).unwrap_or(u32::MAX);
    let missing = claim.spec.count.saturating_sub(taken);
    let over = claim.status.phase == ClaimPhase::Completed || claim.metadata.is_deleting();
    if missing == 0 || over {
        world.limits.forget(&claim.key());
        return (0, None);
    }
    let pool = Key::namespaced(PoolSpec::KIND, namespace.clone(), claim.spec.pool.clone());
    let Some(pool) = world.caches.pools.find(&pool) else {
        // Nobody knows what a member would be. It stands in line, and asks when there is a pool.
        world.limits.forget(&claim.key());
        return (missing, None);
    };
    let template = recipe::template_named(world, &pool.spec.template);
    let spec = pool::member_spec(&pool, template.as_deref());
    limits::for_claim(world, claim, namespace, &spec, missing).await
}

async fn perform(
    world: &World,
    queue: &Arc<Queue>,
    namespace: &Namespace,
    claim: &SandboxClaim,
    step: Step,
) -> Result<(), Done> {
    match step {
        Step::Take(count) => {
            let images = match pinned(world, namespace, claim).await {
                Some(Ok(images)) => images,
                Some(Err(NotPinned::Never(why))) => return end(world, claim, &why).await,
                Some(Err(NotPinned::NotNow)) => return Err(Done::Retry),
                // A registry is asked; its answer brings the claim back here.
                None => return Ok(()),
            };
            for _ in 0..count {
                match take_one(world, queue, namespace, claim, &images).await? {
                    Some(version) => world.wrote_sandbox(&claim.key(), version),
                    // The offer of a member brings the claim back here.
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

/// The images that are asked for, as they can only be one: a claim takes nobody out of a pool for an
/// image that there is not.
async fn pinned(
    world: &World,
    namespace: &Namespace,
    claim: &SandboxClaim,
) -> Option<Result<StringMap, NotPinned>> {
    let wanted = Wanted {
        key: &claim.key(),
        team: namespace,
        asked: (claim.uid(), claim.metadata.generation),
        images: &claim.spec.images,
        pull: claim_pull_policy(world, claim),
    };
    let (runtime, limit) = (&world.ports.runtime, world.options.step_timeout);
    world.pins.images(runtime, wanted, limit).await
}

fn claim_pull_policy(world: &World, claim: &SandboxClaim) -> ImagePullPolicy {
    let pool = Key {
        kind: PoolSpec::KIND,
        namespace: claim.metadata.namespace.clone(),
        name: claim.spec.pool.clone(),
    };
    let Some(pool) = world.caches.pools.find(&pool) else {
        return ImagePullPolicy::default();
    };
    let template = recipe::template_named(world, &pool.spec.template);
    let template = template.map(|template| template.spec.image_pull_policy);
    pool.spec.image_pull_policy.or(template).unwrap_or_default()
}

/// Ends a claim that can never have what it asks for.
async fn end(world: &World, claim: &SandboxClaim, why: &str) -> Result<(), Done> {
    let mut next = claim.clone();
    next.status.phase = ClaimPhase::Completed;
    next.status.observed_generation = claim.metadata.generation;
    next.status.completed_at = Some(world.now());
    next.status.reason = why.into();
    world.write_status(&next).await?;
    Err(Done::Again)
}

/// Claims the member that is offered, with a single write; `None` while it is not this claim's turn.
async fn take_one(
    world: &World,
    queue: &Arc<Queue>,
    namespace: &Namespace,
    claim: &SandboxClaim,
    images: &StringMap,
) -> Result<Option<model::Version>, Done> {
    let key = claim.key();
    let pool = Key::namespaced(PoolSpec::KIND, namespace.clone(), claim.spec.pool.clone());
    let kept = world.tickets.lock().remove(&key);
    let ticket = kept.unwrap_or_else(|| {
        let (queue, key) = (Arc::clone(queue), key.clone());
        // It is looked at in a turn of this claim, and a turn is what it asks for.
        world.desk.enter_waking(&pool, TENANT, move || {
            queue.add(Work::Claim(key.clone()), Instant::now());
        })
    });
    while let Some(member) = ticket.offer() {
        let now = world.now();
        let Some(held) = world.limits.next_held(&key) else {
            // There was no pool when plugins were to be asked, and there is one now.
            return Err(Done::Retry);
        };
        // A member is what its pool said when it was made, and that is what it counts for.
        let held = match held.is_for(&member) {
            true => held,
            false => limits::for_offered(world, claim, namespace, held, &member)
                .await
                .ok_or(Done::Again)?,
        };
        let id = held.id.clone();
        let delivery = delivery(world, (namespace, &pool), claim, images, id, now);
        let tried = attempt(&*world.ports.store, &ticket, &member, |member| {
            claimed(member, &delivery, now)
        });
        match tried.await {
            Ok(Tried::Claimed(sandbox)) => {
                held.written(sandbox.version());
                return Ok(Some(sandbox.version()));
            }
            Ok(Tried::Lost) => world.limits.keep(&key, held),
            Err(ClaimError::Doubtful { source, .. }) => {
                // It may have happened: what it takes stays set aside, and its id is used up.
                world.limits.doubt(&key, held);
                return Err(lost(&member.key(), &source));
            }
            Err(ClaimError::Store(error)) => return Err(lost(&member.key(), &error)),
            Err(
                ClaimError::NoneIdle(_)
                | ClaimError::Full(_)
                | ClaimError::TimedOut { .. }
                | ClaimError::Left,
            ) => return Err(Done::Retry),
        }
    }
    world.tickets.lock().insert(key, ticket);
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
    // It may have gone back and to somebody else since it was looked at.
    let of = member.metadata.annotations.get(CLAIM_UID_ANNOTATION);
    if of != Some(claim.uid().to_string().as_str()) {
        return Ok(());
    }
    let ending = Ending {
        reason: StopReason::Canceled,
        cause: None,
        at: world.now(),
    };
    match world
        .ports
        .store
        .update_spec(&released(&member, ending))
        .await
    {
        Ok(written) => {
            world.wrote_sandbox(&claim.key(), written.version());
            Ok(())
        }
        Err(
            StoreError::Conflict { .. } | StoreError::NotFound(_) | StoreError::OtherUid { .. },
        ) => Ok(()),
        Err(error) => Err(lost(&key, &error)),
    }
}

fn delivery(
    world: &World,
    (team, pool): (&Namespace, &Key),
    claim: &SandboxClaim,
    images: &StringMap,
    id: SandboxId,
    now: Timestamp,
) -> Delivery {
    let pool = world.caches.pools.find(pool);
    let pool = pool.as_ref().map(|pool| &pool.spec);
    let template = pool.and_then(|pool| recipe::template_named(world, &pool.template));
    let defaults = pool.map(|pool| pool.default_timeouts).unwrap_or_default();
    let timeouts = claim.spec.timeouts.unwrap_or(defaults);
    let startup = timeouts.startup_seconds.or(defaults.startup_seconds);
    let startup = startup.map_or(STARTUP, |seconds| Duration::from_secs(seconds.into()));
    let owner = Owner {
        team: team.clone(),
        user: None,
        key: None,
    };
    Delivery {
        env: claim.spec.env.clone(),
        images: match pool {
            Some(pool) => delivered_images(pool, template.as_deref(), images),
            None => images.clone(),
        },
        hooks: pool
            .map(|pool| delivered_hooks(pool, template.as_deref()))
            .unwrap_or_default(),
        metadata: claim.spec.metadata.clone(),
        network: claim.spec.network.clone(),
        timeouts,
        // The claim itself remembers what it has: nobody's death loses it.
        lease: Some(Lease {
            until: now.plus(startup),
            holder: None,
        }),
        claim: Some((claim.metadata.name.clone(), claim.uid())),
        ..Delivery::new(owner, id)
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
