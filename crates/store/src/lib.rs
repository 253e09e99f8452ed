//! The Store port: versioned records, compare-and-set, list and watch.
//!
//! A store keeps records in one increasing sequence of versions. Intent and observation meet here:
//! writers name the version they saw, readers follow the sequence. The rules are those of a
//! Kubernetes API server, so that custom resources can be a backend too:
//!
//! - `create` assigns uid, version, generation and creation time.
//! - an update of the *spec half* (labels, annotations, finalizers, owners and spec) or of the
//!   *status half* replaces that half and leaves the other alone; the generation counts changes of
//!   the spec. An update that changes nothing writes nothing and keeps the version.
//! - `delete` removes a record without finalizers at once, and marks one that has them; removing
//!   the last finalizer of a marked record removes it.
//! - a watch sees every durable change after its version, in order, or is told to list again.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`record`] | records, drafts, changes, queries |
//! | [`rules`] | the rules above as pure functions that every embedded backend shares |
//! | [`history`] | the recent changes in memory, from which watches are served |
//! | [`typed`] | records as objects of a kind |
//! | [`standing`] | whose word a record is, where others can write it, too |
//! | [`memory`] | the backend for tests and simulations, with faults |
//! | [`conformance`] | what every backend must pass |

pub mod conformance;
pub mod error;
pub mod history;
pub mod memory;
pub mod record;
pub mod rules;
pub mod standing;
pub mod typed;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use model::{Key, KindName, Namespace, Version};

pub use error::{Fault, Outcome, StoreError};
pub use record::{Change, Deletion, Draft, Half, Listing, Precondition, Query, Record};
pub use standing::Standing;
pub use typed::StoreExt;

/// Keeps versioned records. See the crate's documentation for the rules.
#[async_trait]
pub trait Store: Send + Sync + Debug {
    /// The record at a key, if there is one.
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError>;

    /// The records that a query asks for, in the order of namespace and name, and the version
    /// from which a watch continues without a gap.
    async fn list(&self, query: &Query) -> Result<Listing, StoreError>;

    /// Adds a record. When this returns it is durable.
    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError>;

    /// Replaces one half of a record, if it still has the version that the change names. When this
    /// returns it is durable.
    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError>;

    /// Removes a record, or marks it for removal while it has finalizers.
    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError>;

    /// Follows the changes after a version. Refused with [`StoreError::Expired`] if some of them
    /// are no longer known: list again, and watch from the listing's version.
    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError>;
}

/// Which records a watch follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Of this kind.
    pub kind: KindName,
    /// In this namespace; `None` for all.
    pub namespace: Option<Namespace>,
}

impl Scope {
    /// All records of a kind.
    #[must_use]
    pub const fn kind(kind: KindName) -> Self {
        Self {
            kind,
            namespace: None,
        }
    }

    /// Whether a record with this key is followed.
    #[must_use]
    pub fn covers(&self, key: &Key) -> bool {
        self.kind == key.kind && (self.namespace.is_none() || self.namespace == key.namespace)
    }
}

/// A stream of changes.
#[async_trait]
pub trait Watch: Send + Debug {
    /// The next change. Cancelling the wait loses nothing.
    ///
    /// [`StoreError::Expired`] ends the stream: this watch fell behind what the store remembers.
    async fn next(&mut self) -> Result<WatchEvent, StoreError>;
}

/// One step of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A record was created or changed.
    Put {
        /// What it is now.
        record: Arc<Record>,
        /// What it was before, where the store knows.
        previous: Option<Arc<Record>>,
    },
    /// A record was removed.
    Removed {
        /// Its last content, at the version of the removal.
        record: Arc<Record>,
    },
    /// Nothing of interest happened up to this version.
    Bookmark(Version),
}

impl WatchEvent {
    /// The version this step brings the watcher to.
    #[must_use]
    pub fn version(&self) -> Version {
        match self {
            Self::Put { record, .. } | Self::Removed { record } => record.version(),
            Self::Bookmark(version) => *version,
        }
    }
}
