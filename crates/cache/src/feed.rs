//! Feeds a route table from a store: a full snapshot first, then every change, and a full snapshot
//! again whenever the changes are lost.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kit::{Backoff, Clock, Entropy};
use model::{Spec as _, Version, sandbox::SandboxSpec};
use routes::{Deletion, Message, Route, Snapshot, Table, Writer};
use store::{Listing, Query, Record, Scope, Store, StoreError, WatchEvent};
use tokio::time::{Instant, sleep_until};

use crate::slots::Slots;

/// Between two tries to list.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    cap: Duration::from_secs(5),
};

/// What a feed needs.
#[derive(Clone, Debug)]
pub struct RouteFeed {
    /// Where sandboxes are recorded.
    pub store: Arc<dyn Store>,
    /// What is fed.
    pub table: Arc<Table>,
    /// Time, by which the table forgets.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for pauses.
    pub entropy: Arc<Entropy>,
    /// Is told how far it has come.
    pub watched: Watched,
}

/// How far a table was fed, for those who wait until readers of it go by a change. Clones share it.
#[derive(Clone, Debug)]
pub struct Watched(Arc<Reached>);

#[derive(Debug)]
struct Reached {
    version: AtomicU64,
    waits: Slots<Version>,
}

impl Default for Watched {
    fn default() -> Self {
        Self(Arc::new(Reached {
            version: AtomicU64::new(0),
            waits: Slots::new(),
        }))
    }
}

impl Watched {
    /// Everything up to this version was applied.
    #[must_use]
    pub fn version(&self) -> Version {
        Version::from_u64(self.0.version.load(Ordering::Acquire))
    }

    /// Waits until everything up to a version was applied. Answers whether it was, in time.
    pub async fn wait_for(&self, version: Version, deadline: Instant) -> bool {
        let ticket = self.0.waits.take_ticket(&version);
        let mut over = pin!(sleep_until(deadline));
        loop {
            // From here on no wake-up is missed; only then is it safe to look.
            let woken = ticket.woken();
            if self.version() >= version {
                return true;
            }
            tokio::select! {
                biased;
                () = woken => {}
                () = &mut over => return self.version() >= version,
            }
        }
    }

    fn passed(&self, version: Version) {
        self.0.version.fetch_max(version.to_u64(), Ordering::AcqRel);
        self.0.waits.wake_through(&version);
    }
}

impl RouteFeed {
    /// Feeds for ever, and tells `heard` of each change that the table was told of.
    pub async fn follow(&self, heard: impl Fn(&Message)) {
        let mut attempt = 0;
        loop {
            let Err(error) = self.once(&heard, &mut attempt).await else {
                continue;
            };
            tracing::debug!(%error, "the feed of routes lists again");
            attempt += 1;
            tokio::time::sleep(BACKOFF.delay(attempt, &self.entropy)).await;
        }
    }

    async fn once(&self, heard: &impl Fn(&Message), attempt: &mut u32) -> Result<(), StoreError> {
        let query = Query::kind(SandboxSpec::KIND);
        let Listing {
            records, version, ..
        } = self.store.list(&query).await?;
        let routes = records.iter().filter_map(|record| route_of(record));
        let routes = routes.map(Arc::new).collect();
        self.table
            .replace_all(Snapshot { version, routes }, self.clock.monotonic());
        self.watched.passed(version);
        let scope = Scope::kind(SandboxSpec::KIND);
        let mut watch = self.store.watch(scope, version).await?;
        *attempt = 0;
        loop {
            let event = watch.next().await?;
            let now = self.clock.monotonic();
            if let Some(message) = message_of(&event) {
                heard(&message);
                self.table.apply(Writer::Watch, message, now);
            }
            self.table.watch_passed(event.version(), now);
            self.watched.passed(event.version());
        }
    }
}

/// The route of a record. One that does not fit its type has none: it must not keep others from theirs.
fn route_of(record: &Record) -> Option<Route> {
    match record.decode::<SandboxSpec>() {
        Ok(sandbox) => Route::of(&sandbox),
        Err(error) => {
            tracing::warn!(%error, version = %record.version(), "a sandbox has no route");
            None
        }
    }
}

fn message_of(event: &WatchEvent) -> Option<Message> {
    match event {
        WatchEvent::Put { record, .. } => match route_of(record) {
            Some(route) => Some(Message::from(route)),
            None => deletion_of(record),
        },
        WatchEvent::Removed { record } => deletion_of(record),
        WatchEvent::Bookmark(_) => None,
    }
}

fn deletion_of(record: &Record) -> Option<Message> {
    Some(Message::Delete(Deletion {
        namespace: record.meta.namespace.clone()?,
        name: record.meta.name.clone(),
        version: record.version(),
    }))
}
