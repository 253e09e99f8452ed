//! A gateway: its route table, fed by its own watch of the store and by the other processes; its
//! record of use; its flights.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use cache::{RouteFeed, RoutingCache, Watched};
use kit::{Clock, Entropy, Tasks};
use mesh::Role;
use model::{
    Epoch, Key, Sandbox, SandboxId, Spec as _, Timestamp, Uid, Version,
    sandbox::{DesiredState, SandboxSpec},
};
use parking_lot::Mutex;
use routes::{Route, Table};
use store::{Store, StoreExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wake::Flights;

use crate::{
    book::{GatewayBook, NEWEST},
    checker::Checker,
    desk::Deaf,
    plant::Plant,
    process::{Memory, Process},
    surroundings::Surroundings,
    voice::Voice,
};

/// How long a request waits for its sandbox to wake.
pub const WAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// One gateway.
#[derive(Debug)]
pub struct Gateway {
    /// Which.
    pub name: usize,
    /// Where sandboxes are.
    pub table: Arc<Table>,
    /// How far that has come.
    pub watched: Watched,
    /// Who is in use.
    pub activity: gateway::Activity,
    /// How they are woken, once it has its own picture of them.
    pub flights: Arc<OnceLock<Flights>>,
    /// Over with its life.
    pub dead: CancellationToken,
    /// Makes it hear late.
    pub deaf: Deaf,
    clock: Arc<dyn Clock>,
    store: Arc<dyn Store>,
    /// A defect on purpose.
    pub plant: Option<Plant>,
    tasks: Tasks,
    /// When its life began.
    pub since: Duration,
    /// As the other processes know it.
    pub process: Arc<Process>,
    /// What was last said of each delivery before its record, for the defect of believing it again.
    said: Mutex<BTreeMap<(Uid, Epoch), Sandbox>>,
}

/// What a gateway needs.
#[derive(Debug)]
pub struct Needs {
    /// The store as it reads it.
    pub store: Arc<dyn Store>,
    /// The store as its flights use it.
    pub waking: Arc<dyn Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<Entropy>,
    /// A defect on purpose.
    pub plant: Option<Plant>,
    /// Over with its life: its stores do nothing for it any more.
    pub dead: CancellationToken,
    /// Makes it hear late.
    pub deaf: Deaf,
    /// The other processes.
    pub around: Arc<Surroundings>,
    /// By which its flights tell them.
    pub voice: Voice,
}

impl Gateway {
    /// Starts with an empty table and follows the store.
    #[must_use]
    pub fn start(name: usize, needs: Needs, tasks: &Tasks) -> Self {
        let tasks = tasks.child();
        // Short enough that tombstones are really collected within a run.
        let limits = routes::Limits {
            retention: Duration::from_secs(20),
            ..routes::Limits::default()
        };
        let table = Arc::new(Table::new(limits));
        let activity = gateway::Activity::new(Arc::clone(&needs.clock));
        table.listen(Arc::new(activity.clone()));
        let flights: Arc<OnceLock<Flights>> = Arc::default();
        let book = GatewayBook {
            table: Arc::clone(&table),
            clock: Arc::clone(&needs.clock),
            plant: needs.plant,
            tasks: tasks.clone(),
            flights: Arc::clone(&flights),
        };
        let memory = Memory::Table(Arc::clone(&table), Arc::new(book));
        let process = needs.around.start(Role::Gateway, name, memory);
        needs.voice.lend(&process);
        let gateway = Self {
            name,
            table,
            watched: Watched::default(),
            activity,
            flights,
            dead: needs.dead.clone(),
            deaf: needs.deaf.clone(),
            clock: Arc::clone(&needs.clock),
            store: Arc::clone(&needs.waking),
            plant: needs.plant,
            tasks,
            since: needs.clock.monotonic(),
            process,
            said: Mutex::default(),
        };
        gateway.follow(&needs);
        gateway.prepare(needs);
        gateway
    }

    fn follow(&self, needs: &Needs) {
        let feed = RouteFeed {
            store: Arc::clone(&needs.store),
            table: Arc::clone(&self.table),
            clock: Arc::clone(&self.clock),
            entropy: Arc::clone(&needs.entropy),
            watched: self.watched.clone(),
        };
        let stop = self.tasks.stopping().clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = feed.follow(|_| {}) => {}
            }
        });
    }

    fn prepare(&self, needs: Needs) {
        let (flights, tasks) = (Arc::clone(&self.flights), self.tasks.clone());
        let stop = self.tasks.stopping().clone();
        self.tasks.spawn(async move {
            let start = async {
                loop {
                    let options = cache::Options::new(Arc::clone(&needs.entropy));
                    let deadline = Instant::now() + Duration::from_secs(60);
                    let store = Arc::clone(&needs.store);
                    if let Ok(cache) = RoutingCache::start(store, options, deadline, &tasks).await {
                        return cache;
                    }
                }
            };
            let cache = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                cache = start => cache,
            };
            let options = wake::Options {
                timeout: WAKE_TIMEOUT,
                max_concurrent: 3,
                ..wake::Options::default()
            };
            let made = Flights::new(needs.waking, cache, needs.clock, tasks.child(), options);
            let _ = flights.set(made);
        });
    }

    /// The defect of a wake that looks at nothing and joins nobody.
    pub async fn write_resume(&self, route: &Route) {
        let key = Key {
            kind: SandboxSpec::KIND,
            namespace: Some(route.namespace.clone()),
            name: route.name.clone(),
        };
        if let Ok(Some(mut sandbox)) = self.store.find::<SandboxSpec>(&key).await {
            sandbox.spec.desired_state = DesiredState::Running;
            let end = self.clock.wall_micros() + 300_000_000;
            sandbox.spec.timeouts.end_at = Some(Timestamp::from_micros(end));
            let _ = self.store.update_spec(&sandbox).await;
        }
    }

    /// Hears that a sandbox is awake, before its record says so.
    pub fn hears_awake(&self, sandbox: &Sandbox) {
        if let Some(flights) = self.flights.get() {
            flights.awake(sandbox);
        }
        if self.plant == Some(Plant::OldNews) {
            let delivery = (sandbox.uid(), sandbox.spec.epoch);
            self.said.lock().insert(delivery, sandbox.clone());
        }
    }

    /// The defect of news that are newer than anything, however old they are.
    #[must_use]
    pub fn old_news(&self, route: &Route) -> Option<Sandbox> {
        let mut sandbox = self.said.lock().get(&(route.uid, route.epoch)).cloned()?;
        sandbox.metadata.resource_version = Some(NEWEST);
        Some(sandbox)
    }

    /// Ends it where it is; with its machine, if nobody hears of it.
    pub fn crash(&self, in_silence: bool) {
        self.dead.cancel();
        self.process.crash(in_silence);
        self.tasks.stopping().cancel();
    }

    /// Whether it may serve.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.table.synced() || self.plant == Some(Plant::EmptyTable)
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
            // Until it has its own list it knows what another one does, which may be behind.
            let is_told = self.table.synced() && self.watched.version() == Version::ZERO;
            checker.sees_routes(self.name, &self.routes(), is_told);
        }
    }
}
