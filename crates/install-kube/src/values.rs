//! What differs between installations.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Memory, Switch, Users,
    workloads::{AFTER_DRAIN, CONTAINERD_DIR},
};

/// What an installation is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The namespace of Dormouse's own processes.
    pub namespace: String,
    /// Their image, which also brings the agent into sandboxes.
    pub image: String,
    /// The image of the template `base`, which is made unless there is one; empty for none.
    pub base_image: String,
    /// Under which names sandboxes are reached: `PORT-ID.DOMAIN`; empty for headers and paths only.
    pub domain: String,
    /// Processes of the control loop; one acts, the others stand by.
    pub control_replicas: u32,
    /// Processes of the API.
    pub api_replicas: u32,
    /// Gateways.
    pub gateway_replicas: u32,
    /// The most that a process of the control loop may take.
    pub control_memory: Memory,
    /// The most that one of the API may take.
    pub api_memory: Memory,
    /// The most that a gateway may take.
    pub gateway_memory: Memory,
    /// How long requests under way have to end when a gateway or a process of the API stops, in whole
    /// seconds.
    pub drain_timeout: Duration,
    /// How gateways and the API are reached: `ClusterIP`, `NodePort` or `LoadBalancer`.
    pub service_type: String,
    /// Whether sandboxes can freeze, by a daemon on every node.
    pub node_daemon: bool,
    /// The socket of containerd on every node.
    pub containerd_socket: String,
    /// The directory of containerd on every node, whose layers are captured.
    pub containerd_root: String,
    /// Where snapshots are pushed whose pause policy names no registry; empty for nowhere.
    pub snapshot_registry: String,
    /// The Secret, in the same namespace, with which they are pushed there; empty for none.
    pub snapshot_secret: String,
    /// Registries, by host and port, that may be reached without TLS, several with commas.
    pub insecure_registries: String,
    /// What is logged.
    pub log_level: String,
    /// Whether Prometheus' operator is told.
    pub service_monitor: bool,
    /// Whether our own processes are shielded from the rest of the cluster.
    pub network_policies: bool,
    /// Who may reach the API and the gateways, where they are.
    pub users: Users,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: "dormouse".to_owned(),
            image: format!(
                "ghcr.io/dormouse-dev/dormouse:{}",
                env!("CARGO_PKG_VERSION")
            ),
            base_image: String::new(),
            domain: String::new(),
            control_replicas: 2,
            api_replicas: 2,
            gateway_replicas: 2,
            // So that a million who sleep fit, with room to spare: docs/scale.md.
            control_memory: Memory::gibibytes(8),
            api_memory: Memory::gibibytes(8),
            gateway_memory: Memory::gibibytes(4),
            drain_timeout: Duration::from_secs(60),
            service_type: "ClusterIP".to_owned(),
            node_daemon: true,
            containerd_socket: "/run/containerd/containerd.sock".to_owned(),
            containerd_root: "/var/lib/containerd".to_owned(),
            snapshot_registry: String::new(),
            snapshot_secret: String::new(),
            insecure_registries: String::new(),
            log_level: "info".to_owned(),
            service_monitor: false,
            network_policies: true,
            users: Users::default(),
        }
    }
}

impl Options {
    pub(crate) const fn has(&self, switch: Switch) -> bool {
        match switch {
            Switch::NodeDaemon => self.node_daemon,
            Switch::ServiceMonitor => self.service_monitor,
            Switch::NetworkPolicies => self.network_policies,
        }
    }
}

/// The same as parts of manifests: what an installation is given, or where a chart says it.
#[derive(Clone, Debug)]
pub struct Values {
    pub(crate) namespace: Value,
    pub(crate) image: Value,
    pub(crate) pull_policy: Value,
    pub(crate) base_image: Value,
    pub(crate) domain: Value,
    pub(crate) control_replicas: Value,
    pub(crate) api_replicas: Value,
    pub(crate) gateway_replicas: Value,
    pub(crate) control_memory: Value,
    pub(crate) api_memory: Value,
    pub(crate) gateway_memory: Value,
    pub(crate) drain_timeout: Value,
    /// Seconds after which a process is killed that drains.
    pub(crate) drained: Value,
    pub(crate) service_type: Value,
    pub(crate) node_daemon: Value,
    pub(crate) containerd_socket: Value,
    /// The directory of that socket.
    pub(crate) containerd_directory: Value,
    /// The socket where the daemon of a node finds it.
    pub(crate) mounted_socket: Value,
    pub(crate) containerd_root: Value,
    pub(crate) snapshot_registry: Value,
    pub(crate) snapshot_secret: Value,
    pub(crate) insecure_registries: Value,
    pub(crate) log_level: Value,
    /// Peers of a NetworkPolicy; null for everybody.
    pub(crate) users: Value,
}

impl Values {
    pub(crate) fn of(options: &Options) -> Self {
        let on = |it: bool| json!(if it { "on" } else { "off" });
        let (directory, socket) = options
            .containerd_socket
            .rsplit_once('/')
            .unwrap_or((".", &options.containerd_socket));
        let drain = options.drain_timeout.as_secs();
        Self {
            namespace: json!(options.namespace),
            image: json!(options.image),
            pull_policy: json!("IfNotPresent"),
            base_image: json!(options.base_image),
            domain: json!(options.domain),
            control_replicas: json!(options.control_replicas),
            api_replicas: json!(options.api_replicas),
            gateway_replicas: json!(options.gateway_replicas),
            control_memory: json!(options.control_memory.to_string()),
            api_memory: json!(options.api_memory.to_string()),
            gateway_memory: json!(options.gateway_memory.to_string()),
            drain_timeout: json!(format!("{drain}s")),
            drained: json!(drain.saturating_add(AFTER_DRAIN)),
            service_type: json!(options.service_type),
            node_daemon: on(options.node_daemon),
            containerd_socket: json!(options.containerd_socket),
            containerd_directory: json!(directory),
            mounted_socket: json!(format!("{CONTAINERD_DIR}/{socket}")),
            containerd_root: json!(options.containerd_root),
            snapshot_registry: json!(options.snapshot_registry),
            snapshot_secret: json!(options.snapshot_secret),
            insecure_registries: json!(options.insecure_registries),
            log_level: json!(options.log_level),
            users: options.users.peers(),
        }
    }

    /// Where the chart says them.
    pub(crate) fn of_chart() -> Self {
        let text = |path: &str| Expression::text(path).into();
        let number = |path: &str| Expression::number(path).into();
        Self {
            namespace: Expression(".Release.Namespace | quote".to_owned()).into(),
            image: Expression(
                "printf \"%s:%s\" .Values.image.repository \
                 (.Values.image.tag | default .Chart.AppVersion) | quote"
                    .to_owned(),
            )
            .into(),
            pull_policy: text("image.pullPolicy"),
            base_image: text("baseImage"),
            domain: text("domain"),
            control_replicas: number("control.replicas"),
            api_replicas: number("api.replicas"),
            gateway_replicas: number("gateway.replicas"),
            control_memory: text("control.memoryLimit"),
            api_memory: text("api.memoryLimit"),
            gateway_memory: text("gateway.memoryLimit"),
            drain_timeout: Expression(
                "printf \"%ds\" (int .Values.drainTimeoutSeconds) | quote".to_owned(),
            )
            .into(),
            drained: Expression(format!("add .Values.drainTimeoutSeconds {AFTER_DRAIN}")).into(),
            service_type: text("service.type"),
            node_daemon: Expression(
                "ternary \"on\" \"off\" .Values.node.enabled | quote".to_owned(),
            )
            .into(),
            containerd_socket: text("node.containerd.socket"),
            containerd_directory: Expression(
                ".Values.node.containerd.socket | dir | quote".to_owned(),
            )
            .into(),
            mounted_socket: Expression(format!(
                "printf \"{CONTAINERD_DIR}/%s\" (.Values.node.containerd.socket | base) | quote"
            ))
            .into(),
            containerd_root: text("node.containerd.root"),
            snapshot_registry: text("snapshots.registry"),
            snapshot_secret: text("snapshots.secret"),
            insecure_registries: text("registries.insecure"),
            log_level: text("log.level"),
            users: Expression("include \"dormouse.users\" .".to_owned()).into(),
        }
    }
}

/// What Helm evaluates. In a manifest it is a text between marks, which [`crate::chart`] unpacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression(pub(crate) String);

impl Expression {
    /// Begins an expression in a manifest. No text of a manifest begins like this.
    pub(crate) const OPEN: &'static str = "@{";
    /// Ends it.
    pub(crate) const CLOSE: &'static str = "}@";

    fn text(path: &str) -> Self {
        Self(format!(".Values.{path} | quote"))
    }

    fn number(path: &str) -> Self {
        Self(format!(".Values.{path}"))
    }
}

impl From<Expression> for Value {
    fn from(Expression(text): Expression) -> Self {
        Self::String(format!("{}{text}{}", Expression::OPEN, Expression::CLOSE))
    }
}
