//! Configuration: one typed structure, filled from the defaults, a TOML file, the `DORMOUSE_*`
//! environment and flags, each winning over the one before.
//!
//! The table below is the only place where a key is declared: its name in the file, its variable
//! (`log.level` is `DORMOUSE_LOG_LEVEL`), its flag (`--log-level`), its check, its help and its
//! line in `dormouse config` all follow from one entry. A key that nobody reads does not belong
//! here. None of them holds a secret, so all of them can be shown; a key that does must bring a
//! type whose text hides it.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`types`], [`forwards`], [`registry`], [`cluster`] | what a value can be, as text |
//! | [`load`] | the layers, and refusals that name where the bad value stands |
//! | [`flags`] | the table as command-line flags |
//! | [`show`] | what is in force and from where |

pub(crate) mod cluster;
pub(crate) mod flags;
pub(crate) mod forwards;
pub(crate) mod load;
pub(crate) mod registry;
pub(crate) mod show;
pub(crate) mod types;

use std::str::FromStr;

use cluster::{Advertised, OptionalText, PeerPeriod, Places, Port};
use forwards::Forwards;
use load::{Environment, Refusal, default_data_dir};
use registry::{Choice, Hosts, Packing, Users};
use types::{
    AtLeastOne, Bytes, Directory, Domain, EnvoyUpstream, Listen, LogFormat, LogLevel, OptionalFile,
    OptionalListen, Period, RuntimeKind, Seconds, Switch,
};

/// A declared key.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its name in the file.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) help: &'static str,
    default: Fallback,
    check: fn(&str) -> Result<String, String>,
}

/// What a key is when nobody sets it.
#[derive(Debug)]
enum Fallback {
    Fixed(&'static str),
    Found(fn(&Environment) -> Result<String, Refusal>),
}

impl Key {
    /// The variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("DORMOUSE_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The flag that sets it, without its dashes.
    pub(crate) fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }
}

/// Parses and prints again, so that equal values look equal.
fn check<T: FromStr<Err: ToString> + ToString>(text: &str) -> Result<String, String> {
    text.parse()
        .map(|value: T| value.to_string())
        .map_err(|e| e.to_string())
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $field:ident: $type:ty = $name:literal, $default:expr;)+) => {
        /// Everything that can be configured.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct Settings {
            $($(#[doc = $help])+ pub(crate) $field: $type,)+
        }

        /// Every key, in the order in which it is shown.
        pub(crate) const KEYS: &[Key] = &[$(Key {
            name: $name,
            help: concat!($($help),+),
            default: $default,
            check: check::<$type>,
        }),+];

        impl Settings {
            /// From one text for each key, in the order of [`KEYS`].
            fn parse(texts: &[&str]) -> Result<Self, String> {
                let mut texts = texts.iter();
                // The fields of a literal are evaluated as written: in the order of KEYS.
                Ok(Self {
                    $($field: {
                        let text = texts.next().ok_or("a key without a value")?;
                        text.parse::<$type>().map_err(|e| e.to_string())?
                    },)+
                })
            }
        }
    };
}

settings! {
    /// Address and port of the API; port 0 lets the system choose
    listen: Listen = "listen", Fallback::Fixed("127.0.0.1:7443");
    /// Directory that holds all state: records, certificates, the token
    data_dir: Directory = "data_dir", Fallback::Found(default_data_dir);
    /// What is logged: off, error, warn, info, debug, trace, or filters as `info,api=debug`
    log_level: LogLevel = "log.level", Fallback::Fixed("info");
    /// How it is logged: text or json
    log_format: LogFormat = "log.format", Fallback::Fixed("text");
    /// Longest request body, in bytes
    api_max_body_bytes: AtLeastOne = "api.max_body_bytes", Fallback::Fixed("1572864");
    /// Watches open at once; more of them are refused
    api_max_watches: AtLeastOne = "api.max_watches", Fallback::Fixed("4096");
    /// Connections served at once; more of them wait to be accepted
    api_max_connections: AtLeastOne = "api.max_connections", Fallback::Fixed("1024");
    /// What runs sandboxes: local (containers on this host; needs root, and dormouse-agent beside
    /// this program), fake (for development: nothing is real), or none (they stay Pending)
    runtime: RuntimeKind = "runtime", Fallback::Fixed("local");
    /// Address and port of the E2B API and of sandboxes, in plain HTTP; port 0 lets the system choose
    e2b_listen: Listen = "e2b.listen", Fallback::Fixed("127.0.0.1:3000");
    /// Domain under which both are also served with TLS: api.DOMAIN and PORT-ID.DOMAIN; empty for
    /// none
    e2b_domain: Domain = "e2b.domain", Fallback::Fixed("");
    /// Address and port of both with TLS, where there is a domain
    e2b_tls_listen: Listen = "e2b.tls_listen", Fallback::Fixed("127.0.0.1:3443");
    /// Certificate chain for the domain, in PEM; empty for one of the local authority
    e2b_certificate: OptionalFile = "e2b.certificate", Fallback::Fixed("");
    /// Key of that certificate, in PEM
    e2b_key: OptionalFile = "e2b.key", Fallback::Fixed("");
    /// Images that clients may choose with dormouse.dev/image, by how their names begin, as
    /// ghcr.io/team/, several with commas; * for all, empty for none
    e2b_images: Choice = "e2b.images", Fallback::Fixed("");
    /// How long a create through the E2B API waits for its sandbox to be ready, where neither the request
    /// nor its pool says; less than clients wait (official ones a minute), or they never hear why not
    e2b_startup_timeout: Period = "e2b.startup_timeout", Fallback::Fixed("50s");
    /// How many builds of templates run at once
    builds_concurrent: AtLeastOne = "builds.concurrent", Fallback::Fixed("2");
    /// How long a build of a template may take
    builds_timeout: Period = "builds.timeout", Fallback::Fixed("1h");
    /// How long what the steps of a build have left, and the files for them, are kept for the next one
    builds_keep: Period = "builds.keep", Fallback::Fixed("168h");
    /// Largest upload of files for one step of a build, in bytes
    builds_max_upload_bytes: Bytes = "builds.max_upload_bytes", Fallback::Fixed("4294967296");
    /// Longest body of a request to a sandbox, in bytes; 0 for no bound
    gateway_max_body_bytes: Bytes = "gateway.max_body_bytes", Fallback::Fixed("17179869184");
    /// How long a client may send nothing of a body that it owes, in whole seconds
    gateway_body_timeout: Seconds = "gateway.body_timeout", Fallback::Fixed("2m");
    /// Whether a proxy that is trusted stands in front, whose X-Forwarded headers are passed on: on or
    /// off
    gateway_trust_forwarded: Switch = "gateway.trust_forwarded", Fallback::Fixed("off");
    /// Address and port of the external processor for Envoys, beside the gateway; empty for none
    ext_proc_listen: OptionalListen = "ext_proc.listen", Fallback::Fixed("");
    /// Where Envoys send what may go on: relay (to the gateway) or direct (to Pods, where they have an
    /// address of their own)
    ext_proc_upstream: EnvoyUpstream = "ext_proc.upstream", Fallback::Fixed("relay");
    /// Whether Envoys speak TLS with it, by e2b.certificate and e2b.key: on or off
    ext_proc_tls: Switch = "ext_proc.tls", Fallback::Fixed("off");
    /// Whether traffic wakes sandboxes that opted in: on or off
    wake_enabled: Switch = "wake.enabled", Fallback::Fixed("on");
    /// How long a request waits for its sandbox to wake
    wake_timeout: Period = "wake.timeout", Fallback::Fixed("1m");
    /// Requests that may wait for sandboxes to wake; more are refused
    wake_max_parked: AtLeastOne = "wake.max_parked", Fallback::Fixed("16384");
    /// Requests that may wait for one sandbox to wake; more are refused
    wake_max_parked_per_sandbox: AtLeastOne = "wake.max_parked_per_sandbox", Fallback::Fixed("2048");
    /// How long requests inside a sandbox have to end before it is put to sleep; longer ones are held
    wake_drain_timeout: Period = "wake.drain_timeout", Fallback::Fixed("250ms");
    /// Sandboxes that are woken at once; more take turns, fair between teams
    wake_max_concurrent: AtLeastOne = "wake.max_concurrent", Fallback::Fixed("64");
    /// Ports of this host that lead into sandboxes, waking them, for everybody who reaches them: as
    /// 127.0.0.1:5432=NAMESPACE/NAME:5432 or 127.0.0.1:5432=SANDBOX_ID:5432, several with commas
    tcp_forwards: Forwards = "tcp.forwards", Fallback::Fixed("");
    /// Connections through those at once; more of them wait to be accepted
    tcp_max_connections: AtLeastOne = "tcp.max_connections", Fallback::Fixed("1024");
    /// Address and port of SSH into sandboxes, as `ssh SANDBOX_ID@HOST -p PORT`; empty for none
    ssh_listen: OptionalListen = "ssh.listen", Fallback::Fixed("");
    /// SSH connections at once; more of them are refused
    ssh_max_connections: AtLeastOne = "ssh.max_connections", Fallback::Fixed("256");
    /// Address and port of the page for Prometheus and, of a role on Kubernetes, of its probes /livez
    /// and /readyz, in plain HTTP and for everybody who reaches it; empty for none
    metrics_listen: OptionalListen = "metrics.listen", Fallback::Fixed("");
    /// Users of registries, as HOST=USER:FILE, several with commas; the file holds the password, and
    /// only its owner may read it
    registry_users: Users = "registry.users", Fallback::Fixed("");
    /// Registries, by host and port, that may be reached without TLS, several with commas; those on
    /// loopback may
    registry_insecure: Hosts = "registry.insecure", Fallback::Fixed("");
    /// Certificates in PEM that are trusted of registries, besides the host's
    registry_ca_file: OptionalFile = "registry.ca_file", Fallback::Fixed("");
    /// How snapshots are compressed that are pushed: zstd, gzip for tools of before 2022, or none
    registry_compression: Packing = "registry.compression", Fallback::Fixed("zstd");
    /// How often images and captured layers that nothing needs are looked for
    gc_interval: Period = "gc.interval", Fallback::Fixed("10m");
    /// How long nothing must have needed one before it is removed
    gc_grace: Period = "gc.grace", Fallback::Fixed("1h");
    /// How long it is kept what a sandbox was after it has ended
    history_keep: Period = "history.keep", Fallback::Fixed("168h");
    /// The most sandboxes of which that is kept; the oldest are forgotten first
    history_max_records: AtLeastOne = "history.max_records", Fallback::Fixed("100000");
    /// Kubeconfig of the cluster that a role works for; empty for $KUBECONFIG, or the cluster that it
    /// runs in
    kubernetes_kubeconfig: OptionalFile = "kubernetes.kubeconfig", Fallback::Fixed("");
    /// Namespace of Dormouse's own processes; empty for that of the kubeconfig or the service account
    kubernetes_namespace: OptionalText = "kubernetes.namespace", Fallback::Fixed("");
    /// What a process is called among its kind, as the name of its Pod; empty for one it makes up
    kubernetes_identity: OptionalText = "kubernetes.identity", Fallback::Fixed("");
    /// Image of Dormouse, which brings the agent into sandboxes and captures their layers
    kubernetes_image: OptionalText = "kubernetes.image", Fallback::Fixed("");
    /// Image of the template `base`, which is made of it unless there is one; empty to make none
    kubernetes_base_image: OptionalText = "kubernetes.base_image", Fallback::Fixed("");
    /// Whether sandboxes can freeze, by a daemon (dormouse node) on every node: on or off
    kubernetes_node_daemon: Switch = "kubernetes.node_daemon", Fallback::Fixed("off");
    /// Port of that daemon, on the address of its node
    kubernetes_node_port: Port = "kubernetes.node_port", Fallback::Fixed("7946");
    /// Socket of containerd on every node
    kubernetes_containerd_socket: OptionalText = "kubernetes.containerd_socket",
        Fallback::Fixed("/run/containerd/containerd.sock");
    /// Directory of containerd on every node, whose layers are captured
    kubernetes_containerd_root: OptionalText = "kubernetes.containerd_root",
        Fallback::Fixed("/var/lib/containerd");
    /// Where layers are pushed whose sandbox names no registry, as registry.example/sandboxes; empty
    /// for nowhere
    kubernetes_snapshot_registry: OptionalText = "kubernetes.snapshot_registry", Fallback::Fixed("");
    /// Secret of the own namespace with which they are pushed there; empty for none
    kubernetes_snapshot_secret: OptionalText = "kubernetes.snapshot_secret", Fallback::Fixed("");
    /// Where control and API find the gateways: the name of a headless Service of the own namespace,
    /// or addresses and ports with commas; empty where there are none
    kubernetes_gateways: Places = "kubernetes.gateways", Fallback::Fixed("dormouse-gateway-peers");
    /// File with what the tokens of sandboxes are derived from, the same for all roles of a cluster
    seal_file: OptionalFile = "seal_file", Fallback::Fixed("");
    /// File with what the processes of an installation know each other by
    peer_key_file: OptionalFile = "peer_key_file", Fallback::Fixed("");
    /// File with what control loops know the daemons of nodes by: made of the peer key, which nodes do not
    /// hold, by `dormouse install`
    node_identity_file: OptionalFile = "node_identity_file", Fallback::Fixed("");
    /// Address and port at which a role answers the other processes of its installation
    peer_listen: Listen = "peer.listen", Fallback::Fixed("127.0.0.1:7945");
    /// Address by which they reach it, with a port or without one; empty for that of peer.listen
    peer_advertise: Advertised = "peer.advertise", Fallback::Fixed("");
    /// Where a role finds some of them: the name of a headless Service of the own namespace, or
    /// addresses and ports with commas; empty for those who find it
    peer_seeds: Places = "peer.seeds", Fallback::Fixed("dormouse-peers");
    /// What the installation is called; processes of another one are not spoken to; empty for the name
    /// of the own namespace with what follows from the seal
    peer_cluster: OptionalText = "peer.cluster", Fallback::Fixed("");
    /// How often a role asks another one what it has missed, and says that it is there; at most 2s
    peer_sync_interval: PeerPeriod = "peer.sync_interval", Fallback::Fixed("1s");
    /// How long the API waits for another process to say that it has heard of a change; one that did not
    /// say so is not waited for until it has kept up for a while; at most 2s
    peer_ack_timeout: PeerPeriod = "peer.ack_timeout", Fallback::Fixed("100ms");
    /// How long requests may take to finish after a signal to stop
    drain_timeout: Period = "drain_timeout", Fallback::Fixed("10s");
}
