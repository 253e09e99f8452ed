//! The processes: control loop, API and gateways as Deployments, a daemon on every node, and the Job
//! that makes the secrets once.
//!
//! None of them is root but the daemon of a node, which has to be the owner of containerd's socket;
//! none has a capability, a writable root or the right to gain privileges.

use serde_json::{Value, json};

use crate::{
    GATEWAY_PEERS, KEYS_SECRET, METRICS_PORT, Manifest, NAME, NODE_IDENTITY, NODE_PORT,
    NODE_SECRET, PEER_KEY, PEER_LABEL, PEER_PORT, PEERS, PORT, Part, SEAL, Switch, Values, labels,
    memory::REQUESTED, metadata, roles::account_name, selector,
};

/// Where secrets are mounted.
const KEYS_DIR: &str = "/etc/dormouse/keys";
/// Where the directory of containerd's socket is mounted.
pub(crate) const CONTAINERD_DIR: &str = "/run/of-node";
/// Seconds that a Pod has beyond the time in which its requests may end: to be taken off the lists of
/// those who send traffic, to end what nobody waits for, and to leave its peers.
pub(crate) const AFTER_DRAIN: u64 = 15;
/// Seconds that control has to stop. It does not wait for long: while it does, nobody leads.
const CONTROL_STOPS: u64 = 30;
/// Who the processes run as.
const NOBODY: u32 = 65532;

pub(crate) fn all(values: &Values) -> Vec<Manifest> {
    vec![
        Manifest::new(Part::Keys, keys(values)),
        Manifest::new(Part::Control, control(values)),
        Manifest::new(Part::Control, budget(values, "control")),
        Manifest::new(Part::Api, api(values)),
        Manifest::new(Part::Api, budget(values, "api")),
        Manifest::new(Part::Gateway, gateway(values)),
        Manifest::new(Part::Gateway, budget(values, "gateway")),
        Manifest::new(Part::Node, node(values)).only(Switch::NodeDaemon),
    ]
}

/// Makes the secrets, unless they are there. The others wait for them, as Pods do for what they mount.
fn keys(values: &Values) -> Value {
    let mut pod = pod("keys");
    pod["restartPolicy"] = "OnFailure".into();
    pod["automountServiceAccountToken"] = true.into();
    pod["containers"] = json!([{
        "name": "keys",
        "image": values.image,
        "imagePullPolicy": values.pull_policy,
        "args": ["install", "--make-keys", "--namespace", values.namespace],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": confined(),
    }]);
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(values, "dormouse-keys", Some("keys")),
        "spec": {
            "backoffLimit": 10,
            // So that another version can be applied over it.
            "ttlSecondsAfterFinished": 60,
            "template": {"metadata": {"labels": labels(Some("keys"))}, "spec": pod},
        },
    })
}

fn control(values: &Values) -> Value {
    let mut env = common(values);
    env.extend([
        variable("KUBERNETES_IMAGE", &values.image),
        variable("KUBERNETES_BASE_IMAGE", &values.base_image),
        variable("KUBERNETES_NODE_DAEMON", &values.node_daemon),
        variable("KUBERNETES_NODE_PORT", &NODE_PORT.to_string().into()),
        variable("KUBERNETES_CONTAINERD_SOCKET", &values.containerd_socket),
        variable("KUBERNETES_CONTAINERD_ROOT", &values.containerd_root),
        variable("KUBERNETES_SNAPSHOT_REGISTRY", &values.snapshot_registry),
        variable("KUBERNETES_SNAPSHOT_SECRET", &values.snapshot_secret),
        variable("KUBERNETES_GATEWAYS", &GATEWAY_PEERS.into()),
        variable("REGISTRY_INSECURE", &values.insecure_registries),
    ]);
    let process = Process {
        component: "control",
        env,
        ports: vec![port("peer", PEER_PORT), port("metrics", METRICS_PORT)],
        memory: &values.control_memory,
        grace: CONTROL_STOPS.into(),
    };
    deployment(values, &values.control_replicas, process)
}

fn api(values: &Values) -> Value {
    let process = entered(values, "api", &values.api_memory);
    deployment(values, &values.api_replicas, process)
}

fn gateway(values: &Values) -> Value {
    let process = entered(values, "gateway", &values.gateway_memory);
    deployment(values, &values.gateway_replicas, process)
}

/// A role that users come in by: what is inside has its time when it stops.
fn entered<'v>(values: &'v Values, component: &'static str, memory: &'v Value) -> Process<'v> {
    let mut env = common(values);
    env.extend([
        variable("E2B_LISTEN", &format!("0.0.0.0:{PORT}").into()),
        variable("E2B_DOMAIN", &values.domain),
        variable("DRAIN_TIMEOUT", &values.drain_timeout),
    ]);
    Process {
        component,
        env,
        ports: vec![
            port("http", PORT),
            port("peer", PEER_PORT),
            port("metrics", METRICS_PORT),
        ],
        memory,
        grace: values.drained.clone(),
    }
}

fn node(values: &Values) -> Value {
    let mut pod = pod("node");
    // On the node's own address, which is all that is known of where a Pod runs.
    pod["hostNetwork"] = true.into();
    pod["dnsPolicy"] = "ClusterFirstWithHostNet".into();
    pod["tolerations"] = json!([{"operator": "Exists"}]);
    pod["priorityClassName"] = "system-node-critical".into();
    // The owner of the socket, and nothing else of root.
    pod["securityContext"] = json!({
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    pod["volumes"] = json!([
        keys_volume(NODE_SECRET, &[NODE_IDENTITY]),
        // The directory: a containerd that starts anew makes another socket in it.
        {"name": "containerd", "hostPath": {"path": values.containerd_directory, "type": "Directory"}},
    ]);
    pod["containers"] = json!([{
        "name": "node",
        "image": values.image,
        "imagePullPolicy": values.pull_policy,
        "args": ["node"],
        "env": [
            variable("LOG_LEVEL", &values.log_level),
            variable("LOG_FORMAT", &"json".into()),
            variable("NODE_IDENTITY_FILE", &format!("{KEYS_DIR}/{NODE_IDENTITY}").into()),
            variable("KUBERNETES_CONTAINERD_SOCKET", &values.mounted_socket),
            variable("KUBERNETES_NODE_PORT", &NODE_PORT.to_string().into()),
        ],
        "ports": [port("peer", NODE_PORT)],
        "volumeMounts": [
            {"name": "keys", "mountPath": KEYS_DIR, "readOnly": true},
            {"name": "containerd", "mountPath": CONTAINERD_DIR},
        ],
        "livenessProbe": {
            "tcpSocket": {"port": "peer"},
            "periodSeconds": 20,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    }]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(values, &account_name("node"), Some("node")),
        "spec": {
            "selector": {"matchLabels": selector("node")},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": labels(Some("node"))}, "spec": pod},
        },
    })
}

/// What differs between the Deployments.
struct Process<'v> {
    component: &'static str,
    env: Vec<Value>,
    ports: Vec<Value>,
    /// The most that it may take.
    memory: &'v Value,
    /// Seconds that it has to stop.
    grace: Value,
}

fn deployment(values: &Values, replicas: &Value, process: Process<'_>) -> Value {
    let Process {
        component,
        env,
        ports,
        memory,
        grace,
    } = process;
    let mut pod = pod(component);
    pod["automountServiceAccountToken"] = true.into();
    pod["terminationGracePeriodSeconds"] = grace;
    pod["topologySpreadConstraints"] = json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(component)},
    }]);
    pod["volumes"] = json!([keys_volume(KEYS_SECRET, &[SEAL, PEER_KEY])]);
    pod["containers"] = json!([{
        "name": component,
        "image": values.image,
        "imagePullPolicy": values.pull_policy,
        "args": [component],
        "env": env,
        "ports": ports,
        "volumeMounts": [{"name": "keys", "mountPath": KEYS_DIR, "readOnly": true}],
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": "metrics"},
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "metrics"},
            "periodSeconds": 2,
        },
        "resources": {
            "requests": {"cpu": "100m", "memory": REQUESTED.to_string()},
            "limits": {"memory": memory},
        },
        "securityContext": confined(),
    }]);
    let mut marked = labels(Some(component));
    marked[PEER_LABEL] = "yes".into();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(values, &account_name(component), Some(component)),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(component)},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": marked}, "spec": pod},
        },
    })
}

/// What the Pods of all roles have in common.
fn pod(component: &str) -> Value {
    json!({
        "serviceAccountName": account_name(component),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "fsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// The environment of every role that speaks to the API server.
fn common(values: &Values) -> Vec<Value> {
    vec![
        own_namespace(),
        json!({
            "name": "DORMOUSE_KUBERNETES_IDENTITY",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
        }),
        variable("LOG_LEVEL", &values.log_level),
        variable("LOG_FORMAT", &"json".into()),
        variable("SEAL_FILE", &format!("{KEYS_DIR}/{SEAL}").into()),
        variable("PEER_KEY_FILE", &format!("{KEYS_DIR}/{PEER_KEY}").into()),
        variable("METRICS_LISTEN", &format!("0.0.0.0:{METRICS_PORT}").into()),
        variable("PEER_LISTEN", &format!("0.0.0.0:{PEER_PORT}").into()),
        json!({
            "name": "DORMOUSE_PEER_ADVERTISE",
            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
        }),
        variable("PEER_SEEDS", &PEERS.into()),
    ]
}

fn own_namespace() -> Value {
    json!({
        "name": "DORMOUSE_KUBERNETES_NAMESPACE",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}},
    })
}

fn variable(name: &str, value: &Value) -> Value {
    json!({"name": format!("DORMOUSE_{name}"), "value": value})
}

fn keys_volume(secret: &str, keys: &[&str]) -> Value {
    let items: Vec<Value> = keys.iter().map(|k| json!({"key": k, "path": k})).collect();
    json!({
        "name": "keys",
        "secret": {"secretName": secret, "defaultMode": 0o440, "items": items},
    })
}

fn port(name: &str, number: u16) -> Value {
    json!({"name": name, "containerPort": number})
}

/// One at a time may be moved to another node.
fn budget(values: &Values, component: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(values, &format!("{NAME}-{component}"), Some(component)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(component)}},
    })
}
