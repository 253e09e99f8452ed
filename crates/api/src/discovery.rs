//! Discovery: which groups and resources there are.

use std::collections::{BTreeMap, BTreeSet};

use axum::response::Response;
use model::{
    kinds::{self, Scope},
    meta::{API_VERSION, GROUP, GROUP_VERSION},
};
use serde_json::{Value, json};

use crate::{refusal::Refusal, render::json_response, resource_api::Api};

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// `/api`: the core group, of which events and namespaces can be read.
pub(crate) async fn core_versions() -> Response {
    json_response(&json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    }))
}

/// `/api/v1`.
pub(crate) async fn core_resources() -> Response {
    let resource = |plural: &str,
                    singular: &str,
                    kind: &str,
                    short: &str,
                    namespaced: bool,
                    verbs: &[&str]| {
        json!({
            "name": plural,
            "singularName": singular,
            "namespaced": namespaced,
            "kind": kind,
            "verbs": verbs,
            "shortNames": [short],
        })
    };
    json_response(&resources(
        "v1",
        &[
            resource(
                "events",
                "event",
                "Event",
                "ev",
                true,
                &["get", "list", "watch"],
            ),
            resource(
                "namespaces",
                "namespace",
                "Namespace",
                "ns",
                false,
                &["get", "list"],
            ),
        ],
    ))
}

fn group() -> Value {
    let version = json!({"groupVersion": GROUP_VERSION, "version": API_VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

/// `/apis`.
pub(crate) async fn groups() -> Response {
    json_response(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}))
}

/// `/apis/dormouse.dev`.
pub(crate) async fn one_group() -> Response {
    let mut group = group();
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    json_response(&group)
}

/// `/apis/dormouse.dev/v1alpha1`.
pub(crate) async fn kinds() -> Response {
    let mut list = Vec::new();
    for info in &kinds::ALL {
        let namespaced = info.scope == Scope::Namespaced;
        list.push(json!({
            "name": info.plural,
            "singularName": info.singular,
            "namespaced": namespaced,
            "kind": info.kind.0,
            "verbs": VERBS,
            "shortNames": info.short_names,
            "categories": info.categories,
        }));
        list.push(json!({
            "name": format!("{}/status", info.plural),
            "singularName": "",
            "namespaced": namespaced,
            "kind": info.kind.0,
            "verbs": ["get", "patch", "update"],
        }));
    }
    json_response(&resources(GROUP_VERSION, &list))
}

/// The groups and versions of a catalogue, in order.
pub(crate) fn catalogue_versions(api: &Api) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
    for collection in api.catalogue.iter().flat_map(|catalogue| catalogue.all()) {
        groups
            .entry(collection.group)
            .or_default()
            .insert(collection.version);
    }
    groups
}

fn group_value(name: &str, versions: &BTreeSet<&'static str>) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// `/apis` of a catalogue.
pub(crate) fn catalogue_groups(api: &Api) -> Response {
    let groups: Vec<Value> = catalogue_versions(api)
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_value(name, versions))
        .collect();
    json_response(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

/// `/apis/{group}` of a catalogue.
pub(crate) fn catalogue_group(api: &Api, name: &str) -> Result<Response, Refusal> {
    let groups = catalogue_versions(api);
    let versions = groups.get(name).ok_or_else(Refusal::no_such_path)?;
    let mut group = group_value(name, versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Ok(json_response(&group))
}

/// `/api/v1` and `/apis/{group}/{version}` of a catalogue.
pub(crate) fn catalogue_resources(
    api: &Api,
    group: &str,
    version: &str,
) -> Result<Response, Refusal> {
    let mut list = Vec::new();
    let mut group_version = None;
    for collection in api.catalogue.iter().flat_map(|catalogue| catalogue.all()) {
        if collection.group != group || collection.version != version {
            continue;
        }
        group_version = Some(collection.api_version);
        let namespaced = collection.scope == Scope::Namespaced;
        list.push(json!({
            "name": collection.plural,
            "singularName": collection.singular,
            "namespaced": namespaced,
            "kind": collection.kind,
            "verbs": VERBS,
            "shortNames": collection.short_names,
            "categories": collection.categories,
        }));
        if collection.has_status {
            list.push(json!({
                "name": format!("{}/status", collection.plural),
                "singularName": "",
                "namespaced": namespaced,
                "kind": collection.kind,
                "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let group_version = group_version.ok_or_else(Refusal::no_such_path)?;
    Ok(json_response(&resources(group_version, &list)))
}

fn resources(group_version: &str, list: &[Value]) -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": list,
    })
}
