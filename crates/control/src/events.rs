//! What people read later: events, deduplicated and bounded, stored as records.
//!
//! Recording never slows a turn: it hands the event to a writer of its own through a bounded
//! queue. An event that finds the queue full is dropped and counted. The writer waits a moment for
//! more, and writes those of different objects at once: what people read later shares its commits,
//! and keeps out of the way of what somebody waits for.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use kit::{Clock, Tasks};
use model::{
    Event, Key, Metadata, Name, Namespace, Object, Spec, StringMap, Timestamp, Uid,
    event::{ABOUT_LABEL, About, EventSpec, MAX_EVENTS_PER_OBJECT},
};
use plan::Note;
use store::{Query, Store, StoreError, StoreExt as _};
use tokio::sync::mpsc;

/// Takes events.
pub trait EventSink: Send + Sync + Debug {
    /// Takes one; never waits.
    fn record(&self, about: About, note: Note);
}

/// What an event speaks of.
#[must_use]
pub fn about<S: Spec>(object: &Object<S>) -> About {
    About {
        kind: S::KIND.0.into(),
        namespace: object.metadata.namespace.clone(),
        name: object.metadata.name.clone(),
        uid: object.uid(),
    }
}

/// The sink that keeps nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn record(&self, _: About, _: Note) {}
}

/// The sink that stores events.
#[derive(Debug)]
pub struct StoredEvents {
    queue: mpsc::Sender<Recorded>,
    clock: Arc<dyn Clock>,
    dropped: Arc<AtomicU64>,
}

/// What happened, and when.
#[derive(Debug)]
struct Recorded {
    about: About,
    note: Note,
    at: Timestamp,
}

const QUEUED: usize = 1024;
/// How long the writer waits for more.
const GATHER: Duration = Duration::from_millis(20);
/// Namespace of events about objects that have none, as in Kubernetes.
const DEFAULT_NAMESPACE: &str = "default";

impl StoredEvents {
    /// Starts the writer.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, tasks: &Tasks) -> Self {
        let (queue, mut waiting) = mpsc::channel::<Recorded>(QUEUED);
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            loop {
                let first = tokio::select! {
                    biased;
                    () = stop.cancelled() => None,
                    next = waiting.recv() => next,
                };
                if first.is_some() {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(GATHER) => {}
                    }
                }
                let ends = first.is_none();
                let gathered = first
                    .into_iter()
                    .chain(std::iter::from_fn(|| waiting.try_recv().ok()));
                write_all(store.as_ref(), gathered).await;
                if ends {
                    return;
                }
            }
        });
        Self {
            queue,
            clock,
            dropped: Arc::default(),
        }
    }

    /// Events that found the queue full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl EventSink for StoredEvents {
    fn record(&self, about: About, note: Note) {
        let at = Timestamp::from_micros(self.clock.wall_micros());
        if self.queue.try_send(Recorded { about, note, at }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Those of one object one after the other, those of different ones at once.
async fn write_all(store: &dyn Store, events: impl Iterator<Item = Recorded>) {
    let mut by_object = BTreeMap::<Uid, Vec<Recorded>>::new();
    for event in events {
        by_object.entry(event.about.uid).or_default().push(event);
    }
    join_all(by_object.into_values().map(async |events| {
        for Recorded { about, note, at } in events {
            if let Err(error) = write(store, about, note, at).await {
                tracing::warn!(%error, "event not recorded");
            }
        }
    }))
    .await;
}

/// Stores an event, or counts it up; makes room where an object has too many. Answers the version
/// it was written at.
///
/// # Errors
/// If the store fails.
pub async fn write(
    store: &dyn Store,
    about: About,
    note: Note,
    now: Timestamp,
) -> Result<model::Version, StoreError> {
    let key = event_key(&about, &note);
    for _ in 0..3 {
        let known: Option<Event> = store.find(&key).await?;
        let written = match known {
            Some(mut event) => {
                event.spec.count += 1;
                event.spec.last_seen = now.max(event.spec.last_seen);
                store.update_spec(&event).await
            }
            None => {
                make_room(store, about.uid, key.namespace.clone()).await?;
                store
                    .create_object(&fresh(&key, about.clone(), note.clone(), now))
                    .await
            }
        };
        match written {
            Ok(event) => return Ok(event.version()),
            // Another writer was first: count on top of it.
            Err(
                StoreError::Conflict { .. }
                | StoreError::AlreadyExists(_)
                | StoreError::NotFound(_),
            ) => {}
            Err(error) => return Err(error),
        }
    }
    Err(StoreError::AlreadyExists(key))
}

fn fresh(key: &Key, about: About, note: Note, now: Timestamp) -> Event {
    let mut meta = Metadata::new(key.namespace.clone(), key.name.clone());
    meta.labels = [(ABOUT_LABEL, about.uid.to_string())]
        .into_iter()
        .collect::<StringMap>();
    let spec = EventSpec {
        about,
        severity: note.severity,
        reason: note.reason.into(),
        message: note.message,
        count: 1,
        first_seen: now,
        last_seen: now,
    };
    Event::new(meta, spec)
}

/// The same thing happening to the same object is the same event.
fn event_key(about: &About, note: &Note) -> Key {
    let uid = about.uid.to_string();
    let hash = fingerprint(&[&uid, note.reason, &note.message]);
    let name = format!("{:.40}-{hash:016x}", about.name.as_str());
    let namespace = about
        .namespace
        .clone()
        .or_else(|| Namespace::new(DEFAULT_NAMESPACE).ok());
    let name = Name::new(name).unwrap_or_else(|_| about.name.clone());
    Key {
        kind: EventSpec::KIND,
        namespace,
        name,
    }
}

async fn make_room(
    store: &dyn Store,
    uid: Uid,
    namespace: Option<Namespace>,
) -> Result<(), StoreError> {
    let query = Query {
        namespace,
        ..Query::kind(EventSpec::KIND)
    }
    .label(ABOUT_LABEL, uid.to_string());
    let (mut events, _) = store.list_objects::<EventSpec>(&query).await?;
    events.sort_by_key(|event| event.spec.last_seen);
    let surplus = (events.len() + 1).saturating_sub(MAX_EVENTS_PER_OBJECT);
    for event in events.iter().take(surplus) {
        match store.delete_object(event).await {
            Ok(_) | Err(StoreError::NotFound(_) | StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A short, stable hash (FNV-1a): for names, not for secrets.
#[must_use]
pub fn fingerprint(parts: &[&str]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // A separator no text contains keeps ("a", "bc") and ("ab", "c") apart.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}
