//! What can go wrong with a runtime.

use model::{Uid, trouble::Trouble, workload::BootFailure};
use thiserror::Error;

use crate::Fence;

/// The field of a workload that names its images.
pub const IMAGES: &str = "images";

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
    /// A hook that had to succeed has failed as often as it was to be tried.
    #[error("hook {hook:?} failed: {detail}")]
    HookFailed {
        /// Its name.
        hook: Box<str>,
        /// How its last try ended.
        detail: Box<str>,
    },
    /// Something of the last delivery is left, so it must not be delivered again.
    #[error("not clean: {0}")]
    NotClean(Box<str>),
    /// An image cannot be had now.
    #[error("{0}")]
    Pull(Box<str>),
    /// There is no room for it now.
    #[error("no room: {0}")]
    NoRoom(Box<str>),
    /// Who decides about more than this runtime does not admit it: a quota, or a policy.
    #[error("not admitted: {0}")]
    NotAdmitted(Box<str>),
    /// It did not work now, and may have happened half-way.
    #[error("the runtime failed: {0}")]
    Failed(Box<str>),
}

impl RuntimeError {
    /// What is wrong with a sandbox to which this happened.
    #[must_use]
    pub fn trouble(&self) -> Trouble {
        match self {
            Self::Pull(_) => Trouble::PullBackOff,
            Self::NoRoom(_) => Trouble::NoCapacity,
            Self::NotAdmitted(_) => Trouble::Limited,
            Self::Impossible { field, .. } if *field == IMAGES => Trouble::ImageUnusable,
            Self::Impossible { .. } => Trouble::Misconfigured,
            Self::NotReady { failure, .. } => (*failure).into(),
            Self::HookFailed { .. } => Trouble::HookFailed,
            Self::NotClean(_) => Trouble::NotClean,
            Self::Absent(_) => Trouble::Lost,
            Self::Stale(_) | Self::WrongState { .. } | Self::Failed(_) => Trouble::RuntimeFailed,
        }
    }

    /// Whether trying again may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(_)
            | Self::Pull(_)
            | Self::NoRoom(_)
            | Self::NotAdmitted(_)
            | Self::WrongState { .. }
            | Self::Absent(_) => true,
            Self::Stale(_)
            | Self::Impossible { .. }
            | Self::NotReady { .. }
            | Self::HookFailed { .. }
            | Self::NotClean(_) => false,
        }
    }
}
