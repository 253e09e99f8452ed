//! The kinds that an API server has built in, as far as anything here speaks of them.

use api::Collection;
use model::{
    KindName,
    kinds::{Column, ColumnType, Scope},
};

const AGE: Column = Column {
    name: "Age",
    kind: ColumnType::Date,
    path: ".metadata.creationTimestamp",
    wide: false,
    description: "Time since it was created.",
};

const fn shown(name: &'static str, path: &'static str) -> Column {
    Column {
        name,
        kind: ColumnType::String,
        path,
        wide: false,
        description: "What it is now.",
    }
}

const PLAIN: &[Column] = &[AGE];
const WITH_PHASE: &[Column] = &[shown("Status", ".status.phase"), AGE];
const LEASE: &[Column] = &[shown("Holder", ".spec.holderIdentity"), AGE];
const EVENT: &[Column] = &[
    shown("Type", ".type"),
    shown("Reason", ".reason"),
    shown("Message", ".message"),
    AGE,
];

const OF_PODS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
];
const OF_EVENTS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "reason",
    "type",
    "source.component",
    "reportingComponent",
];

/// What most of them have in common: namespaced, strategic patches, no status, no generation.
const BASE: Collection = Collection {
    group: "",
    version: "v1",
    api_version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    scope: Scope::Namespaced,
    columns: PLAIN,
    selectable: &[],
    has_status: false,
    has_generation: false,
    strategic: true,
    unconditional: true,
    shows_deleted: false,
    stored_as: KindName(""),
};

pub(crate) static PODS: Collection = Collection {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    columns: WITH_PHASE,
    selectable: OF_PODS,
    has_status: true,
    has_generation: true,
    shows_deleted: true,
    stored_as: KindName("pods"),
    ..BASE
};

static SECRETS: Collection = Collection {
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    selectable: &["type"],
    stored_as: KindName("secrets"),
    ..BASE
};

static CONFIGMAPS: Collection = Collection {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    stored_as: KindName("configmaps"),
    ..BASE
};

static EVENTS: Collection = Collection {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    columns: EVENT,
    selectable: OF_EVENTS,
    stored_as: KindName("events"),
    ..BASE
};

static SERVICES: Collection = Collection {
    kind: "Service",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    has_status: true,
    shows_deleted: true,
    stored_as: KindName("services"),
    ..BASE
};

static SERVICEACCOUNTS: Collection = Collection {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    shows_deleted: true,
    stored_as: KindName("serviceaccounts"),
    ..BASE
};

pub(crate) static NAMESPACES: Collection = Collection {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    scope: Scope::Cluster,
    columns: WITH_PHASE,
    selectable: &["status.phase"],
    has_status: true,
    stored_as: KindName("namespaces"),
    ..BASE
};

pub(crate) static NODES: Collection = Collection {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    scope: Scope::Cluster,
    has_status: true,
    stored_as: KindName("nodes"),
    ..BASE
};

pub(crate) static JOBS: Collection = Collection {
    group: "batch",
    api_version: "batch/v1",
    kind: "Job",
    plural: "jobs",
    singular: "job",
    categories: &["all"],
    has_status: true,
    has_generation: true,
    selectable: &["status.successful"],
    stored_as: KindName("jobs.batch"),
    ..BASE
};

static LEASES: Collection = Collection {
    group: "coordination.k8s.io",
    api_version: "coordination.k8s.io/v1",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    columns: LEASE,
    unconditional: false,
    stored_as: KindName("leases.coordination.k8s.io"),
    ..BASE
};

static ENDPOINTSLICES: Collection = Collection {
    group: "discovery.k8s.io",
    api_version: "discovery.k8s.io/v1",
    kind: "EndpointSlice",
    plural: "endpointslices",
    singular: "endpointslice",
    has_generation: true,
    stored_as: KindName("endpointslices.discovery.k8s.io"),
    ..BASE
};

static NETWORKPOLICIES: Collection = Collection {
    group: "networking.k8s.io",
    api_version: "networking.k8s.io/v1",
    kind: "NetworkPolicy",
    plural: "networkpolicies",
    singular: "networkpolicy",
    short_names: &["netpol"],
    has_generation: true,
    unconditional: false,
    stored_as: KindName("networkpolicies.networking.k8s.io"),
    ..BASE
};

static ROLES: Collection = Collection {
    group: "rbac.authorization.k8s.io",
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "Role",
    plural: "roles",
    singular: "role",
    stored_as: KindName("roles.rbac.authorization.k8s.io"),
    ..BASE
};

static ROLEBINDINGS: Collection = Collection {
    group: "rbac.authorization.k8s.io",
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "RoleBinding",
    plural: "rolebindings",
    singular: "rolebinding",
    stored_as: KindName("rolebindings.rbac.authorization.k8s.io"),
    ..BASE
};

static CLUSTERROLES: Collection = Collection {
    group: "rbac.authorization.k8s.io",
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRole",
    plural: "clusterroles",
    singular: "clusterrole",
    scope: Scope::Cluster,
    stored_as: KindName("clusterroles.rbac.authorization.k8s.io"),
    ..BASE
};

static CLUSTERROLEBINDINGS: Collection = Collection {
    group: "rbac.authorization.k8s.io",
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    singular: "clusterrolebinding",
    scope: Scope::Cluster,
    stored_as: KindName("clusterrolebindings.rbac.authorization.k8s.io"),
    ..BASE
};

static DEPLOYMENTS: Collection = Collection {
    group: "apps",
    api_version: "apps/v1",
    kind: "Deployment",
    plural: "deployments",
    singular: "deployment",
    short_names: &["deploy"],
    categories: &["all"],
    has_status: true,
    has_generation: true,
    stored_as: KindName("deployments.apps"),
    ..BASE
};

static DAEMONSETS: Collection = Collection {
    group: "apps",
    api_version: "apps/v1",
    kind: "DaemonSet",
    plural: "daemonsets",
    singular: "daemonset",
    short_names: &["ds"],
    categories: &["all"],
    has_status: true,
    has_generation: true,
    stored_as: KindName("daemonsets.apps"),
    ..BASE
};

static PODDISRUPTIONBUDGETS: Collection = Collection {
    group: "policy",
    api_version: "policy/v1",
    kind: "PodDisruptionBudget",
    plural: "poddisruptionbudgets",
    singular: "poddisruptionbudget",
    short_names: &["pdb"],
    has_status: true,
    has_generation: true,
    unconditional: false,
    stored_as: KindName("poddisruptionbudgets.policy"),
    ..BASE
};

pub(crate) static DEFINITIONS: Collection = Collection {
    group: "apiextensions.k8s.io",
    api_version: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    singular: "customresourcedefinition",
    short_names: &["crd", "crds"],
    scope: Scope::Cluster,
    has_status: true,
    has_generation: true,
    unconditional: false,
    stored_as: KindName("customresourcedefinitions.apiextensions.k8s.io"),
    ..BASE
};

/// All of them.
pub(crate) static BUILT_IN: [&Collection; 20] = [
    &PODS,
    &SECRETS,
    &CONFIGMAPS,
    &EVENTS,
    &SERVICES,
    &SERVICEACCOUNTS,
    &NAMESPACES,
    &NODES,
    &JOBS,
    &LEASES,
    &ENDPOINTSLICES,
    &NETWORKPOLICIES,
    &ROLES,
    &ROLEBINDINGS,
    &CLUSTERROLES,
    &CLUSTERROLEBINDINGS,
    &DEPLOYMENTS,
    &DAEMONSETS,
    &PODDISRUPTIONBUDGETS,
    &DEFINITIONS,
];
