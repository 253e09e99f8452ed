//! Collections that are data: what a server serves that is not of the registry.
//!
//! The registry's kinds have types and rules in the product. A stand-in for Kubernetes serves Pods,
//! Leases and whatever a CustomResourceDefinition describes: for those a [`Collection`] says how they
//! are named, and a [`Catalogue`] which there are and what their rules are. Reading, watching,
//! patching, selecting and the rules of versions are the same code for both.

use std::fmt::Debug;

use async_trait::async_trait;
use model::{
    Key, KindName, Namespace,
    kinds::{Column, Scope},
    validate::Problem,
};
use serde_json::Value;
use store::{Deletion, Precondition, Record, StoreError};

use crate::object;

/// What there is to know of a collection.
#[derive(Debug)]
pub struct Collection {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The version of the group.
    pub version: &'static str,
    /// `apiVersion` of its objects.
    pub api_version: &'static str,
    /// `kind` of its objects.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
    /// Its name on the command line.
    pub singular: &'static str,
    /// Shorter names on the command line.
    pub short_names: &'static [&'static str],
    /// Groups of kinds it is listed with.
    pub categories: &'static [&'static str],
    /// Whether its objects belong to a namespace.
    pub scope: Scope,
    /// What tables show of its objects, after the name.
    pub columns: &'static [Column],
    /// Fields by which its objects can be selected.
    pub selectable: &'static [&'static str],
    /// Whether status is a half of its own, written by requests of its own.
    pub has_status: bool,
    /// Whether changes of the rest are counted.
    pub has_generation: bool,
    /// Whether it takes strategic merge patches: built-in kinds do.
    pub strategic: bool,
    /// Whether an object can be replaced by who does not say which version it saw.
    pub unconditional: bool,
    /// Whether a deletion is answered with the object, not with a word of success.
    pub shows_deleted: bool,
    /// Under which its records are stored: `pods`, `jobs.batch`. Unlike the kind's name it is unique.
    pub stored_as: KindName,
}

impl Collection {
    /// A record of this collection as clients see it.
    ///
    /// # Errors
    /// If the record is damaged.
    pub fn object(&self, record: &Record) -> Result<Value, StoreError> {
        object::to_value(self, record)
    }
}

/// Which part of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but what has a request of its own.
    Main,
    /// What is observed.
    Status,
}

/// A write that is about to happen.
#[derive(Debug)]
pub struct Admission<'a> {
    /// To what.
    pub collection: &'static Collection,
    /// Where.
    pub namespace: Option<&'a Namespace>,
    /// Which part of it.
    pub part: Part,
    /// What there is now; `None` where it is created.
    pub old: Option<&'a Value>,
}

/// Why a write is refused.
#[derive(Debug)]
pub enum Denied {
    /// It breaks rules.
    Invalid(Vec<Problem>),
    /// It may not be now, or not by this client.
    Forbidden(String),
    /// Its namespace does not exist.
    NoNamespace,
    /// The store does not answer.
    Store(StoreError),
}

/// Which collections are served, and what their rules are.
#[async_trait]
pub trait Catalogue: Send + Sync + Debug {
    /// The collection at a path.
    fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Collection>;

    /// All of them.
    fn all(&self) -> Vec<&'static Collection>;

    /// Completes a new version of an object, and refuses what breaks the rules of its kind. Answers
    /// the fields that it does not know, and left out.
    async fn admit(&self, admission: Admission<'_>, new: &mut Value)
    -> Result<Vec<String>, Denied>;

    /// Deletes an object. `seconds` is the time the client would give it to end by itself.
    async fn delete(
        &self,
        collection: &'static Collection,
        key: &Key,
        only_if: Precondition,
        seconds: Option<u64>,
    ) -> Result<Deletion, StoreError>;
}
