//! The routes of a gateway as other processes write to them, for those here who wait for that.
//!
//! A route table takes what peers say before the own watch brings it. Two kinds of callers wait for
//! just that: requests whose sandbox wakes, and clients who say how far they have come. Both are told
//! once the table has it.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use cache::Watched;
use mesh::Book;
use model::Version;
use parking_lot::Mutex;
use routes::{Changes, Everything, Message, Outcome, Resync, Snapshot, Table, Writer};
use tokio::{sync::Notify, time::Instant};
use wake::Flights;

/// How many changes beyond the own watch are remembered by their versions.
const MOST: usize = 8192;

/// The routes of a gateway.
#[derive(Debug)]
pub(crate) struct Written {
    table: Arc<Table>,
    watched: Watched,
    /// Once there are any.
    flights: OnceLock<Flights>,
    /// The versions of changes that peers told of and the own watch has not passed.
    heard: Mutex<BTreeSet<Version>>,
    came: Notify,
}

impl Written {
    pub(crate) fn new(table: Arc<Table>, watched: Watched) -> Self {
        Self {
            table,
            watched,
            flights: OnceLock::new(),
            heard: Mutex::default(),
            came: Notify::new(),
        }
    }

    /// From now on these hear of sandboxes that run.
    pub(crate) fn tell(&self, flights: Flights) {
        let _ = self.flights.set(flights);
    }

    fn note(&self, version: Version) {
        let mut heard = self.heard.lock();
        let passed = self.watched.version();
        while heard.first().is_some_and(|oldest| *oldest <= passed) || heard.len() >= MOST {
            heard.pop_first();
        }
        if version > passed {
            heard.insert(version);
        }
        drop(heard);
        self.came.notify_waiters();
    }
}

impl Book for Written {
    fn apply(&self, message: Message, now: Duration) -> Outcome {
        let (version, route) = match &message {
            Message::Upsert(route) => (Some(route.version), Some(Arc::clone(route))),
            Message::Delete(deletion) => (Some(deletion.version), None),
            Message::Unreadable(_) => (None, None),
        };
        let outcome = self.table.apply(Writer::Peer, message, now);
        // After that: who is told looks at the table.
        if let Some(version) = version {
            self.note(version);
        }
        if let (Some(route), Some(flights)) = (route, self.flights.get()) {
            flights.heard(&route);
        }
        outcome
    }

    fn replace_all(&self, snapshot: Snapshot, now: Duration) -> Resync {
        let resync = self.table.replace_all(snapshot, now);
        self.came.notify_waiters();
        resync
    }

    fn since(&self, after: Version, told: Option<u64>) -> Option<Changes> {
        self.table.since(after, told)
    }

    fn everything(&self) -> Option<Everything> {
        self.table.everything()
    }

    fn watched(&self) -> Version {
        self.table.watched()
    }

    fn synced(&self) -> bool {
        self.table.synced()
    }
}

#[async_trait]
impl gateway::Progress for Written {
    fn has_reached(&self, version: Version) -> bool {
        self.watched.version() >= version
            || self.heard.lock().contains(&version)
            || self.table.watched() >= version
    }

    async fn reach(&self, version: Version, deadline: Instant) -> bool {
        let mut passed = pin!(self.watched.wait_for(version, deadline));
        loop {
            let mut came = pin!(self.came.notified());
            // From here on nothing is missed; only then is it safe to look.
            came.as_mut().enable();
            if self.has_reached(version) {
                return true;
            }
            tokio::select! {
                biased;
                reached = &mut passed => return reached || self.has_reached(version),
                () = came => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gateway::Progress as _;
    use model::{Name, Namespace};
    use routes::Deletion;

    use super::*;

    fn gone(version: u64) -> Message {
        Message::Delete(Deletion {
            namespace: Namespace::new("team").unwrap(),
            name: Name::new("box").unwrap(),
            version: Version::from_u64(version),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_reached_once_a_peer_has_told_of_it_and_those_before_it_are_not() {
        let written = Written::new(Arc::new(Table::default()), Watched::default());
        let soon = Instant::now() + Duration::from_secs(1);
        let waiting = async { written.reach(Version::from_u64(7), soon).await };
        let telling = async {
            tokio::task::yield_now().await;
            written.apply(gone(7), Duration::ZERO);
        };
        let (reached, ()) = tokio::join!(waiting, telling);
        assert!(reached);
        assert!(!written.has_reached(Version::from_u64(6)));
        assert!(!written.reach(Version::from_u64(6), soon).await);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let written = Written::new(Arc::new(Table::default()), Watched::default());
        for version in 1..=MOST as u64 + 5 {
            written.note(Version::from_u64(version));
        }
        assert_eq!(written.heard.lock().len(), MOST);
        assert!(!written.has_reached(Version::from_u64(5)));
        assert!(written.has_reached(Version::from_u64(6)));
    }
}
