//! Drives one pool: makes and removes members, and says how it stands.

use std::sync::Arc;

use cache::SandboxIndex;
use model::{
    Key, Metadata, Name, Sandbox, SandboxPool, SandboxTemplate, Spec as _,
    lifecycle::was_released,
    meta::{GROUP_VERSION, OwnerReference},
    pool::{POOL_FINALIZER, POOL_LABEL, PoolSpec, REVISION_LABEL},
    sandbox::{SANDBOX_FINALIZER, SandboxSpec},
    template::TemplateSpec,
};
use plan::{
    expect::Seen,
    pool::{Member, Step, View, inherited, plan_pool},
};
use store::{Outcome, Precondition, StoreError, StoreExt as _};

use crate::{
    events::fingerprint,
    world::{Done, World, lost},
};

/// Brings a pool as far as it will go now.
pub(crate) async fn drive(world: &World, key: &Key) -> Done {
    if !world.caught_up(key).await {
        return Done::Retry;
    }
    let Some(pool) = world.caches.pools.find(key) else {
        world.forget(key);
        return Done::Gone;
    };
    let template = template_of(world, &pool);
    let revision = template
        .as_deref()
        .map(|t| revision(&pool, t))
        .unwrap_or_default();
    let members = members(world, &pool, &revision);
    let unseen = open_expectations(world, &pool, &members);
    let plan = plan_pool(View {
        pool: &pool,
        members: &members,
        unseen,
        waiting: u32::try_from(world.desk.waiting(key)).unwrap_or(u32::MAX),
        template: template.is_some(),
        revision: &revision,
        now: world.now(),
    });
    tracing::trace!(%key, steps = plan.steps.len(), why = %plan.why, "pool");
    for step in plan.steps {
        if let Err(done) = perform(world, &pool, template.as_deref(), &revision, step).await {
            return done;
        }
    }
    // A creation or deletion that is never seen must not hold the pool back for ever.
    let waits = open_expectations(world, &pool, &members) != (0, 0);
    Done::Rest(waits.then_some(plan::expect::PATIENCE))
}

async fn perform(
    world: &World,
    pool: &SandboxPool,
    template: Option<&SandboxTemplate>,
    revision: &str,
    step: Step,
) -> Result<(), Done> {
    match step {
        Step::AddFinalizer => {
            let mut next = pool.clone();
            next.metadata.finalizers.push(POOL_FINALIZER.into());
            world.write_spec(&next).await?;
            Err(Done::Again)
        }
        Step::RemoveFinalizer => {
            let mut next = pool.clone();
            next.metadata.finalizers.retain(|f| &**f != POOL_FINALIZER);
            world.write_spec(&next).await?;
            world.expectations.lock().remove(&pool.uid());
            Ok(())
        }
        Step::Publish(status) => {
            let mut next = pool.clone();
            next.status = *status;
            world.write_status(&next).await.map(drop)
        }
        Step::Create(count) => {
            for _ in 0..count {
                create_member(world, pool, template, revision).await?;
            }
            Ok(())
        }
        Step::Delete(member) => delete_member(world, pool, member).await,
        Step::LetGo(member) => let_go(world, pool, member).await,
    }
}

/// Takes the pool out of a member's owners: what owns nothing can go, and nothing goes with it.
async fn let_go(world: &World, pool: &SandboxPool, member: Member) -> Result<(), Done> {
    let found = world.caches.sandboxes.find(&member.key);
    let Some(sandbox) = found.filter(|s| s.version() == member.version) else {
        return Err(Done::Again);
    };
    let mut next = Sandbox::clone(&sandbox);
    next.metadata
        .owner_references
        .retain(|owner| owner.uid != pool.uid());
    match world.ports.store.update_spec(&next).await {
        Ok(written) => {
            world.wrote(&pool.key(), written.version());
            Ok(())
        }
        // It changed in between: the next look decides.
        Err(
            StoreError::Conflict { .. } | StoreError::OtherUid { .. } | StoreError::NotFound(_),
        ) => Ok(()),
        Err(error) => Err(lost(&member.key, &error)),
    }
}

async fn create_member(
    world: &World,
    pool: &SandboxPool,
    template: Option<&SandboxTemplate>,
    revision: &str,
) -> Result<(), Done> {
    let member = new_member(world, pool, template, revision);
    let name = member.metadata.name.clone();
    // Expected before it is asked for: the cache may show it before the answer arrives.
    expect(world, pool, |open| {
        open.expect_creation(name.clone(), world.ports.clock.monotonic());
    });
    let mut created = world.ports.store.create_object(&member).await;
    if let Err(StoreError::Unavailable {
        outcome: Outcome::Unknown,
        ..
    }) = created
    {
        // Only a write tells for sure; the same name cannot be taken twice.
        created = world.ports.store.create_object(&member).await;
    }
    match created {
        Ok(created) => world.wrote(&pool.key(), created.version()),
        Err(StoreError::AlreadyExists(_)) => {}
        Err(StoreError::Unavailable {
            outcome: Outcome::Unknown,
            ..
        }) => return Err(Done::Retry),
        Err(error) => {
            // The hole that stalls pools elsewhere: what failed will never be seen.
            expect(world, pool, |open| open.creation_failed(&name));
            return Err(lost(&member.key(), &error));
        }
    }
    Ok(())
}

async fn delete_member(world: &World, pool: &SandboxPool, member: Member) -> Result<(), Done> {
    let only_if = Precondition {
        uid: Some(member.uid),
        version: Some(member.version),
    };
    match world.ports.store.delete(&member.key, only_if).await {
        Ok(deletion) => {
            expect(world, pool, |open| {
                open.expect_deletion(member.uid, world.ports.clock.monotonic());
            });
            let record = match deletion {
                store::Deletion::Removed(record) | store::Deletion::Marked(record) => record,
            };
            world.wrote(&pool.key(), record.version());
            Ok(())
        }
        // It was claimed, or changed, in between: it stays, and the next look decides.
        Err(
            StoreError::Conflict { .. } | StoreError::OtherUid { .. } | StoreError::NotFound(_),
        ) => Ok(()),
        Err(error) => Err(lost(&member.key, &error)),
    }
}

fn expect(world: &World, pool: &SandboxPool, note: impl FnOnce(&mut plan::expect::Expectations)) {
    note(world.expectations.lock().entry(pool.uid()).or_default());
}

fn open_expectations(world: &World, pool: &SandboxPool, members: &[Member]) -> (usize, usize) {
    let mut all = world.expectations.lock();
    let open = all.entry(pool.uid()).or_default();
    let seen = members.iter().map(|m| Seen {
        name: &m.key.name,
        uid: m.uid,
        deleting: m.deleting,
    });
    open.observe(seen, world.ports.clock.monotonic());
    open.open()
}

fn template_of(world: &World, pool: &SandboxPool) -> Option<Arc<SandboxTemplate>> {
    let name = pool.spec.template.clone();
    world.caches.templates.find(&Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name,
    })
}

fn members(world: &World, pool: &SandboxPool, revision: &str) -> Vec<Member> {
    let Some(namespace) = &pool.metadata.namespace else {
        return Vec::new();
    };
    let found = world
        .caches
        .sandboxes
        .find_by(SandboxIndex::Pool, (namespace, &pool.metadata.name));
    let ours = found.iter().filter(|s| {
        // Members of a deleted namesake are not this pool's.
        s.metadata
            .controller()
            .is_some_and(|owner| owner.uid == pool.uid())
    });
    ours.map(|sandbox| Member {
        key: sandbox.key(),
        uid: sandbox.uid(),
        version: sandbox.version(),
        phase: sandbox.status.phase,
        owned: sandbox.spec.owner.is_some(),
        dirty: was_released(sandbox),
        deleting: sandbox.metadata.is_deleting(),
        current: sandbox.metadata.labels.get(REVISION_LABEL) == Some(revision),
        created: sandbox
            .metadata
            .creation_timestamp
            .unwrap_or(model::Timestamp::from_micros(0)),
    })
    .collect()
}

/// Changes when new members would be made differently.
fn revision(pool: &SandboxPool, template: &SandboxTemplate) -> String {
    let inherited = inherited((&pool.metadata, &pool.spec), Some(&template.metadata));
    let made_from = [
        &*template.encode_spec(),
        &format!("{:?}{:?}", pool.spec.idle_images, pool.spec.resources),
        &format!("{:?}{inherited:?}", pool.spec.image_pull_policy),
    ];
    format!("{:016x}", fingerprint(&made_from))
}

fn new_member(
    world: &World,
    pool: &SandboxPool,
    template: Option<&SandboxTemplate>,
    revision: &str,
) -> Sandbox {
    let suffix = model::SandboxId::from_random(world.ports.entropy.u128());
    let name = format!("{:.50}-{:.8}", pool.metadata.name.as_str(), suffix.as_str());
    // A cut name may end in '-'; with the suffix it is a label again.
    let name = Name::new(name).unwrap_or_else(|_| pool.metadata.name.clone());
    let mut meta = Metadata::new(pool.metadata.namespace.clone(), name);
    (meta.labels, meta.annotations) = inherited(
        (&pool.metadata, &pool.spec),
        template.map(|template| &template.metadata),
    );
    // Last, so that nobody can override them.
    meta.labels.insert(POOL_LABEL, pool.metadata.name.as_str());
    meta.labels.insert(REVISION_LABEL, revision);
    meta.finalizers = vec![SANDBOX_FINALIZER.into()];
    meta.owner_references = vec![OwnerReference {
        api_version: GROUP_VERSION.into(),
        kind: PoolSpec::KIND.0.into(),
        name: pool.metadata.name.clone(),
        uid: pool.uid(),
        controller: true,
        block_owner_deletion: true,
    }];
    let spec = SandboxSpec {
        template: Some(pool.spec.template.clone()),
        pool: Some(pool.metadata.name.clone()),
        images: pool.spec.idle_images.clone(),
        resources: pool.spec.resources,
        image_pull_policy: pool.spec.image_pull_policy,
        ..SandboxSpec::default()
    };
    Sandbox::new(meta, spec)
}
