//! The control loop as this process runs it: over which runtime, and how its health reaches
//! readiness.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use api::Readiness;
use cache::Health;
use control::{Control, events::StoredEvents};
use kit::{Clock, Entropy, Tasks};
use runtime::{Runtime, fake::FakeRuntime};
use runtime_local::LocalRuntime;
use store::Store;
use tokio::{sync::watch, time::Instant};

use crate::{config::types::RuntimeKind, doctor, run::find_agent};

/// The first sync reads the whole store; one that takes longer is broken.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// A running control loop.
#[derive(Debug)]
pub(crate) struct ControlLoop {
    control: Control,
    tasks: Tasks,
    /// Not ready as soon as a cache it decides on is gone.
    pub(crate) readiness: Readiness,
}

/// Starts the loop; `None` if this process is to run nothing, so that sandboxes stay Pending.
///
/// # Errors
/// If it cannot read the store in time, or this host cannot run sandboxes.
pub(crate) async fn start(
    kind: RuntimeKind,
    data_dir: &Path,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<Entropy>,
) -> anyhow::Result<Option<ControlLoop>> {
    let tasks = Tasks::default();
    let runtime: Arc<dyn Runtime> = match kind {
        RuntimeKind::None => return Ok(None),
        RuntimeKind::Fake => {
            tracing::warn!("the fake runtime pretends: no sandbox is ever real");
            Arc::new(FakeRuntime::new(tasks.child()))
        }
        RuntimeKind::Local => {
            doctor::require(data_dir)?;
            let options = runtime_local::Options::agent(find_agent(None)?);
            let opened = LocalRuntime::open(data_dir, options);
            Arc::new(opened.context("open the engine that runs sandboxes on this host")?)
        }
    };
    let events = StoredEvents::start(store.clone(), clock.clone(), &tasks);
    let control = control::Builder::new(store.clone(), runtime, clock.clone(), entropy.clone())
        .events(Arc::new(events))
        .start(&tasks, Instant::now() + SYNC_TIMEOUT)
        .await
        .context("start the control loop")?;
    let readiness = follow(&control, &tasks);
    Ok(Some(ControlLoop {
        control,
        tasks,
        readiness,
    }))
}

impl ControlLoop {
    /// Lets the turns under way finish.
    pub(crate) async fn drain(self, grace: Duration) {
        self.control.drain(grace).await;
        if let Err(left) = self.tasks.drain(grace).await {
            tracing::warn!(
                left,
                "tasks of the runtime did not end in time and are dropped"
            );
        }
    }
}

/// Turns the health of the caches into readiness.
fn follow(control: &Control, tasks: &Tasks) -> Readiness {
    let (sender, receiver) = watch::channel(Ok(()));
    let caches = control.caches();
    let sender = Arc::new(sender);
    for (name, mut health) in [
        ("sandboxes", caches.sandboxes.watch_health()),
        ("pools", caches.pools.watch_health()),
        ("claims", caches.claims.watch_health()),
        ("snapshots", caches.snapshots.watch_health()),
        ("templates", caches.templates.watch_health()),
    ] {
        let sender = sender.clone();
        tasks.spawn(async move {
            // A stopped cache never comes back, so the first one decides. A sender that is gone
            // has stopped too, and left its last word.
            let stopped = health.wait_for(|health| !health.is_ready()).await;
            let why = match stopped.as_deref() {
                Ok(Health::Stopped(reason)) => reason.to_string(),
                Ok(Health::Live | Health::Retrying { .. }) | Err(_) => "it is gone".to_owned(),
            };
            drop(stopped);
            let _ = sender.send_replace(Err(format!("the cache of {name} has stopped: {why}")));
        });
    }
    receiver
}
