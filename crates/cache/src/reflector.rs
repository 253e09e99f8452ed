//! The one writer of a cache: lists, follows, resumes, lists again.
//!
//! ```text
//!  start ──▶ List ──▶ Follow ──▶ watch lost: back off ──▶ Follow, from the last version
//!              ▲         │
//!              └─────────┴─▶ version expired (first time at once, then backing off)
//!                        └─▶ refused for good, panic, told to stop ──▶ Stopped
//! ```
//!
//! # Why nothing goes back, without tombstones
//!
//! The table is what the store held at version *A*, and moves only by whole steps: a listing at
//! *L* > *A*, in full, or the next changes of a watch, in order. So:
//!
//! - A listing at *L* ≤ *A* (a replica that lags) says nothing that is not in the table already.
//!   Its content is not looked at: it cannot regress an object, nor bring back one whose removal
//!   was seen. Following it from *L* replays changes up to *A*, which are dropped for the same
//!   reason, and then goes on without a gap.
//! - A listing at *L* > *A* knows every removal up to *A*. What it does not have is removed, as of
//!   *L*; what it has at the version that is cached is neither decoded nor announced.
//!
//! A record that cannot be decoded is counted, logged once and left out. If an older version of it
//! is cached, that stays: an object that is there must not look removed.

use std::{future::ready, sync::Arc};

use kit::{Backoff, Entropy, Tasks};
use model::Version;
use store::{Query, Record, Scope, Store, StoreError, WatchEvent};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    Health, Identified as _, Names, Options, StartError, StopReason, View,
    cache::Shared,
    place::{Place, place_of_record},
    table::Step,
};

/// Most changes applied under one lock: bounds how long a reader can be kept waiting.
const BATCH: usize = 64;

/// Syncs for the first time, then leaves a task to follow. Answers with the token that stops it.
pub(crate) async fn start<V: View>(
    store: Arc<dyn Store>,
    options: Options,
    deadline: Instant,
    tasks: &Tasks,
) -> Result<(Arc<Shared<V>>, CancellationToken), StartError> {
    let stop = tasks.stopping().child_token();
    let shared = Arc::new(Shared::new());
    let mut reflector = Reflector::<V> {
        store,
        shared: Arc::clone(&shared),
        query: options.query::<V>(),
        backoff: options.backoff,
        entropy: options.entropy,
        names: Names::default(),
        synced: false,
        resume: Version::ZERO,
        failures: 0,
    };
    let mut last = None;
    tokio::select! {
        biased;
        () = stop.cancelled() => return Err(StartError::Told),
        synced = timeout_at(deadline, reflector.first_sync(&mut last)) => match synced {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(StartError::Refused(error)),
            Err(_) => return Err(StartError::DeadlineReached { last }),
        },
    }
    let following = tasks.spawn({
        let stop = stop.clone();
        async move { reflector.run(&stop).await }
    });
    // A second task, because a panic takes the first one with it and must not pass unnoticed.
    tasks.spawn({
        let shared = Arc::clone(&shared);
        async move {
            let reason = match following.await {
                Ok(reason) => reason,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => StopReason::Panicked(panic_message(&*panic)),
                    Err(_) => StopReason::Told,
                },
            };
            stop_shared(&shared, reason);
        }
    });
    Ok((shared, stop))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> Arc<str> {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").into()
}

fn stop_shared<V: View>(shared: &Shared<V>, reason: StopReason) {
    match &reason {
        StopReason::Told => tracing::debug!(kind = %V::KIND, "cache stopped"),
        StopReason::Refused(_) | StopReason::Panicked(_) => {
            tracing::error!(kind = %V::KIND, error = %reason, "cache stopped");
        }
    }
    // First the state, then the wake-ups: whoever is woken finds it.
    shared.health.send_replace(Health::Stopped(reason));
    shared.waits.wake_all();
    shared.version_waits.wake_all();
    shared.inboxes.wake_all();
}

struct Reflector<V: View> {
    store: Arc<dyn Store>,
    shared: Arc<Shared<V>>,
    query: Query,
    backoff: Backoff,
    entropy: Arc<Entropy>,
    names: Names,
    /// Whether a listing was ever applied.
    synced: bool,
    /// Where the next watch continues.
    resume: Version,
    /// Failures since the store last told us something.
    failures: u32,
}

impl<V: View> Reflector<V> {
    async fn first_sync(&mut self, last: &mut Option<StoreError>) -> Result<(), StoreError> {
        loop {
            match self.sync().await {
                Ok(()) => {
                    self.failures = 0;
                    return Ok(());
                }
                Err(error) if error.is_retryable() => *last = Some(error),
                Err(error) => return Err(error),
            }
            self.failures += 1;
            sleep(self.backoff.delay(self.failures, &self.entropy)).await;
        }
    }

    async fn run(mut self, stop: &CancellationToken) -> StopReason {
        tokio::select! {
            biased;
            () = stop.cancelled() => StopReason::Told,
            error = self.follow_for_ever() => StopReason::Refused(Arc::new(error)),
        }
    }

    /// Ends only with an error that trying again does not mend.
    async fn follow_for_ever(&mut self) -> StoreError {
        let mut expired = false;
        loop {
            let error = match self.turn(expired).await {
                Ok(error) => {
                    expired = false;
                    error
                }
                Err(error) => error,
            };
            if !error.is_retryable() {
                return error;
            }
            expired |= matches!(error, StoreError::Expired { .. });
            self.failures += 1;
            // Falling behind is nobody's failure and is mended by a list; again and again is.
            if expired && self.failures == 1 {
                continue;
            }
            self.note_failure(error);
            sleep(self.backoff.delay(self.failures, &self.entropy)).await;
        }
    }

    /// Lists if need be, then follows until the watch is lost. `Err` is a failed list.
    async fn turn(&mut self, list: bool) -> Result<StoreError, StoreError> {
        if list {
            self.sync().await?;
            self.shared.notes.lock().relists += 1;
        }
        let error = self.follow().await;
        let mut notes = self.shared.notes.lock();
        notes.lost_watches += 1;
        notes.lost.get_or_insert_with(Instant::now);
        Ok(error)
    }

    async fn follow(&mut self) -> StoreError {
        let scope = Scope {
            kind: self.query.kind,
            namespace: self.query.namespace.clone(),
        };
        let mut watch = match self.store.watch(scope, self.resume).await {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        let opened = Instant::now();
        self.note_open();
        loop {
            let mut ended = None;
            let mut events = match watch.next().await {
                Ok(event) => vec![event],
                Err(error) => {
                    // One that was lost after a long quiet is not one that keeps failing.
                    if opened.elapsed() >= self.backoff.cap {
                        self.failures = 0;
                    }
                    return error;
                }
            };
            // Whatever else is there already goes under the same lock.
            while events.len() < BATCH && ended.is_none() {
                tokio::select! {
                    biased;
                    next = watch.next() => match next {
                        Ok(event) => events.push(event),
                        Err(error) => ended = Some(error),
                    },
                    () = ready(()) => break,
                }
            }
            let full = events.len() >= BATCH;
            self.apply_events(&events);
            self.failures = 0;
            if let Some(error) = ended {
                return error;
            }
            if full {
                // A store that always has more must not keep this thread to itself.
                tokio::task::yield_now().await;
            }
        }
    }

    fn apply_events(&mut self, events: &[WatchEvent]) {
        let known = self.shared.table.read().version();
        let mut steps = Vec::with_capacity(events.len());
        let mut reached = known;
        for event in events {
            reached = reached.max(event.version());
            if event.version() <= known {
                continue;
            }
            match event {
                WatchEvent::Put { record, .. } => steps.extend(self.step(record)),
                WatchEvent::Removed { record } => steps.push(self.removal(record)),
                WatchEvent::Bookmark(_) => {}
            }
        }
        {
            let mut notes = self.shared.notes.lock();
            notes.events += events.len() as u64;
            notes.heard = Instant::now();
        }
        self.apply(steps, Some(reached));
        self.resume = reached;
    }

    /// Lists, and makes the table what the listing says unless it knows better already.
    async fn sync(&mut self) -> Result<(), StoreError> {
        let mut listing = self.store.list(&self.query).await?;
        self.resume = listing.version;
        let known = self.shared.table.read().version();
        {
            let mut notes = self.shared.notes.lock();
            notes.heard = Instant::now();
            if self.synced && listing.version < known {
                notes.stale_lists += 1;
            }
        }
        if self.synced && listing.version <= known {
            return Ok(());
        }
        // Ordered by the port's contract; what follows would remove live objects if it were not.
        listing
            .records
            .sort_by(|a, b| place_of_record(a).cmp(&place_of_record(b)));
        let gone = {
            let table = self.shared.table.read();
            table.missing_from(listing.records.iter().map(|record| place_of_record(record)))
        };
        self.shared.notes.lock().keep_undecodable(&listing.records);
        let at = listing.version;
        for chunk in gone.chunks(BATCH) {
            let removals = chunk.iter().map(|place| Step::Remove {
                place: place.clone(),
                at,
            });
            self.apply(removals.collect(), None);
            tokio::task::yield_now().await;
        }
        for chunk in listing.records.chunks(BATCH) {
            let steps = self.newer_than_cached(chunk);
            let steps: Vec<_> = steps.into_iter().filter_map(|r| self.step(r)).collect();
            if !steps.is_empty() {
                self.apply(steps, None);
            }
            tokio::task::yield_now().await;
        }
        // Only now: whoever waits for this version finds all of it.
        self.apply(Vec::new(), Some(at));
        self.synced = true;
        Ok(())
    }

    /// An unchanged record costs a comparison: it is not decoded again.
    fn newer_than_cached<'r>(&self, records: &'r [Arc<Record>]) -> Vec<&'r Record> {
        let table = self.shared.table.read();
        let is_newer = |record: &&Record| {
            let cached = table.get(&Place::of_record(record));
            cached.is_none_or(|value| value.version() < record.version())
        };
        records.iter().map(|r| &**r).filter(is_newer).collect()
    }

    /// What a record means for the table; `None` if it cannot be decoded.
    fn step(&mut self, record: &Record) -> Option<Step<V::Value>> {
        // The watch knows no selector: an object that has left it arrives as any other change.
        if !self.query.matches(record) {
            return Some(self.removal(record));
        }
        match V::project(record, &mut self.names) {
            Ok(value) => {
                self.shared.notes.lock().decoded(record);
                Some(Step::Put(Arc::new(value)))
            }
            Err(error) => {
                self.shared.notes.lock().undecodable(record, error);
                None
            }
        }
    }

    fn removal(&self, record: &Record) -> Step<V::Value> {
        self.shared.notes.lock().decoded(record);
        Step::Remove {
            place: Place::of_record(record),
            at: record.version(),
        }
    }

    /// Takes the steps under the lock, and wakes whom they concern after it.
    fn apply(&self, steps: Vec<Step<V::Value>>, reached: Option<Version>) {
        let mut changed = Vec::with_capacity(steps.len());
        let version = {
            let mut table = self.shared.table.write();
            changed.extend(steps.into_iter().filter_map(|step| table.apply(step)));
            if let Some(reached) = reached {
                table.advance(reached);
            }
            table.version()
        };
        if !changed.is_empty() {
            let places = changed.iter().map(|(place, _)| place);
            self.shared.waits.wake(places.clone());
            self.shared.inboxes.announce(&places);
        }
        self.shared.version_waits.wake_through(&version);
    }

    fn note_open(&self) {
        {
            let mut notes = self.shared.notes.lock();
            notes.lost = None;
            notes.heard = Instant::now();
        }
        self.shared.health.send_if_modified(|health| {
            let was_lost = !matches!(health, Health::Live);
            *health = Health::Live;
            was_lost
        });
    }

    fn note_failure(&self, error: StoreError) {
        tracing::warn!(kind = %V::KIND, %error, failures = self.failures, "cache lost its store");
        let (error, failures) = (Arc::new(error), self.failures);
        self.shared.health.send_modify(|health| {
            let since = match health {
                Health::Retrying { since, .. } => *since,
                Health::Live | Health::Stopped(_) => Instant::now(),
            };
            *health = Health::Retrying {
                error,
                failures,
                since,
            };
        });
    }
}
