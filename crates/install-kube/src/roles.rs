//! Who may do what. Each role has an account of its own, and no more than it needs; the daemon of a
//! node and the workers that capture layers have nothing to say to the API server at all.

use model::meta::GROUP;
use serde_json::{Value, json};

use crate::{KEYS_SECRET, Manifest, NAME, Part, Switch, Values, labels, metadata};

const READ: &[&str] = &["get", "list", "watch"];
const CHANGE: &[&str] = &["get", "list", "watch", "update", "patch"];
const ALL: &[&str] = &[
    "get", "list", "watch", "create", "update", "patch", "delete",
];
/// What is observed is written to a part of its own.
const OBSERVE: &[&str] = &["get", "update", "patch"];

/// In the group, on these, these verbs.
type Rule = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// What the control loop does everywhere: it makes all intent so.
const CONTROL: &[Rule] = &[
    (
        GROUP,
        &[
            "sandboxes",
            "sandboxrecords",
            "sandboxsnapshots",
            "sandboxevents",
        ],
        ALL,
    ),
    (GROUP, &["sandboxpools", "sandboxclaims"], CHANGE),
    (GROUP, &["sandboxtemplates", "apikeys", "teams"], READ),
    // The template that clients mean when they name none, where an image is set for it.
    (GROUP, &["sandboxtemplates"], &["create"]),
    (
        GROUP,
        &[
            "sandboxes/status",
            "sandboxpools/status",
            "sandboxclaims/status",
            "sandboxsnapshots/status",
            "sandboxrecords/status",
            "sandboxevents/status",
        ],
        OBSERVE,
    ),
    (
        GROUP,
        &[
            "sandboxes/finalizers",
            "sandboxpools/finalizers",
            "sandboxclaims/finalizers",
            "sandboxsnapshots/finalizers",
        ],
        &["update"],
    ),
    (
        "",
        &["pods"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    ("", &["events"], &["create", "patch"]),
    ("", &["nodes"], READ),
    ("networking.k8s.io", &["networkpolicies"], ALL),
    (
        "apiextensions.k8s.io",
        &["customresourcedefinitions"],
        &["get"],
    ),
];

/// What it does in its own namespace: elects one of its kind, finds gateways, captures layers.
const CONTROL_AT_HOME: &[Rule] = &[
    (
        "coordination.k8s.io",
        &["leases"],
        &["get", "create", "update", "patch"],
    ),
    ("discovery.k8s.io", &["endpointslices"], READ),
    (
        "batch",
        &["jobs"],
        &["get", "list", "watch", "create", "delete"],
    ),
    ("", &["secrets"], &["get", "create", "delete"]),
];

/// What the API does: intent, and keys.
const API: &[Rule] = &[
    (
        GROUP,
        &["sandboxes", "sandboxsnapshots", "apikeys", "teams"],
        ALL,
    ),
    (GROUP, &["sandboxtemplates"], ALL),
    (
        GROUP,
        &[
            "sandboxpools",
            "sandboxclaims",
            "sandboxrecords",
            "sandboxevents",
        ],
        READ,
    ),
    (
        "apiextensions.k8s.io",
        &["customresourcedefinitions"],
        &["get"],
    ),
];

const API_AT_HOME: &[Rule] = &[("discovery.k8s.io", &["endpointslices"], READ)];

/// What a gateway does: it follows sandboxes, and wakes them by one write of intent.
const GATEWAY: &[Rule] = &[
    (GROUP, &["sandboxes"], CHANGE),
    (GROUP, &["apikeys", "teams"], READ),
    (
        "apiextensions.k8s.io",
        &["customresourcedefinitions"],
        &["get"],
    ),
];

/// What it does in its own namespace: finds others.
const GATEWAY_AT_HOME: &[Rule] = &[("discovery.k8s.io", &["endpointslices"], READ)];

/// What makes the secrets: it may make them, and look whether they are there.
const KEYS: &[Rule] = &[("", &["secrets"], &["create"])];

pub(crate) fn all(values: &Values) -> Vec<Manifest> {
    let mut all = Vec::new();
    for (component, part) in [
        ("keys", Part::Keys),
        ("control", Part::Control),
        ("api", Part::Api),
        ("gateway", Part::Gateway),
    ] {
        all.push(Manifest::new(part, account(values, component)));
    }
    all.push(Manifest::new(Part::Node, account(values, "node")).only(Switch::NodeDaemon));
    for (component, part, rules) in [
        ("control", Part::Control, CONTROL),
        ("api", Part::Api, API),
        ("gateway", Part::Gateway, GATEWAY),
    ] {
        all.push(Manifest::new(part, cluster_role(component, rules)));
        all.push(Manifest::new(part, cluster_binding(values, component)));
    }
    let mut keys = rules(KEYS);
    keys.push(json!({
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [KEYS_SECRET],
        "verbs": ["get"],
    }));
    for (component, part, rules) in [
        ("control", Part::Control, rules(CONTROL_AT_HOME)),
        ("api", Part::Api, rules(API_AT_HOME)),
        ("gateway", Part::Gateway, rules(GATEWAY_AT_HOME)),
        ("keys", Part::Keys, keys),
    ] {
        all.push(Manifest::new(part, role(values, component, &rules)));
        all.push(Manifest::new(part, binding(values, component)));
    }
    all
}

pub(crate) fn account_name(component: &str) -> String {
    format!("{NAME}-{component}")
}

fn account(values: &Values, component: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(values, &account_name(component), Some(component)),
        // Whoever needs it mounts it.
        "automountServiceAccountToken": false,
    })
}

fn rules(rules: &[Rule]) -> Vec<Value> {
    let one = |(group, resources, verbs): &Rule| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    rules.iter().map(one).collect()
}

fn cluster_role(component: &str, granted: &[Rule]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": account_name(component), "labels": labels(Some(component))},
        "rules": rules(granted),
    })
}

fn cluster_binding(values: &Values, component: &str) -> Value {
    let name = account_name(component);
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": labels(Some(component))},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": values.namespace}],
    })
}

fn role(values: &Values, component: &str, rules: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(values, &account_name(component), Some(component)),
        "rules": rules,
    })
}

fn binding(values: &Values, component: &str) -> Value {
    let name = account_name(component);
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(values, &name, Some(component)),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": values.namespace}],
    })
}
