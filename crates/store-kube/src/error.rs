//! What an API server's refusals and failures mean to callers of a store.

use cluster_kube::{ClusterError, Reason};
use model::Key;
use store::{Outcome, StoreError};

/// Whether a call writes: only then can it be in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Read,
    Write,
}

/// A failure that no caller of this crate looks into any further.
pub(crate) fn unavailable(error: &ClusterError, does: Does) -> StoreError {
    let outcome = match does {
        Does::Write if error.may_have_happened() => Outcome::Unknown,
        Does::Write | Does::Read => Outcome::NotApplied,
    };
    StoreError::Unavailable {
        outcome,
        reason: error.explain().into(),
    }
}

/// What could not be made of what an API server answered. A write has happened by then.
pub(crate) fn garbled(what: impl std::fmt::Display, does: Does) -> StoreError {
    StoreError::Unavailable {
        outcome: match does {
            Does::Write => Outcome::Unknown,
            Does::Read => Outcome::NotApplied,
        },
        reason: format!("the API server's answer cannot be read: {what}").into(),
    }
}

/// A refusal of a write that says all there is to say. Conflicts need a second look.
pub(crate) fn refused(key: &Key, size: usize, error: &ClusterError) -> StoreError {
    match error.reason() {
        Some(Reason::NotFound) => StoreError::NotFound(key.clone()),
        Some(Reason::AlreadyExists) => StoreError::AlreadyExists(key.clone()),
        Some(Reason::TooLarge) => StoreError::TooLarge {
            key: key.clone(),
            size,
            limit: store::record::MAX_RECORD_BYTES,
        },
        Some(Reason::Invalid) => StoreError::Invalid {
            key: key.clone(),
            reason: error.explain().into(),
        },
        Some(
            Reason::Conflict
            | Reason::Forbidden
            | Reason::Unauthorized
            | Reason::Expired
            | Reason::TooManyRequests
            | Reason::Failed,
        )
        | None => unavailable(error, Does::Write),
    }
}
