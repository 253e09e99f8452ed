//! The backend for tests and simulations: exact, in memory, and able to misbehave on request.
//!
//! What it can be told, through [`Faults`]:
//!
//! | Fault | What callers see |
//! |---|---|
//! | fail the nth write | an error before, or after, the write took effect |
//! | stale reads | `get` and `list` answer as of some versions ago |
//! | conflicts | a write that should succeed is refused as a conflict |
//! | lag | watches hold back what happened until told to go on |
//! | lost watches | every open watch ends as one that fell behind |
//!
//! Faults are decided by a hook, so that a simulation can draw them from its seed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use kit::{Clock, Entropy};
use model::{Incarnation, Key, Timestamp, Uid, Version};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Change, Deletion, Draft, Listing, Outcome, Precondition, Query, Record, Scope, Store,
    StoreError, Watch, WatchEvent,
    history::{Follower, History},
    rules::{self, Effect, Stamp},
};

/// Changes that watches can look back on, and versions that stale reads can go back to.
const REMEMBERED: usize = 4096;

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    state: Mutex<State>,
    history: Arc<History>,
    faults: Arc<Faults>,
    audit: Audit,
}

/// Told of every change at the moment it happens, whatever the faults.
#[derive(Default)]
struct Audit(Mutex<Option<AuditHook>>);

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Audit")
    }
}

#[derive(Debug)]
struct State {
    version: Version,
    records: BTreeMap<Key, Arc<Record>>,
    /// How to undo the latest changes, newest last: what stale reads are made from.
    undo: VecDeque<(Version, Key, Option<Arc<Record>>)>,
}

/// What to do to one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WriteFault {
    /// Nothing.
    #[default]
    None,
    /// Fail it before it takes effect.
    FailBefore,
    /// Let it take effect and then fail it, as a connection that breaks before the answer.
    FailAfter,
    /// Refuse it as if another writer had been first.
    Conflict,
}

type WriteHook = Box<dyn FnMut(u64) -> WriteFault + Send>;
type ReadHook = Box<dyn FnMut() -> usize + Send>;
type AuditHook = Box<dyn FnMut(&WatchEvent) + Send>;

/// How a memory store misbehaves. By default it does not.
#[derive(Default)]
pub struct Faults {
    writes: Mutex<(u64, Option<WriteHook>)>,
    reads: Mutex<Option<ReadHook>>,
    /// Watches do not look past this version; `None` for no limit.
    lag: Mutex<Option<Version>>,
    lag_changed: Notify,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults")
            .field("writes", &self.writes.lock().0)
            .finish_non_exhaustive()
    }
}

impl Faults {
    /// Asks `decide` about each write, by its number from 1 on.
    pub fn on_write(&self, decide: impl FnMut(u64) -> WriteFault + Send + 'static) {
        self.writes.lock().1 = Some(Box::new(decide));
    }

    /// Does `fault` to the `nth` write from now, and nothing to the others.
    pub fn fail_nth_write(&self, nth: u64, fault: WriteFault) {
        let target = self.writes.lock().0 + nth;
        self.on_write(move |n| if n == target { fault } else { WriteFault::None });
    }

    /// Asks `decide` how many changes behind each read is served.
    pub fn on_read(&self, decide: impl FnMut() -> usize + Send + 'static) {
        *self.reads.lock() = Some(Box::new(decide));
    }

    /// Stops the faults of writes and reads.
    pub fn clear(&self) {
        self.writes.lock().1 = None;
        *self.reads.lock() = None;
    }

    /// How many writes there were, failed ones included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.lock().0
    }

    fn next_write(&self) -> WriteFault {
        let (count, hook) = &mut *self.writes.lock();
        *count += 1;
        hook.as_mut()
            .map_or(WriteFault::None, |decide| decide(*count))
    }

    fn staleness(&self) -> usize {
        self.reads.lock().as_mut().map_or(0, |decide| decide())
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<Entropy>) -> Self {
        let version = Version::new(Incarnation(0), 0);
        Self {
            clock,
            entropy,
            state: Mutex::new(State {
                version,
                records: BTreeMap::new(),
                undo: VecDeque::new(),
            }),
            history: Arc::new(History::new(version, REMEMBERED)),
            faults: Arc::default(),
            audit: Audit::default(),
        }
    }

    /// Tells `hook` of every change at the moment it happens, whatever the faults: for checkers.
    pub fn audit(&self, hook: impl FnMut(&WatchEvent) + Send + 'static) {
        *self.audit.0.lock() = Some(Box::new(hook));
    }

    /// How it misbehaves.
    #[must_use]
    pub const fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Makes watches hold back everything that happens from now on, until [`Self::catch_up`].
    pub fn lag(&self) {
        *self.faults.lag.lock() = Some(self.history.head());
    }

    /// Lets watches go on.
    pub fn catch_up(&self) {
        *self.faults.lag.lock() = None;
        self.faults.lag_changed.notify_waiters();
    }

    /// Ends every open watch as one that fell behind.
    pub fn lose_watches(&self) {
        self.history.forget();
        // A watch that has seen everything is not behind; one change nobody asked for makes it so.
        let mut state = self.state.lock();
        state.version = state.version.next();
        self.history.publish([WatchEvent::Bookmark(state.version)]);
        drop(state);
        self.history.forget();
    }

    /// The records as they are, whatever the faults: for checkers.
    #[must_use]
    pub fn truth(&self) -> Vec<Arc<Record>> {
        self.state.lock().records.values().cloned().collect()
    }

    /// The last version, whatever the faults.
    #[must_use]
    pub fn version(&self) -> Version {
        self.state.lock().version
    }

    /// Fills in what a server decides by itself; see [`rules::fill_in`].
    ///
    /// # Errors
    /// As for an update.
    pub fn fill_in(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        let fault = self.faults.next_write();
        self.write(&change.key.clone(), fault, |current, at| {
            rules::fill_in(current, change, at)
        })
        .map(Effect::into_record)
    }

    /// Deletes a record that is given time to end by itself; see [`rules::delete_gracefully`].
    ///
    /// # Errors
    /// If the record is gone or the precondition does not hold.
    pub fn delete_gracefully(
        &self,
        key: &Key,
        only_if: Precondition,
        seconds: Option<u64>,
    ) -> Result<Deletion, StoreError> {
        let fault = self.faults.next_write();
        self.write(key, fault, |current, at| {
            rules::delete_gracefully(current, key, only_if, seconds, at)
        })
        .map(Effect::into_deletion)
    }

    fn write(
        &self,
        key: &Key,
        fault: WriteFault,
        effect: impl FnOnce(Option<&Arc<Record>>, Stamp) -> Result<Effect, StoreError>,
    ) -> Result<Effect, StoreError> {
        if fault == WriteFault::FailBefore {
            return Err(unavailable("injected before the write"));
        }
        let mut state = self.state.lock();
        let current = state.records.get(key);
        if let (WriteFault::Conflict, Some(record)) = (fault, current) {
            let (expected, actual) = (record.version(), record.version());
            return Err(StoreError::Conflict {
                key: key.clone(),
                expected,
                actual,
            });
        }
        let stamp = Stamp {
            version: state.version.next(),
            now: Timestamp::from_micros(self.clock.wall_micros()),
        };
        let effect = effect(current, stamp)?;
        if let Some(event) = state.apply(key, &effect, stamp.version) {
            if let Some(hook) = self.audit.0.lock().as_mut() {
                hook(&event);
            }
            // Under the lock, so that watchers see versions in order.
            self.history.publish([event]);
        }
        drop(state);
        match fault {
            WriteFault::FailAfter => Err(unavailable("injected after the write")),
            WriteFault::None | WriteFault::FailBefore | WriteFault::Conflict => Ok(effect),
        }
    }
}

/// An injected failure does not say whether the write happened: that is the point of it.
fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable {
        outcome: Outcome::Unknown,
        reason: reason.into(),
    }
}

impl State {
    fn apply(&mut self, key: &Key, effect: &Effect, version: Version) -> Option<WatchEvent> {
        let (previous, event) = match effect {
            Effect::Unchanged(_) => return None,
            Effect::Put(record) => {
                let previous = self.records.insert(key.clone(), Arc::clone(record));
                let record = Arc::clone(record);
                (previous.clone(), WatchEvent::Put { record, previous })
            }
            Effect::Remove(record) => (
                self.records.remove(key),
                WatchEvent::Removed {
                    record: Arc::clone(record),
                },
            ),
        };
        self.version = version;
        self.undo.push_back((version, key.clone(), previous));
        if self.undo.len() > REMEMBERED {
            self.undo.pop_front();
        }
        Some(event)
    }

    /// The records as they were `changes` changes ago, or as long ago as is remembered.
    fn as_of(&self, changes: usize) -> (BTreeMap<Key, Arc<Record>>, Version) {
        let mut records = self.records.clone();
        let mut version = self.version;
        for (at, key, previous) in self.undo.iter().rev().take(changes) {
            match previous {
                Some(record) => records.insert(key.clone(), Arc::clone(record)),
                None => records.remove(key),
            };
            version = Version::from_u64(at.to_u64() - 1);
        }
        (records, version)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        let behind = self.faults.staleness();
        let state = self.state.lock();
        if behind == 0 {
            return Ok(state.records.get(key).cloned());
        }
        Ok(state.as_of(behind).0.get(key).cloned())
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        let behind = self.faults.staleness();
        let state = self.state.lock();
        let past = (behind > 0).then(|| state.as_of(behind));
        let (records, version) = match &past {
            Some((records, version)) => (records, *version),
            None => (&state.records, state.version),
        };
        let after = query.after.as_ref();
        let mut found = records.values().filter(|record| {
            let place = (&record.meta.namespace, &record.meta.name);
            query.matches(record) && after.is_none_or(|(ns, name)| place > (ns, name))
        });
        let limit = query.limit.unwrap_or(usize::MAX);
        let records = found.by_ref().take(limit).cloned().collect();
        Ok(Listing {
            records,
            version,
            more: found.next().is_some(),
        })
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        let uid = Uid::from_random(self.entropy.u128());
        // Nobody is before a creation but a namesake, and that is another answer.
        let fault = match self.faults.next_write() {
            WriteFault::Conflict => WriteFault::None,
            other => other,
        };
        self.write(&draft.key(), fault, |current, at| {
            rules::create(current, draft, uid, at)
        })
        .map(Effect::into_record)
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        let fault = self.faults.next_write();
        self.write(&change.key.clone(), fault, |current, at| {
            rules::update(current, change, at)
        })
        .map(Effect::into_record)
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        let fault = self.faults.next_write();
        self.write(key, fault, |current, at| {
            rules::delete(current, key, only_if, at)
        })
        .map(Effect::into_deletion)
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        let inner = self.history.watch(scope, after)?;
        Ok(Box::new(LaggingWatch {
            inner,
            faults: Arc::clone(&self.faults),
            held: None,
        }))
    }
}

/// A watch that shows nothing newer than the lag allows.
#[derive(Debug)]
struct LaggingWatch {
    inner: Follower,
    faults: Arc<Faults>,
    /// Taken from the history, not shown yet. Kept here so that cancelling the wait loses nothing.
    held: Option<WatchEvent>,
}

#[async_trait]
impl Watch for LaggingWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        let version = match &self.held {
            Some(event) => event.version(),
            None => self.held.insert(self.inner.next().await?).version(),
        };
        loop {
            // Registered before looking, so that a change in between wakes the wait.
            let mut changed = std::pin::pin!(self.faults.lag_changed.notified());
            changed.as_mut().enable();
            if self.faults.lag.lock().is_none_or(|limit| version <= limit) {
                break;
            }
            changed.await;
        }
        match self.held.take() {
            Some(event) => Ok(event),
            None => self.inner.next().await,
        }
    }
}
