//! A gateway's route table: fed by its own watch of the store, and by a peer whose messages come
//! late, twice and out of order.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kit::{Clock, Tasks};
use model::{Sandbox, SandboxId, Spec as _, Version, sandbox::SandboxSpec};
use parking_lot::Mutex;
use routes::{Deletion, Message, Route, Snapshot, Table, Writer};
use store::{Query, Store, StoreError, StoreExt as _, WatchEvent};

use crate::{checker::Checker, plant::Plant};

/// One gateway.
#[derive(Debug)]
pub struct Gateway {
    /// Which.
    pub name: usize,
    table: Arc<Table>,
    clock: Arc<dyn Clock>,
    plant: Option<Plant>,
    tasks: Tasks,
    /// Everything this gateway learned from its own watch, for its peers.
    pub outbox: Arc<Mutex<Vec<Message>>>,
}

impl Gateway {
    /// Starts with an empty table and follows the store.
    #[must_use]
    pub fn start(
        name: usize,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        plant: Option<Plant>,
        tasks: &Tasks,
    ) -> Self {
        let tasks = tasks.child();
        // Short enough that tombstones are really collected within a run.
        let limits = routes::Limits {
            retention: Duration::from_secs(20),
            ..routes::Limits::default()
        };
        let table = Arc::new(Table::new(limits));
        let outbox = Arc::default();
        let feed = Feed {
            store,
            table: Arc::clone(&table),
            clock: Arc::clone(&clock),
            outbox: Arc::clone(&outbox),
        };
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = feed.follow() => {}
            }
        });
        Self {
            name,
            table,
            clock,
            plant,
            tasks,
            outbox,
        }
    }

    /// Ends it where it is.
    pub fn crash(&self) {
        self.tasks.stopping().cancel();
    }

    /// Whether it may serve.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.table.synced() || self.plant == Some(Plant::EmptyTable)
    }

    /// Takes what a peer says.
    pub fn hear(&self, message: Message) {
        let now = self.clock.monotonic();
        let message = match message {
            // The defect: whatever arrives is taken for the newest.
            Message::Upsert(route) if self.plant == Some(Plant::BlindRoutes) => {
                let mut route = Route::clone(&route);
                route.version = Version::from_u64(u64::MAX >> 20);
                Message::from(route)
            }
            other => other,
        };
        self.table.apply(Writer::Peer, message, now);
    }

    /// A request for a sandbox id.
    #[must_use]
    pub fn lookup(&self, id: &SandboxId) -> Option<Arc<Route>> {
        self.table.lookup(id)
    }

    /// All ids it would serve, for the checker.
    #[must_use]
    pub fn routes(&self) -> BTreeMap<SandboxId, Arc<Route>> {
        let all = self.table.routes();
        all.into_iter()
            .filter_map(|route| route.id.clone().map(|id| (id, route)))
            .collect()
    }

    /// Shows the checker everything it would serve.
    pub fn show(&self, checker: &Checker) {
        if self.is_synced() {
            checker.sees_routes(self.name, &self.routes());
        }
    }
}

/// The gateway's own watch.
struct Feed {
    store: Arc<dyn Store>,
    table: Arc<Table>,
    clock: Arc<dyn Clock>,
    outbox: Arc<Mutex<Vec<Message>>>,
}

impl Feed {
    async fn follow(&self) {
        loop {
            if let Err(error) = self.once().await {
                tracing::trace!(%error, "gateway lists again");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn once(&self) -> Result<(), StoreError> {
        let query = Query::kind(SandboxSpec::KIND);
        let (sandboxes, version) = self.store.list_objects::<SandboxSpec>(&query).await?;
        let routes = sandboxes
            .iter()
            .filter_map(Route::of)
            .map(Arc::new)
            .collect();
        self.table
            .replace_all(Snapshot { version, routes }, self.clock.monotonic());
        let mut watch = self
            .store
            .watch(store::Scope::kind(SandboxSpec::KIND), version)
            .await?;
        loop {
            let event = watch.next().await?;
            let now = self.clock.monotonic();
            if let Some(message) = message_of(&event)? {
                self.outbox.lock().push(message.clone());
                self.table.apply(Writer::Watch, message, now);
            }
            self.table.watch_passed(event.version(), now);
        }
    }
}

fn message_of(event: &WatchEvent) -> Result<Option<Message>, StoreError> {
    match event {
        WatchEvent::Put { record, .. } => {
            let sandbox: Sandbox = record.decode()?;
            Ok(Route::of(&sandbox).map(Message::from))
        }
        WatchEvent::Removed { record } => {
            let Some(namespace) = record.meta.namespace.clone() else {
                return Ok(None);
            };
            let (name, version) = (record.meta.name.clone(), record.version());
            Ok(Some(Message::Delete(Deletion {
                namespace,
                name,
                version,
            })))
        }
        WatchEvent::Bookmark(_) => Ok(None),
    }
}
