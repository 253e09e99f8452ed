//! How the processes are reached, and by whom.

use serde_json::{Value, json};

use crate::{
    GATEWAY_PEERS, METRICS_PORT, Manifest, NAME, PEER_LABEL, PEER_PORT, PEERS, PORT, Part, Switch,
    Values, labels, metadata, selector,
};

pub(crate) fn all(values: &Values) -> Vec<Manifest> {
    vec![
        Manifest::new(Part::Api, service(values, "api")),
        Manifest::new(Part::Gateway, service(values, "gateway")),
        Manifest::new(Part::Gateway, gateway_peers(values)),
        Manifest::new(Part::Peers, peers(values)),
        Manifest::new(Part::Policies, shield(values)).only(Switch::NetworkPolicies),
        Manifest::new(Part::Policies, let_users_in(values)).only(Switch::NetworkPolicies),
        Manifest::new(Part::Monitoring, monitor(values)).only(Switch::ServiceMonitor),
    ]
}

/// How users reach a role.
fn service(values: &Values, component: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(values, &format!("{NAME}-{component}"), Some(component)),
        "spec": {
            "type": values.service_type,
            "selector": selector(component),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    })
}

/// Every gateway by itself, those that are not ready too: one that cannot be asked is no reason to
/// take its sandboxes for idle.
fn gateway_peers(values: &Values) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(values, GATEWAY_PEERS, Some("gateway")),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": selector("gateway"),
            "ports": [{"name": "peer", "port": PEER_PORT, "targetPort": "peer"}],
        },
    })
}

/// Every process that tells others of changed routes, whether or not it is ready: one that has just
/// started is told all of them.
fn peers(values: &Values) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(values, PEERS, None),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {"app.kubernetes.io/name": NAME, PEER_LABEL: "yes"},
            "ports": [{"name": "peer", "port": PEER_PORT, "targetPort": "peer"}],
        },
    })
}

/// Nobody reaches our processes but each other.
fn shield(values: &Values) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(values, NAME, None),
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}}}],
                    "ports": [{"port": PEER_PORT, "protocol": "TCP"}],
                },
                // Probes, and whoever reads metrics: there is nothing secret in them.
                {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    })
}

/// Users reach the API and the gateways. A rule that names nobody is for everybody.
fn let_users_in(values: &Values) -> Value {
    let mut entrance = json!({"ports": [{"port": PORT, "protocol": "TCP"}]});
    if !values.users.is_null() {
        entrance["from"] = values.users.clone();
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(values, &format!("{NAME}-users"), None),
        "spec": {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/name": NAME},
                "matchExpressions": [{
                    "key": "app.kubernetes.io/component",
                    "operator": "In",
                    "values": ["api", "gateway"],
                }],
            },
            "policyTypes": ["Ingress"],
            "ingress": [entrance],
        },
    })
}

fn monitor(values: &Values) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": NAME, "namespace": values.namespace, "labels": labels(None)},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "podMetricsEndpoints": [{"port": "metrics", "interval": "30s"}],
        },
    })
}
