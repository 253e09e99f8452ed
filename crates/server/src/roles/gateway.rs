//! `dormouse gateway`: moves bytes between clients and Pods, and wakes what sleeps.
//!
//! It follows sandboxes and nothing else, and of those only what it routes by. It knows no keys: what a
//! port demands is derived from the seal. Other processes ask it, with the peer key, who is in use and
//! how far it has heard.
//!
//! Start: it listens (whoever comes is told to come again), reads all routes or is told them by another
//! process while the API server is away, answers its peers, and is ready once the one who puts sandboxes
//! to sleep has heard of it, or had a while to: who is let in before that would count for nobody. Stop:
//! not ready, a while for those who send traffic to hear of it, then no more is accepted and what is
//! inside has its time. Peers are answered to the end.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use cache::{RoutingCache, Watched};
use gateway::{Forwarded, Gateway, Ports};
use kit::Tasks;
use peers::Desk;
use routes::Table;
use tokio::{sync::watch, time::Instant};
use wake::Flights;

use super::{
    UNLISTED, afterwards,
    company::{self, Brings, Company},
    far::NearGateway,
    given_tls,
    ground::{self, Ground},
    probes::Health,
    waking::FarWaker,
    written::Written,
};
use crate::{
    config::Settings,
    control_loop::{Nowhere, SYNC_TIMEOUT},
    data_plane::{Entry, feed_routes, gateway_options, wake_options},
    ext_proc, forwards,
    handover::sockets::Sockets,
    listener,
    metrics::{gateway_lines, route_lines, wake_lines},
    serve::Signals,
};

/// How long control may take to hear of a gateway. If it is not there, nobody is put to sleep either.
const NOTICED: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody has told of all routes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the store may take to be read once the routes are known.
const AFTER_ALL: Duration = Duration::from_secs(1);
/// Connections of peers.
const MOST_PEERS: usize = 256;

/// Runs a gateway until a signal stops it.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    if settings.ssh_listen.0.is_some() {
        bail!("ssh.listen is not served by `dormouse gateway`: leave it empty");
    }
    let (seal, identity) = (ground::seal(settings)?, ground::identity(settings)?);
    let probing = Tasks::default();
    let health = Health::serve(settings, &probing).await?;
    let entry = Entry::open(settings, given_tls(settings)?, &Sockets::default())?;
    let (peer_listener, peer_address) = company::bind(settings).await?;
    let ground = Ground::connect(settings, &seal).await?;
    let tasks = ground.tasks.clone();
    health.not_ready("routes are being read");
    let watched = Watched::default();
    let (store, clock, entropy) = (&ground.store, &ground.clock, &ground.entropy);
    let table = feed_routes(store, clock, entropy, &watched, &tasks);
    let (fed, stopping) = (watched.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        tokio::select! {
            () = stopping.cancelled() => {}
            () = fed.went_back() => ground::begin_anew(),
        }
    });
    let written = Arc::new(Written::new(Arc::clone(&table), watched));
    let waker = Arc::new(FarWaker::new(Arc::clone(&table)));
    let brings = Brings {
        role: mesh::Role::Gateway,
        book: Some(written.clone()),
        ear: None,
    };
    let company = Company::join(settings, &ground, peer_address, brings)?;
    let activity = gateway::Activity::new(Arc::clone(clock));
    let peering = Tasks::default();
    let near = NearGateway {
        activity: activity.clone(),
        written: Arc::clone(&written),
        table: Arc::clone(&table),
    };
    let kin = company::kin(settings, &ground)?;
    let stop_telling = peering.stopping().clone();
    let desk = Desk::new(Arc::new(near), kin.clone(), entropy.u64(), stop_telling);
    let followers = desk.followers();
    peering.spawn(listener::serve_peers(
        peer_listener,
        identity,
        desk.router(),
        MOST_PEERS,
        company.mesh.clone(),
        peering.clone(),
    ));
    let own = OwnWatch {
        settings: settings.clone(),
        ground,
        table: Arc::clone(&table),
        waker: Arc::clone(&waker),
        written: Arc::clone(&written),
        health: health.clone(),
    };
    let (clock, entropy) = (own.ground.clock.clone(), own.ground.entropy.clone());
    let stop = tasks.stopping().clone();
    let mut reading = tasks.spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => bail!("it was told to stop"),
            read = own.read() => read,
        }
    });
    let known = tokio::select! {
        name = signals.next() => return stopped_early(name),
        read = &mut reading => Some(read.context("read where sandboxes are")??),
        () = told(&table) => None,
    };
    if known.is_none() {
        tracing::warn!(
            "serves the routes that another process told: the API server is slow, or away"
        );
    }
    company.met().await;
    let counted = Arc::clone(&table);
    let ports = Ports {
        routes: table,
        inside: Arc::new(Nowhere),
        pods: Arc::new(Forwarded::new(seal.clone())),
        wake: waker.clone(),
        progress: written,
        seal: Some(seal),
        clock,
        entropy,
    };
    let gateway = Gateway::behind(
        entry.open_up(),
        activity,
        ports,
        gateway_options(settings),
        None,
    )
    .context("start the gateway")?;
    let raw = Tasks::default();
    let sockets = Sockets::default();
    let _ = forwards::start(settings, &sockets, &gateway.streams(), &raw).await?;
    let envoys = ext_proc::start(settings, &sockets, &gateway, &raw).await?;
    drop(sockets);
    let counters = gateway.metrics();
    let mesh = company.mesh.clone();
    health.counts(move |page| {
        if let Some(flights) = waker.flights() {
            wake_lines(page, flights);
        }
        gateway_lines(page, &counters.snapshot());
        route_lines(page, &counted.stats());
        company::lines(page, &mesh.stats());
        company::stranger_lines(page, &kin.strangers());
        if let Some(seen) = &envoys {
            ext_proc::lines(page, &seen.metrics);
        }
    });
    for address in gateway.addresses() {
        tracing::info!(%address, peers = %peer_address, "serving");
    }
    let serving = async {
        noticed(followers, &health).await;
        health.ready();
        let routing = match known {
            Some(routing) => routing,
            // What was told is served, and the store is read when it can be.
            None => reading.await.context("read where sandboxes are")??,
        };
        health.depends_on([("routes", routing.watch_health())], &tasks);
        std::future::pending::<anyhow::Result<()>>().await
    };
    let name = tokio::select! {
        name = signals.next() => name,
        ended = serving => return ended,
    };
    health.not_ready("it is stopping");
    let grace = settings.drain_timeout.0;
    tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
    let drain = async {
        gateway.say_goodbye();
        tokio::time::sleep(UNLISTED).await;
        let until = Instant::now() + grace;
        let (requests, raw) = tokio::join!(gateway.drain(grace), raw.drain(grace));
        let left = requests.err().unwrap_or_default() + raw.err().unwrap_or_default();
        let _ = tasks.drain(afterwards(until)).await;
        // To the end: who is inside keeps sandboxes awake.
        company.leave().await;
        let _ = peering.drain(UNLISTED).await;
        left
    };
    super::finish(drain, &mut signals).await
}

fn stopped_early(signal: &str) -> anyhow::Result<()> {
    tracing::info!(signal, "stopped before it served");
    Ok(())
}

/// Waits until somebody follows the use of this gateway, or had a while to.
async fn noticed(mut followers: watch::Receiver<usize>, health: &Health) {
    health.not_ready("the control loop has not heard of it yet");
    let followed = followers.wait_for(|count| *count > 0);
    if tokio::time::timeout(NOTICED, followed).await.is_err() {
        tracing::warn!(
            "nobody asks who is in use here: the control loop is away, or does not find it"
        );
    }
}

/// Waits until the routes are known, by whomever, and for a while that the store is read as well: before
/// that nobody can be woken.
async fn told(table: &Table) {
    while !table.synced() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    tokio::time::sleep(AFTER_ALL).await;
}

/// What a gateway reads of the store itself: where sandboxes are, and from then on it can wake them.
struct OwnWatch {
    settings: Settings,
    ground: Ground,
    table: Arc<Table>,
    waker: Arc<FarWaker>,
    written: Arc<Written>,
    health: Health,
}

impl OwnWatch {
    async fn read(self) -> anyhow::Result<RoutingCache> {
        let ground = &self.ground;
        let (store, tasks) = (&ground.store, &ground.tasks);
        let say = |why: &str| {
            // Who serves what it was told by others stays ready.
            if !self.table.synced() {
                self.health.not_ready(why);
            }
        };
        ground.wait_for_kinds(say).await?;
        let routing = loop {
            let options = cache::Options::new(Arc::clone(&ground.entropy));
            let deadline = Instant::now() + SYNC_TIMEOUT;
            match RoutingCache::start(Arc::clone(store), options, deadline, tasks).await {
                Ok(routing) => break routing,
                Err(error @ cache::StartError::DeadlineReached { .. }) if self.table.synced() => {
                    tracing::warn!(%error, "what others told is served");
                }
                Err(error) => return Err(error.into()),
            }
        };
        let flights = Flights::new(
            Arc::clone(store),
            routing.clone(),
            Arc::clone(&ground.clock),
            tasks.child(),
            wake_options(&self.settings),
        );
        self.written.tell(flights.clone());
        self.waker.fly_with(flights);
        Ok(routing)
    }
}
