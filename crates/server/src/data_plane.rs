//! What users of sandboxes reach: the E2B API and, on the same ports, the gateway to sandboxes.
//!
//! ```text
//!                     ┌─ for a sandbox ─▶ gateway ─▶ dialled inside its network namespace
//!  client ─▶ gateway ─┤                     └─ asleep ─▶ flights ─▶ intent ─▶ store
//!                     └─ for none ──────▶ E2B API ──────────────▶ intent ─▶ store
//! ```
//!
//! The adapters between the parts are here and in [`crate::sleep`]: tokens for the control loop,
//! administrators for the API. No part knows another.

use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use api::Authenticator;
use auth::{Audit, Keys, Ledger, Seal, quota::Size};
use cache::{RouteFeed, RoutingCache, Watched};
use control::AgentTokens;
use e2b::{E2b, Sampler};
use gateway::{Attendant, Doors, Gateway, Listen as Entrance, Ports};
use kit::{Clock, Entropy, Tasks};
use model::{
    Metadata, Name, Sandbox, SandboxTemplate,
    template::{ImagePullPolicy, TemplateSpec},
    workload::Secret,
};
use routes::Table;
use rustls::ServerConfig;
use ssh::HostKey;
use store::{Store, StoreError, StoreExt as _};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wake::Flights;

use crate::{
    config::{Settings, types::Listen},
    control_loop::{ControlLoop, Engine, SYNC_TIMEOUT},
    ext_proc,
    forwards::{self, Forwards},
    handover::sockets::Sockets,
    interpreter,
    known_images::KnownImages,
    metrics::Sources,
    process_logs::ProcessLogs,
    sampling::{Host, Sampling},
    sleep::{GatewayUse, Routed, TeamQuota, Unsaid, Waker},
    ssh_door::{Door, Opened},
    workshop,
};

/// How often it is looked whether something has ended.
const LOOK: Duration = Duration::from_millis(50);
/// The same for what is about to happen.
const LOOK_CLOSELY: Duration = Duration::from_millis(1);
/// The template that is there from the first start on.
const BASE: &str = "base";

/// What it stands on.
#[derive(Debug)]
pub(crate) struct Foundation<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) control: &'a ControlLoop,
    pub(crate) engine: &'a Engine,
    pub(crate) keys: Keys,
    pub(crate) admins: Authenticator,
    pub(crate) seal: Seal,
    pub(crate) audit: Audit,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) entropy: &'a Arc<Entropy>,
    /// Where users come in.
    pub(crate) entry: Entry,
    /// What listens, also after this has ended.
    pub(crate) sockets: &'a Sockets,
    /// For SSH, where it is served.
    pub(crate) ssh: Option<HostKey>,
}

/// Where users come in. It is open before anything is served: who comes early is told to come again,
/// or waits where another server has let go just now.
#[derive(Debug)]
pub(crate) struct Entry {
    doors: Doors,
    attendant: Option<Attendant>,
}

impl Entry {
    /// Listens in plain HTTP and, where there is a domain, with TLS.
    ///
    /// # Errors
    /// If an address cannot be had.
    pub(crate) fn open(
        settings: &Settings,
        tls: Option<Arc<ServerConfig>>,
        sockets: &Sockets,
    ) -> anyhow::Result<Self> {
        let wanted = Self::wanted(settings, tls.is_some());
        let mut listens = Vec::new();
        for ((setting, at), tls) in wanted.iter().zip([None, tls]) {
            let address = resolve(at)?;
            listens.push((Entrance { address, tls }, sockets.find(setting, at)));
        }
        let is_first = listens.iter().all(|(_, there)| there.is_empty());
        let threads = gateway::Options::default().threads;
        let doors = Doors::take_over(listens, threads).context(
            "start the gateway (choose other ports with --e2b-listen and --e2b-tls-listen, or 0 \
             for any free one)",
        )?;
        let shared = doors.share().context("share the listeners")?;
        for ((setting, at), listeners) in wanted.iter().zip(shared) {
            sockets.keep(setting, at, listeners);
        }
        let attendant = match is_first {
            true => Some(doors.attend().context("attend to early clients")?),
            false => None,
        };
        Ok(Self { doors, attendant })
    }

    /// Listens where nothing does yet, before anybody is let in.
    ///
    /// # Errors
    /// If an address cannot be had.
    pub(crate) fn prepare(settings: &Settings, sockets: &Sockets) -> anyhow::Result<()> {
        let wanted = Self::wanted(settings, settings.e2b_domain.host().is_some());
        let there = wanted
            .iter()
            .map(|(setting, at)| sockets.waiting(setting, at));
        // All of a gateway's addresses have as many listeners.
        let threads = match there.max() {
            None | Some(0) => gateway::Options::default().threads,
            Some(there) => there,
        };
        for (setting, at) in wanted {
            if sockets.waiting(setting, at) > 0 {
                continue;
            }
            let (address, tls) = (resolve(at)?, None);
            let bound = Doors::bind(vec![Entrance { address, tls }], threads);
            let bound = bound.with_context(|| format!("listen on {at}, as {setting} says"))?;
            let shared = bound.share().context("share the listeners")?;
            sockets.give(setting, at, shared.into_iter().flatten().collect());
        }
        Ok(())
    }

    /// Where users come in.
    fn wanted(settings: &Settings, by_tls: bool) -> Vec<(&'static str, &Listen)> {
        let mut wanted = vec![("e2b.listen", &settings.e2b_listen)];
        if by_tls {
            wanted.push(("e2b.tls_listen", &settings.e2b_tls_listen));
        }
        wanted
    }

    /// From now on whoever comes is served.
    pub(crate) fn open_up(self) -> Doors {
        drop(self.attendant);
        self.doors
    }
}

/// What users reach.
#[derive(Debug)]
pub(crate) struct DataPlane {
    gateway: Gateway,
    /// Ports of the host that lead into sandboxes.
    pub(crate) forwards: Forwards,
    /// Where SSH is served, if it is.
    pub(crate) ssh: Option<Opened>,
    /// What serves clients without HTTP.
    raw: Tasks,
    /// What serves Envoys.
    envoys: Tasks,
    /// Cancelled when they are not told anything but to ask the gateway.
    leaving: CancellationToken,
    /// Where what happens here is counted.
    pub(crate) sources: Sources,
}

impl DataPlane {
    /// Starts it, ready to serve. `used` learns from then on which sandboxes are in use.
    ///
    /// # Errors
    /// If a port cannot be had, or the store cannot be read in time.
    pub(crate) async fn start(
        on: Foundation<'_>,
        used: &GatewayUse,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        ensure_base_template(&**on.store).await?;
        if let Some(runtime) = &on.engine.local {
            interpreter::ensure_template(&**on.store, runtime).await?;
        }
        let deadline = Instant::now() + SYNC_TIMEOUT;
        let options = cache::Options::new(Arc::clone(on.entropy));
        let routing = RoutingCache::start(Arc::clone(on.store), options, deadline, tasks)
            .await
            .context("read where sandboxes are")?;
        let table = feed_routes(on.store, on.clock, on.entropy, &used.watched, tasks);
        let ledger = Arc::clone(&on.control.say.ledger);
        let quota = TeamQuota::new(on.keys.clone(), Arc::clone(&ledger));
        let flights = Flights::within(
            Arc::new(quota),
            Arc::clone(on.store),
            routing.clone(),
            Arc::clone(on.clock),
            tasks.child(),
            wake_options(on.settings),
        );
        used.wakes_by(flights.clone());
        let unsaid = Arc::new(Unsaid::new(on.control.caches().sandboxes.clone()));
        let api = start_api(&on, ledger, &used.watched, Arc::clone(&unsaid), tasks).await?;
        let (routes, seal) = (Arc::clone(&table), on.seal.clone());
        let counted = Arc::clone(&table);
        let ports = Ports {
            routes: table,
            inside: Arc::clone(&on.engine.inside),
            pods: Arc::new(gateway::Forwarded::new(on.seal.clone())),
            wake: Arc::new(Waker::new(
                flights.clone(),
                on.control.caches().sandboxes.clone(),
                routing,
                Arc::clone(on.control.desk()),
                unsaid,
            )),
            progress: Arc::new(Routed(used.watched.clone())),
            seal: Some(on.seal),
            clock: Arc::clone(on.clock),
            entropy: Arc::clone(on.entropy),
        };
        let options = gateway_options(on.settings);
        let router = e2b::router(Arc::clone(&api));
        wait_for_routes(&routes, deadline).await?;
        let doors = on.entry.open_up();
        // Before anybody is let in: who puts a sandbox to sleep must not take the gateway for absent.
        let activity = gateway::Activity::new(Arc::clone(on.clock));
        used.opened(activity.clone());
        let gateway = Gateway::behind(doors, activity, ports, options, Some(router));
        let gateway = gateway.context("start the gateway")?;
        let (raw, envoys) = (Tasks::default(), Tasks::default());
        let (settings, sockets) = (on.settings, on.sockets);
        let forwards = forwards::start(settings, sockets, &gateway.streams(), &raw).await?;
        let (ext_proc, leaving) =
            match ext_proc::start(settings, sockets, &gateway, &envoys).await? {
                Some(opened) => (Some(opened.metrics), opened.leaving),
                None => (None, CancellationToken::new()),
            };
        let door = Door {
            streams: gateway.streams(),
            routes,
            keys: on.keys,
            seal,
            audit: on.audit,
            clock: Arc::clone(on.clock),
        };
        let ssh = match (&on.settings.ssh_listen.0, on.ssh) {
            (Some(listen), Some(key)) => {
                Some(door.open(listen, sockets, key, settings, &raw).await?)
            }
            (_, _) => None,
        };
        let sources = Sources {
            sandboxes: on.control.caches().sandboxes.clone(),
            gateway: gateway.metrics(),
            ext_proc,
            api,
            flights,
            routes: counted,
        };
        Ok(Self {
            gateway,
            forwards,
            ssh,
            raw,
            envoys,
            leaving,
            sources,
        })
    }

    /// Where it listens: in plain HTTP, and with TLS where there is a domain.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        self.gateway.addresses()
    }

    /// Lets what is under way finish.
    pub(crate) async fn drain(self, grace: Duration) {
        let (requests, raw, envoys) = tokio::join!(
            self.gateway.drain(grace),
            self.raw.drain(grace),
            self.envoys.drain(grace)
        );
        say_dropped([requests, raw, envoys]);
    }

    /// Which sandboxes are in use here.
    pub(crate) fn activity(&self) -> gateway::Activity {
        self.gateway.activity()
    }

    /// Tells who keeps a connection, with its next answer, that it is the last one on it.
    pub(crate) fn say_goodbye(&self) {
        self.gateway.say_goodbye();
    }

    /// Lets nobody in any more. What is inside goes on. Envoys are answered all the same, because they do not
    /// wait long for that, but told nothing that whoever comes next might see otherwise.
    pub(crate) async fn leave(&self) {
        let ssh = self.ssh.iter().map(|opened| &opened.accepting);
        for accepting in self.forwards.accepting.iter().chain(ssh) {
            accepting.abort();
        }
        self.leaving.cancel();
        self.gateway.leave().await;
    }

    /// Waits until nothing is under way that needs the store: no request to the API, and none that
    /// waits for a sandbox to wake. For `patience` at most.
    pub(crate) async fn settle(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline
            && (self.gateway.calls() > 0 || self.sources.flights.parked() > 0)
        {
            sleep(LOOK).await;
        }
    }

    /// After [`Self::leave`]: waits until nobody is inside any more, or until `late`. Envoys are answered
    /// until they are `answered_elsewhere`.
    pub(crate) async fn empty(
        self,
        late: CancellationToken,
        answered_elsewhere: CancellationToken,
    ) {
        let activity = self.gateway.activity();
        let quiet = async {
            // Also by SSH and ports of the host, which are no connections of the gateway.
            while activity.noted().marks.iter().any(|mark| mark.open > 0) && !late.is_cancelled() {
                sleep(LOOK).await;
            }
        };
        let envoys = async {
            tokio::select! {
                () = answered_elsewhere.cancelled() => {}
                () = late.cancelled() => {}
            }
            tokio::select! {
                // What they have asked is answered before they are let go.
                ended = self.envoys.drain(Duration::MAX) => ended,
                () = late.cancelled() => self.envoys.drain(LOOK).await,
            }
        };
        let (requests, (), envoys) = tokio::join!(
            self.gateway.drain_until(late.clone().cancelled_owned()),
            quiet,
            envoys
        );
        let raw = self.raw.drain(LOOK).await;
        say_dropped([requests, raw, envoys]);
    }
}

fn say_dropped(ends: [Result<(), usize>; 3]) {
    let left: usize = ends.into_iter().filter_map(Result::err).sum();
    if left > 0 {
        tracing::warn!(left, "connections to sandboxes were dropped");
    }
}

fn resolve(listen: &Listen) -> anyhow::Result<SocketAddr> {
    let mut found = (listen.host.as_str(), listen.port)
        .to_socket_addrs()
        .with_context(|| format!("find the address of {listen}"))?;
    match found.next() {
        Some(address) => Ok(address),
        None => bail!("{listen} has no address"),
    }
}

/// How a gateway behaves.
pub(crate) fn gateway_options(settings: &Settings) -> gateway::Options {
    gateway::Options {
        domain: settings.e2b_domain.0.as_deref().map(Into::into),
        wake_timeout: settings.wake_timeout.0,
        trusts_forwarded: settings.gateway_trust_forwarded.0,
        limits: gateway::Limits {
            body_bytes: settings.gateway_max_body_bytes.0,
            body_timeout: settings.gateway_body_timeout.0,
            ..gateway::Limits::default()
        },
        ..gateway::Options::default()
    }
}

/// How sandboxes are woken for traffic.
pub(crate) fn wake_options(settings: &Settings) -> wake::Options {
    wake::Options {
        enabled: settings.wake_enabled.0,
        timeout: settings.wake_timeout.0,
        max_parked: settings.wake_max_parked.0,
        max_parked_per_sandbox: settings.wake_max_parked_per_sandbox.0,
        max_concurrent: settings.wake_max_concurrent.0,
        ..wake::Options::default()
    }
}

/// A table of routes that follows the store.
pub(crate) fn feed_routes(
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<Entropy>,
    watched: &Watched,
    tasks: &Tasks,
) -> Arc<Table> {
    let table = Arc::new(Table::new(routes::Limits::default()));
    let feed = RouteFeed {
        store: Arc::clone(store),
        table: Arc::clone(&table),
        clock: Arc::clone(clock),
        entropy: Arc::clone(entropy),
        watched: watched.clone(),
    };
    let stop = tasks.stopping().clone();
    tasks.spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = feed.follow(|_| {}) => {}
        }
    });
    table
}

/// Waits until all sandboxes are known: who waits to be let in is not to be told that they are not.
async fn wait_for_routes(table: &Table, deadline: Instant) -> anyhow::Result<()> {
    while !table.synced() {
        if Instant::now() >= deadline {
            bail!("the routes to sandboxes could not be read in time");
        }
        sleep(LOOK_CLOSELY).await;
    }
    Ok(())
}

/// What the API says of sandboxes.
pub(crate) fn api_options(settings: &Settings) -> anyhow::Result<e2b::Options> {
    let mut options = e2b::Options::new(name(BASE)?);
    options.domain = settings.e2b_domain.0.clone();
    options.filesystem_pause = true;
    options.startup_timeout = settings.e2b_startup_timeout.0;
    options.images = settings.e2b_images.0.clone();
    Ok(options)
}

/// What a sandbox counts for that does not say how large it is.
pub(crate) fn usual_size() -> anyhow::Result<Size> {
    let options = e2b::Options::new(name(BASE)?);
    Ok(Size {
        cpu_millis: u64::from(options.cpu_count) * 1000,
        memory_mib: u64::from(options.memory_mib),
    })
}

async fn start_api(
    on: &Foundation<'_>,
    ledger: Arc<Ledger>,
    watched: &Watched,
    unsaid: Arc<Unsaid>,
    tasks: &Tasks,
) -> anyhow::Result<Arc<E2b>> {
    let deadline = Instant::now() + SYNC_TIMEOUT;
    let events = cache::Cache::start(
        Arc::clone(on.store),
        cache::Options::new(Arc::clone(on.entropy)),
        deadline,
        tasks,
    );
    let shared = on.control.caches();
    let caches = e2b::Caches {
        sandboxes: shared.sandboxes.clone(),
        pools: shared.pools.clone(),
        templates: shared.templates.clone(),
        snapshots: shared.snapshots.clone(),
        events: events.await.context("read events")?,
    };
    let mut ports = e2b::Ports::new(
        on.keys.store(),
        caches,
        Arc::clone(on.clock),
        Arc::clone(on.entropy),
        on.seal.clone(),
        on.keys.clone(),
        Arc::clone(&ledger),
    );
    ports.audit = Some(on.audit.clone());
    ports.desk = Some(Arc::clone(on.control.desk()));
    ports.followers = Arc::new(Routed(watched.clone()));
    ports.unsaid = unsaid;
    ports.images = Arc::new(KnownImages(Arc::clone(&on.engine.runtime)));
    ports.plugins = on.control.say.plugins.clone();
    ports.admins = Arc::new(TokenHolders(on.admins.clone()));
    if let Some(runtime) = &on.engine.local {
        ports.builder = Some(workshop::start_builder(on, runtime, ledger, tasks).await?);
        let sampler = Arc::new(Sampler::default());
        ports.metrics = sampler.clone();
        ports.logs = Arc::new(ProcessLogs(runtime.clone()));
        let sampling = Sampling {
            runtime: runtime.clone(),
            sandboxes: shared.sandboxes.clone(),
            sampler,
            clock: Arc::clone(on.clock),
            host: Host::here(),
        };
        sampling.start(tasks);
    }
    E2b::start(ports, api_options(on.settings)?, tasks)
        .await
        .context("start the E2B API")
}

fn name(text: &str) -> anyhow::Result<Name> {
    Ok(Name::new(text)?)
}

async fn ensure_base_template(store: &dyn Store) -> anyhow::Result<()> {
    let spec = TemplateSpec {
        image: BASE.into(),
        image_pull_policy: ImagePullPolicy::Never,
        sudo: true,
        user: Some("user".into()),
        ..TemplateSpec::default()
    };
    ensure_base(store, spec).await
}

/// What E2B clients ask for when they name nothing. One that somebody has made or changed stays as it is.
///
/// # Errors
/// If the store does not take it.
pub(crate) async fn ensure_base(store: &dyn Store, spec: TemplateSpec) -> anyhow::Result<()> {
    let template = SandboxTemplate::new(Metadata::new(None, name(BASE)?), spec);
    match store.create_object(&template).await {
        Ok(_) | Err(StoreError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error).context("make the template `base`"),
    }
}

/// Tokens from the server's secret, for those deliveries whose record has the hash of one.
#[derive(Debug)]
pub(crate) struct SealedTokens(pub(crate) Seal);

impl AgentTokens for SealedTokens {
    fn agent_token(&self, sandbox: &Sandbox) -> Option<Secret> {
        let access = sandbox.spec.access.as_ref()?;
        access.agent_token.as_ref()?;
        Some(self.0.agent_token(sandbox.spec.sandbox_id.as_ref()?))
    }
}

/// Administrators, as the E2B API asks for them: who may use the resource API.
#[derive(Debug)]
struct TokenHolders(Authenticator);

impl e2b::ports::Admins for TokenHolders {
    fn admits(&self, authorization: &[u8]) -> bool {
        self.0.admits(Some(authorization))
    }
}
