//! What every object has: metadata, conditions, and the envelope that holds spec and status.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Generation, Key, KindName, Name, Namespace, StringMap, Timestamp, Uid, Version,
    codec::{self, DecodeError, Residue},
};

/// API group of every kind.
pub const GROUP: &str = "dormouse.dev";
/// API version of every kind.
pub const API_VERSION: &str = "v1alpha1";
/// `apiVersion` of every object.
pub const GROUP_VERSION: &str = "dormouse.dev/v1alpha1";

/// What tells objects apart and ties them together. The names are those of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Unique within kind and namespace.
    pub name: Name,
    /// The tenant; absent for kinds of the whole installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Identity for life. Set by the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The version this was read at. Set by the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<Version>,
    /// Counts changes of the spec. Set by the store.
    #[serde(default, skip_serializing_if = "is_default")]
    pub generation: Generation,
    /// When it was created. Set by the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Timestamp>,
    /// When its deletion was asked for. Set by the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Timestamp>,
    /// Who still has to clean up before it may go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<Box<str>>,
    /// Selectable pairs.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub labels: StringMap,
    /// Other pairs.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub annotations: StringMap,
    /// What it belongs to and goes with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// Fields this version does not know: carried along, never dropped.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

impl Metadata {
    /// Metadata of a new object.
    #[must_use]
    pub fn new(namespace: Option<Namespace>, name: Name) -> Self {
        Self {
            name,
            namespace,
            uid: None,
            resource_version: None,
            generation: Generation::default(),
            creation_timestamp: None,
            deletion_timestamp: None,
            finalizers: Vec::new(),
            labels: StringMap::new(),
            annotations: StringMap::new(),
            owner_references: Vec::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// Whether deletion was asked for.
    #[must_use]
    pub const fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether this finalizer still holds the object.
    #[must_use]
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| &**f == finalizer)
    }

    /// The owner that controls this object.
    #[must_use]
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

/// A tie to the object that this one goes with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// `apiVersion` of the owner.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Name,
    /// Identity of the owner.
    #[schemars(with = "String")]
    pub uid: Uid,
    /// Whether the owner manages this object.
    #[serde(default, skip_serializing_if = "is_default")]
    pub controller: bool,
    /// Whether the owner's deletion waits for this object.
    #[serde(default, skip_serializing_if = "is_default")]
    pub block_owner_deletion: bool,
}

/// One observed aspect of an object, in the shape Kubernetes tools read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The aspect, as `Ready`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// One word why.
    pub reason: Box<str>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
    /// When `status` last changed.
    pub last_transition_time: Timestamp,
    /// The generation it was observed at.
    #[serde(default, skip_serializing_if = "is_default")]
    pub observed_generation: Generation,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell now.
    Unknown,
}

/// Sets a condition, keeping its transition time where the status did not change.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition) {
    match conditions.iter_mut().find(|c| c.kind == new.kind) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// The intent half of a kind, and what ties it to the other half.
pub trait Spec:
    Clone + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// The observed half.
    type Status: Clone
        + PartialEq
        + Default
        + Serialize
        + DeserializeOwned
        + JsonSchema
        + Send
        + Sync
        + 'static;
    /// The kind's name.
    const KIND: KindName;

    /// Fields by which stores and clients select objects of this kind, as dotted paths.
    const SELECTABLE: &'static [&'static str] = &[];

    /// The values of the selectable fields; absent ones are left out.
    #[must_use]
    fn fields(_object: &Object<Self>) -> StringMap {
        StringMap::new()
    }
}

/// An object of one kind: who it is, what is wanted of it, what is observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Object<S: Spec> {
    /// Who it is.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: S,
    /// What is.
    pub status: S::Status,
    /// Fields a newer version wrote and this one does not know: carried along, never dropped.
    pub unknown: Option<Box<Unknown>>,
}

/// Unknown fields of an object, by half.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unknown {
    /// Those of the spec.
    pub spec: Residue,
    /// Those of the status.
    pub status: Residue,
}

impl<S: Spec> Object<S> {
    /// A new object with an empty status.
    pub fn new(metadata: Metadata, spec: S) -> Self {
        Self {
            metadata,
            spec,
            status: S::Status::default(),
            unknown: None,
        }
    }

    /// Reads the two halves from JSON text, keeping what their types do not know.
    ///
    /// # Errors
    /// If a half does not fit its type; the error names the field, from `spec` or `status` on.
    pub fn decode(metadata: Metadata, spec: &str, status: &str) -> Result<Self, DecodeError> {
        let within = |half: &str, e: DecodeError| DecodeError {
            field: if e.field == "." {
                half.into()
            } else {
                format!("{half}.{}", e.field)
            },
            ..e
        };
        let (spec, spec_residue) = codec::decode(spec).map_err(|e| within("spec", e))?;
        let (status, status_residue) = codec::decode(status).map_err(|e| within("status", e))?;
        let unknown = Unknown {
            spec: spec_residue,
            status: status_residue,
        };
        let unknown = (unknown != Unknown::default()).then(|| Box::new(unknown));
        Ok(Self {
            metadata,
            spec,
            status,
            unknown,
        })
    }

    /// The spec as JSON text, unknown fields included.
    #[must_use]
    pub fn encode_spec(&self) -> String {
        codec::encode(
            &self.spec,
            self.unknown
                .as_ref()
                .map_or(&Residue::default(), |u| &u.spec),
        )
    }

    /// The status as JSON text, unknown fields included.
    #[must_use]
    pub fn encode_status(&self) -> String {
        codec::encode(
            &self.status,
            self.unknown
                .as_ref()
                .map_or(&Residue::default(), |u| &u.status),
        )
    }

    /// Where it is found.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            kind: S::KIND,
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
        }
    }

    /// The uid of a stored object.
    ///
    /// # Panics
    /// If the object was not read from a store: only drafts lack one.
    #[must_use]
    pub fn uid(&self) -> Uid {
        self.metadata.uid.expect("a stored object has a uid")
    }

    /// The version of a stored object.
    ///
    /// # Panics
    /// If the object was not read from a store: only drafts lack one.
    #[must_use]
    pub fn version(&self) -> Version {
        self.metadata
            .resource_version
            .expect("a stored object has a version")
    }
}

/// For `skip_serializing_if`.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
