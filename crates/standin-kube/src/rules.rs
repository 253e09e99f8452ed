//! What an API server fills in and refuses for the built-in kinds that anything here speaks of.

mod job;
mod pod;

use api::Collection;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use model::validate::{Cause, Problem};
use serde_json::{Value, json};

use crate::kinds::{DEFINITIONS, JOBS, NAMESPACES, PODS};

pub(crate) use job::template_of;
pub(crate) use pod::grace;

/// Completes a new object.
pub(crate) fn create(collection: &Collection, new: &mut Value) -> Vec<Problem> {
    let kind = collection.stored_as;
    if kind == PODS.stored_as {
        return pod::create(new);
    }
    if kind == JOBS.stored_as {
        return job::create(new);
    }
    if kind == NAMESPACES.stored_as {
        new["spec"] = json!({"finalizers": ["kubernetes"]});
        new["status"] = json!({"phase": "Active"});
        let name = new["metadata"]["name"].clone();
        new["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    }
    if kind == DEFINITIONS.stored_as {
        return definition(new);
    }
    if collection.plural == "secrets" {
        secret(new);
    }
    Vec::new()
}

/// Checks a change of everything but the status.
pub(crate) fn update(collection: &Collection, old: &Value, new: &mut Value) -> Vec<Problem> {
    let kind = collection.stored_as;
    if kind == PODS.stored_as {
        return pod::update(old, new);
    }
    if kind == JOBS.stored_as {
        return job::update(old, new);
    }
    if kind == DEFINITIONS.stored_as {
        return definition(new);
    }
    if collection.plural == "secrets" {
        secret(new);
    }
    if old["immutable"] == true && (new["data"] != old["data"] || new["immutable"] != true) {
        return vec![forbidden(
            "data",
            "field is immutable when `immutable` is set",
        )];
    }
    Vec::new()
}

fn secret(new: &mut Value) {
    if new["type"].is_null() {
        new["type"] = "Opaque".into();
    }
    // Text that is to be encoded goes where the encoded is.
    if let Some(Value::Object(texts)) = new.get_mut("stringData").map(Value::take) {
        for (name, text) in texts {
            let text = text.as_str().unwrap_or_default();
            new["data"][name.as_str()] = BASE64_STANDARD.encode(text).into();
        }
    }
    if let Value::Object(fields) = new {
        fields.remove("stringData");
    }
}

fn definition(new: &mut Value) -> Vec<Problem> {
    let spec = &mut new["spec"];
    let expected = format!(
        "{}.{}",
        spec["names"]["plural"].as_str().unwrap_or_default(),
        spec["group"].as_str().unwrap_or_default()
    );
    if spec["names"]["listKind"].is_null() {
        let kind = spec["names"]["kind"].as_str().unwrap_or_default();
        spec["names"]["listKind"] = format!("{kind}List").into();
    }
    if spec["names"]["singular"].is_null() {
        let kind = spec["names"]["kind"].as_str().unwrap_or_default();
        spec["names"]["singular"] = kind.to_lowercase().into();
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
    if new["metadata"]["name"] == expected.as_str() {
        Vec::new()
    } else {
        vec![Problem {
            field: "metadata.name".into(),
            cause: Cause::Invalid,
            reason: "must be spec.names.plural+\".\"+spec.group".into(),
            remedy: format!("use {expected}"),
        }]
    }
}

fn forbidden(field: &str, why: &str) -> Problem {
    Problem {
        field: field.to_owned(),
        cause: Cause::Forbidden,
        reason: why.to_owned(),
        remedy: "make a new object instead".into(),
    }
}
