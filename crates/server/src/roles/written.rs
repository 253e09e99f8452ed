//! The routes of a gateway as other processes write to them, for those here who wait for that.
//!
//! A route table takes what peers say before the own watch brings it. Some callers wait for just that:
//! requests whose sandbox wakes, and the control loop, which asks whether one change of one sandbox is
//! known here. A client who says how far it has come means everything up to there, and of that only
//! the own watch can tell: a peer may have told of one change and not of those before it.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use cache::Watched;
use gateway::Progress;
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

    /// Waits until the table goes by the change of this version, whoever told of it. Says nothing of
    /// those before it. Answers whether it does, in time.
    pub(crate) async fn hear_of(&self, version: Version, deadline: Instant) -> bool {
        let has = || self.has_reached(version) || self.heard.lock().contains(&version);
        self.wait(version, deadline, has).await
    }

    async fn wait(&self, version: Version, deadline: Instant, has: impl Fn() -> bool) -> bool {
        let mut passed = pin!(self.watched.wait_for(version, deadline));
        loop {
            let mut came = pin!(self.came.notified());
            // From here on nothing is missed; only then is it safe to look.
            came.as_mut().enable();
            if has() {
                return true;
            }
            tokio::select! {
                biased;
                reached = &mut passed => return reached || has(),
                () = came => {}
            }
        }
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
        let resync = self.table.adopt(snapshot, now);
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
impl Progress for Written {
    fn has_reached(&self, version: Version) -> bool {
        self.watched.version() >= version || self.table.watched() >= version
    }

    async fn reach(&self, version: Version, deadline: Instant) -> bool {
        self.wait(version, deadline, || self.has_reached(version))
            .await
    }
}

#[cfg(test)]
mod tests {
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
    async fn a_change_is_heard_of_once_a_peer_has_told_of_it_and_those_before_it_are_not() {
        let written = Written::new(Arc::new(Table::default()), Watched::default());
        let soon = Instant::now() + Duration::from_secs(1);
        let waiting = async { written.hear_of(Version::from_u64(7), soon).await };
        let telling = async {
            tokio::task::yield_now().await;
            written.apply(gone(7), Duration::ZERO);
        };
        let (heard, ()) = tokio::join!(waiting, telling);
        assert!(heard);
        assert!(!written.hear_of(Version::from_u64(6), soon).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_is_reached_when_the_own_watch_has_passed_it_and_not_by_a_word_of_it() {
        let written = Written::new(Arc::new(Table::default()), Watched::default());
        let soon = Instant::now() + Duration::from_secs(1);
        written.apply(gone(7), Duration::ZERO);
        assert!(!written.has_reached(Version::from_u64(7)));
        assert!(!written.reach(Version::from_u64(7), soon).await);
        written
            .table
            .watch_passed(Version::from_u64(7), Duration::ZERO);
        assert!(written.has_reached(Version::from_u64(7)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let written = Written::new(Arc::new(Table::default()), Watched::default());
        for version in 1..=MOST as u64 + 5 {
            written.note(Version::from_u64(version));
        }
        let heard = written.heard.lock();
        assert_eq!(heard.len(), MOST);
        assert!(!heard.contains(&Version::from_u64(5)));
        assert!(heard.contains(&Version::from_u64(6)));
    }
}
