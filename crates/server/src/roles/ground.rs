//! What every role stands on.

use std::{
    collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use auth::Seal;
use cluster_kube::Cluster;
use kit::{Clock, Entropy, SystemClock, Tasks};
use peer::{Identity, NodeIdentity};
use peers::{Kin, Members, Peers};
use sha2::{Digest as _, Sha256};
use store::Store;
use store_kube::{KubeStore, crds, proof::Vouch};
use tokio::sync::watch;

use super::{
    announcing::{Announcing, Voice},
    probes::Health,
};
use crate::config::{Settings, cluster::Places, types::OptionalFile};

/// The port of the headless Services at which our processes answer each other.
const PEER_PORT: &str = "peer";
/// Fewer characters than this can be guessed.
const SHORTEST: usize = 32;
/// How often it is looked whether the cluster has what it lacked.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The cluster, and what goes with it.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) cluster: Cluster,
    pub(crate) store: Arc<dyn Store>,
    /// The same, for what nobody waits for.
    pub(crate) background: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    /// Tells others of what was written by way of the stores.
    pub(crate) voice: Voice,
    /// What ends with the process.
    pub(crate) tasks: Tasks,
}

impl Ground {
    /// Connects to the cluster, and waits until it knows our kinds.
    ///
    /// # Errors
    /// If there is no usable configuration, or the kinds are not for this version.
    pub(crate) async fn find(
        settings: &Settings,
        seal: &Seal,
        health: &Health,
    ) -> anyhow::Result<Self> {
        let ground = Self::connect(settings, seal).await?;
        ground.wait_for_kinds(|why| health.not_ready(why)).await?;
        Ok(ground)
    }

    /// Connects to the cluster, whether or not that is there now.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub(crate) async fn connect(settings: &Settings, seal: &Seal) -> anyhow::Result<Self> {
        let kubeconfig = settings.kubernetes_kubeconfig.0.as_deref();
        let mut cluster = Cluster::connect(kubeconfig).await.context(
            "find the cluster (name its kubeconfig with --kubernetes-kubeconfig or $KUBECONFIG)",
        )?;
        if let Some(namespace) = &settings.kubernetes_namespace.0 {
            cluster = cluster.within(namespace);
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let entropy = Arc::new(Entropy::from_os());
        let store = KubeStore::new(cluster.clone()).vouched(Arc::new(BySeal(seal.clone())));
        let voice = Voice::default();
        let tasks = Tasks::default();
        let (watched, stopping) = (store.clone(), tasks.stopping().clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = watched.went_back() => begin_anew(),
            }
        });
        Ok(Self {
            cluster,
            background: Arc::new(Announcing::new(Arc::new(store.background()), voice.clone())),
            store: Arc::new(Announcing::new(Arc::new(store), voice.clone())),
            clock,
            entropy,
            voice,
            tasks,
        })
    }

    /// Waits until the cluster knows our kinds. An API server that does not answer, lacks them or does
    /// not let us look is waited for: whoever mends that need not know that this waits.
    ///
    /// # Errors
    /// If the kinds are of another version, which waiting does not mend.
    pub(crate) async fn wait_for_kinds(&self, say: impl Fn(&str)) -> anyhow::Result<()> {
        let mut said = String::new();
        loop {
            let why = match crds::check(&self.cluster).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retryable() => error.to_string(),
                Err(error) => return Err(error.into()),
            };
            if why != said {
                tracing::error!("{why}");
                say(&why);
                said = why;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Where processes of ours are that stand behind a headless Service.
    pub(crate) fn endpoints(&self, service: &str, tasks: &Tasks) -> Members {
        self.cluster.follow_endpoints(service, PEER_PORT, tasks)
    }

    /// What this process is called among its kind: no other one is or was called so.
    pub(crate) fn identity(&self, settings: &Settings) -> String {
        let pod = settings.kubernetes_identity.0.as_deref();
        format!("{}_{:016x}", pod.unwrap_or("dormouse"), self.entropy.u64())
    }

    /// The gateways, as one who asks them.
    ///
    /// # Errors
    /// If the peer key cannot be had.
    pub(crate) fn gateways(
        &self,
        settings: &Settings,
        kin: Kin,
        tasks: &Tasks,
    ) -> anyhow::Result<Peers> {
        let members = match &settings.kubernetes_gateways {
            Places::None => fixed(BTreeSet::new()),
            Places::Fixed(addresses) => fixed(addresses.iter().copied().collect()),
            Places::Service(name) => self.endpoints(name, tasks),
        };
        let identity = identity(settings)?;
        let (clock, entropy) = (self.clock.clone(), self.entropy.clone());
        Ok(Peers::start(members, identity, kin, clock, entropy, tasks))
    }
}

/// Our processes are those that have the seal.
#[derive(Debug)]
struct BySeal(Seal);

impl Vouch for BySeal {
    fn sign(&self, text: &str) -> Box<str> {
        self.0.sign(text)
    }

    fn knows(&self, text: &str, signature: &str) -> bool {
        self.0.has_signed(text, signature)
    }
}

fn fixed(addresses: BTreeSet<std::net::SocketAddr>) -> Members {
    watch::channel(Some(addresses)).1
}

/// Ends the process if the cluster went back: what it knows is no more, and whoever runs it starts it again.
pub(super) fn begin_anew() -> ! {
    tracing::error!("the cluster was restored from a backup: this process ends, to begin anew");
    std::process::exit(1)
}

/// What tokens of sandboxes are derived from.
///
/// # Errors
/// If no file is named, or it holds nothing of the kind.
pub(crate) fn seal(settings: &Settings) -> anyhow::Result<Seal> {
    let text = secret(&settings.seal_file, "seal_file")?;
    let text = text.trim();
    if text.len() < SHORTEST {
        bail!(
            "seal_file holds fewer than {SHORTEST} characters: make it by `openssl rand -hex 32`"
        );
    }
    Ok(Seal::new(Sha256::digest(text).into()))
}

/// Who this process is to the others of its installation.
///
/// # Errors
/// If no key is named, or its file holds none.
pub(crate) fn identity(settings: &Settings) -> anyhow::Result<Identity> {
    let text = secret(&settings.peer_key_file, "peer_key_file")?;
    let keys = peer::Keys::parse(&text).context("read peer_key_file")?;
    Ok(Identity::new(&keys)?)
}

/// Who the daemon of a node is to control loops.
///
/// # Errors
/// If no identity is named, or its file holds none.
pub(crate) fn node_identity(settings: &Settings) -> anyhow::Result<NodeIdentity> {
    let text = secret(&settings.node_identity_file, "node_identity_file")?;
    NodeIdentity::parse(&text).context("read node_identity_file")
}

/// A secret as a cluster mounts it: for its owner and group.
fn secret(file: &OptionalFile, key: &str) -> anyhow::Result<String> {
    let Some(path) = &file.0 else {
        bail!("{key} is not set: it names a file with a secret of the installation");
    };
    check_mode(path)?;
    fs::read_to_string(path).with_context(|| format!("read {key} {}", path.display()))
}

fn check_mode(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let about = fs::metadata(path).with_context(|| format!("look at {shown}"))?;
    let mode = about.permissions().mode() & 0o7777;
    if mode & 0o007 != 0 {
        bail!(
            "{shown} has mode {mode:04o}, so anybody may have read it: run `chmod o-rwx {shown}`"
        );
    }
    Ok(())
}
