//! What can go wrong with a store, and what each failure means to the caller.

use model::{Key, Uid, Version, codec::DecodeError};
use thiserror::Error;

/// A store's refusal or failure.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Nothing is at the key.
    #[error("{0} not found")]
    NotFound(Key),
    /// Something is at the key already.
    #[error("{0} already exists")]
    AlreadyExists(Key),
    /// The record is not at the version the caller saw.
    #[error("{key} is at version {actual}, not {expected}: read it again and repeat the change")]
    Conflict {
        /// The record.
        key: Key,
        /// What the caller saw.
        expected: Version,
        /// What it is.
        actual: Version,
    },
    /// Another record has taken the name.
    #[error("{key} has uid {actual}, not {expected}: the one you mean is gone")]
    OtherUid {
        /// The record.
        key: Key,
        /// What the caller saw.
        expected: Uid,
        /// What it is.
        actual: Uid,
    },
    /// The record is larger than a store takes.
    #[error("{key} takes {size} bytes; the most a record may take is {limit}")]
    TooLarge {
        /// The record.
        key: Key,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The store has rules of its own, and the record breaks one.
    #[error("{key} is refused: {reason}")]
    Invalid {
        /// The record.
        key: Key,
        /// Which rule, and what to do.
        reason: Box<str>,
    },
    /// The changes after this version are no longer known.
    #[error("version {after} is too old to watch from: list again")]
    Expired {
        /// The version asked for.
        after: Version,
    },
    /// A stored record does not fit its type.
    #[error("stored {key} cannot be read: {source}")]
    Undecodable {
        /// The record.
        key: Key,
        /// Why.
        source: DecodeError,
    },
    /// The store could not do it now.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// Whether a write may have happened all the same.
        outcome: Outcome,
        /// What happened, for operators.
        reason: Box<str>,
    },
}

/// Whether a failed write took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did not.
    NotApplied,
    /// Nobody knows; look before trying again.
    Unknown,
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller asked for something that cannot be.
    Caller,
    /// Another writer was first.
    Race,
    /// Ours.
    Store,
}

impl StoreError {
    /// Whether the same call, after reading again, may succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. } | Self::Expired { .. } | Self::Unavailable { .. } => true,
            Self::NotFound(_)
            | Self::AlreadyExists(_)
            | Self::OtherUid { .. }
            | Self::TooLarge { .. }
            | Self::Invalid { .. }
            | Self::Undecodable { .. } => false,
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self {
            Self::NotFound(_)
            | Self::AlreadyExists(_)
            | Self::TooLarge { .. }
            | Self::Invalid { .. } => Fault::Caller,
            Self::Conflict { .. } | Self::OtherUid { .. } | Self::Expired { .. } => Fault::Race,
            Self::Undecodable { .. } | Self::Unavailable { .. } => Fault::Store,
        }
    }
}
