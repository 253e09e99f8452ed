//! Feeds a route table from a store: a full snapshot first, then every change, and a full snapshot
//! again whenever the changes are lost, or do not bear out what other processes said.
//!
//! A table may know more than the list, from others. A list that lags catches up with them; one that
//! does not is that of a store which went back, and then nothing that goes by versions is right any
//! more: see [`Watched::went_back`].

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
use routes::{Deletion, Message, Resync, Route, Snapshot, Table, Writer};
use store::{Listing, Query, Record, Scope, Store, StoreError, WatchEvent};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::slots::Slots;

/// Between two tries to list.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    cap: Duration::from_secs(5),
};
/// How long lists may be older than what others told, before the store counts as one that went back.
const LAGGING: Duration = Duration::from_secs(30);
/// The least time between two lists because others said what the watch does not bear out.
const CALM: Duration = Duration::from_secs(1);

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
    went_back: CancellationToken,
}

impl Default for Watched {
    fn default() -> Self {
        Self(Arc::new(Reached {
            version: AtomicU64::new(0),
            waits: Slots::new(),
            went_back: CancellationToken::new(),
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

    /// Waits until the store was seen to have gone back, as one that was restored from a backup: behind
    /// what other processes have told of it. What this process knows is no more.
    pub async fn went_back(&self) {
        self.0.went_back.cancelled().await;
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
        let mut lagging = None;
        loop {
            match self.once(&heard, &mut attempt, &mut lagging).await {
                Ok(Again::Doubted { listed }) => {
                    tracing::warn!("others told of what the store does not have: lists again");
                    sleep_until(listed + CALM).await;
                    continue;
                }
                Ok(Again::Lags) => {}
                Err(error) => tracing::debug!(%error, "the feed of routes lists again"),
            }
            attempt += 1;
            tokio::time::sleep(BACKOFF.delay(attempt, &self.entropy)).await;
        }
    }

    async fn once(
        &self,
        heard: &impl Fn(&Message),
        attempt: &mut u32,
        lagging: &mut Option<Instant>,
    ) -> Result<Again, StoreError> {
        let query = Query::kind(SandboxSpec::KIND);
        let Listing {
            records, version, ..
        } = self.store.list(&query).await?;
        let routes = records.iter().filter_map(|record| route_of(record));
        let routes = routes.map(Arc::new).collect();
        let listed = Instant::now();
        let snapshot = Snapshot { version, routes };
        match self.table.replace_all(snapshot, self.clock.monotonic()) {
            Resync::Taken { .. } | Resync::Older => *lagging = None,
            Resync::OlderThanTold => {
                let since = *lagging.get_or_insert(listed);
                if listed >= since + LAGGING && !self.watched.0.went_back.is_cancelled() {
                    tracing::error!(
                        %version,
                        told = %self.table.watched(),
                        "the store is behind what other processes told: it was restored from a backup"
                    );
                    self.watched.0.went_back.cancel();
                }
                return Ok(Again::Lags);
            }
        }
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
            let is_doubtful = self.table.watch_passed(event.version(), now);
            self.watched.passed(event.version());
            if is_doubtful {
                return Ok(Again::Doubted { listed });
            }
        }
    }
}

/// Why a store is listed again that does answer.
enum Again {
    /// The list is older than what others told.
    Lags,
    /// The watch has not brought what others told.
    Doubted { listed: Instant },
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
