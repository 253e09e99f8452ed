//! Namespaces, read only: those that have objects, and `default`.
//!
//! A namespace here is a word on objects; nobody creates one. Tools ask for them all the same.

use std::collections::BTreeSet;

use axum::{
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use model::{
    Name, Namespace, Spec as _,
    event::EventSpec,
    kinds::{self, Scope},
};
use serde_json::{Value, json};
use store::Query;

use crate::{
    negotiate::{Accept, View},
    refusal::{About, Refusal},
    render::json_response,
    resource_api::Api,
};

pub(crate) async fn list(State(api): State<Api>, accept: Accept) -> Result<Response, Refusal> {
    let mut found: BTreeSet<String> = [String::from("default")].into();
    let kinds = kinds::ALL
        .iter()
        .filter(|info| info.scope == Scope::Namespaced)
        .map(|info| info.kind);
    let mut version = None;
    for kind in kinds.chain([EventSpec::KIND]) {
        let mut query = Query::kind(kind);
        query.limit = Some(1);
        loop {
            let listing = api.store.list(&query).await?;
            version.get_or_insert(listing.version);
            let Some(namespace) = listing
                .records
                .first()
                .and_then(|r| r.meta.namespace.clone())
            else {
                break;
            };
            found.insert(namespace.to_string());
            // No name comes after this one: the next record is of the next namespace.
            let Ok(last) = Name::new("z".repeat(63)) else {
                break;
            };
            query.after = Some((Some(namespace), last));
        }
    }
    let meta = json!({"resourceVersion": version.map(|v| v.to_string()).unwrap_or_default()});
    let all: Vec<Value> = found.iter().map(|name| object(name)).collect();
    Ok(json_response(&match accept.view {
        View::Object => {
            json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": meta, "items": all})
        }
        View::Partial => {
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": all.iter().map(partial).collect::<Vec<_>>()})
        }
        View::Table => table(&all, &meta),
    }))
}

pub(crate) async fn get(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
    accept: Accept,
) -> Result<Response, Refusal> {
    let Path(name) = name.map_err(|_| Refusal::no_such_path())?;
    let absent = || {
        Refusal::not_found(About {
            group: "",
            plural: "namespaces",
            kind: "Namespace",
            name: name.clone(),
        })
    };
    let namespace = Namespace::new(&name).map_err(|_| absent())?;
    let mut there = name == "default";
    for info in kinds::ALL
        .iter()
        .filter(|info| info.scope == Scope::Namespaced)
    {
        let mut query = Query::kind(info.kind).within(namespace.clone());
        query.limit = Some(1);
        there = there || !api.store.list(&query).await?.records.is_empty();
    }
    if !there {
        return Err(absent());
    }
    let object = object(&name);
    Ok(json_response(&match accept.view {
        View::Object => object,
        View::Partial => partial(&object),
        View::Table => table(&[object], &json!({})),
    }))
}

fn object(name: &str) -> Value {
    json!({
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "spec": {},
        "status": {"phase": "Active"},
    })
}

fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn table(all: &[Value], meta: &Value) -> Value {
    let column = |name: &str, format: &str, about: &str| json!({"name": name, "type": "string", "format": format, "description": about, "priority": 0});
    let rows = all.iter().map(|object| {
        json!({"cells": [object["metadata"]["name"], "Active"], "object": partial(object)})
    });
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [
            column("Name", "name", "The team."),
            column("Status", "", "Always Active: a namespace needs no creation."),
        ],
        "rows": rows.collect::<Vec<_>>(),
    })
}
