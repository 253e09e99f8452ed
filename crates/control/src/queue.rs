//! Keys to look at, and when.
//!
//! A key is queued at most once, at the earliest time anybody asked for. Keys map to lanes; a key
//! whose lane is busy stays queued until the lane is free, so two turns of one lane never overlap.
//! A key that is added during its own turn is looked at once more after it.
//!
//! One waiter is woken for one thing to do. Whoever takes a key wakes the next one, if more is
//! queued, so that somebody always waits for the earliest time that is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use kit::{Backoff, Entropy};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// A queue of keys `K`, serialised by lanes `L`.
#[derive(Debug)]
pub struct WorkQueue<K: Ord, L: Ord> {
    state: Mutex<State<K, L>>,
    changed: Notify,
    backoff: Backoff,
    entropy: Arc<Entropy>,
}

#[derive(Debug)]
struct State<K: Ord, L: Ord> {
    /// By time, then in the order of asking.
    order: BTreeMap<(Instant, u64), K>,
    place: BTreeMap<K, (Instant, u64)>,
    asked: u64,
    busy: BTreeSet<L>,
    failures: BTreeMap<K, u32>,
    /// Keys that had better not be looked at before a time.
    resting: BTreeMap<K, Instant>,
}

/// The right to work on a key. Its lane is free again when this is dropped.
#[derive(Debug)]
pub struct Turn<K: Ord, L: Ord> {
    queue: Arc<WorkQueue<K, L>>,
    key: K,
    lane: L,
}

impl<K: Ord, L: Ord> Turn<K, L> {
    /// The key to work on.
    pub const fn key(&self) -> &K {
        &self.key
    }
}

impl<K: Ord, L: Ord> Drop for Turn<K, L> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.busy.remove(&self.lane);
        let more = !state.order.is_empty();
        drop(state);
        if more {
            self.queue.changed.notify_one();
        }
    }
}

impl<K: Ord + Clone + Debug, L: Ord + Clone + Debug> WorkQueue<K, L> {
    /// An empty queue.
    #[must_use]
    pub fn new(backoff: Backoff, entropy: Arc<Entropy>) -> Self {
        Self {
            state: Mutex::new(State {
                order: BTreeMap::new(),
                place: BTreeMap::new(),
                asked: 0,
                busy: BTreeSet::new(),
                failures: BTreeMap::new(),
                resting: BTreeMap::new(),
            }),
            changed: Notify::new(),
            backoff,
            entropy,
        }
    }

    /// Asks for a look at a key, at this time or earlier; later only if it rests until then.
    pub fn add(&self, key: K, at: Instant) {
        let mut state = self.state.lock();
        let at = state.resting.get(&key).map_or(at, |until| at.max(*until));
        if let Some(place) = state.place.get(&key).copied() {
            if place.0 <= at {
                return;
            }
            state.order.remove(&place);
        }
        state.asked += 1;
        let place = (at, state.asked);
        state.order.insert(place, key.clone());
        state.place.insert(key, place);
        drop(state);
        self.changed.notify_one();
    }

    /// Looks at a key no sooner than at this time, whoever asks or has asked: what changes until
    /// then is seen in one look.
    pub fn rest(&self, key: K, until: Instant) {
        let now = Instant::now();
        let mut state = self.state.lock();
        // Few at a time: a key that nobody asks for again is not remembered for ever.
        state.resting.retain(|_, until| *until > now);
        if let Some(place) = state.place.get(&key).copied()
            && place.0 < until
        {
            state.order.remove(&place);
            let place = (until, place.1);
            state.order.insert(place, key.clone());
            state.place.insert(key.clone(), place);
        }
        state.resting.insert(key, until);
    }

    /// Asks for a look after a failure: later with each failure in a row.
    pub fn retry(&self, key: K) {
        let failures = {
            let mut state = self.state.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            *failures += 1;
            *failures
        };
        let delay = self.backoff.delay(failures, &self.entropy);
        self.add(key, Instant::now() + delay);
    }

    /// Ends a row of failures.
    pub fn succeeded(&self, key: &K) {
        self.state.lock().failures.remove(key);
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self, key: &K) -> u32 {
        self.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Keys waiting to be looked at, now or later.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().order.len()
    }

    /// Whether no key waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a turn is under way, or a key is due by `by`.
    #[must_use]
    pub fn is_busy(&self, by: Instant) -> bool {
        let state = self.state.lock();
        !state.busy.is_empty() || state.order.keys().next().is_some_and(|(at, _)| *at <= by)
    }

    /// The next key that is due and whose lane is free. Cancelling the wait loses nothing.
    pub async fn next(self: &Arc<Self>, lane_of: impl Fn(&K) -> L) -> Turn<K, L> {
        loop {
            // Registered before looking, so that an addition in between is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let later = match self.take(&lane_of) {
                Ok(turn) => return turn,
                Err(later) => later,
            };
            match later {
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep_until(at) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    fn take(self: &Arc<Self>, lane_of: impl Fn(&K) -> L) -> Result<Turn<K, L>, Option<Instant>> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut found = None;
        for (place, key) in &state.order {
            if place.0 > now {
                // A held key has no time of its own: its lane's end wakes us.
                return Err(Some(place.0));
            }
            let lane = lane_of(key);
            if !state.busy.contains(&lane) {
                found = Some((*place, lane));
                break;
            }
        }
        let Some((place, lane)) = found else {
            return Err(None);
        };
        let Some(key) = state.order.remove(&place) else {
            return Err(None);
        };
        state.place.remove(&key);
        state.resting.remove(&key);
        state.busy.insert(lane.clone());
        let more = !state.order.is_empty();
        drop(state);
        if more {
            self.changed.notify_one();
        }
        Ok(Turn {
            queue: Arc::clone(self),
            key,
            lane,
        })
    }
}

#[cfg(test)]
mod tests;
