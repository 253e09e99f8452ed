//! Lines and tickets.
//!
//! A member is offered to one ticket at a time, at the version the cache shows of it. It is offered
//! again only once the cache shows a newer one, or the ticket gave it back: so a cache that lags
//! behind a claim of this process leads no other claim to the same member. A ticket that is dropped
//! while its write is on its way gives the member back too, since otherwise a write that failed would
//! keep it from everybody; if that write was made after all, the next one conflicts and moves on.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cache::{PoolCache, SandboxCache, SandboxIndex};
use kit::{Entropy, Tasks};
use model::{Key, Name, Sandbox, Version, pool::REVISION_LABEL, sandbox::SandboxSpec};
use model::{Spec as _, pool::PoolSpec};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Stock, fair::FairQueue, handover::Handovers};

/// Among so many idle members one is chosen after a race was lost, so that the same claimers do not
/// meet at the next member again.
const SPREAD: usize = 64;

type Listener = Box<dyn Fn(&Key) + Send + Sync>;

/// The line is as long as it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} claims wait already: {stock}")]
pub struct Full {
    /// How many may wait.
    pub limit: u32,
    /// How the pool stands.
    pub stock: Stock,
}

/// Where claims are served.
pub struct Desk {
    pub(crate) sandboxes: SandboxCache,
    pools: PoolCache,
    entropy: Arc<Entropy>,
    lines: Mutex<BTreeMap<Key, Line>>,
    /// How often a member of each pool was asked for.
    asked: Mutex<BTreeMap<Key, u64>>,
    numbers: AtomicU64,
    /// Deliveries on their way to who asked for them.
    pub(crate) handovers: Arc<Handovers>,
    /// Names this process in the leases of its claims.
    holder: Box<str>,
    /// Told when more or fewer claims wait for a pool, or one got nothing.
    changed: Listener,
}

#[derive(Debug, Default)]
struct Line {
    waiting: FairQueue<Arc<Slot>>,
    /// Members that were offered, and as of which version.
    offered: BTreeMap<Name, Version>,
    /// Tickets that have an offer and have not said what became of it.
    trying: usize,
}

/// One place in a line.
struct Slot {
    number: u64,
    tenant: Box<str>,
    state: Mutex<State>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug)]
enum State {
    Waiting,
    Offered(Arc<Sandbox>),
    /// The holder of the ticket is at work on it.
    Trying(Name),
    Done,
}

impl Desk {
    /// A desk over these caches. `changed` is told when more or fewer claims wait for a pool, and
    /// must be brief.
    pub fn start(
        sandboxes: SandboxCache,
        pools: PoolCache,
        entropy: Arc<Entropy>,
        changed: impl Fn(&Key) + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let holder = format!("{:032x}", entropy.u128()).into();
        let desk = Arc::new(Self {
            sandboxes,
            pools,
            entropy,
            lines: Mutex::default(),
            asked: Mutex::default(),
            numbers: AtomicU64::new(0),
            handovers: Arc::default(),
            holder,
            changed: Box::new(changed),
        });
        desk.follow(tasks);
        desk
    }

    /// The name of this process in the leases of its claims.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    fn follow(self: &Arc<Self>, tasks: &Tasks) {
        let mut changes = self.sandboxes.subscribe();
        let desk = Arc::clone(self);
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    batch = changes.next_batch(256) => batch,
                };
                match batch {
                    Ok(keys) => desk.look_at(&keys),
                    // Whoever serves this sees it in the cache's health.
                    Err(_) => return,
                }
            }
        });
    }

    fn look_at(&self, keys: &[Key]) {
        self.handovers.look_at(keys, &self.sandboxes);
        let mut lines = self.lines.lock();
        if lines.is_empty() {
            return;
        }
        for key in keys {
            let now = self.sandboxes.find(key);
            let newer = |offered: &Version| now.as_ref().is_none_or(|s| s.version() > *offered);
            let look = |line: &mut Line| {
                if line.offered.get(&key.name).is_some_and(newer) {
                    line.offered.remove(&key.name);
                }
            };
            match now.as_deref().and_then(pool_of) {
                Some(pool) => {
                    lines.get_mut(&pool).into_iter().for_each(look);
                }
                // Nobody knows any more whose it was.
                None => lines
                    .iter_mut()
                    .filter(|(pool, _)| pool.namespace == key.namespace)
                    .for_each(|(_, line)| look(line)),
            }
        }
        let mut told = Vec::new();
        lines.retain(|pool, line| {
            if self.dispatch(pool, line) {
                told.push(pool.clone());
            }
            !line.is_over()
        });
        drop(lines);
        told.iter().for_each(|pool| (self.changed)(pool));
    }

    /// A place in the line of a pool, however long it is.
    #[must_use]
    pub fn enter(self: &Arc<Self>, pool: &Key, tenant: &str) -> Ticket {
        let bell = Arc::new(Notify::new());
        let ring = Arc::clone(&bell);
        self.admit(pool, tenant, bell, Box::new(move || ring.notify_one()))
    }

    /// A place in the line of a pool, if it is not full.
    ///
    /// # Errors
    /// If it is.
    pub fn enter_bounded(self: &Arc<Self>, pool: &Key, tenant: &str) -> Result<Ticket, Full> {
        let limit = self.pools.find(pool).map_or(1, |p| p.spec.queue.limit);
        let ticket = self.enter(pool, tenant);
        // Who gets a member at once never waits.
        if self.waiting(pool) > limit as usize && ticket.is_waiting() {
            drop(ticket);
            let stock = self.stock(pool);
            return Err(Full { limit, stock });
        }
        Ok(ticket)
    }

    /// The next idle member, if nobody waits for one.
    #[must_use]
    pub fn enter_now(self: &Arc<Self>, pool: &Key, tenant: &str) -> Option<Ticket> {
        self.count(pool);
        let ticket = self.offered_now(pool, tenant);
        if ticket.is_none() {
            // It follows demand, and this was some.
            (self.changed)(pool);
        }
        ticket
    }

    fn offered_now(self: &Arc<Self>, pool: &Key, tenant: &str) -> Option<Ticket> {
        let mut lines = self.lines.lock();
        let fresh = Line::default();
        let line = lines.get(pool).unwrap_or(&fresh);
        if !line.waiting.is_empty() {
            return None;
        }
        let member = self.pick(pool, &line.offered, 0)?;
        let bell = Arc::new(Notify::new());
        let ring = Arc::clone(&bell);
        let slot = self.slot(tenant, Box::new(move || ring.notify_one()));
        lines.entry(pool.clone()).or_default().offer(&slot, member);
        Some(Ticket {
            desk: Arc::clone(self),
            pool: pool.clone(),
            slot,
            bell,
        })
    }

    fn slot(&self, tenant: &str, wake: Box<dyn Fn() + Send + Sync>) -> Arc<Slot> {
        Arc::new(Slot {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            tenant: tenant.into(),
            state: Mutex::new(State::Waiting),
            wake,
        })
    }

    /// A place for somebody who looks at the ticket when `wake` was called.
    #[must_use]
    pub fn enter_waking(
        self: &Arc<Self>,
        pool: &Key,
        tenant: &str,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Ticket {
        self.admit(pool, tenant, Arc::new(Notify::new()), Box::new(wake))
    }

    fn admit(
        self: &Arc<Self>,
        pool: &Key,
        tenant: &str,
        bell: Arc<Notify>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Ticket {
        self.count(pool);
        let slot = self.slot(tenant, wake);
        let ticket = Ticket {
            desk: Arc::clone(self),
            pool: pool.clone(),
            slot: Arc::clone(&slot),
            bell,
        };
        let waits = {
            let mut lines = self.lines.lock();
            let line = lines.entry(pool.clone()).or_default();
            line.waiting.push(tenant, slot);
            self.dispatch(pool, line);
            !line.waiting.is_empty()
        };
        if waits {
            (self.changed)(pool);
        }
        ticket
    }

    /// How many wait for a member of a pool, those included that are about to claim the one they
    /// were offered: what is theirs is not too much.
    #[must_use]
    pub fn waiting(&self, pool: &Key) -> usize {
        let lines = self.lines.lock();
        lines
            .get(pool)
            .map_or(0, |line| line.waiting.len() + line.trying)
    }

    /// How often a member of a pool was asked for since this desk was opened, whatever came of it.
    #[must_use]
    pub fn asked(&self, pool: &Key) -> u64 {
        self.asked.lock().get(pool).copied().unwrap_or(0)
    }

    fn count(&self, pool: &Key) {
        *self.asked.lock().entry(pool.clone()).or_default() += 1;
    }

    /// Drops what is remembered of a pool that is gone.
    pub fn forget(&self, pool: &Key) {
        self.asked.lock().remove(pool);
    }

    /// How a pool stands.
    #[must_use]
    pub fn stock(&self, pool: &Key) -> Stock {
        Stock::count(&self.sandboxes, &self.pools, pool, self.waiting(pool))
    }

    /// Offers idle members to those whose turn it is. Answers whether any were.
    fn dispatch(&self, pool: &Key, line: &mut Line) -> bool {
        let mut any = false;
        while !line.waiting.is_empty() {
            let Some(member) = self.pick(pool, &line.offered, 0) else {
                break;
            };
            let its_pool = self.pools.find(pool);
            let weight = |tenant: &str| {
                let weights = its_pool.as_ref().map(|p| &p.spec.queue.weights);
                weights.and_then(|w| w.get(tenant)).copied().unwrap_or(1)
            };
            let Some(slot) = line.waiting.pop(weight) else {
                break;
            };
            line.offer(&slot, member);
            any = true;
        }
        any
    }

    /// An idle member that nobody is at; those of the current revision first.
    fn pick(
        &self,
        pool: &Key,
        offered: &BTreeMap<Name, Version>,
        skip: usize,
    ) -> Option<Arc<Sandbox>> {
        let namespace = pool.namespace.as_ref()?;
        let term = (namespace, &pool.name);
        let is_free = |member: &Sandbox| {
            let offered = offered.get(&member.metadata.name);
            offered.is_none_or(|version| member.version() > *version)
        };
        let find = |is_meant: &dyn Fn(&Sandbox) -> bool| {
            let mut left = skip;
            self.sandboxes
                .find_one_where(SandboxIndex::Claimable, term, |member| {
                    let meant = is_free(member) && is_meant(member);
                    if meant && left > 0 {
                        left -= 1;
                        return false;
                    }
                    meant
                })
        };
        let its_pool = self.pools.find(pool);
        let revision = its_pool.as_ref().map_or("", |p| &p.status.revision);
        find(&|member| member.metadata.labels.get(REVISION_LABEL) == Some(revision))
            .or_else(|| find(&|_| true))
    }
}

impl Line {
    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.offered.is_empty() && self.trying == 0
    }

    fn offer(&mut self, slot: &Slot, member: Arc<Sandbox>) {
        self.offered
            .insert(member.metadata.name.clone(), member.version());
        self.trying += 1;
        *slot.state.lock() = State::Offered(member);
        (slot.wake)();
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("lines", &self.lines.lock().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("number", &self.number)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// A place in a line. Dropped, it is given up, and what was offered goes to the next.
#[derive(Debug)]
pub struct Ticket {
    desk: Arc<Desk>,
    pool: Key,
    slot: Arc<Slot>,
    bell: Arc<Notify>,
}

impl Ticket {
    /// The member that is offered, if it is this ticket's turn. Whoever takes it says what became
    /// of it, or drops the ticket.
    #[must_use]
    pub fn offer(&self) -> Option<Arc<Sandbox>> {
        let mut state = self.slot.state.lock();
        match &*state {
            State::Offered(member) => {
                let member = Arc::clone(member);
                *state = State::Trying(member.metadata.name.clone());
                Some(member)
            }
            State::Waiting | State::Trying(_) | State::Done => None,
        }
    }

    /// Waits for an offer. Cancelling the wait loses nothing.
    pub async fn offered(&self) -> Arc<Sandbox> {
        loop {
            if let Some(member) = self.offer() {
                return member;
            }
            self.bell.notified().await;
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.slot.state.lock(), State::Waiting)
    }

    /// The member was claimed: it is offered again only as something newer.
    pub(crate) fn taken(&self) {
        let mut lines = self.desk.lines.lock();
        *self.slot.state.lock() = State::Done;
        if let Some(line) = lines.get_mut(&self.pool) {
            line.trying = line.trying.saturating_sub(1);
        }
    }

    /// Somebody else was first: this ticket is next in turn, and the member is offered again only
    /// as something newer.
    pub(crate) fn lost(&self) {
        let desk = &self.desk;
        let mut lines = desk.lines.lock();
        *self.slot.state.lock() = State::Waiting;
        let line = lines.entry(self.pool.clone()).or_default();
        line.trying = line.trying.saturating_sub(1);
        let skip = desk.entropy.below(SPREAD);
        let next = desk
            .pick(&self.pool, &line.offered, skip)
            .or_else(|| desk.pick(&self.pool, &line.offered, 0));
        match next {
            Some(member) => line.offer(&self.slot, member),
            None => line
                .waiting
                .push_front(&self.slot.tenant, Arc::clone(&self.slot)),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let desk = &self.desk;
        // The lines first: nothing may be offered to this place once it is given up.
        let mut lines = desk.lines.lock();
        let before = std::mem::replace(&mut *self.slot.state.lock(), State::Done);
        let Some(line) = lines.get_mut(&self.pool) else {
            return;
        };
        let told = match before {
            State::Done => false,
            State::Waiting => line
                .waiting
                .remove(&self.slot.tenant, |slot| slot.number == self.slot.number),
            State::Offered(member) => {
                // Untouched: the next may have it at once.
                line.trying = line.trying.saturating_sub(1);
                line.offered.remove(&member.metadata.name);
                desk.dispatch(&self.pool, line);
                true
            }
            State::Trying(name) => {
                // Its write failed or was never made. If it was made, the cache shows a newer one.
                line.trying = line.trying.saturating_sub(1);
                line.offered.remove(&name);
                desk.dispatch(&self.pool, line);
                true
            }
        };
        if line.is_over() {
            lines.remove(&self.pool);
        }
        drop(lines);
        if told {
            (desk.changed)(&self.pool);
        }
    }
}

/// Where a sandbox's pool is.
#[must_use]
pub fn pool_of(sandbox: &Sandbox) -> Option<Key> {
    let name = sandbox.spec.pool.clone()?;
    debug_assert_eq!(sandbox.key().kind, SandboxSpec::KIND);
    Some(Key {
        kind: PoolSpec::KIND,
        namespace: sandbox.metadata.namespace.clone(),
        name,
    })
}
