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

use crate::{fields, kinds::Kind, proof};

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
    #[serde(borrow)]
    metadata: &'j RawValue,
    #[serde(borrow)]
    spec: Option<&'j RawValue>,
    #[serde(borrow)]
    status: Option<&'j RawValue>,
}

/// Metadata without which nobody can say what an object is.
const HEAD: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];

/// The metadata of an object. What of it cannot be read is left out: anybody may write most of it, and an
/// object that vanished from a watch for it would stay in every cache as it was, even once it is gone.
fn metadata(json: &str) -> Result<Metadata, serde_json::Error> {
    if let Ok(metadata) = serde_json::from_str(json) {
        return Ok(metadata);
    }
    let mut all: BTreeMap<String, Value> = serde_json::from_str(json)?;
    let mut kept = serde_json::Map::new();
    for name in HEAD {
        kept.extend(all.remove_entry(name));
    }
    let mut metadata: Metadata = serde_json::from_value(kept.clone().into())?;
    for (name, value) in all {
        kept.insert(name.clone(), value);
        match serde_json::from_value(kept.clone().into()) {
            Ok(more) => metadata = more,
            Err(error) => {
                let object = &metadata.name;
                tracing::warn!(%object, field = name, %error, "metadata that cannot be read is left out");
                kept.remove(&name);
            }
        }
    }
    Ok(metadata)
}

/// The record that an object of a kind is.
pub(crate) fn record(kind: &Kind, json: &str) -> Result<Arc<Record>, DecodeError> {
    let bad = |field: &str, message: String| DecodeError {
        field: field.into(),
        message,
    };
    let read: Read<'_> = serde_json::from_str(json).map_err(|e| bad(".", e.to_string()))?;
    let mut meta = metadata(read.metadata.get()).map_err(|e| bad("metadata", e.to_string()))?;
    meta.unknown
        .retain(|field, _| !THEIRS.contains(&field.as_str()));
    if let Some(unknown) = meta.annotations.remove(UNKNOWN_ANNOTATION) {
        match serde_json::from_str::<BTreeMap<String, Value>>(&unknown) {
            Ok(unknown) => meta.unknown.extend(unknown),
            // Somebody else's word, and nobody's loss.
            Err(error) => {
                let object = &meta.name;
                tracing::warn!(%object, %error, "the annotation {UNKNOWN_ANNOTATION} is not ours");
            }
        }
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
    let (mut spec, status) = (text(read.spec), text(read.status));
    if let Some(vouch) = &kind.vouch {
        let of_status = fields::of_half("status", &status, kind.info.selectable);
        let phase = of_status.get("status.phase");
        // Of what is no object nothing is believed.
        let believed = proof::believe(&**vouch, &mut meta, phase, &spec);
        if let Some(believed) = believed.unwrap_or_else(|_| Some("{}".into())) {
            spec = believed.into();
        }
    }
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
    let mut meta = meta.clone();
    let signed = match &kind.vouch {
        Some(vouch) => {
            let uid = expected.uid.or(meta.uid);
            proof::sign(&**vouch, &mut meta, uid, spec)?
        }
        None => None,
    };
    let spec = signed.as_deref().unwrap_or(spec);
    let mut annotations = std::mem::take(&mut meta.annotations);
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
            labels: std::mem::take(&mut meta.labels),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kinds;
    use model::{Spec as _, sandbox::SandboxSpec};
    use serde_json::json;

    #[test]
    fn what_cannot_be_read_of_metadata_is_left_out_and_the_object_stays_known() {
        let kinds = Kinds::of_group("dormouse.dev");
        let kind = kinds.find(SandboxSpec::KIND).unwrap();
        let uid = Uid::from_random(1);
        let mut object = json!({
            "metadata": {
                "name": "box", "namespace": "team", "uid": uid, "resourceVersion": "7",
                "labels": {"a": "b"}, "finalizers": ["f"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}],
                "deletionTimestamp": 5,
            },
            "spec": {"template": "base"},
        });
        let found = record(kind, &object.to_string()).unwrap();
        assert_eq!((found.uid(), found.version()), (uid, Version::from_u64(7)));
        assert_eq!(found.meta.labels.get("a"), Some("b"));
        assert_eq!(found.meta.finalizers.len(), 1);
        assert!(found.meta.owner_references.is_empty() && !found.meta.is_deleting());
        object["metadata"]["uid"] = "none".into();
        record(kind, &object.to_string()).unwrap_err();
    }
}
