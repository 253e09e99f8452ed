//! `dormouse control`: makes intent so, in Pods. Of several such processes one acts.
//!
//! ```text
//!  starts ──▶ stands by (ready) ──wins the lease──▶ reads ──▶ acts (ready) ──told to stop──▶ gives it up
//!                                                               └──loses the lease──▶ ends at once
//! ```
//!
//! A process that has lost the lease ends without another word: whatever of it is still on its way is
//! refused where it arrives, because whoever leads next takes new numbers for its operations.

use std::sync::Arc;

use anyhow::Context as _;
use auth::{Keys, Seal};
use cluster_kube::{
    events::Recorder,
    lease::{self, Election, candidate::Rules},
};
use control::{Reception, events::StoredEvents, world::NoWaiters};
use kit::Tasks;
use model::{Sandbox, SandboxId, sandbox::Access, template::TemplateSpec};
use peers::Peers;
use store::Standing;
use store_kube::proof;
use tokio::time::Instant;

use super::{
    company::{self, Brings, Company},
    events::ToldToAll,
    far::FarGateways,
    ground::{self, Ground},
    probes::Health,
};
use crate::{
    config::Settings,
    control_loop::{self, ControlLoop, Engine, Parts, SYNC_TIMEOUT},
    data_plane::{SealedTokens, ensure_base},
    metrics::{Page, sandbox_lines},
    serve::Signals,
};

/// The lease by which one leads.
const LEASE: &str = "dormouse-control";
/// Who reports Events.
const COMPONENT: &str = "dormouse-control";

/// Runs a control loop until a signal stops it.
///
/// # Errors
/// If it cannot start, or has lost its lease.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let seal = ground::seal(settings)?;
    let identity = ground::identity(settings)?;
    let (peer_listener, peer_address) = company::bind(settings).await?;
    let probing = Tasks::default();
    let health = Health::serve(settings, &probing).await?;
    let winning = async {
        let ground = Ground::find(settings, &seal, &health).await?;
        let brings = Brings {
            role: mesh::Role::Control,
            book: None,
            ear: None,
        };
        let company = Company::join(settings, &ground, peer_address, brings)?;
        company.listen(peer_listener, identity);
        let me = ground.identity(settings);
        let (cluster, clock) = (&ground.cluster, ground.clock.clone());
        let election = Election::new(cluster, LEASE, &me, Rules::default(), clock);
        let leading = Tasks::default();
        let lead = election
            .win(&leading, |standing| stand(&health, &standing))
            .await;
        tracing::info!(me, lease = LEASE, "leads");
        anyhow::Ok((ground, lead, company))
    };
    let (ground, lead, company) = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before it led");
            return Ok(());
        }
        won = winning => won?,
    };
    health.not_ready("it leads, and reads what there is to do");
    let started = tokio::select! {
        () = lead.lost() => lost(),
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before it acted");
            lead.release().await;
            return Ok(());
        }
        started = start(settings, &ground, seal) => started,
    };
    let (acting, gateways) = match started {
        Ok(started) => started,
        Err(error) => {
            lead.release().await;
            return Err(error);
        }
    };
    let caches = acting.caches();
    let of_caches = [
        ("sandboxes", caches.sandboxes.watch_health()),
        ("pools", caches.pools.watch_health()),
        ("claims", caches.claims.watch_health()),
        ("snapshots", caches.snapshots.watch_health()),
        ("templates", caches.templates.watch_health()),
    ];
    let sandboxes = caches.sandboxes.clone();
    let mesh = company.mesh.clone();
    health.counts(move |page| {
        sandbox_lines(page, &sandboxes);
        gateway_lines(page, &gateways);
        company::lines(page, &mesh.stats());
    });
    health.ready();
    health.depends_on(of_caches, &ground.tasks);
    let name = tokio::select! {
        () = lead.lost() => lost(),
        name = signals.next() => name,
    };
    let grace = settings.drain_timeout.0;
    tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
    let drain = async {
        let until = Instant::now() + grace;
        tokio::select! {
            () = lead.lost() => lost(),
            () = acting.drain(grace) => {}
        }
        let rest = ground.tasks.drain(super::afterwards(until)).await;
        let left = rest.err().unwrap_or_default();
        company.leave().await;
        // After the last act, so that the next one need not wait.
        lead.release().await;
        left
    };
    super::finish(drain, &mut signals).await
}

/// Records come through the API server, and the store knows which are ours.
#[derive(Debug)]
struct Sealed(Seal);

impl Reception for Sealed {
    fn standing(&self, sandbox: &Sandbox) -> Standing {
        proof::standing(&sandbox.metadata)
    }

    fn access(&self, id: &SandboxId) -> Access {
        self.0.access(id, true)
    }
}

/// How a candidate stands. One that stands by is ready for it.
fn stand(health: &Health, standing: &lease::Standing<'_>) {
    match *standing {
        lease::Standing::Waiting { holder } => {
            tracing::debug!(holder, "stands by");
            health.ready();
        }
        lease::Standing::Trouble(error) => {
            tracing::warn!(%error, "cannot stand for election");
            health.not_ready(&error.to_string());
        }
    }
}

/// Ends the process: somebody else may act from now on.
fn lost() -> ! {
    tracing::error!("the lease was lost: another process may lead, so this one ends at once");
    std::process::exit(1)
}

async fn start(
    settings: &Settings,
    ground: &Ground,
    seal: Seal,
) -> anyhow::Result<(ControlLoop, Peers)> {
    let (store, clock, entropy) = (&ground.background, &ground.clock, &ground.entropy);
    let tasks = &ground.tasks;
    let deadline = Instant::now() + SYNC_TIMEOUT;
    let keys = Keys::start(store.clone(), entropy.clone(), deadline, tasks);
    let keys = keys.await.context("read API keys and teams")?;
    if let Some(image) = &settings.kubernetes_base_image.0 {
        let spec = TemplateSpec {
            image: image.clone(),
            ..TemplateSpec::default()
        };
        ensure_base(&**store, spec).await?;
    }
    let peers = ground.gateways(settings, company::kin(settings, ground)?, tasks)?;
    let gateways = Arc::new(FarGateways(peers.clone()));
    let engine = Engine::of_cluster(
        settings,
        &ground.cluster,
        &seal,
        ground::identity(settings)?,
    )
    .await?;
    let events = ToldToAll {
        stored: StoredEvents::start(store.clone(), clock.clone(), tasks),
        recorder: Recorder::start(&ground.cluster, COMPONENT, clock.clone(), tasks),
    };
    let options = control::Options {
        // API replicas claim, too.
        claims_alone: false,
        // A turn waits until its Pod runs, which takes seconds: claims must find a worker meanwhile.
        workers: 128,
        ..control_loop::options(settings)
    };
    let acting = control_loop::start(Parts {
        engine: &engine,
        store,
        clock,
        entropy,
        activity: gateways.clone(),
        followers: gateways,
        waiters: Arc::new(NoWaiters),
        events: Arc::new(events),
        tokens: Arc::new(SealedTokens(seal.clone())),
        reception: Some(Arc::new(Sealed(seal))),
        keys,
        options,
    });
    Ok((acting.await?, peers))
}

/// Whether gateways can be asked: while one cannot, nobody is put to sleep.
fn gateway_lines(page: &mut Page, gateways: &Peers) {
    let name = "dormouse_gateways_unreachable";
    page.family(
        name,
        "gauge",
        "Gateways that are listed and cannot be asked",
    );
    if let Some(away) = gateways.unreachable() {
        page.line(name, &[], away.len());
    }
    company::stranger_lines(page, &gateways.strangers());
}
