//! How a gateway that is a process of its own wakes sandboxes.
//!
//! A flight writes that a sandbox is to be awake and waits until that is seen, by the own watch or by
//! what other processes say. The table of routes may know first, and it may know more than the own
//! watch for a long time; so whoever waits looks there as well.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use routes::{Route, State, Table, WakeError};
use tokio::time::Instant;
use wake::Flights;

/// How long the route of a sandbox that its owner has heard of may take to arrive.
const ARRIVING: Duration = Duration::from_secs(1);
/// How often somebody who waits looks at the table: less and less.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Flights, where those who tell owners of their sandboxes are other processes.
#[derive(Debug)]
pub(crate) struct FarWaker {
    table: Arc<Table>,
    /// Nothing before the store was read: then nobody can be woken.
    flights: OnceLock<Flights>,
}

impl FarWaker {
    pub(crate) fn new(table: Arc<Table>) -> Self {
        Self {
            table,
            flights: OnceLock::new(),
        }
    }

    /// From now on sandboxes can be woken.
    pub(crate) fn fly_with(&self, flights: Flights) {
        let _ = self.flights.set(flights);
    }

    pub(crate) fn flights(&self) -> Option<&Flights> {
        self.flights.get()
    }

    /// Waits until sandboxes can be woken, for so long.
    async fn flights_by(&self, until: Instant) -> Option<&Flights> {
        let mut pause = FIRST_LOOK;
        loop {
            let flights = self.flights.get();
            let now = Instant::now();
            if flights.is_some() || now >= until {
                return flights;
            }
            tokio::time::sleep_until(until.min(now + pause)).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    /// Waits until the table shows that a delivery runs, later than a route of it that does not.
    async fn shown(&self, route: &Route) -> Arc<Route> {
        let mut pause = FIRST_LOOK;
        loop {
            let now = route.id.as_ref().and_then(|id| self.table.lookup(id));
            let is_it = |now: &Arc<Route>| {
                now.is_delivery(route.uid, route.epoch)
                    && now.state == State::Running
                    && now.version > route.version
            };
            if let Some(now) = now.filter(is_it) {
                return now;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }
}

#[async_trait]
impl gateway::Wake for FarWaker {
    async fn wake(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError> {
        // Nobody has the id of one that is being made but who was told of it, which is when it is
        // ready: its route follows.
        let is_new = route.state == State::Creating;
        let soon = deadline.min(Instant::now() + ARRIVING);
        let waking = async {
            match self.flights_by(soon).await {
                Some(flights) if is_new => flights.look_on(route, soon).await,
                Some(flights) => flights.wake(route, deadline).await,
                None if soon == deadline => Err(WakeError::Timeout),
                None => Err(WakeError::Failed),
            }
        };
        tokio::select! {
            biased;
            outcome = waking => outcome,
            shown = self.shown(route) => {
                // Nobody waits for the flight any more, and nobody may be woken by it.
                if let Some(flights) = self.flights.get() {
                    flights.heard(&shown);
                }
                Ok(shown)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gateway::Wake as _;
    use model::{Epoch, Name, Namespace, Uid, Version};
    use routes::Gate;

    use super::*;

    fn asleep() -> Route {
        Route {
            version: Version::from_u64(7),
            epoch: Epoch(1),
            uid: Uid::from_random(1),
            namespace: Namespace::new("team").unwrap(),
            name: Name::new("box").unwrap(),
            id: None,
            state: State::Paused,
            address: None,
            wake_on_traffic: true,
            is_closing: false,
            agent: Gate::Closed,
            traffic: Gate::Open,
            owner: None,
            mask_host: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_store_was_read_nobody_is_woken_and_nobody_waits_beyond_the_deadline() {
        let waker = FarWaker::new(Arc::new(Table::default()));
        let begun = Instant::now();
        let soon = begun + Duration::from_millis(100);
        assert_eq!(waker.wake(&asleep(), soon).await, Err(WakeError::Timeout));
        assert!(Instant::now() < soon + FIRST_LOOK);
        let later = begun + Duration::from_secs(60);
        assert_eq!(waker.wake(&asleep(), later).await, Err(WakeError::Failed));
        assert!(Instant::now() < later);
    }
}
