//! The recent changes of an embedded store, from which its watches are served.
//!
//! One ring for all watchers: a change is kept once, each watcher holds only its position. A
//! watcher that the ring has left behind is told to list again; a slow one costs nothing and
//! slows nobody. A backend publishes here after a change is durable, never before.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use model::Version;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{Record, Scope, StoreError, Watch, WatchEvent};

/// The recent changes of one store.
#[derive(Debug)]
pub struct History {
    ring: Mutex<Ring>,
    head: watch::Sender<Version>,
    capacity: usize,
}

#[derive(Debug)]
struct Ring {
    /// Watches from here on can be served; older ones have missed something.
    floor: Version,
    changes: VecDeque<WatchEvent>,
}

impl History {
    /// A history that starts at a store's current version and remembers this many changes.
    #[must_use]
    pub fn new(at: Version, capacity: usize) -> Self {
        Self {
            ring: Mutex::new(Ring {
                floor: at,
                changes: VecDeque::new(),
            }),
            head: watch::Sender::new(at),
            capacity,
        }
    }

    /// The version of the last published change.
    #[must_use]
    pub fn head(&self) -> Version {
        *self.head.borrow()
    }

    /// Publishes durable changes, in the order of their versions.
    pub fn publish(&self, changes: impl IntoIterator<Item = WatchEvent>) {
        let mut ring = self.ring.lock();
        ring.changes.extend(changes);
        while ring.changes.len() > self.capacity {
            if let Some(forgotten) = ring.changes.pop_front() {
                ring.floor = forgotten.version();
            }
        }
        let Some(head) = ring.changes.back().map(WatchEvent::version) else {
            return;
        };
        drop(ring);
        self.head.send_if_modified(|at| {
            let moved = head > *at;
            *at = head.max(*at);
            moved
        });
    }

    /// Forgets all changes, so that every watcher has to list again. For tests of that path.
    pub fn forget(&self) {
        let mut ring = self.ring.lock();
        ring.changes.clear();
        ring.floor = self.head();
    }

    /// Follows the changes after a version.
    ///
    /// # Errors
    /// If some of them are forgotten, or the version is of another incarnation.
    pub fn watch(self: &Arc<Self>, scope: Scope, after: Version) -> Result<Follower, StoreError> {
        let ring = self.ring.lock();
        if after < ring.floor || after.incarnation() != self.head().incarnation() {
            return Err(StoreError::Expired { after });
        }
        drop(ring);
        let head = self.head.subscribe();
        Ok(Follower {
            history: Arc::clone(self),
            head,
            scope,
            at: after,
            told: after,
            pending: VecDeque::new(),
        })
    }
}

/// A watch on a [`History`].
#[derive(Debug)]
pub struct Follower {
    history: Arc<History>,
    head: watch::Receiver<Version>,
    scope: Scope,
    /// Everything up to here was looked at.
    at: Version,
    /// Everything up to here was told to the watcher.
    told: Version,
    pending: VecDeque<WatchEvent>,
}

/// How many changes a watcher takes out of the ring at a time: bounds how long it holds the lock.
const BATCH: usize = 256;

impl Follower {
    fn refill(&mut self) -> Result<(), StoreError> {
        let ring = self.history.ring.lock();
        if self.at < ring.floor {
            return Err(StoreError::Expired { after: self.at });
        }
        let start = ring
            .changes
            .partition_point(|change| change.version() <= self.at);
        for change in ring.changes.range(start..).take(BATCH) {
            self.at = change.version();
            let record: &Record = match change {
                WatchEvent::Put { record, .. } | WatchEvent::Removed { record } => record,
                WatchEvent::Bookmark(_) => continue,
            };
            if self.scope.covers(&record.key()) {
                self.pending.push_back(change.clone());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Watch for Follower {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                self.told = change.version();
                return Ok(change);
            }
            // Mark the head as seen before looking, so that a change in between wakes the wait.
            let head = *self.head.borrow_and_update();
            if self.at < head {
                self.refill()?;
                continue;
            }
            if self.told < self.at {
                self.told = self.at;
                return Ok(WatchEvent::Bookmark(self.at));
            }
            // The sender lives in the history this holds, so it cannot be gone.
            if self.head.changed().await.is_err() {
                return Err(StoreError::Expired { after: self.at });
            }
        }
    }
}
