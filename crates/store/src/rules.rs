//! The rules of a store as pure functions: what a request makes of the current record.
//!
//! Embedded backends differ in where they keep records; what a request means is decided here, once.

use std::{sync::Arc, time::Duration};

use model::{Generation, Timestamp, Uid, Version};

use crate::{
    Change, Deletion, Draft, Half, Precondition, Record, StoreError, record::MAX_RECORD_BYTES,
};

/// What a request does to the record at its key.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Nothing changes; the answer is the record as it is.
    Unchanged(Arc<Record>),
    /// The record becomes this.
    Put(Arc<Record>),
    /// The record goes; this is its last content.
    Remove(Arc<Record>),
}

/// What a store gives a record at its creation or change.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The next version.
    pub version: Version,
    /// The wall clock.
    pub now: Timestamp,
}

/// Creates a record.
///
/// # Errors
/// If there is one already, or the draft is too large.
pub fn create(
    current: Option<&Arc<Record>>,
    draft: Draft,
    uid: Uid,
    at: Stamp,
) -> Result<Effect, StoreError> {
    if current.is_some() {
        return Err(StoreError::AlreadyExists(draft.key()));
    }
    let mut meta = draft.meta;
    meta.uid = Some(uid);
    meta.resource_version = Some(at.version);
    meta.generation = Generation(1);
    meta.creation_timestamp = Some(at.now);
    meta.deletion_timestamp = None;
    let record = Record {
        kind: draft.kind,
        meta,
        spec: draft.spec,
        status: draft.status,
        fields: draft.fields,
    };
    within_limit(&record)?;
    Ok(Effect::Put(Arc::new(record)))
}

/// Applies a change.
///
/// # Errors
/// If the record is gone, is another one, has moved on, or would become too large.
pub fn update(
    current: Option<&Arc<Record>>,
    change: Change,
    at: Stamp,
) -> Result<Effect, StoreError> {
    let Some(current) = current else {
        return Err(StoreError::NotFound(change.key));
    };
    check(current, change.uid, Some(change.expected))?;
    let mut next = Record::clone(current);
    match change.half {
        Half::Spec { meta, spec } => {
            next.meta.labels = meta.labels;
            next.meta.annotations = meta.annotations;
            next.meta.owner_references = meta.owner_references;
            next.meta.unknown = meta.unknown;
            next.meta.finalizers = meta.finalizers;
            if current.meta.is_deleting() {
                // Deletion can be finished, not called off or extended.
                next.meta
                    .finalizers
                    .retain(|f| current.meta.has_finalizer(f));
            }
            if next.spec != spec {
                next.meta.generation = Generation(current.meta.generation.0 + 1);
                next.spec = spec;
            }
        }
        Half::Status { status } => next.status = status,
    }
    next.fields = change.fields;
    if next.meta.is_deleting() && next.meta.finalizers.is_empty() && grace(current) == 0 {
        next.meta.resource_version = Some(at.version);
        return Ok(Effect::Remove(Arc::new(next)));
    }
    if next == **current {
        return Ok(Effect::Unchanged(Arc::clone(current)));
    }
    next.meta.resource_version = Some(at.version);
    within_limit(&next)?;
    Ok(Effect::Put(Arc::new(next)))
}

/// Fills in what a server decides by itself, as the node that a Pod runs on: a change of the spec that
/// is none of what is wanted, so it is not counted.
///
/// # Errors
/// As for [`update`].
pub fn fill_in(
    current: Option<&Arc<Record>>,
    change: Change,
    at: Stamp,
) -> Result<Effect, StoreError> {
    let generation = current.map(|record| record.meta.generation);
    match (update(current, change, at)?, generation) {
        (Effect::Put(record), Some(generation)) => {
            let mut record = Record::clone(&record);
            record.meta.generation = generation;
            Ok(Effect::Put(Arc::new(record)))
        }
        (effect, _) => Ok(effect),
    }
}

/// Deletes a record, or marks it.
///
/// # Errors
/// If the record is gone or the precondition does not hold.
pub fn delete(
    current: Option<&Arc<Record>>,
    key: &model::Key,
    only_if: Precondition,
    at: Stamp,
) -> Result<Effect, StoreError> {
    let Some(current) = current else {
        return Err(StoreError::NotFound(key.clone()));
    };
    check(current, only_if.uid, only_if.version)?;
    let mut next = Record::clone(current);
    next.meta.resource_version = Some(at.version);
    if current.meta.finalizers.is_empty() {
        return Ok(Effect::Remove(Arc::new(next)));
    }
    if current.meta.is_deleting() {
        return Ok(Effect::Unchanged(Arc::clone(current)));
    }
    next.meta.deletion_timestamp = Some(at.now);
    // As in Kubernetes: asking for deletion is a change of what is wanted.
    next.meta.generation = Generation(current.meta.generation.0 + 1);
    Ok(Effect::Put(Arc::new(next)))
}

/// Where the time is kept that a deleted record was given to end by itself.
pub const GRACE: &str = "deletionGracePeriodSeconds";

/// The seconds that a deleted record was given to end by itself.
#[must_use]
pub fn grace(record: &Record) -> u64 {
    let field = record.meta.unknown.get(GRACE);
    field.and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// Deletes a record as Kubernetes does. What takes time to end is given `seconds` of grace: with some
/// it is marked, and stays until it is deleted with zero. A later deletion can only shorten the time.
/// `None` is for what ends at once.
///
/// # Errors
/// If the record is gone or the precondition does not hold.
pub fn delete_gracefully(
    current: Option<&Arc<Record>>,
    key: &model::Key,
    only_if: Precondition,
    seconds: Option<u64>,
    at: Stamp,
) -> Result<Effect, StoreError> {
    let Some(current) = current else {
        return Err(StoreError::NotFound(key.clone()));
    };
    check(current, only_if.uid, only_if.version)?;
    let mut next = Record::clone(current);
    next.meta.resource_version = Some(at.version);
    let removes = seconds.unwrap_or(0) == 0 && current.meta.finalizers.is_empty();
    if removes && seconds.is_none() {
        return Ok(Effect::Remove(Arc::new(next)));
    }
    let deleting = current.meta.is_deleting();
    let seconds = seconds.unwrap_or(0);
    if deleting && !removes && grace(current) <= seconds {
        return Ok(Effect::Unchanged(Arc::clone(current)));
    }
    next.meta.deletion_timestamp = Some(at.now.plus(Duration::from_secs(seconds)));
    next.meta.unknown.insert(GRACE.to_owned(), seconds.into());
    if !deleting {
        next.meta.generation = Generation(current.meta.generation.0 + 1);
    }
    if removes {
        return Ok(Effect::Remove(Arc::new(next)));
    }
    Ok(Effect::Put(Arc::new(next)))
}

impl Effect {
    /// The answer to a delete that had this effect.
    #[must_use]
    pub fn into_deletion(self) -> Deletion {
        match self {
            Self::Remove(record) => Deletion::Removed(record),
            Self::Put(record) | Self::Unchanged(record) => Deletion::Marked(record),
        }
    }

    /// The answer to a create or update that had this effect.
    #[must_use]
    pub fn into_record(self) -> Arc<Record> {
        match self {
            Self::Put(record) | Self::Unchanged(record) | Self::Remove(record) => record,
        }
    }
}

fn check(current: &Record, uid: Option<Uid>, version: Option<Version>) -> Result<(), StoreError> {
    if let Some(expected) = uid.filter(|uid| *uid != current.uid()) {
        return Err(StoreError::OtherUid {
            key: current.key(),
            expected,
            actual: current.uid(),
        });
    }
    if let Some(expected) = version.filter(|v| *v != current.version()) {
        let actual = current.version();
        return Err(StoreError::Conflict {
            key: current.key(),
            expected,
            actual,
        });
    }
    Ok(())
}

fn within_limit(record: &Record) -> Result<(), StoreError> {
    let size = record.size();
    if size <= MAX_RECORD_BYTES {
        return Ok(());
    }
    Err(StoreError::TooLarge {
        key: record.key(),
        size,
        limit: MAX_RECORD_BYTES,
    })
}
