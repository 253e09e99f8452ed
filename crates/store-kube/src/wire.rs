//! Records as objects of an API server, and back.
//!
//! The halves pass as text. Of the metadata, what belongs to Kubernetes alone is left out of records.
//! An API server keeps no fields of metadata that it does not know; those that a record has travel in
//! an annotation.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Metadata, StringMap, Uid, Version,
    codec::DecodeError,
    ids::Incarnation,
    meta::{GROUP_VERSION, OwnerReference},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use store::Record;

use crate::{fields, kinds::Kind};

/// Holds the fields of metadata that Kubernetes does not know, as JSON.
const UNKNOWN_ANNOTATION: &str = "dormouse.dev/metadata";
/// Fields of metadata that are Kubernetes' own.
const THEIRS: [&str; 4] = [
    "managedFields",
    "selfLink",
    "generateName",
    "deletionGracePeriodSeconds",
];

#[derive(Deserialize)]
struct Read<'j> {
    metadata: Metadata,
    #[serde(borrow)]
    spec: Option<&'j RawValue>,
    #[serde(borrow)]
    status: Option<&'j RawValue>,
}

/// The record that an object of a kind is.
pub(crate) fn record(kind: &Kind, json: &str) -> Result<Arc<Record>, DecodeError> {
    let bad = |field: &str, message: String| DecodeError {
        field: field.into(),
        message,
    };
    let read: Read<'_> = serde_json::from_str(json).map_err(|e| bad(".", e.to_string()))?;
    let mut meta = read.metadata;
    meta.unknown
        .retain(|field, _| !THEIRS.contains(&field.as_str()));
    if let Some(unknown) = meta.annotations.remove(UNKNOWN_ANNOTATION) {
        let unknown: BTreeMap<String, Value> = serde_json::from_str(&unknown)
            .map_err(|e| bad("metadata.annotations", e.to_string()))?;
        meta.unknown.extend(unknown);
    }
    move_owners(&mut meta.owner_references, &kind.api_version, GROUP_VERSION);
    let (Some(_), Some(version)) = (meta.uid, meta.resource_version) else {
        return Err(bad(
            "metadata",
            "it has no uid or no resourceVersion".into(),
        ));
    };
    if version.incarnation() != Incarnation(0) {
        return Err(bad("metadata.resourceVersion", "it is too large".into()));
    }
    let text = |half: Option<&RawValue>| Arc::<str>::from(half.map_or("{}", RawValue::get));
    let (spec, status) = (text(read.spec), text(read.status));
    let mut fields = kind.default_fields.clone();
    for found in [
        fields::of_half("spec", &spec, kind.info.selectable),
        fields::of_half("status", &status, kind.info.selectable),
    ] {
        for (path, value) in found.iter() {
            fields.insert(path, value);
        }
    }
    Ok(Arc::new(Record {
        kind: kind.info.kind,
        meta,
        spec,
        status,
        fields,
    }))
}

/// Owners of ours are in the API group of this store: in any other they would be missing, and what they
/// own collected as garbage.
fn move_owners(owners: &mut [OwnerReference], from: &str, to: &str) {
    for owner in owners.iter_mut().filter(|o| *o.api_version == *from) {
        owner.api_version = to.into();
    }
}

/// The version of an object that is not a record, or of a list.
pub(crate) fn version(text: &str) -> Option<Version> {
    let version: Version = text.parse().ok()?;
    (version.incarnation() == Incarnation(0)).then_some(version)
}

/// An object as it is sent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sent<'r> {
    api_version: &'r str,
    kind: &'static str,
    metadata: SentMetadata<'r>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Box<RawValue>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SentMetadata<'r> {
    name: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<Uid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<Version>,
    labels: StringMap,
    annotations: StringMap,
    finalizers: &'r [Box<str>],
    owner_references: Vec<OwnerReference>,
}

/// What a write must find.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) uid: Option<Uid>,
    pub(crate) version: Option<Version>,
}

/// A whole object: its spec half. The status is not an API server's to take here.
pub(crate) fn whole(
    kind: &Kind,
    meta: &Metadata,
    expected: Expected,
    spec: &str,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut owners = meta.owner_references.clone();
    move_owners(&mut owners, GROUP_VERSION, &kind.api_version);
    let mut annotations = meta.annotations.clone();
    let unknown: BTreeMap<_, _> = meta
        .unknown
        .iter()
        .filter(|(field, _)| !THEIRS.contains(&field.as_str()))
        .collect();
    if !unknown.is_empty() {
        annotations.insert(UNKNOWN_ANNOTATION, serde_json::to_string(&unknown)?);
    }
    serde_json::to_vec(&Sent {
        api_version: &kind.api_version,
        kind: kind.info.kind.0,
        metadata: SentMetadata {
            name: meta.name.as_str(),
            namespace: meta.namespace.as_ref().map(AsRef::as_ref),
            uid: expected.uid,
            resource_version: expected.version,
            labels: meta.labels.clone(),
            annotations,
            finalizers: &meta.finalizers,
            owner_references: owners,
        },
        spec: Some(RawValue::from_string(spec.to_owned())?),
        status: None,
    })
}

/// The status half of an object; without one where nothing was observed.
pub(crate) fn observed(
    kind: &Kind,
    key: &model::Key,
    expected: Expected,
    status: Option<&str>,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Sent {
        api_version: &kind.api_version,
        kind: kind.info.kind.0,
        metadata: SentMetadata {
            name: key.name.as_str(),
            namespace: key.namespace.as_ref().map(AsRef::as_ref),
            uid: expected.uid,
            resource_version: expected.version,
            labels: StringMap::new(),
            annotations: StringMap::new(),
            finalizers: &[],
            owner_references: Vec::new(),
        },
        spec: None,
        status: status
            .map(|status| RawValue::from_string(status.to_owned()))
            .transpose()?,
    })
}
