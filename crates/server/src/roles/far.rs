//! Gateways in other processes, as control and API ask for them, and a gateway as it answers.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cache::Watched;
use control::{ActivitySource, Followers};
use gateway::activity::Mark;
use model::{Epoch, Key, Name, Namespace, Sandbox, Uid, Version};
use peers::{Front, Known, Noted, Peers, Used, frame::Seen};
use plan::idle::Activity;
use routes::Table;
use tokio::time::Instant;

/// How long one process waits for another to have heard of a change.
const FOLLOWING: Duration = Duration::from_secs(1);

/// Gateways in other processes.
#[derive(Clone, Debug)]
pub(crate) struct FarGateways(pub(crate) Peers);

#[async_trait]
impl ActivitySource for FarGateways {
    fn activity(&self, sandbox: &Sandbox) -> Activity {
        let known = self.0.known(sandbox.uid(), sandbox.spec.epoch);
        Activity::union(known.into_iter().map(|known| match known {
            Known::InUse => Activity::InUse,
            Known::Quiet { last, watched } => Activity::Quiet { last, watched },
            Known::Unknown => Activity::Unknown,
        }))
    }

    async fn drained(&self, sandbox: &Sandbox) {
        self.0.drained(sandbox.uid(), sandbox.spec.epoch).await;
    }
}

#[async_trait]
impl Followers for FarGateways {
    async fn seen_by_all(&self, key: &Key, version: Version) -> bool {
        match &key.namespace {
            Some(namespace) => self.0.seen(namespace, &key.name, version, FOLLOWING).await,
            // Gateways follow what has one.
            None => true,
        }
    }
}

#[async_trait]
impl e2b::ports::Followers for FarGateways {
    async fn have_seen(&self, key: &Key, version: Version) {
        // One that cannot say is no reason not to answer.
        let _ = Followers::seen_by_all(self, key, version).await;
    }
}

/// The gateway of this process, as it answers the others.
#[derive(Debug)]
pub(crate) struct NearGateway {
    pub(crate) activity: gateway::Activity,
    pub(crate) watched: Watched,
    pub(crate) table: Arc<Table>,
}

#[async_trait]
impl Front for NearGateway {
    fn noted(&self) -> Noted {
        let noted = self.activity.noted();
        Noted {
            now: noted.now,
            watched: self.activity.watched(),
            used: noted.marks.into_iter().map(used).collect(),
        }
    }

    async fn seen(&self, namespace: &Namespace, name: &Name, version: Version) -> Seen {
        let deadline = Instant::now() + FOLLOWING;
        let seen = self.watched.wait_for(version, deadline).await;
        // After that: who was let in before is counted, and who comes now finds it closed.
        let route = self.table.find(namespace, name);
        let noted = route.map(|route| self.activity.noted_of(route.uid));
        let (now, marks) = noted.map_or((Duration::ZERO, Vec::new()), |n| (n.now, n.marks));
        Seen {
            seen,
            now: micros(now),
            used: marks.into_iter().map(used).next(),
        }
    }

    async fn drained(&self, uid: Uid, epoch: Epoch) {
        self.activity.drained(uid, epoch).await;
    }
}

fn used(mark: Mark) -> Used {
    Used {
        uid: mark.uid,
        epoch: mark.epoch,
        open: mark.open,
        last: micros(mark.last),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
