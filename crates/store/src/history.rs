//! The recent changes of an embedded store, from which its watches are served.
//!
//! One ring for all watchers: a change is kept once, each watcher holds only its position. A
//! watcher that the ring has left behind is told to list again; a slow one costs nothing and
//! slows nobody. A backend publishes here after a change is durable, never before.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use model::Version;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Record, Scope, StoreError, Watch, WatchEvent};

/// The recent changes of one store.
///
/// Followers are woken through a [`Notify`], in the order in which they began to wait: a `watch`
/// channel would wake them in random order, and simulations could not be replayed.
#[derive(Debug)]
pub struct History {
    ring: Mutex<Ring>,
    moved: Notify,
    capacity: usize,
}

#[derive(Debug)]
struct Ring {
    /// Watches from here on can be served; older ones have missed something.
    floor: Version,
    /// The version of the last published change.
    head: Version,
    changes: VecDeque<WatchEvent>,
}

impl History {
    /// A history that starts at a store's current version and remembers this many changes.
    #[must_use]
    pub fn new(at: Version, capacity: usize) -> Self {
        let ring = Ring {
            floor: at,
            head: at,
            changes: VecDeque::new(),
        };
        Self {
            ring: Mutex::new(ring),
            moved: Notify::new(),
            capacity,
        }
    }

    /// The version of the last published change.
    #[must_use]
    pub fn head(&self) -> Version {
        self.ring.lock().head
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
        ring.head = head.max(ring.head);
        drop(ring);
        self.moved.notify_waiters();
    }

    /// Forgets all changes, so that every watcher has to list again. For tests of that path.
    pub fn forget(&self) {
        let mut ring = self.ring.lock();
        ring.changes.clear();
        ring.floor = ring.head;
    }

    /// Follows the changes after a version.
    ///
    /// # Errors
    /// If some of them are forgotten, or the version is of another incarnation.
    pub fn watch(self: &Arc<Self>, scope: Scope, after: Version) -> Result<Follower, StoreError> {
        let ring = self.ring.lock();
        if after < ring.floor || after.incarnation() != ring.head.incarnation() {
            return Err(StoreError::Expired { after });
        }
        drop(ring);
        Ok(Follower {
            history: Arc::clone(self),
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
            // Registered before looking, so that a change in between wakes the wait.
            let history = Arc::clone(&self.history);
            let mut moved = std::pin::pin!(history.moved.notified());
            moved.as_mut().enable();
            if self.at < history.head() {
                self.refill()?;
                continue;
            }
            if self.told < self.at {
                self.told = self.at;
                return Ok(WatchEvent::Bookmark(self.at));
            }
            moved.await;
        }
    }
}
