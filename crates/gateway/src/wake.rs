//! The port through which the gateway asks for a sleeping sandbox to be woken.

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use routes::Route;
use thiserror::Error;
use tokio::time::Instant;

use crate::answer::Refusal;

/// Wakes sandboxes that opted in.
#[async_trait]
pub trait Wake: Send + Sync + Debug {
    /// Waits until the delivery that `route` names can be dialled, and answers its route then.
    ///
    /// Dropping the future takes back one caller's wait and nothing else: what was begun for
    /// several goes on.
    async fn wake(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError>;
}

/// Why a sandbox was not woken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WakeError {
    /// There is nothing to wake: gone, ending, another's by now, or not to be woken.
    #[error("there is no sandbox to wake")]
    NotFound,
    /// It was tried and did not work. Trying again may.
    #[error("waking failed")]
    Failed,
    /// It took longer than the deadline.
    #[error("waking took too long")]
    Timeout,
    /// Too many wait already.
    #[error("too many requests wait for sandboxes to wake")]
    Overloaded {
        /// When to come again.
        retry_after: Duration,
    },
    /// The team may not run another sandbox now.
    #[error("the team's limit of running sandboxes is reached")]
    TeamLimit {
        /// When to come again.
        retry_after: Duration,
    },
}

impl WakeError {
    pub(crate) fn refusal(self) -> Refusal {
        let seconds = |d: Duration| u32::try_from(d.as_secs().max(1)).unwrap_or(u32::MAX);
        match self {
            Self::NotFound => Refusal::NotFound,
            Self::Failed | Self::Timeout => Refusal::NotWoken { retry_after: 5 },
            Self::Overloaded { retry_after } => Refusal::NotWoken {
                retry_after: seconds(retry_after),
            },
            Self::TeamLimit { retry_after } => Refusal::TeamLimit {
                retry_after: seconds(retry_after),
            },
        }
    }
}

/// Where nothing is ever woken: a sleeping sandbox is not found.
#[derive(Clone, Copy, Debug)]
pub struct NoWake;

#[async_trait]
impl Wake for NoWake {
    async fn wake(&self, _: &Route, _: Instant) -> Result<Arc<Route>, WakeError> {
        Err(WakeError::NotFound)
    }
}
