//! What an installation on Kubernetes consists of: manifests, and the same as a Helm chart.
//!
//! There is one description, in code. [`manifests`] fills it with an installation's values;
//! [`chart::files`] fills it with the places where Helm puts them. So the two cannot drift apart, and
//! the definitions of our kinds come from the types themselves.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`values`] | what differs between installations |
//! | [`memory`] | how much memory a role may take |
//! | [`roles`] | who may do what, no more than each role needs |
//! | [`workloads`] | the processes |
//! | [`network`] | how they are reached, and by whom |
//! | [`users`] | who may reach the entrance |
//! | [`chart`] | all of it as a chart |
//! | [`yaml`] | as text |

pub mod chart;
pub mod memory;
pub mod users;
pub mod values;
pub mod yaml;

mod network;
mod roles;
mod workloads;

use model::{kinds, schema};
use serde_json::{Value, json};

pub use memory::{Memory, MemoryError};
pub use users::{Users, UsersError};
pub use values::{Expression, Options, Values};

/// What every object of an installation is called, or begins with.
pub const NAME: &str = "dormouse";

/// The Secret with the seal and the peer key. It is made once, in the cluster, and never shown.
pub const KEYS_SECRET: &str = "dormouse-keys";
/// In it: what tokens of sandboxes are derived from.
pub const SEAL: &str = "seal";
/// In it: what Dormouse's own processes know each other by.
pub const PEER_KEY: &str = "peer-key";

/// The Secret of the daemons of nodes, made of the peer key: they hold nothing else.
pub const NODE_SECRET: &str = "dormouse-node-identity";
/// In it: what the control loop knows them by.
pub const NODE_IDENTITY: &str = "node-identity";

/// The headless Service by which the control loop finds all gateways.
pub const GATEWAY_PEERS: &str = "dormouse-gateway-peers";

/// The headless Service by which processes of all roles find each other.
pub const PEERS: &str = "dormouse-peers";
/// Marks the Pods of those processes.
const PEER_LABEL: &str = "dormouse.dev/peer";

/// Where users of sandboxes come in, at the API and at gateways.
pub const PORT: u16 = 3000;
/// Where Dormouse's own processes speak to each other.
pub const PEER_PORT: u16 = 7945;
/// Where the daemon of a node listens, on the node's own address.
pub const NODE_PORT: u16 = 7946;
/// Where Prometheus and the kubelet's probes ask.
pub const METRICS_PORT: u16 = 9090;

/// One object of an installation.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// What it belongs to: a file of the chart.
    pub part: Part,
    /// The value that turns it on; none for what is always there.
    pub when: Option<Switch>,
    /// The object.
    pub object: Value,
}

impl Manifest {
    fn new(part: Part, object: Value) -> Self {
        Self {
            part,
            when: None,
            object,
        }
    }

    fn only(mut self, when: Switch) -> Self {
        self.when = Some(when);
        self
    }
}

/// What an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The namespace of the installation.
    Namespace,
    /// Our kinds.
    Definitions,
    /// The secrets that are made in the cluster.
    Keys,
    /// The control loop.
    Control,
    /// The API.
    Api,
    /// The gateways.
    Gateway,
    /// How processes of all roles find each other.
    Peers,
    /// The daemon on every node.
    Node,
    /// Who may speak to whom.
    Policies,
    /// What Prometheus' operator looks for.
    Monitoring,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The daemon on every node, by which sandboxes freeze and thaw.
    NodeDaemon,
    /// A ServiceMonitor.
    ServiceMonitor,
    /// Policies between our own processes.
    NetworkPolicies,
}

/// Everything of an installation, in the order in which it is applied.
#[must_use]
pub fn manifests(options: &Options) -> Vec<Manifest> {
    let mut all = vec![namespace(&options.namespace)];
    all.extend(definitions());
    all.extend(body(&Values::of(options)));
    all.retain(|manifest| manifest.when.is_none_or(|when| options.has(when)));
    all
}

/// What an installation could have, and does not: there may be some of it from before.
#[must_use]
pub fn left_out(options: &Options) -> Vec<Manifest> {
    let mut all = body(&Values::of(options));
    all.retain(|manifest| manifest.when.is_some_and(|when| !options.has(when)));
    all
}

/// The definitions of our kinds.
#[must_use]
fn definitions() -> Vec<Manifest> {
    let define = |info: &kinds::KindInfo| Manifest::new(Part::Definitions, schema::crd(info));
    kinds::stored().map(define).collect()
}

/// What is in the namespace, and what is bound to it.
fn body(values: &Values) -> Vec<Manifest> {
    let mut all = roles::all(values);
    all.extend(workloads::all(values));
    all.extend(network::all(values));
    all.sort_by_key(|manifest| manifest.part);
    all
}

/// What works on nodes, for freezing and for captures, needs their files; no sandbox runs here.
fn namespace(name: &str) -> Manifest {
    let mut labels = labels(None);
    labels["pod-security.kubernetes.io/enforce"] = "privileged".into();
    Manifest::new(
        Part::Namespace,
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }),
    )
}

/// What every object carries, and what its selectors go by.
fn labels(component: Option<&str>) -> Value {
    let mut labels = json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": NAME,
    });
    if let Some(component) = component {
        labels["app.kubernetes.io/component"] = component.into();
    }
    labels
}

/// What selects the processes of a role.
fn selector(component: &str) -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/component": component,
    })
}

/// Metadata of an object in the namespace of the installation.
fn metadata(values: &Values, name: &str, component: Option<&str>) -> Value {
    json!({"name": name, "namespace": values.namespace, "labels": labels(component)})
}
