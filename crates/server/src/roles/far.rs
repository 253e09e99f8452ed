//! Other processes: gateways as control asks for them, a gateway as it answers, and those whom an API
//! tells and hears.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use cache::SandboxCache;
use control::{ActivitySource, Followers};
use e2b::E2b;
use gateway::activity::Mark;
use mesh::{Heard, Mesh};
use model::{Epoch, Key, Name, Namespace, Sandbox, Spec as _, Uid, Version, sandbox::SandboxSpec};
use peers::{Front, Known, Noted, Peers, Used, frame::Seen};
use plan::idle::Activity;
use routes::{Message, Route, Table};
use tokio::time::Instant;

use super::written::Written;

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

/// Others who are told what an API is about to tell its client. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Arc<OnceLock<(Mesh, SandboxCache)>>);

impl Told {
    /// From now on they are told, of what is seen here.
    pub(crate) fn by(&self, mesh: Mesh, sandboxes: SandboxCache) {
        let _ = self.0.set((mesh, sandboxes));
    }
}

#[async_trait]
impl e2b::ports::Followers for Told {
    async fn have_seen(&self, key: &Key, version: Version) {
        let Some((mesh, sandboxes)) = self.0.get() else {
            return;
        };
        let seen = sandboxes.find(key);
        let version = match seen.and_then(|sandbox| seen_at(version, &sandbox)) {
            Some((message, version)) => {
                mesh.say(message);
                version
            }
            None => version,
        };
        mesh.heard(version).await;
    }
}

/// What is said of a record that is about to be told of at a version: as it is seen, if that is as new. What
/// another process wrote, that one told: perhaps not yet, or not everybody. That it is gone is for who
/// removed it to say, because only that one knows the version: a version names one write.
fn seen_at(version: Version, seen: &Sandbox) -> Option<(Message, Version)> {
    let route = Route::of(seen).filter(|route| route.version >= version)?;
    let version = route.version;
    Some((Message::from(route), version))
}

/// An API, as it hears what others wrote.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) api: Arc<E2b>,
    pub(crate) sandboxes: SandboxCache,
}

impl Heard for Listening {
    fn heard(&self, message: &Message) {
        let (namespace, name, id, version) = match message {
            Message::Upsert(r) => (&r.namespace, &r.name, r.id.clone(), r.version),
            Message::Delete(d) => (&d.namespace, &d.name, None, d.version),
            Message::Unreadable(_) => return,
        };
        let key = Key::namespaced(SandboxSpec::KIND, namespace.clone(), name.clone());
        self.api.heard(key, id, version);
    }

    fn watched(&self) -> Version {
        self.sandboxes.version()
    }
}

/// The gateway of this process, as it answers the others.
#[derive(Debug)]
pub(crate) struct NearGateway {
    pub(crate) activity: gateway::Activity,
    pub(crate) written: Arc<Written>,
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
        // By its own watch, or because whoever wrote it told.
        let seen = self.written.hear_of(version, deadline).await;
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

#[cfg(test)]
mod tests {
    use model::Metadata;

    use super::*;

    fn v(number: u64) -> Version {
        Version::from_u64(number)
    }

    #[test]
    fn what_is_told_to_a_client_is_said_again_as_it_is_seen() {
        let team = Namespace::new("team").unwrap();
        let mut metadata = Metadata::new(Some(team), Name::new("box").unwrap());
        metadata.uid = Some(Uid::from_random(1));
        metadata.resource_version = Some(v(7));
        let sandbox = Sandbox::new(metadata, SandboxSpec::default());
        let (message, version) = seen_at(v(5), &sandbox).unwrap();
        assert!(matches!(message, Message::Upsert(_)), "{message:?}");
        assert_eq!(version, v(7));
        assert_eq!(seen_at(v(9), &sandbox), None, "not seen yet");
    }
}
