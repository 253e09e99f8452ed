//! `dormouse api`: the E2B API over a cluster.
//!
//! It writes intent, looks at caches, and calls nobody. What it wrote it tells the other processes, and
//! it answers when they have heard: who is told of a sandbox uses it at once, through any of them. What
//! they tell it waits to be seen in its own caches before it answers by those. Claims are served by a
//! desk of its own; other replicas have theirs, and of two that take the same member one does. Keys and
//! teams are records: `dormouse key create` makes them through the API server. What an API server does
//! itself (the resource API, its audit) or one machine only can (builds, logs of processes, measuring
//! from outside) is not here.

use std::sync::Arc;

use anyhow::Context as _;
use auth::{Keys, Ledger, members::TeamQuota};
use e2b::{Caches, E2b};
use gateway::{Forwarded, Gateway, NoWake, Ports, Timeless};
use kit::Tasks;
use plugins::Plugins;
use routes::Table;
use tokio::time::Instant;

use super::{
    UNLISTED, afterwards,
    company::{self, Brings, Company},
    far::{Listening, Told},
    given_tls,
    ground::{self, Ground},
    probes::Health,
};
use crate::{
    config::Settings,
    control_loop::{Nowhere, SYNC_TIMEOUT},
    data_plane::{Entry, api_options, gateway_options, usual_size},
    handover::sockets::Sockets,
    metrics::{Page, api_lines, sandbox_lines},
    serve::Signals,
};

/// Runs an API until a signal stops it.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let seal = ground::seal(settings)?;
    let identity = ground::identity(settings)?;
    let probing = Tasks::default();
    let health = Health::serve(settings, &probing).await?;
    let (peer_listener, peer_address) = company::bind(settings).await?;
    let entry = Entry::open(settings, given_tls(settings)?, &Sockets::default())?;
    let starting = async {
        let ground = Ground::find(settings, &seal, &health).await?;
        health.not_ready("records are being read");
        let told = Told::default();
        let (api, sandboxes) = start(settings, &ground, seal.clone(), &told, &health).await?;
        let brings = Brings {
            role: mesh::Role::Api,
            book: None,
            ear: Some(Arc::new(Listening {
                api: Arc::clone(&api),
                sandboxes: sandboxes.clone(),
            })),
        };
        let company = Company::join(settings, &ground, peer_address, brings)?;
        company.listen(peer_listener, identity);
        told.by(company.mesh.clone(), sandboxes.clone());
        health.not_ready("other processes are being met");
        company.met().await;
        anyhow::Ok((ground, api, sandboxes, company))
    };
    let (ground, api, sandboxes, company) = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before it served");
            return Ok(());
        }
        started = starting => started?,
    };
    let router = e2b::router(Arc::clone(&api));
    // The front door is that of a gateway that knows no sandboxes: one way to let clients in.
    let ports = Ports {
        routes: Arc::new(Table::new(routes::Limits::default())),
        inside: Arc::new(Nowhere),
        pods: Arc::new(Forwarded::new(seal)),
        wake: Arc::new(NoWake),
        progress: Arc::new(Timeless),
        seal: None,
        clock: Arc::clone(&ground.clock),
        entropy: Arc::clone(&ground.entropy),
    };
    let activity = gateway::Activity::new(Arc::clone(&ground.clock));
    let options = gateway_options(settings);
    let door = Gateway::behind(entry.open_up(), activity, ports, options, Some(router))
        .context("open the door of the API")?;
    let mesh = company.mesh.clone();
    health.counts(move |page| {
        sandbox_lines(page, &sandboxes);
        api_lines(page, &api.stats());
        company::lines(page, &mesh.stats());
        unseen_lines(page, &api);
    });
    for address in door.addresses() {
        tracing::info!(%address, peers = %peer_address, "serving");
    }
    health.ready();
    let name = signals.next().await;
    health.not_ready("it is stopping");
    let grace = settings.drain_timeout.0;
    tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
    let drain = async {
        door.say_goodbye();
        tokio::time::sleep(UNLISTED).await;
        let until = Instant::now() + grace;
        let left = door.drain(grace).await.err().unwrap_or_default();
        // Writes outlive their clients.
        let rest = ground.tasks.drain(afterwards(until)).await;
        let left = left + rest.err().unwrap_or_default();
        company.leave().await;
        left
    };
    super::finish(drain, &mut signals).await
}

async fn start(
    settings: &Settings,
    ground: &Ground,
    seal: auth::Seal,
    told: &Told,
    health: &Health,
) -> anyhow::Result<(Arc<E2b>, cache::SandboxCache)> {
    let (store, tasks) = (&ground.store, &ground.tasks);
    let deadline = Instant::now() + SYNC_TIMEOUT;
    let keys = Keys::start(store.clone(), ground.entropy.clone(), deadline, tasks);
    let keys = keys.await.context("read API keys and teams")?;
    let caches = Caches::start(store, &ground.entropy, deadline, tasks);
    let caches = caches.await.context("read records")?;
    let sandboxes = caches.sandboxes.clone();
    let of_caches = [
        ("sandboxes", caches.sandboxes.watch_health()),
        ("pools", caches.pools.watch_health()),
        ("templates", caches.templates.watch_health()),
        ("snapshots", caches.snapshots.watch_health()),
        ("events", caches.events.watch_health()),
    ];
    health.depends_on(of_caches, tasks);
    let ledger = Ledger::new(sandboxes.clone(), caches.templates.clone(), usual_size()?);
    let ledger = Arc::new(ledger);
    let quota = TeamQuota::new(keys.clone(), Arc::clone(&ledger), caches.pools.clone());
    let mut ports = e2b::Ports::new(
        keys.store(),
        caches,
        ground.clock.clone(),
        ground.entropy.clone(),
        seal,
        keys,
        ledger,
    );
    ports.followers = Arc::new(told.clone());
    ports.plugins = Plugins::new(vec![Arc::new(quota)]);
    let api = E2b::start(ports, api_options(settings)?, tasks).await;
    Ok((api.context("start the E2B API")?, sandboxes))
}

/// How much others have written that is not seen here yet.
fn unseen_lines(page: &mut Page, api: &E2b) {
    let name = "dormouse_api_unseen_changes";
    page.family(
        name,
        "gauge",
        "Changes that other processes told of and the own watch has not shown",
    );
    page.line(name, &[], api.unseen_changes());
}
