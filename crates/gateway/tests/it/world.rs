//! A gateway and the table it routes by.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use auth::Seal;
use gateway::{
    Gateway, Listen, NoWake, Options, Ports, Progress, Timeless, Wake, metrics::Outcome,
};
use kit::{Entropy, SystemClock};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use routes::{Address, Gate, Message, Route, Snapshot, State, Table, TokenHash, Writer};
use runtime::{Family, Inside, Pods, RuntimeError, Trusting};

use crate::loopback::Own;

/// Sockets of this very machine, for a uid that is there.
#[derive(Debug, Default)]
pub(crate) struct FakeInside {
    pub(crate) is_absent: AtomicBool,
    pub(crate) opened: AtomicU32,
}

impl Inside for FakeInside {
    fn socket(&self, uid: Uid, family: Family) -> Result<OwnedFd, RuntimeError> {
        if self.is_absent.load(Ordering::SeqCst) {
            return Err(RuntimeError::Absent(uid));
        }
        self.opened.fetch_add(1, Ordering::SeqCst);
        let family = match family {
            Family::V4 => rustix::net::AddressFamily::INET,
            Family::V6 => rustix::net::AddressFamily::INET6,
        };
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        let kind = rustix::net::SocketType::STREAM;
        Ok(rustix::net::socket_with(family, kind, flags, None).unwrap())
    }
}

pub(crate) struct World {
    pub(crate) table: Arc<Table>,
    pub(crate) inside: Arc<FakeInside>,
    pub(crate) seal: Seal,
    pub(crate) gateway: Gateway,
    /// Where sandboxes of this world are: an address of the loopback that no other test has.
    pub(crate) ip: IpAddr,
    _own: Own,
    versions: AtomicU64,
}

/// How a world differs from the usual one.
pub(crate) struct Setup {
    pub(crate) options: Options,
    pub(crate) wake: Arc<dyn Wake>,
    pub(crate) fallback: Option<axum::Router>,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) is_synced: bool,
    pub(crate) pods: Arc<dyn Pods>,
    pub(crate) progress: Arc<dyn Progress>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            options: Options {
                threads: 1,
                domain: Some("sbx.test".into()),
                ..Options::default()
            },
            wake: Arc::new(NoWake),
            progress: Arc::new(Timeless),
            fallback: None,
            tls: None,
            is_synced: true,
            pods: Arc::new(Trusting),
        }
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let own = Own::new();
        let table = Arc::new(Table::default());
        let inside = Arc::new(FakeInside::default());
        let seal = Seal::new([7; 32]);
        if setup.is_synced {
            let empty = Snapshot {
                version: Version::from_u64(1),
                routes: Vec::new(),
            };
            table.replace_all(empty, Duration::ZERO);
        }
        let ports = Ports {
            routes: table.clone(),
            inside: inside.clone(),
            pods: setup.pods,
            wake: setup.wake,
            progress: setup.progress,
            seal: Some(seal.clone()),
            clock: Arc::new(SystemClock::default()),
            entropy: Arc::new(Entropy::seeded(1)),
        };
        let listen = Listen {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            tls: setup.tls,
        };
        let gateway = Gateway::start(ports, setup.options, vec![listen], setup.fallback).unwrap();
        Self {
            table,
            inside,
            seal,
            gateway,
            ip: own.ip.into(),
            _own: own,
            versions: AtomicU64::new(1),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.addresses()[0]
    }

    /// A running sandbox with open ports, not yet in the table.
    pub(crate) fn route(&self, id: &str) -> Route {
        Route {
            version: Version::from_u64(1),
            epoch: Epoch(1),
            uid: Uid::from_random(u128::from(
                id.bytes()
                    .fold(7u64, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(b))),
            )),
            namespace: Namespace::new("team").unwrap(),
            name: Name::new(id).unwrap(),
            id: Some(SandboxId::new(id).unwrap()),
            state: State::Running,
            address: Some(Address::Pod(self.ip)),
            wake_on_traffic: false,
            is_closing: false,
            agent: Gate::Open,
            traffic: Gate::Open,
            owner: Some(Namespace::new("team").unwrap()),
            mask_host: None,
        }
    }

    /// The same, with the tokens that its id gives it.
    pub(crate) fn secured(&self, id: &str) -> Route {
        let access = self.seal.access(&SandboxId::new(id).unwrap(), true);
        let gate =
            |hash: Option<Box<str>>| Gate::Token(hash.unwrap().parse::<TokenHash>().unwrap());
        Route {
            agent: gate(access.agent_token),
            traffic: gate(access.traffic_token),
            ..self.route(id)
        }
    }

    /// Puts a route into the table at the next version.
    pub(crate) fn apply(&self, mut route: Route) -> Route {
        route.version = Version::from_u64(self.versions.fetch_add(1, Ordering::SeqCst) + 1);
        let message = Message::from(route.clone());
        self.table.apply(Writer::Watch, message, Duration::ZERO);
        route
    }

    pub(crate) fn agent_token(&self, id: &str) -> String {
        let id = SandboxId::new(id).unwrap();
        self.seal.agent_token(&id).reveal().to_owned()
    }

    pub(crate) fn traffic_token(&self, id: &str) -> String {
        let id = SandboxId::new(id).unwrap();
        self.seal.traffic_token(&id).reveal().to_owned()
    }

    pub(crate) fn ended(&self, outcome: Outcome) -> u64 {
        self.gateway.metrics().snapshot().ended(outcome)
    }

    /// Waits until the gateway holds nothing of any client's.
    pub(crate) async fn quiet(&self) {
        eventually(|| self.gateway.metrics().snapshot().open == 0).await;
    }
}

/// Waits for something that must become true; the test's own timer is the deadline.
pub(crate) async fn eventually(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
