//! A gateway's table as its mesh sees it, with a defect on purpose or none.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use kit::{Clock, Tasks};
use mesh::Book;
use model::Version;
use routes::{
    Change, Changes, Everything, Message, Outcome, Resync, Route, Snapshot, Table, Writer,
};
use wake::Flights;

use crate::plant::Plant;

/// Newer than anything that is ever written.
pub const NEWEST: Version = Version::from_u64(u64::MAX >> 20);

/// How late the defect of acknowledging first applies.
const LATE: Duration = Duration::from_millis(30);

/// A gateway's table.
#[derive(Debug)]
pub struct GatewayBook {
    /// Where sandboxes are.
    pub table: Arc<Table>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// A defect on purpose.
    pub plant: Option<Plant>,
    /// What ends with the gateway.
    pub tasks: Tasks,
    /// Who wait for sandboxes to run.
    pub flights: Arc<OnceLock<Flights>>,
}

impl GatewayBook {
    fn newest(routes: &[Arc<Route>]) -> Version {
        let versions = routes.iter().map(|route| route.version);
        versions.fold(Version::ZERO, Version::max)
    }
}

impl Book for GatewayBook {
    fn apply(&self, message: Message, now: Duration) -> Outcome {
        let message = match message {
            // The defect: whatever arrives is taken for the newest.
            Message::Upsert(route) if self.plant == Some(Plant::BlindRoutes) => {
                let mut route = Route::clone(&route);
                route.version = NEWEST;
                Message::from(route)
            }
            other => other,
        };
        if self.plant == Some(Plant::EarlyAck) {
            let (table, clock) = (Arc::clone(&self.table), Arc::clone(&self.clock));
            self.tasks.spawn(async move {
                tokio::time::sleep(LATE).await;
                table.apply(Writer::Peer, message, clock.monotonic());
            });
            return Outcome::Applied(Change::default());
        }
        let route = match &message {
            Message::Upsert(route) => Some(Arc::clone(route)),
            Message::Delete(_) | Message::Unreadable(_) => None,
        };
        let outcome = self.table.apply(Writer::Peer, message, now);
        if let (Some(route), Some(flights)) = (route, self.flights.get()) {
            flights.heard(&route);
        }
        outcome
    }

    fn replace_all(&self, snapshot: Snapshot, now: Duration) -> Resync {
        self.table.adopt(snapshot, now)
    }

    fn since(&self, after: Version, told: Option<u64>) -> Option<Changes> {
        let mut changes = self.table.since(after, told)?;
        if self.plant == Some(Plant::ForgetfulAnswers) {
            let is_kept = |m: &Message| !matches!(m, Message::Delete(_));
            changes.messages.retain(is_kept);
        }
        Some(changes)
    }

    fn everything(&self) -> Option<Everything> {
        let mut all = self.table.everything()?;
        match self.plant {
            Some(Plant::BoastfulSnapshot) => {
                let newest = Self::newest(&all.snapshot.routes);
                all.snapshot.version = all.snapshot.version.max(newest);
            }
            Some(Plant::GravelessSnapshot) => all.deletions.clear(),
            Some(_) | None => {}
        }
        Some(all)
    }

    fn watched(&self) -> Version {
        self.table.watched()
    }

    fn synced(&self) -> bool {
        self.table.synced()
    }
}
