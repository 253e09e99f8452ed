//! Tasks with an owner.
//!
//! Every task belongs to a [`Tasks`]; whoever holds it can ask them all to stop and wait until they
//! have. This is the only place that spawns.

use std::{future::Future, time::Duration};

use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A group of tasks that end together.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Starts a task of this group.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// A group that ends with this one, and can end before it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            tracker: TaskTracker::new(),
            stop: self.stop.child_token(),
        }
    }

    /// Cancelled when the tasks of this group should stop.
    #[must_use]
    pub const fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Asks the tasks to stop, and waits until they have or `grace` is over.
    ///
    /// # Errors
    /// With the number of tasks that were still running.
    pub async fn drain(&self, grace: Duration) -> Result<(), usize> {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait())
            .await
            .map_err(|_| self.tracker.len())
    }
}
