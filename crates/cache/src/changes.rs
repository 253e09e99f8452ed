//! Dirty keys: what feeds a work queue.
//!
//! A subscription says *which* objects to look at, never what happened to them: a key that changed
//! a thousand times before anybody looked is there once. So it takes no more memory than there are
//! keys, however slow its reader, and it cannot lose one. It begins with every key there is, so
//! that "all existing" and "all later" need no second path.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Weak},
};

use model::Key;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Cache, StopReason, View, place::Place};

/// The keys that changed since they were last taken, oldest first.
#[derive(Debug)]
pub struct Changes<V: View> {
    cache: Cache<V>,
    inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    dirty: Mutex<Dirty>,
    filled: Notify,
}

/// First in, first out: taken in the order of keys, a busy early one would starve the late.
#[derive(Debug, Default)]
struct Dirty {
    order: VecDeque<Place>,
    members: BTreeSet<Place>,
}

impl Inbox {
    fn add<'p>(&self, places: impl Iterator<Item = &'p Place>) {
        let mut dirty = self.dirty.lock();
        for place in places {
            if dirty.members.insert(place.clone()) {
                dirty.order.push_back(place.clone());
            }
        }
        drop(dirty);
        // Keeps a permit if the reader is not waiting yet, so it cannot miss this.
        self.filled.notify_one();
    }

    fn take(&self, most: usize) -> Vec<Place> {
        let mut dirty = self.dirty.lock();
        let count = most.min(dirty.order.len());
        let taken: Vec<_> = dirty.order.drain(..count).collect();
        for place in &taken {
            dirty.members.remove(place);
        }
        if dirty.order.is_empty() {
            // The first fill is as large as the cache; do not keep room for it for ever.
            *dirty = Dirty::default();
        }
        taken
    }
}

/// Everybody who subscribed.
#[derive(Debug, Default)]
pub(crate) struct Inboxes(Mutex<Vec<Weak<Inbox>>>);

impl Inboxes {
    fn live(&self) -> Vec<Arc<Inbox>> {
        let mut inboxes = self.0.lock();
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        inboxes.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn announce<'p>(&self, places: &(impl Iterator<Item = &'p Place> + Clone)) {
        for inbox in self.live() {
            inbox.add(places.clone());
        }
    }

    /// Lets every reader look whether the cache has stopped.
    pub(crate) fn wake_all(&self) {
        for inbox in self.live() {
            inbox.filled.notify_one();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live().len()
    }
}

impl<V: View> Changes<V> {
    pub(crate) fn subscribe(cache: &Cache<V>) -> Self {
        let inbox = Arc::new(Inbox::default());
        // Enlist, then look: a change after the look is announced, one before it is seen.
        let shared = cache.shared();
        shared.inboxes.0.lock().push(Arc::downgrade(&inbox));
        inbox.add(shared.table.read().places());
        Self {
            cache: cache.clone(),
            inbox,
        }
    }

    /// The next key to look at. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// If the cache has stopped: nobody should act on one that has.
    pub async fn next(&mut self) -> Result<Key, StopReason> {
        loop {
            let batch = self.next_batch(1).await?;
            if let Some(key) = batch.into_iter().next() {
                return Ok(key);
            }
        }
    }

    /// The next keys to look at, at least one and at most `most`. Cancelling the wait loses
    /// nothing.
    ///
    /// # Errors
    /// If the cache has stopped: nobody should act on one that has.
    pub async fn next_batch(&mut self, most: usize) -> Result<Vec<Key>, StopReason> {
        loop {
            if let Some(reason) = self.cache.shared().stop_reason() {
                return Err(reason);
            }
            let taken = self.inbox.take(most.max(1));
            if !taken.is_empty() {
                return Ok(taken.into_iter().map(|p| p.into_key(V::KIND)).collect());
            }
            self.inbox.filled.notified().await;
        }
    }

    /// How many keys wait to be taken.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.inbox.dirty.lock().order.len()
    }
}
