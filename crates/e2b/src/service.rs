//! What the handlers share.

use std::{sync::Arc, time::Duration};

use auth::{Audit, Keys, Ledger, Seal};
use build::Builder;
use cache::{
    Cache, EventCache, PoolCache, SandboxCache, SnapshotCache, StartError, StopReason,
    TemplateCache, View,
};
use claims::Desk;
use kit::{Clock, Entropy, Tasks};
use model::{Name, Namespace, SandboxId, Timestamp, sandbox::SandboxSpec};
use plugins::{Creation, Holds, Limited, Plugins, Purpose};
use store::Store;
use tokio::time::Instant;

use crate::{
    ahead::Ahead,
    idempotency::Queues,
    meter::{Meter, RouteStats},
    ports::{Admins, Followers, Images, LogSource, MetricsSource, Nothing, Unsaid},
    roster::Roster,
    routes,
    told::Told,
};

/// How handlers share it.
pub(crate) type Api = Arc<E2b>;

/// What an installation says of itself, and bounds on what one client can ask for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the ports of sandboxes are found, as `{port}-{id}.{domain}`; none to leave that to the
    /// client's own setting.
    pub domain: Option<String>,
    /// The version of envd that the agent stands for; clients switch features on by it.
    pub envd_version: String,
    /// Whether the runtime can keep the files of a sandbox without its memory.
    pub filesystem_pause: bool,
    /// Images that clients may choose, by how their names begin, as `registry.example/team/`; `*`
    /// stands for all.
    pub images: Vec<Box<str>>,
    /// The template of a request that names none, and the first of the default ones.
    pub default_template: Name,
    /// What is reported of a sandbox whose template names no limits.
    pub cpu_count: u32,
    /// Likewise, in MiB.
    pub memory_mib: u32,
    /// Likewise, in MiB.
    pub disk_mib: u32,
    /// How long a sandbox may take to be ready, where neither its request nor its pool says. Less than
    /// the minute that official clients wait unless told otherwise: who hears why can act on it.
    pub startup_timeout: Duration,
    /// How long a pause, a resume or a change may take.
    pub operation_timeout: Duration,
    /// The longest timeout a client may ask for.
    pub max_timeout: Duration,
    /// Longest request body.
    pub body_bytes: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Duration,
    /// Longest path and query.
    pub uri_bytes: usize,
}

impl Options {
    /// The usual ones, for an installation with this default template.
    #[must_use]
    pub fn new(default_template: Name) -> Self {
        Self {
            domain: None,
            envd_version: "0.6.13".into(),
            filesystem_pause: false,
            images: Vec::new(),
            default_template,
            cpu_count: 2,
            memory_mib: 512,
            disk_mib: 10 << 10,
            startup_timeout: Duration::from_secs(50),
            operation_timeout: Duration::from_secs(50),
            max_timeout: Duration::from_secs(30 * 24 * 3600),
            body_bytes: 1 << 20,
            body_timeout: Duration::from_secs(30),
            uri_bytes: 16 << 10,
        }
    }
}

/// What is looked at. Handles are cheap: caches that are there for others can be shared.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Sandboxes.
    pub sandboxes: SandboxCache,
    /// Pools.
    pub pools: PoolCache,
    /// Templates.
    pub templates: TemplateCache,
    /// Snapshots.
    pub snapshots: SnapshotCache,
    /// Events.
    pub events: EventCache,
}

impl Caches {
    /// Caches of its own.
    ///
    /// # Errors
    /// If one does not sync before the deadline.
    pub async fn start(
        store: &Arc<dyn Store>,
        entropy: &Arc<Entropy>,
        deadline: Instant,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        async fn one<V: View>(
            store: &Arc<dyn Store>,
            entropy: &Arc<Entropy>,
            deadline: Instant,
            tasks: &Tasks,
        ) -> Result<Cache<V>, StartError> {
            let options = cache::Options::new(Arc::clone(entropy));
            Cache::start(Arc::clone(store), options, deadline, tasks).await
        }
        Ok(Self {
            sandboxes: one(store, entropy, deadline, tasks).await?,
            pools: one(store, entropy, deadline, tasks).await?,
            templates: one(store, entropy, deadline, tasks).await?,
            snapshots: one(store, entropy, deadline, tasks).await?,
            events: one(store, entropy, deadline, tasks).await?,
        })
    }
}

/// What the API stands on.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Where intent is written.
    pub store: Arc<dyn Store>,
    /// Where it is seen.
    pub caches: Caches,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for ids.
    pub entropy: Arc<Entropy>,
    /// Where the tokens of sandboxes come from.
    pub seal: Seal,
    /// Who calls.
    pub keys: Keys,
    /// Who may act for any team.
    pub admins: Arc<dyn Admins>,
    /// What callers may have.
    pub ledger: Arc<Ledger>,
    /// Where it is kept who did what; none to keep nothing.
    pub audit: Option<Audit>,
    /// What sandboxes use.
    pub metrics: Arc<dyn MetricsSource>,
    /// What sandboxes log, besides their life.
    pub logs: Arc<dyn LogSource>,
    /// Who carries traffic to sandboxes.
    pub followers: Arc<dyn Followers>,
    /// What was heard from sandboxes before their records say that they are awake.
    pub unsaid: Arc<dyn Unsaid>,
    /// Which images there are.
    pub images: Arc<dyn Images>,
    /// Where claims are served; none to have one of its own, where nobody else of this process
    /// claims.
    pub desk: Option<Arc<Desk>>,
    /// Where templates are built; none where that cannot be.
    pub builder: Option<Arc<Builder>>,
    /// Who has a say in what is made.
    pub plugins: Plugins,
}

impl Ports {
    /// Ports without administrators, an audit or metrics, and without logs but those of a sandbox's life.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        caches: Caches,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        seal: Seal,
        keys: Keys,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            store,
            caches,
            clock,
            entropy,
            seal,
            keys,
            admins: Arc::new(Nothing),
            ledger,
            audit: None,
            metrics: Arc::new(Nothing),
            logs: Arc::new(Nothing),
            followers: Arc::new(Nothing),
            unsaid: Arc::new(Nothing),
            images: Arc::new(Nothing),
            desk: None,
            builder: None,
            plugins: Plugins::default(),
        }
    }
}

/// The API. It writes intent, looks at caches, and calls nobody else.
#[derive(Debug)]
pub struct E2b {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) caches: Caches,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) seal: Seal,
    pub(crate) keys: Keys,
    pub(crate) admins: Arc<dyn Admins>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) audit: Option<Audit>,
    pub(crate) metrics: Arc<dyn MetricsSource>,
    pub(crate) logs: Arc<dyn LogSource>,
    pub(crate) followers: Arc<dyn Followers>,
    pub(crate) unsaid: Arc<dyn Unsaid>,
    pub(crate) images: Arc<dyn Images>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) builder: Option<Arc<Builder>>,
    pub(crate) plugins: Plugins,
    pub(crate) options: Options,
    pub(crate) roster: Arc<Roster>,
    pub(crate) queues: Queues,
    pub(crate) told: Told,
    pub(crate) ahead: Ahead,
    pub(crate) meters: Vec<Meter>,
    /// Writes outlive their clients in here.
    pub(crate) tasks: Tasks,
}

impl E2b {
    /// Asks plugins for a sandbox that is about to be made. What they set aside is to be told when
    /// it is written.
    ///
    /// # Errors
    /// If one of them does not admit it now.
    pub(crate) async fn ask_plugins(
        &self,
        team: &Namespace,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Holds, Limited> {
        let wanted = Creation {
            purpose: Purpose::Request,
            team,
            spec,
            count: 1,
            ids: std::slice::from_ref(id),
        };
        let mut admitted = self.plugins.before_create(&wanted).await;
        match admitted.limited.take() {
            Some(limited) => Err(limited),
            None => Ok(admitted.next_holds()),
        }
    }

    /// Starts following the caches.
    ///
    /// # Errors
    /// If the cache of sandboxes has stopped.
    pub async fn start(
        ports: Ports,
        options: Options,
        tasks: &Tasks,
    ) -> Result<Arc<Self>, StopReason> {
        let sandboxes = ports.caches.sandboxes.clone();
        let (roster, mut changes) = Roster::new(sandboxes.clone(), sandboxes.subscribe()).await?;
        let roster = Arc::new(roster);
        let following = Arc::clone(&roster);
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    batch = changes.next_batch(256) => batch,
                };
                match batch {
                    Ok(keys) => following.refresh_all(&keys),
                    // Whoever serves this sees it in the cache's health.
                    Err(_) => return,
                }
            }
        });
        let desk = ports.desk.unwrap_or_else(|| {
            Desk::start(
                sandboxes,
                ports.caches.pools.clone(),
                Arc::clone(&ports.entropy),
                |_| {},
                tasks,
            )
        });
        Ok(Arc::new(Self {
            store: ports.store,
            caches: ports.caches,
            clock: ports.clock,
            entropy: ports.entropy,
            seal: ports.seal,
            keys: ports.keys,
            admins: ports.admins,
            ledger: ports.ledger,
            audit: ports.audit,
            metrics: ports.metrics,
            logs: ports.logs,
            followers: ports.followers,
            unsaid: ports.unsaid,
            images: ports.images,
            desk,
            builder: ports.builder,
            plugins: ports.plugins,
            options,
            roster,
            queues: Queues::default(),
            told: Told::default(),
            ahead: Ahead::default(),
            meters: routes::all().map(|_| Meter::default()).collect(),
            tasks: tasks.clone(),
        }))
    }

    /// What was measured of each route.
    #[must_use]
    pub fn stats(&self) -> Vec<RouteStats> {
        routes::all()
            .zip(&self.meters)
            .map(|(route, meter)| meter.stats(route.verb.as_str(), route.path))
            .collect()
    }

    /// What the API does not see, or not any more: it answers nothing until it does.
    pub(crate) fn unseen(&self) -> Option<&'static str> {
        let caches = &self.caches;
        [
            (self.keys.is_ready(), "keys and teams"),
            (caches.sandboxes.is_ready(), "sandboxes"),
            (caches.pools.is_ready(), "pools"),
            (caches.templates.is_ready(), "templates"),
            (caches.events.is_ready(), "events"),
        ]
        .into_iter()
        .find_map(|(is_ready, what)| (!is_ready).then_some(what))
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }
}
