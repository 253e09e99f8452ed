//! Objects of collections that are data, as records and back.
//!
//! A record has two halves. Of such an object the first is everything but metadata and status, for
//! not all kinds have a `spec`; the second is its status, where the kind writes that apart.

use model::{
    Key, Metadata, Name, StringMap, Uid,
    meta::OwnerReference,
    validate::{Cause, Problem, is_label_key, is_label_value},
};
use serde_json::{Map, Value};
use store::{Record, StoreError};

use crate::{
    collection::Collection,
    refusal::Refusal,
    served::{Served, undecodable},
};

/// Fields of metadata that are kept as they are.
const CARRIED: [&str; 3] = ["generateName", "managedFields", store::rules::GRACE];

/// An object, ready to be stored.
pub(crate) struct Kept {
    pub(crate) meta: Metadata,
    pub(crate) body: String,
    pub(crate) status: String,
    pub(crate) fields: StringMap,
}

/// A record as its object.
pub(crate) fn to_value(collection: &Collection, record: &Record) -> Result<Value, StoreError> {
    let half = |name, text: &str| {
        serde_json::from_str::<Value>(text).map_err(|e| undecodable(record, name, &e))
    };
    let mut object = match half("body", &record.spec)? {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    object.insert("apiVersion".into(), collection.api_version.into());
    object.insert("kind".into(), collection.kind.into());
    object.insert("metadata".into(), metadata_value(collection, record));
    let status = half("status", &record.status)?;
    if !status.is_null() {
        object.insert("status".into(), status);
    }
    Ok(object.into())
}

/// The metadata of a record, with times in whole seconds as Kubernetes has them.
pub(crate) fn metadata_value(collection: &Collection, record: &Record) -> Value {
    let mut meta = serde_json::to_value(&record.meta).unwrap_or_default();
    if let Value::Object(fields) = &mut meta {
        for name in ["creationTimestamp", "deletionTimestamp"] {
            if let Some(Value::String(time)) = fields.get_mut(name)
                && time.len() > 20
            {
                time.truncate(19);
                time.push('Z');
            }
        }
        if !collection.has_generation {
            fields.remove("generation");
        }
    }
    meta
}

/// An object as it is stored at a key. `uid`, version and times are the store's.
pub(crate) fn kept(
    collection: &'static Collection,
    key: &Key,
    object: Value,
) -> Result<Kept, Refusal> {
    let fields = selectable(collection, &object);
    let Value::Object(mut object) = object else {
        return Err(Refusal::bad_field(".", "the body is not an object"));
    };
    object.remove("apiVersion");
    object.remove("kind");
    let meta = match object.remove("metadata") {
        Some(Value::Object(meta)) => meta,
        None | Some(_) => Map::new(),
    };
    let meta = metadata(collection, key, meta)?;
    let status = if collection.has_status {
        object.remove("status").unwrap_or_default()
    } else {
        Value::Null
    };
    Ok(Kept {
        meta,
        body: Value::Object(object).to_string(),
        status: status.to_string(),
        fields,
    })
}

fn selectable(collection: &Collection, object: &Value) -> StringMap {
    let find = |path: &'static str| {
        let found = path.split('.').try_fold(object, |at, step| at.get(step))?;
        let text = match found {
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) => found.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some((path, text))
    };
    collection
        .selectable
        .iter()
        .filter_map(|path| find(path))
        .collect()
}

fn metadata(
    collection: &'static Collection,
    key: &Key,
    mut fields: Map<String, Value>,
) -> Result<Metadata, Refusal> {
    let mut meta = Metadata::new(key.namespace.clone(), key.name.clone());
    let mut problems = Vec::new();
    meta.labels = pairs(&mut fields, "labels", &mut problems)?;
    for (label, value) in meta.labels.iter() {
        if !is_label_value(value) {
            problems.push(invalid(
                format!("metadata.labels.{label}"),
                format!("{value:?} is not a label's value"),
            ));
        }
    }
    meta.annotations = pairs(&mut fields, "annotations", &mut problems)?;
    meta.finalizers = match fields.remove("finalizers") {
        None | Some(Value::Null) => Vec::new(),
        Some(value) => serde_json::from_value(value).map_err(|_| {
            Refusal::bad_field("metadata.finalizers", "it is not a list of strings")
        })?,
    };
    if let Some(Value::Array(owners)) = fields.remove("ownerReferences") {
        for (i, value) in owners.iter().enumerate() {
            match owner(value) {
                Some(owner) => meta.owner_references.push(owner),
                None => problems.push(invalid(
                    format!("metadata.ownerReferences[{i}]"),
                    "apiVersion, kind, name and uid are needed".into(),
                )),
            }
        }
    }
    for name in CARRIED {
        if let Some(value) = fields.remove(name).filter(|v| !v.is_null()) {
            meta.unknown.insert(name.to_owned(), value);
        }
    }
    if problems.is_empty() {
        Ok(meta)
    } else {
        let about = Served::Foreign(collection).about(key.name.as_str());
        Err(Refusal::invalid(about, &problems))
    }
}

fn pairs(
    fields: &mut Map<String, Value>,
    name: &str,
    problems: &mut Vec<Problem>,
) -> Result<StringMap, Refusal> {
    let wrong = || Refusal::bad_field(format!("metadata.{name}"), "it is not a map of strings");
    let map = match fields.remove(name) {
        None | Some(Value::Null) => return Ok(StringMap::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(wrong()),
    };
    let mut pairs = StringMap::new();
    for (key, value) in map {
        let Value::String(value) = value else {
            return Err(wrong());
        };
        if !is_label_key(&key) {
            problems.push(invalid(
                format!("metadata.{name}.{key}"),
                format!("{key:?} is not a key"),
            ));
        }
        pairs.insert(key, value);
    }
    Ok(pairs)
}

fn owner(value: &Value) -> Option<OwnerReference> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let is = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    Some(OwnerReference {
        api_version: text("apiVersion")?.into(),
        kind: text("kind")?.into(),
        name: Name::foreign(text("name")?).ok()?,
        uid: text("uid")?.parse::<Uid>().ok()?,
        controller: is("controller"),
        block_owner_deletion: is("blockOwnerDeletion"),
    })
}

fn invalid(field: String, reason: String) -> Problem {
    Problem {
        field,
        cause: Cause::Invalid,
        reason,
        remedy: "see `kubectl explain`".into(),
    }
}
