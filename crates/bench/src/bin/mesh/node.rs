//! One process of the benchmark, and what it is made of.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::Result;
use kit::{Entropy, SystemClock, Tasks};
use mesh::{Book, Means, Mesh, Options, Role};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use peer::{Identity, Keys};
use routes::{Address, Ear, Gate, Message, Route, Snapshot, State, Table, TokenHash};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::sleep,
};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const TEAMS: u64 = 100;

pub(crate) fn identity() -> Result<Identity> {
    Ok(Identity::new(&Keys::parse(KEY)?)?)
}

pub(crate) struct Node {
    pub(crate) mesh: Mesh,
    pub(crate) table: Arc<Table>,
    pub(crate) address: SocketAddr,
}

pub(crate) struct Plan {
    pub(crate) role: Role,
    pub(crate) listener: TcpListener,
    pub(crate) advertise: SocketAddr,
    pub(crate) seeds: BTreeSet<SocketAddr>,
    pub(crate) table: Option<Arc<Table>>,
}

impl Node {
    pub(crate) fn start(plan: Plan, tasks: &Tasks) -> Result<Self> {
        let identity = identity()?;
        let table = plan.table.clone().unwrap_or_default();
        let means = Means {
            book: plan.table.map(|table| table as Arc<dyn Book>),
            ear: None,
            identity: identity.clone(),
            seeds: watch::channel(Some(plan.seeds)).1,
            clock: Arc::new(SystemClock::default()),
            entropy: Arc::new(Entropy::from_os()),
        };
        let options = Options::new("bench", plan.role, plan.advertise);
        let mesh = Mesh::start(options, means, tasks);
        let (serving, owner) = (mesh.clone(), tasks.clone());
        tasks.spawn(async move {
            let listener = plan.listener;
            serving.serve(listener, &identity, None, &owner).await;
        });
        Ok(Self {
            mesh,
            table,
            address: plan.advertise,
        })
    }

    async fn after(
        role: Role,
        nodes: &[Self],
        table: Option<Arc<Table>>,
        tasks: &Tasks,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let plan = Plan {
            role,
            advertise: listener.local_addr()?,
            listener,
            seeds: nodes.iter().map(|n| n.address).collect(),
            table,
        };
        Self::start(plan, tasks)
    }

    /// Gateways that know each other.
    pub(crate) async fn several(count: usize, tasks: &Tasks) -> Result<Vec<Self>> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            let node = Self::after(Role::Gateway, &nodes, Some(listed()), tasks).await?;
            nodes.push(node);
        }
        eventually(|| {
            nodes
                .iter()
                .all(|n| n.mesh.stats().in_standing == count - 1)
        })
        .await?;
        Ok(nodes)
    }

    /// One that writes, and has no table.
    pub(crate) async fn api(nodes: &[Self], tasks: &Tasks) -> Result<Self> {
        let api = Self::after(Role::Api, nodes, None, tasks).await?;
        eventually(|| api.mesh.stats().in_standing == nodes.len()).await?;
        Ok(api)
    }

    /// A gateway that knows nothing.
    pub(crate) async fn joining(nodes: &[Self], tasks: &Tasks) -> Result<Self> {
        Self::after(Role::Gateway, nodes, Some(Arc::default()), tasks).await
    }
}

/// A table that has listed an empty store.
pub(crate) fn listed() -> Arc<Table> {
    let table = Table::default();
    let version = Version::from_u64(1);
    let routes = Vec::new();
    table.replace_all(Snapshot { version, routes }, Duration::ZERO);
    Arc::new(table)
}

/// Everything a store of this size holds.
pub(crate) fn snapshot(count: u64) -> Snapshot {
    let routes = (0..count).map(|n| Arc::new(route(n, State::Running, n + 1)));
    Snapshot {
        version: Version::from_u64(count),
        routes: routes.collect(),
    }
}

pub(crate) fn message(n: u64, state: State, version: u64) -> Message {
    Message::from(route(n, state, version))
}

fn route(n: u64, state: State, version: u64) -> Route {
    let team = Namespace::new(format!("team-{:04}", n % TEAMS)).expect("a DNS label");
    // Spread over the whole range, as random ids are.
    let bits = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Route {
        version: Version::from_u64(version),
        epoch: Epoch(1),
        uid: Uid::from_random(bits),
        owner: Some(team.clone()),
        namespace: team,
        name: Name::new(format!("sandbox-{n:08}")).expect("a DNS label"),
        id: Some(SandboxId::from_random(bits)),
        state,
        address: Some(Address::Pod([10, 1, 2, 3].into())),
        wake_on_traffic: true,
        is_closing: false,
        agent: Gate::Token(TokenHash([7; 32])),
        traffic: Gate::Open,
        mask_host: None,
    }
}

/// Notes when readers of a table can see a change.
#[derive(Debug)]
pub(crate) struct Sighted(pub(crate) mpsc::UnboundedSender<Instant>);

impl Ear for Sighted {
    fn closed(&self, _: &Route) {
        let _ = self.0.send(Instant::now());
    }

    fn resynced(&self) {}
}

/// Waits until something holds.
pub(crate) async fn eventually(holds: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        if Instant::now() > end {
            return Err("what was waited for did not come".into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(crate) fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(value.ok_or("no VmRSS")?.parse::<u64>()? * 1024)
}
