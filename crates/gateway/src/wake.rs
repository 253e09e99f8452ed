//! The port through which the gateway asks for a sleeping sandbox to be woken, and what becomes of
//! a request whose sandbox falls asleep under it.
//!
//! A pause closes admission before it freezes: new requests park, and what is inside has a while to
//! end. What has not ended by then is *held*: an answer that has begun goes on when the sandbox
//! does. A request that has no answer yet must not hang on a frozen process, so it is treated as a
//! new one would be: it wakes its sandbox where that opted in and the request has shown that it may,
//! and is refused otherwise. The same goes for one that slipped through because its gateway heard of
//! the pause late.

use std::{fmt::Debug, pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use routes::{Route, State, Table, WakeError};
use tokio::time::{Instant, timeout_at};

use crate::{activity::Held, answer::Refusal};

/// Wakes sandboxes that opted in.
#[async_trait]
pub trait Wake: Send + Sync + Debug {
    /// Waits until the delivery that `route` names can be dialled, and answers its route then.
    ///
    /// Dropping the future takes back one caller's wait and nothing else: what was begun for
    /// several goes on.
    async fn wake(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError>;
}

impl From<WakeError> for Refusal {
    fn from(error: WakeError) -> Self {
        let seconds = |d: Duration| u32::try_from(d.as_secs().max(1)).unwrap_or(u32::MAX);
        match error {
            WakeError::NotFound => Self::NotFound,
            WakeError::Failed | WakeError::Timeout => Self::NotWoken { retry_after: 5 },
            WakeError::Overloaded { retry_after } => Self::NotWoken {
                retry_after: seconds(retry_after),
            },
            WakeError::TeamLimit { retry_after } => Self::TeamLimit {
                retry_after: seconds(retry_after),
            },
        }
    }
}

/// What is needed to keep a request from hanging on a sandbox that sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// Where sandboxes are.
    pub routes: &'a Table,
    /// How they are woken.
    pub wake: &'a dyn Wake,
    /// How long that may take.
    pub timeout: Duration,
}

impl Watch<'_> {
    /// Waits for an answer from a delivery. Whenever that falls asleep before the answer comes, it
    /// is woken.
    ///
    /// # Errors
    /// If it sleeps and was not woken. Then there is no answer.
    pub async fn answer<T>(
        self,
        route: &Route,
        held: &Held,
        answer: impl Future<Output = T>,
    ) -> Result<T, WakeError> {
        let mut answer = pin!(answer);
        // What is older than this is known to be over.
        let mut known = route.version;
        loop {
            // From here on no change is missed; only then is it safe to look.
            let closed = held.closed();
            let Some(asleep) = self.asleep(route, known) else {
                tokio::select! {
                    biased;
                    answer = &mut answer => return Ok(answer),
                    () = closed => continue,
                }
            };
            let woken = tokio::select! {
                biased;
                answer = &mut answer => return Ok(answer),
                woken = self.woken(&asleep) => woken?,
            };
            known = woken.version.max(known);
        }
    }

    /// The route of a delivery that has fallen asleep after a version. One that is falling asleep
    /// has a while to answer.
    fn asleep(&self, route: &Route, known: model::Version) -> Option<Arc<Route>> {
        let now = self.routes.lookup(route.id.as_ref()?)?;
        let is_it = now.is_delivery(route.uid, route.epoch);
        (is_it && now.version > known && now.state == State::Paused).then_some(now)
    }

    async fn woken(&self, route: &Route) -> Result<Arc<Route>, WakeError> {
        if !route.wake_on_traffic {
            return Err(WakeError::NotFound);
        }
        let deadline = Instant::now() + self.timeout;
        let waking = self.wake.wake(route, deadline);
        timeout_at(deadline, waking)
            .await
            .unwrap_or(Err(WakeError::Timeout))
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
