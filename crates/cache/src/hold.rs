//! Operations: one kind at a time on one object.
//!
//! Whoever is about to write an intent and wait for its effect holds the object for that kind of
//! operation first. The same kind joins; another is refused *before* anything is written, so two
//! callers can never mutate first and find out afterwards that each waits for what the other
//! undoes.
//!
//! A hold orders the callers of this process. What orders processes is the store's
//! compare-and-set.

use std::{collections::BTreeMap, sync::Arc};

use model::{Key, lifecycle::OperationKind};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::Instant;

use crate::{Cache, View, WaitError, place::Place};

/// Another kind of operation is held on the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("another operation is in progress: {current:?}")]
pub struct OperationConflict {
    /// What is held.
    pub current: OperationKind,
}

#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<BTreeMap<Place, Held>>);

#[derive(Debug)]
struct Held {
    kind: OperationKind,
    holders: usize,
}

impl Holds {
    fn acquire(&self, place: &Place, kind: OperationKind) -> Result<(), OperationConflict> {
        let mut holds = self.0.lock();
        let held = holds.entry(place.clone());
        let held = held.or_insert(Held { kind, holders: 0 });
        if held.kind != kind {
            return Err(OperationConflict { current: held.kind });
        }
        held.holders += 1;
        Ok(())
    }

    fn release(&self, place: &Place) {
        let mut holds = self.0.lock();
        if let Some(held) = holds.get_mut(place) {
            held.holders -= 1;
            if held.holders == 0 {
                holds.remove(place);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// An operation held on an object. Released when dropped.
#[derive(Debug)]
#[must_use = "dropping it lets go"]
pub struct Hold<V: View> {
    cache: Cache<V>,
    key: Key,
    kind: OperationKind,
}

impl<V: View> Hold<V> {
    pub(crate) fn acquire(
        cache: &Cache<V>,
        key: &Key,
        kind: OperationKind,
    ) -> Result<Self, OperationConflict> {
        cache.shared().holds.acquire(&Place::of(key), kind)?;
        Ok(Self {
            cache: cache.clone(),
            key: key.clone(),
            kind,
        })
    }

    /// What is held.
    #[must_use]
    pub const fn kind(&self) -> OperationKind {
        self.kind
    }

    /// On what.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Waits for a level of the held object, as [`Cache::wait_for`].
    ///
    /// # Errors
    /// If the deadline is reached or the cache stops.
    pub async fn wait_for<F>(
        &self,
        condition: F,
        deadline: Instant,
    ) -> Result<Option<Arc<V::Value>>, WaitError>
    where
        F: Fn(Option<&V::Value>) -> bool,
    {
        self.cache.wait_for(&self.key, condition, deadline).await
    }
}

impl<V: View> Drop for Hold<V> {
    fn drop(&mut self) {
        self.cache.shared().holds.release(&Place::of(&self.key));
    }
}
