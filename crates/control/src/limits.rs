//! What plugins admit, for pools, declarative claims, and sandboxes that came by themselves.
//!
//! A plugin that admits only some says when it is worth asking again. Until then nobody asks: what
//! it said is remembered, and a turn that comes earlier for other reasons goes by it. A change of
//! what is wanted is worth asking at once.
//!
//! What plugins set aside for a claim is held while the claim waits for members, as it is for a
//! request. It is for what a member of the pool is now; a member that was made otherwise is asked
//! for anew when it is offered. All of this is in memory: a new loop asks anew.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use model::{
    Generation, Key, Name, Namespace, Sandbox, SandboxClaim, SandboxId, SandboxPool, Version,
    event::Severity,
    sandbox::{Resources, SandboxSpec},
};
use parking_lot::Mutex;
use plan::Note;
use plugins::{Creation, Holds, Limited, Purpose};

use crate::{events::about, world::World};

/// What was said of each key.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    said: Mutex<BTreeMap<Key, Said>>,
    held: Mutex<BTreeMap<Key, VecDeque<Held>>>,
    /// What may have been used: nobody gets such an id again.
    doubtful: Mutex<BTreeMap<Key, Vec<Held>>>,
}

/// What was set aside for one member of a claim.
#[derive(Debug)]
pub(crate) struct Held {
    /// The id that it will have.
    pub(crate) id: SandboxId,
    size: Size,
    holds: Holds,
}

/// What says how large a sandbox is.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    template: Option<Name>,
    resources: Option<Resources>,
}

impl Size {
    fn of(spec: &SandboxSpec) -> Self {
        Self {
            template: spec.template.clone(),
            resources: spec.resources,
        }
    }
}

impl Held {
    /// Whether it was set aside for a member like this one.
    pub(crate) fn is_for(&self, member: &Sandbox) -> bool {
        self.size == Size::of(&member.spec)
    }

    /// The member was written, at this version.
    pub(crate) fn written(self, version: Version) {
        self.holds.written(version);
    }
}

#[derive(Debug)]
struct Said {
    /// On the monotonic clock.
    until: Duration,
    generation: Generation,
    limited: Limited,
}

/// Somebody admits only some of what is wanted.
#[derive(Debug)]
pub(crate) struct Partly {
    /// How many.
    pub(crate) admitted: u32,
    pub(crate) limited: Limited,
    /// How long until it is worth asking again.
    pub(crate) left: Duration,
}

impl Limits {
    pub(crate) fn forget(&self, key: &Key) {
        self.said.lock().remove(key);
        self.held.lock().remove(key);
        self.doubtful.lock().remove(key);
    }

    /// What was set aside for the next member of a claim.
    pub(crate) fn next_held(&self, claim: &Key) -> Option<Held> {
        self.held.lock().get_mut(claim)?.pop_front()
    }

    /// Keeps what was not used.
    pub(crate) fn keep(&self, claim: &Key, unused: Held) {
        let mut held = self.held.lock();
        held.entry(claim.clone()).or_default().push_front(unused);
    }

    /// Keeps what may have been used, or not, until its claim is over: it counts for as much as the
    /// sandbox that may have its id.
    pub(crate) fn doubt(&self, claim: &Key, held: Held) {
        let mut doubtful = self.doubtful.lock();
        doubtful.entry(claim.clone()).or_default().push(held);
    }

    fn remembered(&self, key: &Key, generation: Generation, now: Duration) -> Option<Partly> {
        let said = self.said.lock();
        let said = said.get(key).filter(|said| said.generation == generation)?;
        let left = said.until.checked_sub(now).filter(|left| !left.is_zero())?;
        Some(Partly {
            admitted: 0,
            limited: said.limited.clone(),
            left,
        })
    }

    /// `now` is when it was said: an answer may take its time.
    fn remember(&self, key: &Key, generation: Generation, limited: Limited, now: Duration) {
        let until = now.saturating_add(limited.retry_after);
        let said = Said {
            until,
            generation,
            limited,
        };
        self.said.lock().insert(key.clone(), said);
    }
}

/// What is admitted of the new members of a pool.
#[derive(Debug, Default)]
pub(crate) struct NewMembers {
    /// Who admits only some, if not all are admitted.
    pub(crate) partly: Option<Partly>,
    /// What was set aside, for each of those that are.
    pub(crate) holds: VecDeque<Holds>,
}

impl NewMembers {
    fn only(partly: Option<Partly>) -> Self {
        Self {
            partly,
            holds: VecDeque::new(),
        }
    }
}

/// Asks for new members of a pool, or for none.
pub(crate) async fn for_members(
    world: &World,
    pool: &SandboxPool,
    spec: &SandboxSpec,
    wanted: Option<u32>,
    settled: bool,
) -> NewMembers {
    let (key, generation) = (pool.key(), pool.metadata.generation);
    let now = world.ports.clock.monotonic();
    let known = world.limits.remembered(&key, generation, now);
    let Some(count) = wanted else {
        if settled {
            world.limits.forget(&key);
            return NewMembers::default();
        }
        return NewMembers::only(known);
    };
    let Some(team) = &pool.metadata.namespace else {
        return NewMembers::default();
    };
    if known.is_some() || world.plugins.is_empty() {
        return NewMembers::only(known);
    }
    let creation = Creation {
        purpose: Purpose::Member {
            pool: &pool.metadata.name,
        },
        team,
        spec,
        count,
        ids: &[],
    };
    let mut admitted = world.plugins.before_create(&creation).await;
    let holds = (0..admitted.count).map(|_| admitted.next_holds()).collect();
    let partly = admitted.limited.take().map(|limited| {
        tell(world, about(pool), &limited);
        let now = world.ports.clock.monotonic();
        world
            .limits
            .remember(&key, generation, limited.clone(), now);
        Partly {
            admitted: admitted.count,
            left: limited.retry_after,
            limited,
        }
    });
    NewMembers { partly, holds }
}

/// Asks for members of a claim. Answers how many it may take now, and who admits no more.
pub(crate) async fn for_claim(
    world: &World,
    claim: &SandboxClaim,
    team: &Namespace,
    spec: &SandboxSpec,
    missing: u32,
) -> (u32, Option<Partly>) {
    let (key, generation) = (claim.key(), claim.metadata.generation);
    let now = world.ports.clock.monotonic();
    let held = {
        let mut all = world.limits.held.lock();
        let held = all.entry(key.clone()).or_default();
        held.truncate(missing as usize);
        u32::try_from(held.len()).unwrap_or(u32::MAX)
    };
    let known = world.limits.remembered(&key, generation, now);
    if held == missing || known.is_some() {
        let known = known.filter(|_| held < missing);
        return (held, known.map(|known| with(known, held)));
    }
    let id = |_| SandboxId::from_random(world.ports.entropy.u128());
    let ids: Vec<SandboxId> = (held..missing).map(id).collect();
    let creation = Creation {
        purpose: Purpose::Claim {
            claim: &claim.metadata.name,
            pool: &claim.spec.pool,
        },
        team,
        spec,
        count: missing - held,
        ids: &ids,
    };
    let mut admitted = world.plugins.before_create(&creation).await;
    {
        let mut all = world.limits.held.lock();
        let held = all.entry(key.clone()).or_default();
        for id in ids.into_iter().take(admitted.count as usize) {
            held.push_back(Held {
                id,
                size: Size::of(spec),
                holds: admitted.next_holds(),
            });
        }
    }
    let ready = held + admitted.count;
    let partly = admitted.limited.take().map(|limited| {
        tell(world, about(claim), &limited);
        let now = world.ports.clock.monotonic();
        world
            .limits
            .remember(&key, generation, limited.clone(), now);
        Partly {
            admitted: ready,
            left: limited.retry_after,
            limited,
        }
    });
    (ready, partly)
}

/// Asks for the member that a claim is offered, which is not what was set aside. If it is not
/// admitted, nothing that was set aside is of use until it is worth asking again.
pub(crate) async fn for_offered(
    world: &World,
    claim: &SandboxClaim,
    team: &Namespace,
    other: Held,
    member: &Sandbox,
) -> Option<Held> {
    let (key, generation) = (claim.key(), claim.metadata.generation);
    let Held { id, holds, .. } = other;
    // First, so that it does not stand in the way of what takes its place.
    drop(holds);
    let creation = Creation {
        purpose: Purpose::Claim {
            claim: &claim.metadata.name,
            pool: &claim.spec.pool,
        },
        team,
        spec: &member.spec,
        count: 1,
        ids: std::slice::from_ref(&id),
    };
    let mut admitted = world.plugins.before_create(&creation).await;
    let Some(limited) = admitted.limited.take() else {
        return Some(Held {
            id,
            size: Size::of(&member.spec),
            holds: admitted.next_holds(),
        });
    };
    tell(world, about(claim), &limited);
    world.limits.held.lock().remove(&key);
    let now = world.ports.clock.monotonic();
    world.limits.remember(&key, generation, limited, now);
    None
}

/// Asks for a sandbox that came by itself, as it is about to be written with this id, or that another
/// process has written.
pub(crate) async fn for_one(
    world: &World,
    purpose: Purpose<'_>,
    sandbox: &Sandbox,
    id: &SandboxId,
) -> Result<Holds, Partly> {
    let (key, generation) = (sandbox.key(), sandbox.metadata.generation);
    let Some(team) = &sandbox.metadata.namespace else {
        return Ok(Holds::default());
    };
    let now = world.ports.clock.monotonic();
    if let Some(known) = world.limits.remembered(&key, generation, now) {
        return Err(known);
    }
    let creation = Creation {
        purpose,
        team,
        spec: &sandbox.spec,
        count: 1,
        ids: std::slice::from_ref(id),
    };
    let mut admitted = world.plugins.before_create(&creation).await;
    let Some(limited) = admitted.limited.take() else {
        return Ok(admitted.next_holds());
    };
    let now = world.ports.clock.monotonic();
    world
        .limits
        .remember(&key, generation, limited.clone(), now);
    Err(Partly {
        admitted: 0,
        left: limited.retry_after,
        limited,
    })
}

fn with(known: Partly, admitted: u32) -> Partly {
    Partly { admitted, ..known }
}

fn tell(world: &World, about: model::event::About, limited: &Limited) {
    let note = Note {
        severity: Severity::Warning,
        reason: "Limited",
        message: limited.to_string().into(),
    };
    world.ports.events.record(about, note);
}
