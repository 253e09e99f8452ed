//! Processes of a test, each with a mesh, a table and a port.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Once},
    time::Duration,
};

use kit::{Clock as _, Entropy, ManualClock, Tasks};
use mesh::{Book, Heard, Means, Mesh, Options, Role};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use peer::{Identity, Keys};
use routes::{Address, Deletion, Gate, Message, Route, Snapshot, State, Table};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};

pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const OTHER_KEY: &str = "fedcba9876543210fedcba9876543210";
const SECOND_MICROS: i64 = 1_000_000;

pub(crate) fn v(sequence: u64) -> Version {
    Version::from_u64(sequence)
}

pub(crate) fn route(name: &str, version: u64) -> Route {
    Route {
        version: v(version),
        epoch: Epoch(1),
        uid: Uid::from_random(7),
        namespace: Namespace::new("team").unwrap(),
        name: Name::new(name).unwrap(),
        id: Some(SandboxId::new(format!("id-{name}")).unwrap()),
        state: State::Running,
        address: Some(Address::Pod([10, 1, 2, 3].into())),
        wake_on_traffic: true,
        is_closing: false,
        agent: Gate::Closed,
        traffic: Gate::Open,
        owner: Some(Namespace::new("team").unwrap()),
        mask_host: None,
    }
}

pub(crate) fn upsert(name: &str, version: u64) -> Message {
    Message::from(route(name, version))
}

pub(crate) fn delete(name: &str, version: u64) -> Message {
    Message::Delete(Deletion {
        namespace: Namespace::new("team").unwrap(),
        name: Name::new(name).unwrap(),
        version: v(version),
    })
}

pub(crate) fn identity(key: &str) -> Identity {
    Identity::new(&Keys::parse(key).unwrap()).unwrap()
}

/// Waits until something holds; a test that waits for ever is a failed one.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), waiting).await.expect(what);
}

/// How a process is to be.
pub(crate) struct Plan {
    pub(crate) key: &'static str,
    pub(crate) cluster: &'static str,
    pub(crate) role: Role,
    /// Where it listens, if not anywhere.
    pub(crate) listener: Option<TcpListener>,
    /// Where others are told that it is.
    pub(crate) advertise: Option<SocketAddr>,
    pub(crate) seeds: BTreeSet<SocketAddr>,
    pub(crate) book: Option<Arc<Table>>,
    pub(crate) ear: Option<Arc<dyn Heard>>,
    pub(crate) hours_off: i64,
    pub(crate) max_said: usize,
    /// Longer than anything here takes: a machine that is busy with something else is not late.
    pub(crate) ack_timeout: Duration,
    pub(crate) silence: Option<Duration>,
    /// How the mesh sees the table.
    pub(crate) seen: Box<dyn FnOnce(Arc<Table>) -> Arc<dyn Book> + Send>,
}

pub(crate) struct Node {
    pub(crate) mesh: Mesh,
    pub(crate) table: Arc<Table>,
    pub(crate) address: SocketAddr,
    pub(crate) seeds: watch::Sender<Option<BTreeSet<SocketAddr>>>,
}

/// A table that has listed an empty store.
pub(crate) fn listed() -> Arc<Table> {
    let table = Table::default();
    let empty = Snapshot {
        version: v(1),
        routes: Vec::new(),
    };
    table.replace_all(empty, Duration::ZERO);
    Arc::new(table)
}

impl Node {
    pub(crate) async fn start(adjust: impl FnOnce(&mut Plan)) -> Self {
        static LOGS: Once = Once::new();
        LOGS.call_once(|| {
            let filter = tracing_subscriber::EnvFilter::from_default_env();
            let _ = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_test_writer()
                .try_init();
        });
        let mut plan = Plan {
            key: KEY,
            cluster: "one",
            role: Role::Gateway,
            listener: None,
            advertise: None,
            seeds: BTreeSet::new(),
            book: Some(listed()),
            ear: None,
            hours_off: 0,
            max_said: 1 << 14,
            ack_timeout: Duration::from_secs(60),
            silence: None,
            seen: Box::new(|table| table),
        };
        adjust(&mut plan);
        let listener = match plan.listener {
            Some(listener) => listener,
            None => TcpListener::bind("127.0.0.1:0").await.unwrap(),
        };
        let address = listener.local_addr().unwrap();
        let mut options = Options::new(plan.cluster, plan.role, plan.advertise.unwrap_or(address));
        options.max_said = plan.max_said;
        options.ack_timeout = plan.ack_timeout;
        options.silence = plan.silence.unwrap_or(options.silence);
        let identity = identity(plan.key);
        let (sender, seeds) = watch::channel(Some(plan.seeds));
        let clock = ManualClock::starting_at(0);
        clock.jump(plan.hours_off * 3600 * SECOND_MICROS);
        assert_eq!(clock.wall_micros() / SECOND_MICROS, plan.hours_off * 3600);
        let tasks = Tasks::default();
        let table = plan.book.clone().unwrap_or_default();
        let means = Means {
            book: plan.book.map(plan.seen),
            ear: plan.ear,
            identity: identity.clone(),
            seeds,
            clock: Arc::new(clock),
            entropy: Arc::new(Entropy::from_os()),
        };
        let mesh = Mesh::start(options, means, &tasks);
        let (serving, owner) = (mesh.clone(), tasks.clone());
        tasks.spawn(async move {
            serving.serve(listener, &identity, None, &owner).await;
        });
        Self {
            mesh,
            table,
            address: plan.advertise.unwrap_or(address),
            seeds: sender,
        }
    }

    /// Three that know each other.
    pub(crate) async fn three() -> Vec<Self> {
        let mut nodes: Vec<Self> = Vec::new();
        for _ in 0..3 {
            let seeds: BTreeSet<SocketAddr> = nodes.iter().map(|n| n.address).collect();
            nodes.push(Self::start(|plan| plan.seeds = seeds).await);
        }
        linked(&nodes).await;
        nodes
    }

    pub(crate) fn version_of(&self, name: &str) -> Option<Version> {
        self.table.lookup(&format!("id-{name}")).map(|r| r.version)
    }

    pub(crate) fn content(&self) -> BTreeSet<(Name, Version)> {
        let routes = self.table.routes();
        routes.iter().map(|r| (r.name.clone(), r.version)).collect()
    }
}

/// Waits until all are in good standing with all.
pub(crate) async fn linked(nodes: &[Node]) {
    let all = nodes.len() - 1;
    eventually("all are linked", || {
        nodes.iter().all(|n| n.mesh.stats().in_standing == all)
    })
    .await;
}

/// What a relay does with what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    Freely,
    /// Nothing moves, and nobody hears of that.
    Held,
    /// Connections end, and new ones too.
    Cut,
}

/// Stands in front of a process, and can cut it off or hold what is sent to it.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    pub(crate) passing: watch::Sender<Passing>,
}

impl Relay {
    /// Its address, before it is known what is behind it.
    pub(crate) async fn new(tasks: &Tasks) -> (Self, watch::Sender<Option<SocketAddr>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (passing, how) = watch::channel(Passing::Freely);
        let (behind, target) = watch::channel(None);
        let owner = tasks.clone();
        tasks.spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let (how, target) = (how.clone(), *target.borrow());
                let Some(target) = target else { continue };
                owner.spawn(relay(near, target, how));
            }
        });
        (Self { address, passing }, behind)
    }
}

async fn relay(mut near: TcpStream, target: SocketAddr, mut how: watch::Receiver<Passing>) {
    if *how.borrow() == Passing::Cut {
        return;
    }
    let Ok(mut far) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    loop {
        let now = *how.borrow_and_update();
        match now {
            Passing::Cut => return,
            Passing::Held => {
                if how.changed().await.is_err() {
                    return;
                }
            }
            Passing::Freely => {
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => return,
                    changed = how.changed() => if changed.is_err() { return },
                }
            }
        }
    }
}
