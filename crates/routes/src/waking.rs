//! Why a sandbox was not woken.
//!
//! Those who wake and those who ask for it do not know each other; both know routes.

use std::time::Duration;

use thiserror::Error;

/// Why a sandbox was not woken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WakeError {
    /// There is nothing to wake: gone, ending, another's by now, or not to be woken by traffic.
    #[error("there is no sandbox to wake")]
    NotFound,
    /// It was tried and did not work. Trying again may.
    #[error("waking failed")]
    Failed,
    /// It took longer than the deadline.
    #[error("waking took too long")]
    Timeout,
    /// Too many wait already. Nothing was asked of the sandbox.
    #[error("too many requests wait for sandboxes to wake")]
    Overloaded {
        /// When to come again.
        retry_after: Duration,
    },
    /// Its team may not have another one awake now.
    #[error("the team's limit of running sandboxes is reached")]
    TeamLimit {
        /// When to come again.
        retry_after: Duration,
    },
}
