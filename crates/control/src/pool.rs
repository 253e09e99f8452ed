//! Drives one pool: makes and removes members, and says how it stands.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use cache::SandboxIndex;
use model::{
    Key, Metadata, Name, Sandbox, SandboxPool, SandboxTemplate, Spec as _, StringMap,
    lifecycle::{Phase, was_released},
    meta::{GROUP_VERSION, OwnerReference},
    pool::{POOL_FINALIZER, POOL_LABEL, PoolSpec, REVISION_LABEL},
    sandbox::{SANDBOX_FINALIZER, SandboxSpec},
    template::TemplateSpec,
    trouble::Trouble,
};
use plan::{
    autoscale::{self, Demand, next_look},
    expect::Seen,
    limit::Limit,
    pool::{Due, Member, Step, View, inherited, plan_pool, replace_after},
    snapshot::MAIN_CONTAINER,
};
use plugins::Holds;
use store::{Outcome, Precondition, StoreError, StoreExt as _};

use crate::{
    deadlines::Timer,
    events::{about, fingerprint},
    limits,
    world::{Done, World, lost},
};

/// Brings a pool as far as it will go now.
pub(crate) async fn drive(world: &World, key: &Key) -> Done {
    if !world.caught_up(key).await {
        return Done::Retry;
    }
    let Some(pool) = world.caches.pools.find(key) else {
        world.forget(key);
        world.windows.lock().remove(key);
        world.desk.forget(key);
        return Done::Gone;
    };
    let template = template_of(world, &pool);
    let revision = template
        .as_deref()
        .map(|t| revision(&pool, t))
        .unwrap_or_default();
    let members = members(world, &pool, &revision);
    let unseen = open_expectations(world, &pool, &members);
    let mut next = Soonest::default();
    let demand = demand(world, &pool, &mut next);
    let view = View {
        pool: &pool,
        members: &members,
        unseen,
        demand,
        due: due(world, &pool, &mut next),
        limit: None,
        template: template.is_some(),
        revision: &revision,
        now: world.now(),
    };
    let mut plan = plan_pool(view);
    let wanted = plan.steps.iter().find_map(|step| match step {
        Step::Create(count) => Some(*count),
        _ => None,
    });
    let spec = member_spec(&pool, template.as_deref());
    let mut admitted = limits::for_members(world, &pool, &spec, wanted, unseen == (0, 0)).await;
    if let Some(partly) = &admitted.partly {
        next.look(partly.left);
        let limit = Limit {
            admitted: partly.admitted,
            by: partly.limited.by,
            why: &partly.limited.why,
        };
        plan = plan_pool(View {
            limit: Some(limit),
            ..view
        });
    }
    tracing::trace!(%key, steps = plan.steps.len(), why = %plan.why, "pool");
    for step in plan.steps {
        let made_as = (template.as_deref(), &*revision);
        if let Err(done) = perform(world, &pool, made_as, step, &mut admitted.holds).await {
            return done;
        }
    }
    // A creation or deletion that is never seen must not hold the pool back for ever.
    if open_expectations(world, &pool, &members) != (0, 0) {
        next.look(plan::expect::PATIENCE);
    }
    Done::Rest(next.0)
}

/// How long until the first of several looks.
#[derive(Debug, Default)]
struct Soonest(Option<Duration>);

impl Soonest {
    fn look(&mut self, after: Duration) {
        self.0 = Some(self.0.map_or(after, |known| known.min(after)));
    }

    /// Whether a timer is over or does not run; one that runs is looked at again.
    fn is_over(&mut self, timer: Timer) -> bool {
        match timer {
            Timer::Off | Timer::Over => true,
            Timer::In(left) => {
                self.look(left);
                false
            }
        }
    }
}

/// What is asked of a pool now, and was of late.
fn demand(world: &World, pool: &SandboxPool, next: &mut Soonest) -> Demand {
    let key = pool.key();
    let waiting = u32::try_from(world.desk.waiting(&key)).unwrap_or(u32::MAX);
    let Some(rules) = pool.spec.autoscale.as_deref() else {
        world.windows.lock().remove(&key);
        return Demand { waiting, recent: 0 };
    };
    let window = Duration::from_secs(rules.claim_rate.window_seconds.into());
    let now = world.ports.clock.monotonic();
    let mut windows = world.windows.lock();
    let asked = windows.entry(key.clone()).or_default();
    let recent = asked.observe(world.desk.asked(&key), now, window);
    let looks = [
        asked.until_fewer(now, window),
        next_look(rules, world.now()),
    ];
    looks
        .into_iter()
        .flatten()
        .for_each(|after| next.look(after));
    Demand { waiting, recent }
}

/// Which timers of a pool have run out.
fn due(world: &World, pool: &SandboxPool, next: &mut Soonest) -> Due {
    let key = pool.key();
    let mut judge = |which, from: Option<model::Timestamp>, lasts: Duration| {
        let at = from.map(|from| from.plus(lasts));
        next.is_over(world.deadlines.judge(&key, which, at, Some(lasts)))
    };
    let rules = pool.spec.autoscale.as_deref();
    let known = pool.status.autoscale.as_deref().filter(|_| rules.is_some());
    let seconds = |seconds: Option<u32>| Duration::from_secs(seconds.unwrap_or(0).into());
    let failing = pool.status.failing.as_deref();
    Due {
        autoscale: autoscale::Due {
            up: judge(
                "up",
                known.and_then(|known| known.raised_at),
                seconds(rules.map(|rules| rules.up_cooldown_seconds)),
            ),
            quiet: judge(
                "quiet",
                known.and_then(|known| known.quiet_since),
                seconds(rules.map(|rules| rules.down_cooldown_seconds)),
            ),
        },
        replace: judge(
            "replace",
            failing.map(|failing| failing.at),
            failing.map(replace_after).unwrap_or_default(),
        ),
    }
}

async fn perform(
    world: &World,
    pool: &SandboxPool,
    made_as: (Option<&SandboxTemplate>, &str),
    step: Step,
    holds: &mut VecDeque<Holds>,
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
        Step::Tell(note) => {
            world.ports.events.record(about(pool), note);
            Ok(())
        }
        Step::Create(count) => {
            for _ in 0..count {
                let holds = holds.pop_front().unwrap_or_default();
                create_member(world, pool, made_as, holds).await?;
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
            world.wrote_sandbox(&pool.key(), written.version());
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
    (template, revision): (Option<&SandboxTemplate>, &str),
    holds: Holds,
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
        Ok(created) => {
            holds.written(created.version());
            world.wrote_sandbox(&pool.key(), created.version());
        }
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
            world.wrote_sandbox(&pool.key(), record.version());
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
        ended: ended(sandbox),
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

/// What its members have while nobody owns them.
fn idle_images(pool: &SandboxPool, template: Option<&SandboxTemplate>) -> StringMap {
    let mut images = pool.spec.idle_images.clone();
    if let Some(template) = template
        && images.is_empty()
    {
        images.insert(MAIN_CONTAINER, template.spec.image.clone());
    }
    images
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
    Sandbox::new(meta, member_spec(pool, template))
}

/// What each member of a pool is made as.
pub(crate) fn member_spec(pool: &SandboxPool, template: Option<&SandboxTemplate>) -> SandboxSpec {
    SandboxSpec {
        template: Some(pool.spec.template.clone()),
        pool: Some(pool.metadata.name.clone()),
        idle_images: idle_images(pool, template),
        resources: pool.spec.resources,
        image_pull_policy: pool.spec.image_pull_policy,
        ..SandboxSpec::default()
    }
}

/// Why a member ended, if it did.
fn ended(sandbox: &Sandbox) -> Option<(Option<Trouble>, Box<str>)> {
    let status = &sandbox.status;
    if !matches!(status.phase, Phase::Stopped | Phase::Failed) {
        return None;
    }
    if let Some((word, message)) = plan::trouble::find(status) {
        return Some((Some(word), message.into()));
    }
    let operation = status.last_operation.as_ref();
    let error = operation.and_then(|operation| operation.error.clone());
    let stopped = status
        .stopped
        .as_ref()
        .map(|stopped| stopped.message.clone());
    Some((None, error.or(stopped)?))
}
