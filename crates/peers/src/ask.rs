//! All gateways, as one who asks them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use kit::{Clock, Entropy, Tasks};
use model::{Epoch, Name, Namespace, Uid, Version};
use parking_lot::Mutex;
use peer::Identity;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    frame::{DrainedQuery, Seen},
    kin::{Kin, Stranger},
    link::{Link, Means, SILENCE},
    view::{Known, Past},
};

/// Where the gateways are; nothing while that is not known.
pub type Members = watch::Receiver<Option<BTreeSet<SocketAddr>>>;

/// All gateways. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Peers {
    members: Members,
    links: Arc<Mutex<BTreeMap<SocketAddr, Arc<Link>>>>,
    past: Arc<Mutex<Past>>,
    clock: Arc<dyn Clock>,
    kin: Kin,
}

impl Peers {
    /// Connects to all of them, and from then on follows who comes and goes.
    #[must_use]
    pub fn start(
        members: Members,
        identity: Identity,
        kin: Kin,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        tasks: &Tasks,
    ) -> Self {
        let peers = Self {
            members: members.clone(),
            links: Arc::default(),
            past: Arc::default(),
            clock: Arc::clone(&clock),
            kin,
        };
        let means = Means {
            identity,
            clock,
            entropy,
        };
        let keeper = Keeper {
            peers: peers.clone(),
            means,
            tasks: tasks.child(),
            kept: BTreeMap::new(),
        };
        tasks.spawn(keeper.run(members, tasks.stopping().clone()));
        peers
    }

    /// What each gateway knows of a delivery's use, and those that are gone together. One who asks
    /// before it is known where the gateways are hears that nobody can say.
    #[must_use]
    pub fn known(&self, uid: Uid, epoch: Epoch) -> Vec<Known> {
        let Some(members) = self.members.borrow().clone() else {
            return vec![Known::Unknown];
        };
        let now = self.clock.monotonic();
        let links = self.links.lock();
        let each = members.iter().map(|address| match links.get(address) {
            Some(link) => link.view.lock().of(uid, epoch, now, SILENCE),
            None => Known::Unknown,
        });
        let mut all: Vec<Known> = each.collect();
        if let Some(last) = self.past.lock().of(uid, epoch, now) {
            all.push(Known::Quiet {
                last: Some(last),
                watched: Duration::MAX,
            });
        }
        all
    }

    /// Waits until all of them go by this version of a sandbox's record, or for as long as given.
    /// Answers whether they do. What they say of its use after that is known from then on.
    pub async fn seen(
        &self,
        namespace: &Namespace,
        name: &Name,
        version: Version,
        within: Duration,
    ) -> bool {
        let Some(links) = self.listed() else {
            return false;
        };
        let version = version.to_u64();
        // Names of records need no escaping.
        let path = format!("/v1/seen?namespace={namespace}&name={name}&version={version}");
        let asked = links.into_iter().map(|link| {
            let path = &path;
            async move {
                let link = link?;
                let seen: Seen = link.call(path).await.ok()?;
                link.view.lock().take_seen(&seen);
                seen.seen.then_some(())
            }
        });
        let all = timeout(within, join_all(asked)).await;
        all.is_ok_and(|all| all.iter().all(Option::is_some))
    }

    /// Waits until nothing is inside a delivery at any of them. One that cannot be asked is waited for.
    pub async fn drained(&self, uid: Uid, epoch: Epoch) {
        let Some(links) = self.listed() else {
            return std::future::pending().await;
        };
        let of = DrainedQuery { uid, epoch };
        let asked = links.into_iter().map(async |link| match link {
            Some(link) if link.tell("/v1/drained", &of).await.is_ok() => {}
            _ => std::future::pending().await,
        });
        join_all(asked).await;
    }

    /// Those that are listed and cannot be asked; nothing while nobody knows where they are.
    #[must_use]
    pub fn unreachable(&self) -> Option<Vec<SocketAddr>> {
        let members = self.members.borrow().clone()?;
        let links = self.links.lock();
        let is_up = |address: &SocketAddr| links.get(address).is_some_and(|link| link.is_up());
        Some(members.into_iter().filter(|one| !is_up(one)).collect())
    }

    /// How often one that is listed turned out to be somebody else's, or of another version.
    #[must_use]
    pub fn strangers(&self) -> BTreeMap<Stranger, u64> {
        self.kin.strangers()
    }

    /// The links to all that are listed; nothing for one that has none yet.
    fn listed(&self) -> Option<Vec<Option<Arc<Link>>>> {
        let members = self.members.borrow().clone()?;
        let links = self.links.lock();
        Some(members.iter().map(|one| links.get(one).cloned()).collect())
    }
}

/// Keeps a link to each gateway that is listed.
struct Keeper {
    peers: Peers,
    means: Means,
    tasks: Tasks,
    kept: BTreeMap<SocketAddr, CancellationToken>,
}

impl Keeper {
    async fn run(mut self, mut members: Members, stop: CancellationToken) {
        loop {
            let listed = members.borrow_and_update().clone();
            if let Some(listed) = listed {
                self.adjust(&listed);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = members.changed() => if changed.is_err() {
                    // Nobody will say more: those that are known are kept.
                    stop.cancelled().await;
                    return;
                },
            }
        }
    }

    fn adjust(&mut self, listed: &BTreeSet<SocketAddr>) {
        let peers = &self.peers;
        self.kept.retain(|address, kept| {
            let stays = listed.contains(address);
            if !stays {
                kept.cancel();
                let link = peers.links.lock().remove(address);
                if let Some(link) = link {
                    // In the order of whoever takes a frame: the view first.
                    let view = link.view.lock();
                    peers.past.lock().take(&view, peers.clock.monotonic());
                }
            }
            stays
        });
        for address in listed {
            if self.kept.contains_key(address) {
                continue;
            }
            let link = Arc::new(Link::new(
                *address,
                peers.kin.clone(),
                Arc::clone(&peers.past),
            ));
            peers.links.lock().insert(*address, Arc::clone(&link));
            let stop = self.tasks.stopping().child_token();
            self.kept.insert(*address, stop.clone());
            let means = self.means.clone();
            self.tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = link.keep(&means) => {}
                }
            });
        }
    }
}
