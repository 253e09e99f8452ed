//! `dormouse gateway`: moves bytes between clients and Pods, and wakes what sleeps.
//!
//! It follows sandboxes and nothing else, and of those only what it routes by. It knows no keys: what a
//! port demands is derived from the seal. Other processes ask it, with the peer key, who is in use and
//! how far it has heard.
//!
//! Start: it listens (whoever comes is told to come again), reads all routes, answers its peers, and is
//! ready once the one who puts sandboxes to sleep has heard of it, or had a while to: who is let in
//! before that would count for nobody. Stop: not ready, a while for those who send traffic to hear of
//! it, then no more is accepted and what is inside has its time. Peers are answered to the end.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use cache::{RoutingCache, Watched};
use gateway::{Forwarded, Gateway, Ports};
use kit::Tasks;
use peers::Desk;
use routes::{Route, State, WakeError};
use tokio::{sync::watch, time::Instant};
use tokio_rustls::TlsAcceptor;
use wake::Flights;

use super::{
    UNLISTED,
    far::NearGateway,
    given_tls,
    ground::{self, Ground},
    probes::Health,
};
use crate::{
    config::Settings,
    control_loop::{Nowhere, SYNC_TIMEOUT},
    data_plane::{Entry, feed_routes, gateway_options, wake_options},
    ext_proc, forwards,
    handover::sockets::Sockets,
    listener,
    metrics::{gateway_lines, wake_lines},
    serve::{Signals, bind},
    sleep::{Routed, key_of},
};

/// How long control may take to hear of a gateway. If it is not there, nobody is put to sleep either.
const NOTICED: Duration = Duration::from_secs(5);
/// How long the route of a sandbox that its owner has heard of may take to arrive.
const ARRIVING: Duration = Duration::from_secs(1);
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
    let peer_listener = bind(&settings.peer_listen).await?;
    let ground = tokio::select! {
        name = signals.next() => return stopped_early(name),
        ground = Ground::find(settings, &seal, &health) => ground?,
    };
    let tasks = ground.tasks.clone();
    health.not_ready("routes are being read");
    let watched = Watched::default();
    let (store, clock, entropy) = (&ground.store, &ground.clock, &ground.entropy);
    let table = feed_routes(store, clock, entropy, &watched, &tasks);
    let options = cache::Options::new(Arc::clone(entropy));
    let deadline = Instant::now() + SYNC_TIMEOUT;
    let routing = tokio::select! {
        name = signals.next() => return stopped_early(name),
        routing = RoutingCache::start(Arc::clone(store), options, deadline, &tasks) => routing,
    };
    let routing = routing.context("read where sandboxes are")?;
    let flights = Flights::new(
        Arc::clone(store),
        routing.clone(),
        Arc::clone(clock),
        tasks.child(),
        wake_options(settings),
    );
    let activity = gateway::Activity::new(Arc::clone(clock));
    let routed = watched.clone();
    let peering = Tasks::default();
    let near = NearGateway {
        activity: activity.clone(),
        watched,
        table: Arc::clone(&table),
    };
    let desk = Desk::new(Arc::new(near), entropy.u64(), peering.stopping().clone());
    let followers = desk.followers();
    let peer_address = peer_listener
        .local_addr()
        .context("read the bound address")?;
    peering.spawn(listener::serve(
        peer_listener,
        TlsAcceptor::from(identity.server_config()),
        desk.router(),
        MOST_PEERS,
        peering.clone(),
    ));
    let ports = Ports {
        routes: table,
        inside: Arc::new(Nowhere),
        pods: Arc::new(Forwarded::new(seal.clone())),
        wake: Arc::new(FarWaker {
            flights: flights.clone(),
            routes: routing.clone(),
        }),
        progress: Arc::new(Routed(routed)),
        seal: Some(seal),
        clock: Arc::clone(clock),
        entropy: Arc::clone(entropy),
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
    health.counts(move |page| {
        wake_lines(page, &flights);
        gateway_lines(page, &counters.snapshot());
        if let Some(seen) = &envoys {
            ext_proc::lines(page, seen);
        }
    });
    for address in gateway.addresses() {
        tracing::info!(%address, peers = %peer_address, "serving");
    }
    let early = tokio::select! {
        name = signals.next() => Some(name),
        () = noticed(followers, &health) => None,
    };
    let name = match early {
        Some(name) => name,
        None => {
            health.ready();
            health.depends_on([("routes", routing.watch_health())], &tasks);
            signals.next().await
        }
    };
    health.not_ready("it is stopping");
    let grace = settings.drain_timeout.0;
    tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
    let drain = async {
        tokio::time::sleep(UNLISTED).await;
        let (requests, raw) = tokio::join!(gateway.drain(grace), raw.drain(grace));
        let left = requests.err().unwrap_or_default() + raw.err().unwrap_or_default();
        let _ = tasks.drain(grace).await;
        // To the end: who is inside keeps sandboxes awake.
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

/// Flights, where those who tell owners of their sandboxes are other processes.
#[derive(Debug)]
struct FarWaker {
    flights: Flights,
    routes: RoutingCache,
}

#[async_trait]
impl gateway::Wake for FarWaker {
    async fn wake(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError> {
        if route.state != State::Creating {
            return self.flights.wake(route, deadline).await;
        }
        // Nobody has its id but who was told of it, which is when it is ready: its route follows.
        let now = self.routes.find(&key_of(route));
        let now = now.filter(|now| now.is_delivery(route.uid, route.epoch));
        match now.filter(|now| now.state == State::Running) {
            Some(now) => Ok(now),
            None => {
                let soon = deadline.min(Instant::now() + ARRIVING);
                self.flights.look_on(route, soon).await
            }
        }
    }
}
