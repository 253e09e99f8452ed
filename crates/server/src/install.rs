//! `dormouse install`: an installation on Kubernetes, printed or put into the cluster.

use std::{io::Write as _, path::PathBuf, time::Duration};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use clap::Args;
use cluster_kube::{
    Cluster,
    install::{Keys, Removed, apply, ensure_secret, read_secret, remove},
};
use install_kube::{
    KEYS_SECRET, Manifest, Memory, NODE_IDENTITY, NODE_SECRET, Options, PEER_KEY, Part, SEAL,
    Users, left_out, manifests,
    users::{Block, Labels},
    yaml,
};
use kit::Entropy;
use peer::NodeIdentity;
use store_kube::crds;

use crate::config::types::Seconds;

/// How long the whole may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Install Dormouse on Kubernetes, or print what that would be
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dormouse install --dry-run | kubectl apply --server-side -f -
  dormouse install --namespace sandboxes --domain sbx.example.com
  dormouse install --no-node-daemon --snapshot-registry registry.example.com/sandboxes

Objects are applied again as often as you like; sandboxes that run are not touched. What is left
out and was installed before is removed. The secrets that the processes share are made in the
cluster, once, and are never printed.")]
pub(crate) struct Install {
    /// Print the manifests, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Make the shared secrets unless they are there, and nothing else: what runs in the cluster
    #[arg(long, conflicts_with = "dry_run")]
    make_keys: bool,
    /// Which cluster; `$KUBECONFIG` or the cluster this runs in by default
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of Dormouse's own processes
    #[arg(long, default_value_t = Options::default().namespace)]
    namespace: String,
    /// Image of Dormouse
    #[arg(long, default_value_t = Options::default().image)]
    image: String,
    /// Image of the template `base`, as docker.io/library/python:3.13-slim; made unless there is one
    #[arg(long, default_value = "")]
    base_image: String,
    /// Domain of sandboxes, as in `PORT-ID.DOMAIN`
    #[arg(long, default_value = "")]
    domain: String,
    /// Processes of the control loop; one acts, the others stand by
    #[arg(long, default_value_t = 2)]
    control_replicas: u32,
    /// Processes of the API
    #[arg(long, default_value_t = 2)]
    api_replicas: u32,
    /// Gateways
    #[arg(long, default_value_t = 2)]
    gateway_replicas: u32,
    /// Most memory of a process of the control loop, in Mi or Gi
    #[arg(long, default_value_t = Options::default().control_memory)]
    control_memory: Memory,
    /// Most memory of a process of the API
    #[arg(long, default_value_t = Options::default().api_memory)]
    api_memory: Memory,
    /// Most memory of a gateway
    #[arg(long, default_value_t = Options::default().gateway_memory)]
    gateway_memory: Memory,
    /// How long requests under way have to end when a gateway or a process of the API stops
    #[arg(long, default_value_t = Seconds(Options::default().drain_timeout))]
    drain_timeout: Seconds,
    /// How API and gateways are reached
    #[arg(long, default_value = "ClusterIP", value_parser = ["ClusterIP", "NodePort", "LoadBalancer"])]
    service_type: String,
    /// Leave out the daemon on every node: sandboxes then sleep without their processes
    #[arg(long)]
    no_node_daemon: bool,
    /// Socket of containerd on every node
    #[arg(long, default_value_t = Options::default().containerd_socket)]
    containerd_socket: String,
    /// Directory of containerd on every node
    #[arg(long, default_value_t = Options::default().containerd_root)]
    containerd_root: String,
    /// Registry for the files of paused sandboxes
    #[arg(long, default_value = "")]
    snapshot_registry: String,
    /// Secret, in the same namespace, for pushing there
    #[arg(long, default_value = "")]
    snapshot_secret: String,
    /// Registries, by host and port, that may be reached without TLS, several with commas
    #[arg(long, default_value = "")]
    insecure_registries: String,
    /// What is logged
    #[arg(long, default_value = "info")]
    log_level: String,
    /// Tell Prometheus' operator
    #[arg(long)]
    pod_monitor: bool,
    /// Leave out the policies that shield Dormouse's own processes
    #[arg(long)]
    no_network_policies: bool,
    /// Block of addresses from which API and gateways may be reached, as 10.0.0.0/8; may be given again.
    /// Without this and the next, everybody may
    #[arg(long, value_name = "CIDR", conflicts_with = "no_network_policies")]
    users_cidr: Vec<Block>,
    /// Labels of namespaces from which they may be, as app=web,tier=edge; may be given again
    #[arg(long, value_name = "LABELS", conflicts_with = "no_network_policies")]
    users_namespace: Vec<Labels>,
}

impl Install {
    fn options(&self) -> Options {
        Options {
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            base_image: self.base_image.clone(),
            domain: self.domain.clone(),
            control_replicas: self.control_replicas,
            api_replicas: self.api_replicas,
            gateway_replicas: self.gateway_replicas,
            control_memory: self.control_memory,
            api_memory: self.api_memory,
            gateway_memory: self.gateway_memory,
            drain_timeout: self.drain_timeout.0,
            service_type: self.service_type.clone(),
            node_daemon: !self.no_node_daemon,
            containerd_socket: self.containerd_socket.clone(),
            containerd_root: self.containerd_root.clone(),
            snapshot_registry: self.snapshot_registry.clone(),
            snapshot_secret: self.snapshot_secret.clone(),
            insecure_registries: self.insecure_registries.clone(),
            log_level: self.log_level.clone(),
            service_monitor: self.pod_monitor,
            network_policies: !self.no_network_policies,
            users: Users {
                blocks: self.users_cidr.clone(),
                namespaces: self.users_namespace.clone(),
            },
        }
    }
}

/// Does it.
///
/// # Errors
/// If the cluster cannot be reached, or refuses something.
pub(crate) fn run(args: &Install) -> anyhow::Result<()> {
    let wanted = manifests(&args.options());
    if args.dry_run {
        return cli::print(&yaml::documents(&wanted)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start")?;
    let work = async {
        let cluster = Cluster::connect(args.kubeconfig.as_deref()).await?;
        if args.make_keys {
            make_keys(&cluster, &args.namespace).await
        } else {
            put(&cluster, &wanted, &left_out(&args.options())).await
        }
    };
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, work)
            .await
            .context("the cluster did not answer in two minutes: is its API server reachable?")?
    })
}

async fn put(cluster: &Cluster, wanted: &[Manifest], unwanted: &[Manifest]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    // Never over those of a newer version.
    crds::install(cluster).await?;
    let _ = writeln!(out, "definitions applied");
    for manifest in wanted.iter().filter(|m| m.part != Part::Definitions) {
        let name = apply(cluster, &manifest.object).await?;
        // Whoever no longer listens still wants the installation.
        let _ = writeln!(out, "{name} applied");
    }
    // Of an installation that had more.
    for manifest in unwanted {
        let (name, removed) = remove(cluster, &manifest.object).await?;
        let became = match removed {
            Removed::WasNotThere => continue,
            Removed::Gone => "removed",
            Removed::Others => "is not of this installation, and is left",
            Removed::NotSeen => {
                "may not be looked at: if an earlier installation had it, remove it"
            }
        };
        let _ = writeln!(out, "{name} {became}");
    }
    Ok(())
}

async fn make_keys(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let entropy = Entropy::from_os();
    let fresh = || {
        let mut bytes = [0; 32];
        entropy.fill(&mut bytes);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    };
    let data = [(SEAL, fresh()), (PEER_KEY, fresh())];
    make_secret(cluster, namespace, KEYS_SECRET, data).await?;
    // Of the peer key as it is there, perhaps for long: nodes hold no more than this.
    let peer_key = read_secret(cluster, namespace, KEYS_SECRET, PEER_KEY)
        .await
        .with_context(|| format!("read the secret {namespace}/{KEYS_SECRET}"))?
        .with_context(|| format!("the secret {namespace}/{KEYS_SECRET} has no {PEER_KEY}"))?;
    let keys = peer::Keys::parse(&peer_key)
        .with_context(|| format!("read {PEER_KEY} of the secret {namespace}/{KEYS_SECRET}"))?;
    let data = [(NODE_IDENTITY, NodeIdentity::issue(&keys)?)];
    make_secret(cluster, namespace, NODE_SECRET, data).await
}

async fn make_secret(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    data: impl IntoIterator<Item = (&'static str, String)> + Send,
) -> anyhow::Result<()> {
    let made = ensure_secret(cluster, namespace, name, data)
        .await
        .with_context(|| format!("make the secret {namespace}/{name}"))?;
    let what = match made {
        Keys::Made => "made",
        Keys::There => "there already",
    };
    cli::print(&format!("secret/{name} {what}\n"))
}
