//! Where a value stands within one cache: a key without its kind.

use model::{Key, KindName, Name, Namespace};
use store::Record;

use crate::Identified;

/// Namespace and name, in the order that listings have. A cache holds one kind, so the kind would
/// be the same 16 bytes in every entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    namespace: Option<Namespace>,
    name: Name,
}

impl Place {
    pub(crate) fn of(key: &Key) -> Self {
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        }
    }

    pub(crate) fn of_record(record: &Record) -> Self {
        Self {
            namespace: record.meta.namespace.clone(),
            name: record.meta.name.clone(),
        }
    }

    /// The place of a value, sharing its text.
    pub(crate) fn of_value(value: &impl Identified) -> Self {
        Self {
            namespace: value.namespace().cloned(),
            name: value.name().clone(),
        }
    }

    pub(crate) fn into_key(self, kind: KindName) -> Key {
        Key {
            kind,
            namespace: self.namespace,
            name: self.name,
        }
    }

    pub(crate) fn borrowed(&self) -> (Option<&Namespace>, &Name) {
        (self.namespace.as_ref(), &self.name)
    }
}

/// The place of a value without owning it, for comparisons.
pub(crate) fn place_of(value: &impl Identified) -> (Option<&Namespace>, &Name) {
    (value.namespace(), value.name())
}

/// The place of a record without owning it, for comparisons.
pub(crate) fn place_of_record(record: &Record) -> (Option<&Namespace>, &Name) {
    (record.meta.namespace.as_ref(), &record.meta.name)
}
