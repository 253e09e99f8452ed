//! Who is waiting for what: one wake-up per key, shared by all who wait for that key.
//!
//! A key has an entry exactly while somebody holds a [`Ticket`] for it. The order that makes it
//! impossible to miss a change: a waiter takes its ticket, then looks at the level, then waits; the
//! writer changes the level, then wakes. Whichever way the two interleave, the waiter either sees
//! the new level or is there to be woken.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

#[derive(Debug)]
pub(crate) struct Slots<K>(Mutex<BTreeMap<K, Slot>>);

#[derive(Debug, Default)]
struct Slot {
    /// Counted here and not by the `Arc`: the writer borrows that for the moment of waking.
    tickets: usize,
    wake: Arc<Notify>,
}

/// A place among those who are woken. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'s, K: Ord> {
    slots: &'s Slots<K>,
    key: K,
    wake: Arc<Notify>,
}

impl<K: Ord + Clone> Slots<K> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn take_ticket(&self, key: &K) -> Ticket<'_, K> {
        let mut slots = self.0.lock();
        let slot = slots.entry(key.clone()).or_default();
        slot.tickets += 1;
        Ticket {
            slots: self,
            key: key.clone(),
            wake: Arc::clone(&slot.wake),
        }
    }

    /// Wakes those who wait for any of these keys.
    pub(crate) fn wake<'k>(&self, keys: impl Iterator<Item = &'k K>)
    where
        K: 'k,
    {
        let slots = self.0.lock();
        if slots.is_empty() {
            return;
        }
        let woken: Vec<_> = keys
            .filter_map(|key| slots.get(key))
            .map(|slot| Arc::clone(&slot.wake))
            .collect();
        drop(slots);
        woken.iter().for_each(|wake| wake.notify_waiters());
    }

    /// Wakes those who wait for a key up to this one.
    pub(crate) fn wake_through(&self, last: &K) {
        let woken: Vec<_> = {
            let slots = self.0.lock();
            let due = slots.range(..=last.clone());
            due.map(|(_, slot)| Arc::clone(&slot.wake)).collect()
        };
        woken.iter().for_each(|wake| wake.notify_waiters());
    }

    /// Wakes everybody.
    pub(crate) fn wake_all(&self) {
        let woken: Vec<_> = {
            let slots = self.0.lock();
            slots.values().map(|slot| Arc::clone(&slot.wake)).collect()
        };
        woken.iter().for_each(|wake| wake.notify_waiters());
    }

    /// How many keys somebody waits for.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl<K: Ord> Ticket<'_, K> {
    /// Completes at the first wake-up after this call, whenever it is first polled.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.wake.notified()
    }
}

impl<K: Ord> Drop for Ticket<'_, K> {
    fn drop(&mut self) {
        let mut slots = self.slots.0.lock();
        if let Some(slot) = slots.get_mut(&self.key) {
            slot.tickets -= 1;
            if slot.tickets == 0 {
                slots.remove(&self.key);
            }
        }
    }
}
