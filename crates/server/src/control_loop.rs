//! The control loop as this process runs it: over which runtime, and how its health reaches
//! readiness.

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use api::Readiness;
use auth::{Keys, Seal};
use cache::Health;
use cluster_kube::Cluster;
use control::{
    ActivitySource, AgentTokens, Control, EventSink, Followers, Options, Reception, Waiters,
    history::Retention, world::Caches,
};
use kit::{Clock, Entropy, Tasks};
use model::Uid;
use peer::Identity;
use runtime::{Family, Inside, Runtime, RuntimeError, fake::FakeRuntime};
use runtime_kube::{KubeRuntime, NodeDaemon};
use runtime_local::LocalRuntime;
use store::Store;
use tokio::{sync::watch, time::Instant};

use crate::{
    config::{Settings, types::RuntimeKind},
    data_plane, doctor,
    plugins::{self, Say},
    run::find_agent,
};

/// The first sync reads the whole store; one that takes longer is broken.
pub(crate) const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// A running control loop.
#[derive(Debug)]
pub(crate) struct ControlLoop {
    control: Control,
    tasks: Tasks,
    /// Not ready as soon as a cache it decides on is gone.
    pub(crate) readiness: Readiness,
    /// Those who have a say in what it makes.
    pub(crate) say: Say,
}

/// What runs sandboxes, and the way into their networks.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) inside: Arc<dyn Inside>,
    /// Where sandboxes can be measured.
    pub(crate) local: Option<LocalRuntime>,
    tasks: Tasks,
}

impl Engine {
    /// Opens what is configured; `None` if this process is to run nothing, so that sandboxes stay
    /// Pending.
    ///
    /// # Errors
    /// If this host cannot run sandboxes.
    pub(crate) fn open(
        kind: RuntimeKind,
        data_dir: &Path,
        images: images::Options,
    ) -> anyhow::Result<Option<Self>> {
        let tasks = Tasks::default();
        let mut local = None;
        let (runtime, inside): (Arc<dyn Runtime>, Arc<dyn Inside>) = match kind {
            RuntimeKind::None => return Ok(None),
            RuntimeKind::Fake => {
                tracing::warn!("the fake runtime pretends: no sandbox is ever real");
                (Arc::new(FakeRuntime::new(tasks.child())), Arc::new(Nowhere))
            }
            RuntimeKind::Local => {
                doctor::require(data_dir)?;
                let mut options = runtime_local::Options::agent(find_agent(None)?);
                options.image_store = images;
                let opened = LocalRuntime::open(data_dir, options);
                let opened = opened.context("open the engine that runs sandboxes on this host")?;
                local = Some(opened.clone());
                (Arc::new(opened.clone()), Arc::new(opened))
            }
        };
        Ok(Some(Self {
            runtime,
            inside,
            local,
            tasks,
        }))
    }
}

impl Engine {
    /// What ends with it.
    pub(crate) const fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// What runs sandboxes in a cluster: Pods, or for development nothing real.
    ///
    /// # Errors
    /// If its Pods cannot be read.
    pub(crate) async fn of_cluster(
        settings: &Settings,
        cluster: &Cluster,
        seal: &Seal,
        identity: Identity,
    ) -> anyhow::Result<Self> {
        let tasks = Tasks::default();
        let runtime: Arc<dyn Runtime> = match settings.runtime {
            RuntimeKind::Fake => {
                tracing::warn!("the fake runtime pretends: no sandbox is ever real");
                Arc::new(FakeRuntime::new(tasks.child()))
            }
            RuntimeKind::Local | RuntimeKind::None => {
                let options = pod_options(settings, identity)?;
                let keys = Arc::new(seal.clone());
                let started = KubeRuntime::start(cluster, options, keys, &tasks).await;
                Arc::new(started.context("read the Pods of sandboxes")?)
            }
        };
        Ok(Self {
            runtime,
            inside: Arc::new(Nowhere),
            local: None,
            tasks,
        })
    }
}

/// How sandboxes run in a cluster.
fn pod_options(settings: &Settings, identity: Identity) -> anyhow::Result<runtime_kube::Options> {
    let image = settings.kubernetes_image.0.as_deref().context(
        "kubernetes.image is not set: it names the image of Dormouse, which brings the agent into \
         sandboxes",
    )?;
    let mut options = runtime_kube::Options::new(image);
    if settings.kubernetes_node_daemon.0 {
        options.node = Some(NodeDaemon {
            port: settings.kubernetes_node_port.0,
            identity: Arc::new(identity),
        });
    }
    if let Some(commits) = &mut options.commits {
        commits
            .registry
            .clone_from(&settings.kubernetes_snapshot_registry.0);
        commits
            .registry_secret
            .clone_from(&settings.kubernetes_snapshot_secret.0);
        if let Some(socket) = &settings.kubernetes_containerd_socket.0 {
            commits.containerd_socket.clone_from(socket);
        }
        if let Some(root) = &settings.kubernetes_containerd_root.0 {
            commits.containerd_root.clone_from(root);
        }
        let insecure = settings.registry_insecure.0.iter();
        commits.insecure_registries = insecure.map(|host| host.as_str().into()).collect();
    }
    Ok(options)
}

/// The inside of sandboxes that are not real, or not here.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl Inside for Nowhere {
    fn socket(&self, uid: Uid, _: Family) -> Result<OwnedFd, RuntimeError> {
        Err(RuntimeError::Absent(uid))
    }
}

/// What the loop is made of.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) entropy: &'a Arc<Entropy>,
    /// Use of sandboxes.
    pub(crate) activity: Arc<dyn ActivitySource>,
    /// Those who let traffic in.
    pub(crate) followers: Arc<dyn Followers>,
    /// Those who wait for sandboxes that sleep.
    pub(crate) waiters: Arc<dyn Waiters>,
    /// What people read later.
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) tokens: Arc<dyn AgentTokens>,
    /// Who receives records that came by themselves; nobody where all come through our APIs.
    pub(crate) reception: Option<Arc<dyn Reception>>,
    /// Whose quotas count.
    pub(crate) keys: Keys,
    pub(crate) options: Options,
}

/// What the settings say of it.
pub(crate) fn options(settings: &Settings) -> Options {
    Options {
        drain_timeout: settings.wake_drain_timeout.0,
        history: Retention {
            keep: settings.history_keep.0,
            most: settings.history_max_records.0,
            ..Retention::default()
        },
        ..Options::default()
    }
}

/// Starts the loop over an engine.
///
/// # Errors
/// If it cannot read the store in time.
pub(crate) async fn start(parts: Parts<'_>) -> anyhow::Result<ControlLoop> {
    let Parts {
        engine,
        store,
        clock,
        entropy,
        activity,
        followers,
        waiters,
        events,
        tokens,
        reception,
        keys,
        options,
    } = parts;
    let tasks = engine.tasks.clone();
    let usual = data_plane::usual_size()?;
    let mut say = None;
    let runtime = Arc::clone(&engine.runtime);
    let mut builder = control::Builder::new(store.clone(), runtime, clock.clone(), entropy.clone())
        .events(events)
        .options(options)
        .activity(activity)
        .followers(followers)
        .waiters(waiters)
        .tokens(tokens);
    if let Some(reception) = reception {
        builder = builder.reception(reception);
    }
    let control = builder
        .start_with(&tasks, Instant::now() + SYNC_TIMEOUT, |caches| {
            let assembled = plugins::assemble(keys, usual, caches);
            say.insert(assembled).plugins.clone()
        })
        .await
        .context("start the control loop")?;
    let readiness = follow(&control, &tasks);
    Ok(ControlLoop {
        control,
        tasks,
        readiness,
        say: say.context("put the plugins together")?,
    })
}

impl ControlLoop {
    /// What it looks at.
    pub(crate) fn caches(&self) -> &Caches {
        self.control.caches()
    }

    /// Where claims are served.
    pub(crate) fn desk(&self) -> &Arc<claims::Desk> {
        self.control.desk()
    }

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
