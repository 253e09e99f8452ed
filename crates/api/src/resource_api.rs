//! What the handlers share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kit::{Clock, Entropy, Tasks};
use model::Timestamp;
use plugins::Plugins;
use store::Store;
use tokio::sync::{Semaphore, watch};

use crate::{Authenticator, collection::Catalogue, refusal::Refusal};

/// How handlers share it.
pub(crate) type Api = Arc<ResourceApi>;

/// Whether the process is ready, and why not; shown by `/readyz`.
pub type Readiness = watch::Receiver<Result<(), String>>;

/// Bounds on what one client, or all together, can ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest request body.
    pub body_bytes: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Duration,
    /// Longest path and query.
    pub uri_bytes: usize,
    /// Watches open at a time.
    pub watches: usize,
    /// Lists read from the store at a time; others wait for their turn.
    pub lists: usize,
    /// Bytes of long answers that wait for their clients to read them, in all.
    pub unread_bytes: usize,
    /// How long a watch lasts whose client does not say.
    pub watch_timeout: Duration,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_interval: Duration,
    /// How often a patch is tried again when another writer was first.
    pub patch_attempts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 3 << 19,
            body_timeout: Duration::from_secs(30),
            uri_bytes: 16 << 10,
            watches: 4096,
            lists: 16,
            unread_bytes: 512 << 20,
            watch_timeout: Duration::from_secs(45 * 60),
            bookmark_interval: Duration::from_secs(60),
            patch_attempts: 5,
        }
    }
}

/// Counters, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Watches open now.
    pub watches_open: usize,
    /// Watches refused because too many were open.
    pub watches_refused: u64,
}

/// The resource API over a store.
#[derive(Debug)]
pub struct ResourceApi {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) auth: Authenticator,
    pub(crate) limits: Limits,
    pub(crate) readiness: Readiness,
    pub(crate) tasks: Tasks,
    pub(crate) plugins: Plugins,
    /// What is served instead of the registry.
    pub(crate) catalogue: Option<Arc<dyn Catalogue>>,
    pub(crate) watch_permits: Arc<Semaphore>,
    pub(crate) list_permits: Semaphore,
    /// One permit a KiB.
    pub(crate) unread_permits: Arc<Semaphore>,
    pub(crate) watches_refused: AtomicU64,
}

impl ResourceApi {
    /// An API over a store. It is ready at once, and owns its tasks, unless told otherwise.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        auth: Authenticator,
        limits: Limits,
    ) -> Self {
        Self {
            store,
            clock,
            entropy,
            auth,
            limits,
            // A receiver whose sender is gone keeps the last value: ready.
            readiness: watch::channel(Ok(())).1,
            tasks: Tasks::default(),
            plugins: Plugins::default(),
            catalogue: None,
            watch_permits: Arc::new(Semaphore::new(limits.watches)),
            list_permits: Semaphore::new(limits.lists),
            unread_permits: Arc::new(Semaphore::new(limits.unread_bytes >> 10)),
            watches_refused: AtomicU64::new(0),
        }
    }

    /// Answers `/readyz` from this.
    #[must_use]
    pub fn with_readiness(mut self, readiness: Readiness) -> Self {
        self.readiness = readiness;
        self
    }

    /// Runs writes in this group, which outlive their clients, and ends watches when it stops.
    #[must_use]
    pub fn with_tasks(mut self, tasks: Tasks) -> Self {
        self.tasks = tasks;
        self
    }

    /// Asks these before it writes pools and sandboxes.
    #[must_use]
    pub fn with_plugins(mut self, plugins: Plugins) -> Self {
        self.plugins = plugins;
        self
    }

    /// Serves these collections instead of the registry's; see [`crate::catalogue_router`].
    #[must_use]
    pub fn with_catalogue(mut self, catalogue: Arc<dyn Catalogue>) -> Self {
        self.catalogue = Some(catalogue);
        self
    }

    /// The wall clock.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }

    /// Runs a write to its end, even if the client that asked for it leaves.
    pub(crate) async fn outlive<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        match self.tasks.spawn(write).await {
            Ok(result) => result,
            // The panic itself is in the log already.
            Err(_) => Err(Refusal::internal(
                "the request failed unexpectedly: see the server's log",
            )),
        }
    }

    /// Counters, for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            watches_open: self.limits.watches - self.watch_permits.available_permits(),
            watches_refused: self.watches_refused.load(Ordering::Relaxed),
        }
    }
}
