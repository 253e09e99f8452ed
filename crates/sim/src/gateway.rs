//! A gateway's route table: fed by its own watch of the store, and by a peer whose messages come
//! late, twice and out of order.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cache::RouteFeed;
use kit::{Clock, Entropy, Tasks};
use model::{SandboxId, Version};
use parking_lot::Mutex;
use routes::{Message, Route, Table, Writer};
use store::Store;

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
        entropy: Arc<Entropy>,
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
        let feed = RouteFeed {
            store,
            table: Arc::clone(&table),
            clock: Arc::clone(&clock),
            entropy,
            watched: cache::Watched::default(),
        };
        let heard = Arc::<Mutex<Vec<Message>>>::clone(&outbox);
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = feed.follow(|message| heard.lock().push(message.clone())) => {}
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
