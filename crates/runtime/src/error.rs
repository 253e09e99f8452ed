//! What can go wrong with a runtime.

use model::{Uid, workload::BootFailure};
use thiserror::Error;

use crate::Fence;

/// A runtime's refusal or failure.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RuntimeError {
    /// A newer call was seen for this uid.
    #[error("a newer operation has taken over {}", .0.uid)]
    Stale(Fence),
    /// There is no workload to do this to.
    #[error("workload {0} does not exist")]
    Absent(Uid),
    /// The workload is in no state to do this to.
    #[error("workload {uid} is {state}: {needs}")]
    WrongState {
        /// Which one.
        uid: Uid,
        /// What it is.
        state: &'static str,
        /// What the call needs.
        needs: &'static str,
    },
    /// It can never work as asked: an image that does not exist, a limit the host cannot keep.
    #[error("{field}: {reason}")]
    Impossible {
        /// The field of the spec.
        field: &'static str,
        /// Why.
        reason: Box<str>,
    },
    /// Its commands did not bring it up; trying again would do the same.
    #[error("{failure}: {detail}")]
    NotReady {
        /// Which way.
        failure: BootFailure,
        /// What was seen.
        detail: Box<str>,
    },
    /// Something of the last delivery is left, so it must not be delivered again.
    #[error("not clean: {0}")]
    NotClean(Box<str>),
    /// It did not work now, and may have happened half-way.
    #[error("the runtime failed: {0}")]
    Failed(Box<str>),
}

impl RuntimeError {
    /// Whether trying again may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(_) | Self::WrongState { .. } | Self::Absent(_) => true,
            Self::Stale(_)
            | Self::Impossible { .. }
            | Self::NotReady { .. }
            | Self::NotClean(_) => false,
        }
    }
}
