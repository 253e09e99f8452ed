//! Discovery: which groups and resources there are.

use axum::response::Response;
use model::{
    kinds::{self, Scope},
    meta::{API_VERSION, GROUP, GROUP_VERSION},
};
use serde_json::{Value, json};

use crate::render::json_response;

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
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
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

fn resources(group_version: &str, list: &[Value]) -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": list,
    })
}
