//! The other processes of an installation, told of what this one writes, and heard.
//!
//! Every role that speaks to the API server joins: gateways keep a table of routes and take what they
//! hear into it, replicas of the API note what they have not seen yet, and the control loop only
//! speaks. The store stays the truth; see [`mesh`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use auth::Seal;
use kit::Tasks;
use mesh::{Book, Heard, Means, Mesh, Options, Role, Seeds, Stats};
use model::Version;
use peer::Identity;
use peers::{Kin, kin::Stranger};
use routes::Message;
use tokio::{
    net::{TcpListener, lookup_host},
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    announcing::Crier,
    ground::{self, Ground},
};
use crate::{
    config::{Settings, cluster::Places},
    metrics::Page,
};

/// How long a process that has just started may take to meet the others.
const MEETING: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the API server may take to say where they are, before they are looked for by name.
const ASK_NAMES: Duration = Duration::from_secs(2);

/// What a role brings.
#[derive(Debug)]
pub(crate) struct Brings {
    pub(crate) role: Role,
    /// Its table of routes.
    pub(crate) book: Option<Arc<dyn Book>>,
    /// Who hears what others say, besides that.
    pub(crate) ear: Option<Arc<dyn Heard>>,
}

/// The others.
#[derive(Clone, Debug)]
pub(crate) struct Company {
    pub(crate) mesh: Mesh,
    seeds: Seeds,
    tasks: Tasks,
}

impl Company {
    /// Joins them, as one who is reached at the address that was bound. From now on what is written by
    /// way of the ground's stores is said.
    ///
    /// # Errors
    /// If nobody could reach this process there, or the peer key cannot be had.
    pub(crate) fn join(
        settings: &Settings,
        ground: &Ground,
        bound: SocketAddr,
        brings: Brings,
    ) -> anyhow::Result<Self> {
        let tasks = Tasks::default();
        let options = Options {
            sync_interval: settings.peer_sync_interval.0,
            ack_timeout: settings.peer_ack_timeout.0,
            ..Options::new(
                cluster(settings, ground)?,
                brings.role,
                advertised(settings, bound)?,
            )
        };
        let seeds = match &settings.peer_seeds {
            Places::None => watch::channel(Some(BTreeSet::new())).1,
            Places::Fixed(at) => watch::channel(Some(at.iter().copied().collect())).1,
            Places::Service(name) => {
                let endpoints = ground.endpoints(name, &tasks);
                or_by_name(endpoints, name.clone(), bound.port(), &tasks)
            }
        };
        let means = Means {
            book: brings.book,
            ear: brings.ear,
            identity: ground::identity(settings)?,
            seeds: seeds.clone(),
            clock: Arc::clone(&ground.clock),
            entropy: Arc::clone(&ground.entropy),
        };
        let mesh = Mesh::start(options, means, &tasks);
        ground.voice.lend(Arc::new(mesh.clone()));
        Ok(Self { mesh, seeds, tasks })
    }

    /// Listens to them, on a port that is for nothing else.
    pub(crate) fn listen(&self, listener: TcpListener, identity: Identity) {
        let (mesh, tasks) = (self.mesh.clone(), self.tasks.clone());
        self.tasks
            .spawn(async move { mesh.serve(listener, &identity, None, &tasks).await });
    }

    /// Waits until all that are known are met, and have met this process, or a while: who comes in before
    /// that may be sent on to one that has heard of nothing, or be let in by one that nobody tells.
    pub(crate) async fn met(&self) {
        let mut seeds = self.seeds.clone();
        let meeting = async {
            // Nobody says more than nobody knows.
            let _ = seeds.wait_for(Option::is_some).await;
            while !self.mesh.heard(Version::ZERO).await || self.mesh.stats().unmet > 0 {
                sleep(LOOK_AGAIN).await;
            }
        };
        if timeout(MEETING, meeting).await.is_err() {
            tracing::warn!("some of the other processes cannot be reached");
        }
    }

    /// Leaves them.
    pub(crate) async fn leave(self) {
        self.mesh.leave().await;
        let _ = self.tasks.drain(MEETING).await;
    }
}

impl Crier for Mesh {
    fn say(&self, message: Message) {
        Self::say(self, message);
    }
}

/// Those whom the API server lists and, while it does not say, those whom the name of their Service leads
/// to: name servers go on while it is away. All of them listen on one port.
fn or_by_name(mut listed: Seeds, name: Box<str>, port: u16, tasks: &Tasks) -> Seeds {
    let (tell, seeds) = watch::channel(None);
    let stop = tasks.stopping().clone();
    let following = async move {
        while listed.borrow_and_update().is_none() {
            match timeout(ASK_NAMES, listed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    // One that leads nowhere now may do so later.
                    let found = lookup_host((&*name, port)).await;
                    let found = found.map(BTreeSet::from_iter).unwrap_or_default();
                    tell.send_replace(Some(found).filter(|found| !found.is_empty()));
                }
            }
        }
        loop {
            let now = listed.borrow_and_update().clone();
            tell.send_replace(now);
            if listed.changed().await.is_err() {
                return;
            }
        }
    };
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    });
    seeds
}

/// What the installation is called. Without the API server's help: a process joins also while that is
/// away. Namespaces of two clusters have the same names and perhaps the same peer key, copied; what
/// their records are sealed with differs.
fn cluster(settings: &Settings, ground: &Ground) -> anyhow::Result<String> {
    if let Some(named) = settings.peer_cluster.0.as_deref() {
        return Ok(named.to_owned());
    }
    let seal = ground::seal(settings)?;
    Ok(called(&seal, ground.cluster.namespace()))
}

/// Those who belong to it, for whom gateways answer.
pub(super) fn kin(settings: &Settings, ground: &Ground) -> anyhow::Result<Kin> {
    Kin::of(&cluster(settings, ground)?).context("use peer.cluster")
}

/// Who was taken for a process of this installation, and is not.
pub(super) fn stranger_lines(page: &mut Page, strangers: &BTreeMap<Stranger, u64>) {
    let name = "dormouse_peers_refused_total";
    page.family(
        name,
        "counter",
        "Questions of use that were not exchanged, because the other side is of another installation or version",
    );
    for (stranger, count) in strangers {
        page.line(name, &[("why", stranger.label())], *count);
    }
}

fn called(seal: &Seal, namespace: &str) -> String {
    format!("{namespace}/{}", seal.sign("the name of a mesh"))
}

fn advertised(settings: &Settings, bound: SocketAddr) -> anyhow::Result<SocketAddr> {
    match settings.peer_advertise.0 {
        Some((ip, port)) => Ok(SocketAddr::new(ip, port.unwrap_or(bound.port()))),
        None if bound.ip().is_unspecified() => bail!(
            "peer.listen is every address of this host: say with peer.advertise by which the other \
             processes reach it"
        ),
        None => Ok(bound),
    }
}

/// Where a role listens to the others.
///
/// # Errors
/// If the address cannot be had.
pub(crate) async fn bind(settings: &Settings) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = crate::serve::bind(&settings.peer_listen).await?;
    let address = listener.local_addr().context("read the bound address")?;
    Ok((listener, address))
}

/// What was exchanged with them, and how they stand.
pub(crate) fn lines(page: &mut Page, stats: &Stats) {
    let Stats { counts, .. } = stats;
    let name = "dormouse_mesh_members";
    page.family(
        name,
        "gauge",
        "Processes that are known, by whether they are there",
    );
    for (state, count) in [
        ("alive", stats.alive),
        ("suspect", stats.suspect),
        ("down", stats.down),
    ] {
        page.line(name, &[("state", state)], count);
    }
    let name = "dormouse_mesh_links";
    page.family(name, "gauge", "Links to other processes, by who made them");
    page.line(name, &[("made_by", "us")], stats.dialled);
    page.line(name, &[("made_by", "them")], stats.accepted);
    let name = "dormouse_mesh_listeners";
    page.family(
        name,
        "gauge",
        "Processes that are told of changes, by whether they are waited for",
    );
    page.line(name, &[("standing", "good")], stats.in_standing);
    let late = stats.listeners.saturating_sub(stats.in_standing);
    page.line(name, &[("standing", "late")], late);
    for (name, help, count) in [
        (
            "dormouse_mesh_unheard",
            "The most changes that a linked process has not acknowledged",
            stats.unheard,
        ),
        (
            "dormouse_mesh_behind_versions",
            "By how many versions the own watch is behind that of the best other process",
            stats.behind,
        ),
    ] {
        page.family(name, "gauge", help);
        page.line(name, &[], count);
    }
    let name = "dormouse_mesh_messages_total";
    page.family(name, "counter", "Changes of routes, by what became of them");
    for (what, count) in [
        ("said", counts.said),
        ("pushed", counts.sent),
        ("received", counts.received),
        ("applied", counts.applied),
        ("ignored", counts.ignored),
        ("invalid", counts.invalid),
        ("told_in_rounds", counts.told),
        ("heard_in_rounds", counts.heard),
        ("not_pushed", counts.overflowed),
    ] {
        page.line(name, &[("what", what)], count);
    }
    for (name, help, count) in [
        (
            "dormouse_mesh_rounds_total",
            "Questions what was missed",
            counts.rounds,
        ),
        (
            "dormouse_mesh_snapshots_taken_total",
            "Times that all routes were taken from another process",
            counts.snapshots_taken,
        ),
        (
            "dormouse_mesh_snapshots_given_total",
            "Times that all routes were given to another process",
            counts.snapshots_given,
        ),
        (
            "dormouse_mesh_late_total",
            "Times that a process did not acknowledge a change in time",
            counts.late,
        ),
        (
            "dormouse_mesh_sent_bytes_total",
            "Bytes sent over links",
            stats.bytes_sent,
        ),
        (
            "dormouse_mesh_received_bytes_total",
            "Bytes received over links",
            stats.bytes_received,
        ),
    ] {
        page.family(name, "counter", help);
        page.line(name, &[], count);
    }
    let name = "dormouse_mesh_links_ended_total";
    page.family(
        name,
        "counter",
        "Links that ended or never came to be, by why",
    );
    for (why, count) in &counts.ended {
        page.line(name, &[("why", why.label())], *count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installations_with_the_same_namespace_and_other_seals_are_called_differently() {
        let (one, other) = (Seal::new([1; 32]), Seal::new([2; 32]));
        assert_eq!(called(&one, "dormouse"), called(&one, "dormouse"));
        assert_ne!(called(&one, "dormouse"), called(&other, "dormouse"));
        assert_ne!(called(&one, "dormouse"), called(&one, "other"));
    }

    #[tokio::test]
    async fn others_are_found_by_name_until_the_api_server_says_where_they_are() {
        let tasks = Tasks::default();
        let (say, listed) = watch::channel(None);
        let mut seeds = or_by_name(listed, "localhost".into(), 7945, &tasks);
        let named = seeds.wait_for(Option::is_some).await.unwrap().clone();
        let is_here = |at: &SocketAddr| at.ip().is_loopback() && at.port() == 7945;
        assert!(named.unwrap().iter().all(is_here));
        let told = BTreeSet::from(["10.0.0.1:7945".parse().unwrap()]);
        say.send_replace(Some(told.clone()));
        let is_told = |now: &Option<_>| now.as_ref() == Some(&told);
        seeds.wait_for(is_told).await.unwrap();
        let _ = tasks.drain(MEETING).await;
    }
}
