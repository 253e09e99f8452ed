//! The table: apply what writers say, answer readers.
//!
//! Writers take one mutex, one message at a time. Readers of the request path ([`Table::lookup`],
//! [`Table::check`]) take no lock at all. Time comes in as the elapsed monotonic time since any
//! fixed moment, and decides only when tombstones may go, never what wins.

use std::{
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    claims::Published,
    message::{Deletion, Message, Snapshot, Writer},
    outcome::{Counts, Outcome, Resync},
    records::{Listed, Records},
    route::{Route, State, keep},
};

/// How many routes of a peer's snapshot are taken before other writers are let in.
const AT_ONCE: usize = 512;

/// How long and how much of the past is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The least age at which a tombstone may go.
    pub retention: Duration,
    /// Above this many, those that the own watch has passed go without waiting for that age, and
    /// deletes of unknown keys leave none.
    pub max_tombstones: usize,
    /// Of how many keys the last change is remembered, to be told to a peer that is behind.
    pub max_recent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(300),
            max_tombstones: 1 << 20,
            max_recent: 1 << 16,
        }
    }
}

/// Routes by key and by sandbox id. See the crate's documentation for the rules.
#[derive(Debug)]
pub struct Table {
    published: Published,
    synced: AtomicBool,
    ear: OnceLock<Arc<dyn Ear>>,
    records: Mutex<Records>,
}

/// Hears of changes, after readers can see them.
pub trait Ear: Send + Sync + Debug {
    /// A route was told of that leads to nothing awake: it fell asleep, wakes, or ends.
    fn closed(&self, route: &Route);

    /// Everything may have changed.
    fn resynced(&self);
}

/// Why a connection may not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The id resolves to nothing.
    #[error("the sandbox was not found")]
    NotFound,
    /// The id now belongs to another sandbox, or another delivery of it.
    #[error("the route names another delivery")]
    OtherDelivery,
}

/// What the table knows of a route whose address did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StaleReport {
    /// The address is withheld until the store is heard of again; wait for a newer version.
    Withheld,
    /// The table knows another version by now: try this one. It was left alone.
    Superseded(Arc<Route>),
    /// The id does not lead to that sandbox any more.
    Gone,
}

/// What changed in a table, for a peer that is behind.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Each key once, as it is now, in the order of the last changes.
    pub messages: Vec<Message>,
    /// Names this moment: who has taken these asks for what came after.
    pub stamp: u64,
    /// Everything up to this version that is newer than what was asked for is among them.
    pub watched: Version,
}

/// All that a table knows, for a peer that knows nothing.
#[derive(Clone, Debug, Default)]
pub struct Everything {
    /// Every route, as of how far the own watch has come. Newer ones are among them.
    pub snapshot: Snapshot,
    /// Tombstones newer than the snapshot, which it cannot express.
    pub deletions: Vec<Deletion>,
    /// Names this moment, as that of [`Changes`].
    pub stamp: u64,
}

/// A look at a table from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Live routes.
    pub routes: usize,
    /// Tombstones.
    pub tombstones: usize,
    /// Ids that more than one live record has: a fault worth an alarm.
    pub contested_ids: usize,
    /// The newest full snapshot.
    pub base: Version,
    /// The newest tombstone ever collected.
    pub floor: Version,
    /// How far the own watch has come.
    pub watched: Version,
    /// How many messages met which end.
    pub counts: Counts,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Table {
    /// An empty table, which is not to be trusted until it took a full snapshot.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            published: Published::new(),
            synced: AtomicBool::new(false),
            ear: OnceLock::new(),
            records: Mutex::new(Records::new(limits)),
        }
    }

    /// Tells somebody of changes from now on. There is one ear; a second is not heard.
    pub fn listen(&self, ear: Arc<dyn Ear>) {
        let _ = self.ear.set(ear);
    }

    /// Whether the table may answer for what it does not know. Before that, and after
    /// [`Table::distrust`], an unknown id is not a missing sandbox.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// The own watch was lost or fell behind: not synced until the next full snapshot.
    pub fn distrust(&self) {
        let _records = self.records.lock();
        self.synced.store(false, Ordering::Release);
    }

    /// The route an id resolves to. Takes no lock.
    pub fn lookup(&self, id: &(impl AsRef<str> + ?Sized)) -> Option<Arc<Route>> {
        self.published.pin().get(id.as_ref()).cloned()
    }

    /// The route an id resolves to, if it is still that delivery of that sandbox. Takes no lock.
    ///
    /// Asked before every use of a kept connection.
    ///
    /// # Errors
    /// If the id resolves to nothing or to another delivery; then the connection must be closed.
    pub fn check(
        &self,
        id: &(impl AsRef<str> + ?Sized),
        uid: Uid,
        epoch: Epoch,
    ) -> Result<Arc<Route>, Refused> {
        let route = self.lookup(id).ok_or(Refused::NotFound)?;
        if route.is_delivery(uid, epoch) {
            Ok(route)
        } else {
            Err(Refused::OtherDelivery)
        }
    }

    /// The route of a key. Waits for writers: not for the request path.
    #[must_use]
    pub fn find(&self, namespace: &Namespace, name: &Name) -> Option<Arc<Route>> {
        self.records.lock().find(namespace, name)
    }

    /// Every route, in no order. Waits for writers: not for the request path.
    #[must_use]
    pub fn routes(&self) -> Vec<Arc<Route>> {
        self.records.lock().routes()
    }

    /// Takes one message. What it changes is visible to readers when this returns.
    pub fn apply(&self, by: Writer, message: Message, now: Duration) -> Outcome {
        let closed = match &message {
            Message::Upsert(route) if route.state != State::Running => Some(Arc::clone(route)),
            Message::Upsert(_) | Message::Delete(_) | Message::Unreadable(_) => None,
        };
        let outcome = self.take(by, message, now);
        if let (Some(ear), Some(route)) = (self.ear.get(), closed) {
            ear.closed(&route);
        }
        outcome
    }

    fn take(&self, by: Writer, message: Message, now: Duration) -> Outcome {
        let mut records = self.records.lock();
        let outcome = match message {
            Message::Unreadable(why) => Outcome::Invalid(why),
            Message::Delete(Deletion {
                namespace,
                name,
                version,
            }) => records.delete(&self.published, namespace, name, version, by, now),
            Message::Upsert(route) if keep(route.state) => {
                records.upsert(&self.published, route, by)
            }
            Message::Upsert(route) => {
                let (namespace, name) = (route.namespace.clone(), route.name.clone());
                records.delete(&self.published, namespace, name, route.version, by, now)
            }
        };
        records.count(&outcome);
        self.sweep(&mut records, now);
        outcome
    }

    /// Takes everything the store held at one version, by an own list. From here on the table is synced, and
    /// deltas at or below that version are ignored.
    ///
    /// A key that the snapshot lacks is deleted, unless the table knows something newer than the
    /// snapshot about it. A store that was wiped, rather than restored, begins at a version below
    /// every old snapshot and is refused: start with a new table.
    pub fn replace_all(&self, snapshot: Snapshot, now: Duration) -> Resync {
        // Sorted before locking.
        self.settle(&Listed::new(snapshot), now, Records::replace_all)
    }

    /// Takes everything that a peer knew when its watch was at one version: what a table begins with
    /// until it has a list of its own, and what helps one whose watch hangs.
    ///
    /// What the own watch has passed it knows better: that stays, and a snapshot that is no newer is
    /// not taken at all. The rest is a peer's word, which the own list has yet to confirm; until then
    /// this table vouches for nothing, so hearsay goes no further.
    ///
    /// Other writers are let in between: what the table knows nothing about, which is nearly all for
    /// one that joins, is taken first, a few routes at a time and each as a peer's word like any other.
    /// That could have come at any moment and breaks no rule. What says that this is all, the base and
    /// what is dropped for it, comes at once and last, and looks at every key again.
    pub fn adopt(&self, snapshot: Snapshot, now: Duration) -> Resync {
        let listed = Listed::new(snapshot);
        let mut foretold = 0;
        let mut records = self.records.lock();
        for few in listed.routes().chunks(AT_ONCE) {
            foretold += records.foretell(&self.published, &listed, few);
            // Whoever waits is next.
            MutexGuard::bump(&mut records);
        }
        drop(records);
        self.settle(&listed, now, |records, published, listed, now| {
            records.adopt(published, listed, now, foretold)
        })
    }

    fn settle(
        &self,
        listed: &Listed,
        now: Duration,
        take: impl FnOnce(&mut Records, &Published, &Listed, Duration) -> Resync,
    ) -> Resync {
        let mut records = self.records.lock();
        let resync = take(&mut records, &self.published, listed, now);
        match resync {
            Resync::Taken { .. } => {}
            Resync::Older | Resync::OlderThanTold => return resync,
        }
        self.synced.store(true, Ordering::Release);
        self.sweep(&mut records, now);
        drop(records);
        if let Some(ear) = self.ear.get() {
            ear.resynced();
        }
        resync
    }

    /// Everything up to this version was delivered by the own watch and applied here.
    ///
    /// Routes and deletions up to there that only a peer has told of never were, or were of a store
    /// that was restored since: they go. Answers whether the store has to be listed again: because of
    /// those, whose keys may have other routes, or because a peer's snapshot was taken that the watch
    /// has passed now.
    pub fn watch_passed(&self, version: Version, now: Duration) -> bool {
        let mut records = self.records.lock();
        let is_doubtful = records.watch_passed(&self.published, version);
        self.sweep(&mut records, now);
        is_doubtful
    }

    /// How far the own watch has passed, or that of a peer whose snapshot was taken: everything up to
    /// this version is here.
    #[must_use]
    pub fn watched(&self) -> Version {
        self.records.lock().watched()
    }

    /// Whatever this table knows that is newer than a version: routes and tombstones. Who was told
    /// before names the stamp of that, and is told only what changed after it.
    ///
    /// Nothing if the table cannot vouch for that: it is not synced, or has forgotten some of it. Then
    /// only [`Table::everything`] will do. Waits for writers: not for the request path.
    #[must_use]
    pub fn since(&self, after: Version, told: Option<u64>) -> Option<Changes> {
        let records = self.records.lock();
        self.synced().then(|| records.since(after, told)).flatten()
    }

    /// All that this table knows; nothing if it is not synced, or by a peer's snapshot only. The same tables give the same order.
    /// Waits for writers: not for the request path.
    #[must_use]
    pub fn everything(&self) -> Option<Everything> {
        let records = self.records.lock();
        let mut all = self.synced().then(|| records.everything()).flatten()?;
        drop(records);
        all.snapshot.routes.sort_unstable_by(|a, b| {
            (a.version, &a.namespace, &a.name).cmp(&(b.version, &b.namespace, &b.name))
        });
        all.deletions.sort_unstable_by(|a, b| {
            (a.version, &a.namespace, &a.name).cmp(&(b.version, &b.namespace, &b.name))
        });
        Some(all)
    }

    /// The address of this version of a route did not answer. Withholds it, and only it: a newer
    /// one is never evicted.
    ///
    /// A withheld address returns with any newer version, with the next full snapshot, or when
    /// somebody has asked the store and says [`Table::restore_address`].
    pub fn report_stale(&self, id: &SandboxId, uid: Uid, version: Version) -> StaleReport {
        let mut records = self.records.lock();
        match self.lookup(id) {
            Some(route) if route.uid == uid && route.version == version => {
                records.withhold_address(&self.published, id);
                StaleReport::Withheld
            }
            Some(route) if route.uid == uid => StaleReport::Superseded(route),
            Some(_) | None => StaleReport::Gone,
        }
    }

    /// The store still names the withheld address of this version: it is published again.
    /// Answers whether there was such a one.
    pub fn restore_address(&self, id: &SandboxId, uid: Uid, version: Version) -> bool {
        self.records
            .lock()
            .restore_address(&self.published, id, uid, version)
    }

    /// Sizes, marks and counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.records.lock().stats()
    }

    #[cfg(test)]
    pub(crate) fn published_ids(&self) -> usize {
        self.published.len()
    }

    #[cfg(test)]
    pub(crate) fn tombstones(&self) -> Vec<(Namespace, Name, Version)> {
        self.records.lock().tombstones()
    }

    fn sweep(&self, records: &mut Records, now: Duration) {
        // An unsynced table does not know what its watch has missed.
        if self.synced() {
            records.sweep(now);
        }
    }
}
