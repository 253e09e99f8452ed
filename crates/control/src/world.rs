//! The ports and caches that all drivers share.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use cache::{ClaimCache, PoolCache, SandboxCache, SnapshotCache, TemplateCache};
use claims::{Desk, Ticket};
use kit::{Clock, Entropy};
use model::{
    Key, Object, OperationId, Sandbox, Spec, Timestamp, Uid, Version, sandbox::Lease,
    workload::Secret,
};
use parking_lot::Mutex;
use plan::{autoscale::Window, expect::Expectations, idle::Activity};
use plugins::Plugins;
use runtime::Runtime;
use store::{Outcome, Store, StoreError, StoreExt as _};
use tokio::time::Instant;

use crate::{
    EventSink,
    control::{Options, Work},
    deadlines::Deadlines,
    flights::{Crew, Flights},
    limits::Limits,
    reception::Reception,
    registries::{Pins, Waiting},
    sandbox::{Command, Ran},
    wakes::Wakes,
};

/// Says when sandboxes were last used.
#[async_trait]
pub trait ActivitySource: Send + Sync + Debug {
    /// What is known of a sandbox's use by all sources together.
    fn activity(&self, sandbox: &Sandbox) -> Activity;

    /// Waits until nothing is inside a sandbox: no request, stream or socket. Dropped when that
    /// takes too long.
    async fn drained(&self, sandbox: &Sandbox);
}

/// Knows what those who let traffic in have seen.
#[async_trait]
pub trait Followers: Send + Sync + Debug {
    /// Waits until all of them go by this version of a record or a newer one. Answers whether they
    /// do; one that cannot say so within a second is not waited for.
    async fn seen_by_all(&self, key: &Key, version: Version) -> bool;
}

/// Where nobody lets traffic in.
#[derive(Clone, Copy, Debug)]
pub struct NoFollowers;

#[async_trait]
impl Followers for NoFollowers {
    async fn seen_by_all(&self, _: &Key, _: Version) -> bool {
        true
    }
}

/// Those who wait for sandboxes that sleep.
pub trait Waiters: Send + Sync + Debug {
    /// A sandbox that was frozen is seen to run. This is its record as it is about to be written, at
    /// the version that was looked at.
    fn awake(&self, sandbox: &Sandbox);
}

/// Where nobody waits, or only for what records say.
#[derive(Clone, Copy, Debug)]
pub struct NoWaiters;

impl Waiters for NoWaiters {
    fn awake(&self, _: &Sandbox) {}
}

/// The source where nothing measures use: only what the record says counts.
#[derive(Clone, Copy, Debug)]
pub struct RecordOnly;

#[async_trait]
impl ActivitySource for RecordOnly {
    fn activity(&self, _: &Sandbox) -> Activity {
        Activity::RECORD_ONLY
    }

    async fn drained(&self, _: &Sandbox) {}
}

/// Derives the tokens that a delivery's agent demands.
pub trait AgentTokens: Send + Sync + Debug {
    /// The token of a sandbox as it is delivered now; none if its agent demands none.
    fn agent_token(&self, sandbox: &Sandbox) -> Option<Secret>;
}

/// Where there are no tokens: agents demand nothing, and gateways let nobody in.
#[derive(Clone, Copy, Debug)]
pub struct NoTokens;

impl AgentTokens for NoTokens {
    fn agent_token(&self, _: &Sandbox) -> Option<Secret> {
        None
    }
}

/// The ports.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Where records are.
    pub store: Arc<dyn Store>,
    /// What runs workloads.
    pub runtime: Arc<dyn Runtime>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<Entropy>,
    /// Use of sandboxes.
    pub activity: Arc<dyn ActivitySource>,
    /// Those who let traffic in.
    pub followers: Arc<dyn Followers>,
    /// Those who wait for sandboxes that sleep.
    pub waiters: Arc<dyn Waiters>,
    /// What people read later.
    pub events: Arc<dyn EventSink>,
    /// What agents demand.
    pub tokens: Arc<dyn AgentTokens>,
    /// Who receives records that came by themselves; nobody where none do.
    pub reception: Option<Arc<dyn Reception>>,
}

/// What the drivers look at.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Sandboxes.
    pub sandboxes: SandboxCache,
    /// Pools.
    pub pools: PoolCache,
    /// Claims.
    pub claims: ClaimCache,
    /// Snapshots.
    pub snapshots: SnapshotCache,
    /// Templates.
    pub templates: TemplateCache,
}

/// The newest versions that the turns of a key have written. One for each kind: versions are of the
/// whole store, and where it is a cluster the cache of one kind hears late of what is written of
/// another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Floors {
    /// Of its own record.
    own: Version,
    /// Of sandboxes, where it is no sandbox itself.
    sandboxes: Version,
}

/// Everything a driver needs.
#[derive(Debug)]
pub struct World {
    pub(crate) ports: Ports,
    pub(crate) caches: Caches,
    pub(crate) options: Options,
    pub(crate) deadlines: Deadlines<Key>,
    /// What each pool has asked for and not seen yet.
    pub(crate) expectations: Mutex<BTreeMap<Uid, Expectations>>,
    /// What each key's turns have written: the next turn must not look at less.
    floors: Mutex<BTreeMap<Key, Floors>>,
    /// Sandboxes this loop has driven; what it finds under way in others was begun by another.
    adopted: Mutex<BTreeSet<Uid>>,
    /// Those that may have been frozen though what was inside had no time to end.
    undrained: Mutex<BTreeSet<Uid>>,
    /// The last operation of a sandbox that failed, and when, on the monotonic clock.
    failed: Mutex<BTreeMap<Key, (OperationId, Duration)>>,
    /// Where claims are served.
    pub(crate) desk: Arc<Desk>,
    /// The places that declarative claims have in line.
    pub(crate) tickets: Mutex<BTreeMap<Key, Ticket>>,
    /// How often members of each pool that follows demand were asked for of late.
    pub(crate) windows: Mutex<BTreeMap<Key, Window>>,
    /// Those who have a say in what is made.
    pub(crate) plugins: Plugins,
    /// What they said.
    pub(crate) limits: Limits,
    /// How long waking takes.
    pub(crate) wakes: Wakes,
    /// Commands that run inside sandboxes before they are ready.
    pub(crate) commands: Flights<Command, Ran>,
    /// The images of claims.
    pub(crate) pins: Pins,
    /// Turns that wait for a registry.
    pub(crate) waiting: Waiting,
    /// When the history was last looked through.
    swept_history: Mutex<Option<Duration>>,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing to do until something changes, or this much time has passed.
    Rest(Option<Duration>),
    /// Something changed underneath: look again.
    Again,
    /// It failed: look again, later each time.
    Retry,
    /// The object is gone.
    Gone,
}

/// How long a turn waits for a cache to catch up before it gives way.
const CATCH_UP: Duration = Duration::from_secs(2);

impl World {
    pub(crate) fn new(
        ports: Ports,
        caches: Caches,
        options: Options,
        desk: Arc<Desk>,
        plugins: Plugins,
        crew: Crew,
    ) -> Self {
        let deadlines = Deadlines::new(Arc::clone(&ports.clock));
        Self {
            ports,
            caches,
            options,
            deadlines,
            expectations: Mutex::default(),
            floors: Mutex::default(),
            adopted: Mutex::default(),
            undrained: Mutex::default(),
            failed: Mutex::default(),
            desk,
            tickets: Mutex::default(),
            wakes: Wakes::default(),
            windows: Mutex::default(),
            plugins,
            limits: Limits::default(),
            commands: Flights::new(crew.clone(), Work::Sandbox),
            pins: Pins::new(crew),
            waiting: Waiting::default(),
            swept_history: Mutex::default(),
        }
    }

    /// Whether the process that holds a lease is known to be gone.
    pub(crate) fn is_abandoned(&self, lease: &Lease) -> bool {
        let other = lease
            .holder
            .as_deref()
            .is_some_and(|h| h != self.desk.holder());
        self.options.claims_alone && other
    }

    /// Whether it is time to look through the history again.
    pub(crate) fn is_history_due(&self) -> bool {
        let now = self.ports.clock.monotonic();
        let mut last = self.swept_history.lock();
        let due = last.is_none_or(|last| now.saturating_sub(last) >= self.options.history.every);
        if due {
            *last = Some(now);
        }
        due
    }

    /// Time that only passes.
    pub(crate) fn elapsed(&self) -> Duration {
        self.ports.clock.monotonic()
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.ports.clock.wall_micros())
    }

    /// Waits until the caches that a turn of this key decides on have seen its last writes.
    pub(crate) async fn caught_up(&self, key: &Key) -> bool {
        let Some(floors) = self.floors.lock().get(key).copied() else {
            return true;
        };
        let deadline = Instant::now() + CATCH_UP;
        let caches = &self.caches;
        // A turn reads its own kind and, for pools, claims and snapshots, sandboxes.
        let own = async {
            let floor = floors.own;
            match key.kind {
                model::pool::PoolSpec::KIND => caches.pools.wait_for_version(floor, deadline).await,
                model::claim::ClaimSpec::KIND => {
                    caches.claims.wait_for_version(floor, deadline).await
                }
                model::snapshot::SnapshotSpec::KIND => {
                    caches.snapshots.wait_for_version(floor, deadline).await
                }
                _sandbox => caches.sandboxes.wait_for_version(floor, deadline).await,
            }
        };
        own.await.is_ok()
            && caches
                .sandboxes
                .wait_for_version(floors.sandboxes, deadline)
                .await
                .is_ok()
            && self
                .floors
                .lock()
                .remove(key)
                .is_some_and(|now| now == floors)
    }

    /// Remembers that a turn of this key has written its own record.
    fn wrote(&self, key: &Key, version: Version) {
        let mut floors = self.floors.lock();
        let floor = &mut floors.entry(key.clone()).or_default().own;
        *floor = version.max(*floor);
    }

    /// Remembers that a turn of this key has written a sandbox.
    pub(crate) fn wrote_sandbox(&self, key: &Key, version: Version) {
        let mut floors = self.floors.lock();
        let floor = &mut floors.entry(key.clone()).or_default().sandboxes;
        *floor = version.max(*floor);
    }

    /// Whether this loop drives a sandbox for the first time.
    pub(crate) fn adopts(&self, uid: Uid) -> bool {
        self.adopted.lock().insert(uid)
    }

    /// Lets the next turn of a sandbox take over what this one could not finish recording.
    pub(crate) fn abandon(&self, uid: Uid) {
        self.adopted.lock().remove(&uid);
    }

    /// A sandbox may be frozen from now on though what is inside had no time to end.
    pub(crate) fn undrained(&self, uid: Uid) {
        self.undrained.lock().insert(uid);
    }

    /// What was inside had its time.
    pub(crate) fn drained(&self, uid: Uid) {
        self.undrained.lock().remove(&uid);
    }

    pub(crate) fn is_undrained(&self, uid: Uid) -> bool {
        self.undrained.lock().contains(&uid)
    }

    /// Drops what is remembered of sandboxes that are gone.
    pub(crate) fn disown(&self, known: &BTreeSet<Uid>) {
        self.adopted.lock().retain(|uid| known.contains(uid));
        self.undrained.lock().retain(|uid| known.contains(uid));
        self.wakes.retain(known);
    }

    /// Remembers when a step of an operation failed.
    pub(crate) fn failed(&self, sandbox: &Sandbox) {
        if let Some(operation) = &sandbox.status.last_operation {
            let now = self.ports.clock.monotonic();
            let mut failed = self.failed.lock();
            failed.insert(sandbox.key(), (operation.id, now));
        }
    }

    /// What is left of a pause after the last failure of the operation in flight. What failed before
    /// this loop began is worth a try.
    pub(crate) fn left_of(&self, sandbox: &Sandbox, pause: Duration) -> Option<Duration> {
        let failed = self.failed.lock();
        let (id, at) = failed.get(&sandbox.key())?;
        let same = sandbox.status.last_operation.as_ref().map(|op| op.id) == Some(*id);
        let left = (*at + pause).checked_sub(self.ports.clock.monotonic())?;
        (same && !left.is_zero()).then_some(left)
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.failed.lock().remove(key);
        self.floors.lock().remove(key);
        self.tickets.lock().remove(key);
        self.limits.forget(key);
        self.commands.forget(key);
        self.pins.forget(key);
        self.deadlines.forget(key);
    }

    /// Replaces the spec half of an object of this key's turn.
    pub(crate) async fn write_spec<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, Done> {
        let key = object.key();
        let written = self.ports.store.update_spec(object).await;
        self.written(&key, written)
    }

    /// Replaces the status half of an object of this key's turn.
    pub(crate) async fn write_status<S: Spec>(
        &self,
        object: &Object<S>,
    ) -> Result<Object<S>, Done> {
        let key = object.key();
        let written = self.ports.store.update_status(object).await;
        self.written(&key, written)
    }

    fn written<S: Spec>(
        &self,
        key: &Key,
        written: Result<Object<S>, StoreError>,
    ) -> Result<Object<S>, Done> {
        match written {
            Ok(object) => {
                self.wrote(key, object.version());
                Ok(object)
            }
            Err(error) => Err(lost(key, &error)),
        }
    }
}

/// What a failed write means for a turn.
pub(crate) fn lost(key: &Key, error: &StoreError) -> Done {
    match error {
        // What happened arrives in the cache and asks for the next turn; until then waiting longer
        // each time keeps a cache that lags from being answered with a storm of conflicts.
        StoreError::Conflict { .. }
        | StoreError::AlreadyExists(_)
        | StoreError::NotFound(_)
        | StoreError::OtherUid { .. } => Done::Retry,
        StoreError::Unavailable {
            outcome: Outcome::NotApplied | Outcome::Unknown,
            ..
        }
        | StoreError::Expired { .. } => {
            tracing::warn!(%key, %error, "write failed");
            Done::Retry
        }
        StoreError::TooLarge { .. }
        | StoreError::Invalid { .. }
        | StoreError::Undecodable { .. } => {
            tracing::error!(%key, %error, "write refused");
            Done::Retry
        }
    }
}
