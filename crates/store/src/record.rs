//! Records, and what one can ask of them.

use std::sync::Arc;

use model::meta::OwnerReference;
use model::{Key, KindName, Metadata, Name, Namespace, Object, Spec, StringMap, Uid, Version};

use crate::StoreError;

/// One stored object. Spec and status are JSON text: a store never looks inside, so that records
/// of a newer version pass through unharmed.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its kind.
    pub kind: KindName,
    /// Who it is. Uid, version and creation time are always set.
    pub meta: Metadata,
    /// The intent half.
    pub spec: Arc<str>,
    /// The observed half.
    pub status: Arc<str>,
    /// Values of the kind's selectable fields, by path.
    pub fields: StringMap,
}

impl Record {
    /// Where it is found.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            kind: self.kind,
            namespace: self.meta.namespace.clone(),
            name: self.meta.name.clone(),
        }
    }

    /// Its identity.
    ///
    /// # Panics
    /// Never for a record that came from a store.
    #[must_use]
    pub fn uid(&self) -> Uid {
        self.meta.uid.expect("a stored record has a uid")
    }

    /// The version it was written at.
    ///
    /// # Panics
    /// Never for a record that came from a store.
    #[must_use]
    pub fn version(&self) -> Version {
        self.meta
            .resource_version
            .expect("a stored record has a version")
    }

    /// The record as an object of its kind.
    ///
    /// # Errors
    /// If it does not fit the type.
    pub fn decode<S: Spec>(&self) -> Result<Object<S>, StoreError> {
        Object::decode(self.meta.clone(), &self.spec, &self.status).map_err(|source| {
            StoreError::Undecodable {
                key: self.key(),
                source,
            }
        })
    }

    /// Bytes it takes, for limits.
    #[must_use]
    pub fn size(&self) -> usize {
        let pairs = |map: &StringMap| map.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        let owner = |o: &OwnerReference| o.api_version.len() + o.kind.len() + o.name.as_str().len();
        let unknown = |(k, v): (&String, &serde_json::Value)| k.len() + v.to_string().len();
        self.spec.len()
            + self.status.len()
            + pairs(&self.meta.labels)
            + pairs(&self.meta.annotations)
            + self.meta.finalizers.iter().map(|f| f.len()).sum::<usize>()
            + self.meta.owner_references.iter().map(owner).sum::<usize>()
            + self.meta.unknown.iter().map(unknown).sum::<usize>()
    }
}

/// The most bytes one record may take. A store of small records stays fast.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// A record to be created.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Its kind.
    pub kind: KindName,
    /// Name, namespace, labels, annotations, finalizers, owners; the rest is set by the store.
    pub meta: Metadata,
    /// The intent half.
    pub spec: Arc<str>,
    /// The observed half.
    pub status: Arc<str>,
    /// Values of the kind's selectable fields.
    pub fields: StringMap,
}

impl Draft {
    /// A draft of an object.
    #[must_use]
    pub fn of<S: Spec>(object: &Object<S>) -> Self {
        Self {
            kind: S::KIND,
            meta: object.metadata.clone(),
            spec: object.encode_spec().into(),
            status: object.encode_status().into(),
            fields: S::fields(object),
        }
    }

    /// Where it will be found.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            kind: self.kind,
            namespace: self.meta.namespace.clone(),
            name: self.meta.name.clone(),
        }
    }
}

/// Which half of a record a change replaces.
#[derive(Clone, Debug)]
pub enum Half {
    /// Labels, annotations, finalizers, owners and spec.
    Spec {
        /// The new metadata; what the store owns in it is ignored.
        meta: Box<Metadata>,
        /// The new spec.
        spec: Arc<str>,
    },
    /// Status.
    Status {
        /// The new status.
        status: Arc<str>,
    },
}

/// A compare-and-set on one record.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which record.
    pub key: Key,
    /// Which one of that name, where the caller knows.
    pub uid: Option<Uid>,
    /// The version the caller saw.
    pub expected: Version,
    /// What replaces what.
    pub half: Half,
    /// Values of the kind's selectable fields after the change.
    pub fields: StringMap,
}

impl Change {
    /// Replaces the spec half by that of an object as it was read and then changed.
    #[must_use]
    pub fn spec<S: Spec>(object: &Object<S>) -> Self {
        Self {
            key: object.key(),
            uid: object.metadata.uid,
            expected: object.version(),
            half: Half::Spec {
                meta: Box::new(object.metadata.clone()),
                spec: object.encode_spec().into(),
            },
            fields: S::fields(object),
        }
    }

    /// Replaces the status half by that of an object as it was read and then changed.
    #[must_use]
    pub fn status<S: Spec>(object: &Object<S>) -> Self {
        Self {
            key: object.key(),
            uid: object.metadata.uid,
            expected: object.version(),
            half: Half::Status {
                status: object.encode_status().into(),
            },
            fields: S::fields(object),
        }
    }
}

/// What must still be so for a deletion to happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Precondition {
    /// It is this one.
    pub uid: Option<Uid>,
    /// It has not changed since.
    pub version: Option<Version>,
}

/// How a deletion went. A record that is not there is [`StoreError::NotFound`].
#[derive(Clone, Debug)]
pub enum Deletion {
    /// It is gone; its last content, at the version of the removal.
    Removed(Arc<Record>),
    /// It waits for its finalizers.
    Marked(Arc<Record>),
}

/// Which records to list. Every part narrows.
#[derive(Clone, Debug)]
pub struct Query {
    /// Of this kind.
    pub kind: KindName,
    /// In this namespace; `None` for all.
    pub namespace: Option<Namespace>,
    /// With these labels.
    pub labels: Vec<LabelTerm>,
    /// With these values in selectable fields, by path; served from an index.
    pub fields: Vec<(Box<str>, Box<str>)>,
    /// At most this many.
    pub limit: Option<usize>,
    /// After this one, in the order of namespace and name.
    pub after: Option<(Option<Namespace>, Name)>,
}

impl Query {
    /// All records of a kind.
    #[must_use]
    pub const fn kind(kind: KindName) -> Self {
        Self {
            kind,
            namespace: None,
            labels: Vec::new(),
            fields: Vec::new(),
            limit: None,
            after: None,
        }
    }

    /// Narrowed to a namespace.
    #[must_use]
    pub fn within(mut self, namespace: Namespace) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Narrowed to a value of a selectable field.
    #[must_use]
    pub fn field(mut self, path: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.fields.push((path.into(), value.into()));
        self
    }

    /// Narrowed to a value of a label.
    #[must_use]
    pub fn label(mut self, key: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.labels
            .push(LabelTerm::In(key.into(), vec![value.into()]));
        self
    }

    /// Whether a record is asked for, `limit` and `after` aside.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        self.kind == record.kind
            && (self.namespace.is_none() || self.namespace == record.meta.namespace)
            && self
                .labels
                .iter()
                .all(|term| term.holds(&record.meta.labels))
            && self
                .fields
                .iter()
                .all(|(path, value)| record.fields.get(path) == Some(value))
    }
}

/// One condition on labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelTerm {
    /// The label has one of these values.
    In(Box<str>, Vec<Box<str>>),
    /// The label is missing or has none of these values.
    NotIn(Box<str>, Vec<Box<str>>),
    /// The label is there.
    Exists(Box<str>),
    /// The label is not there.
    Missing(Box<str>),
}

impl LabelTerm {
    /// Whether it holds for these labels.
    #[must_use]
    pub fn holds(&self, labels: &StringMap) -> bool {
        let is_any = |key: &str, values: &[Box<str>]| {
            labels
                .get(key)
                .is_some_and(|have| values.iter().any(|v| **v == *have))
        };
        match self {
            Self::In(key, values) => is_any(key, values),
            Self::NotIn(key, values) => !is_any(key, values),
            Self::Exists(key) => labels.contains_key(key),
            Self::Missing(key) => !labels.contains_key(key),
        }
    }
}

/// What a listing found.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The records, in the order of namespace and name.
    pub records: Vec<Arc<Record>>,
    /// A watch after this version continues without a gap.
    pub version: Version,
    /// Whether `limit` cut the list short.
    pub more: bool,
}
