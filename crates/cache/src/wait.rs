//! Waiting for a level.
//!
//! ```text
//!  take a ticket ──▶ look ──▶ it holds: answer
//!        ▲            │
//!        └── woken ◀──┴─▶ deadline: look once more, then give up
//! ```
//!
//! Every wake-up leads to another look at what is there *now*. A level that came and went between
//! two looks is not reported: ask for something that lasts, such as a version.

use std::{pin::pin, sync::Arc};

use model::{Key, Version};
use tokio::time::{Instant, sleep_until};

use crate::{Cache, Identified as _, View, WaitError, place::Place, slots::Ticket};

impl<V: View> Cache<V> {
    /// Waits until what is at a key satisfies a condition, and answers with it. The condition is
    /// asked about `None` while nothing is there. Any number may wait on one key, each for its own
    /// condition. See [`crate::condition`] for ready-made ones.
    ///
    /// # Errors
    /// If the deadline is reached or the cache stops.
    pub async fn wait_for<F>(
        &self,
        key: &Key,
        condition: F,
        deadline: Instant,
    ) -> Result<Option<Arc<V::Value>>, WaitError>
    where
        F: Fn(Option<&V::Value>) -> bool,
    {
        let ticket = self.shared().waits.take_ticket(&Place::of(key));
        self.until(&ticket, deadline, || {
            let value = self.find(key);
            if condition(value.as_deref()) {
                Ok(value)
            } else {
                Err(value.map(|value| value.version()))
            }
        })
        .await
    }

    /// Waits until everything up to a version is in the cache: what was written at it can then be
    /// read here, unless something newer has replaced it.
    ///
    /// # Errors
    /// If the deadline is reached (with the version reached by then) or the cache stops.
    pub async fn wait_for_version(
        &self,
        version: Version,
        deadline: Instant,
    ) -> Result<(), WaitError> {
        let ticket = self.shared().version_waits.take_ticket(&version);
        self.until(&ticket, deadline, || match self.version() {
            reached if reached >= version => Ok(()),
            reached => Err(Some(reached)),
        })
        .await
    }

    async fn until<K: Ord, T>(
        &self,
        ticket: &Ticket<'_, K>,
        deadline: Instant,
        look: impl Fn() -> Result<T, Option<Version>>,
    ) -> Result<T, WaitError> {
        let mut over = pin!(sleep_until(deadline));
        loop {
            // From here on no wake-up is missed; only then is it safe to look.
            let woken = ticket.woken();
            if let Some(reason) = self.shared().stop_reason() {
                return Err(reason.into());
            }
            let last = match look() {
                Ok(found) => return Ok(found),
                Err(last) => last,
            };
            // After the look, so that a level reached at the last moment still counts.
            if over.is_elapsed() || Instant::now() >= deadline {
                return Err(WaitError::DeadlineReached { last });
            }
            tokio::select! {
                biased;
                () = woken => {}
                () = &mut over => {}
            }
        }
    }
}
