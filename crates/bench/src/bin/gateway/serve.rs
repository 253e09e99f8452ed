//! The gateway that is measured, with many routes and tokens.

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use ext_proc::{Server, Upstream};
use gateway::{Gateway, Listen, NoWake, Options, Ports, Timeless};
use kit::{Entropy, SystemClock};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use routes::{Address, Gate, Message, Route, Snapshot, State, Table, TokenHash, Writer};
use runtime::{Family, Inside, RuntimeError, Trusting};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

const ROUTES: u64 = 100_000;
pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Never asked: the routes here name addresses.
#[derive(Debug)]
struct NoInside;

impl Inside for NoInside {
    fn socket(&self, uid: Uid, _: Family) -> Result<OwnedFd, RuntimeError> {
        Err(RuntimeError::Absent(uid))
    }
}

fn sandbox_id(n: u64) -> SandboxId {
    let bits = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    SandboxId::from_random(bits)
}

/// The name of the sandbox that stands for the program.
pub(super) fn host(upstream: SocketAddr) -> String {
    format!("{}-{}.sbx.test", upstream.port(), sandbox_id(ROUTES / 2))
}

/// Serves until it is ended; says first where.
pub(super) fn serve(upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let table = Arc::new(Table::default());
    let empty = Snapshot {
        version: Version::from_u64(1),
        routes: Vec::new(),
    };
    table.replace_all(empty, Duration::ZERO);
    let token = TokenHash(Sha256::digest(TOKEN).into());
    for n in 0..ROUTES {
        let team = Namespace::new(format!("team-{}", n % 100))?;
        let route = Route {
            version: Version::from_u64(2 + n),
            epoch: Epoch(1),
            uid: Uid::from_random(u128::from(n) + 1),
            owner: Some(team.clone()),
            namespace: team,
            name: Name::new(format!("sandbox-{n}"))?,
            id: Some(sandbox_id(n)),
            state: State::Running,
            address: Some(Address::Pod(upstream.ip())),
            wake_on_traffic: true,
            is_closing: false,
            agent: Gate::Token(token),
            traffic: Gate::Token(token),
            mask_host: None,
        };
        table.apply(Writer::Watch, Message::from(route), Duration::ZERO);
    }
    let ports = Ports {
        routes: table,
        inside: Arc::new(NoInside),
        pods: Arc::new(Trusting),
        wake: Arc::new(NoWake),
        progress: Arc::new(Timeless),
        seal: None,
        clock: Arc::new(SystemClock::default()),
        entropy: Arc::new(Entropy::from_os()),
    };
    let mut options = Options {
        threads: 1,
        domain: Some("sbx.test".into()),
        ..Options::default()
    };
    options.limits.connections = 15_000;
    options.limits.open_per_sandbox = 15_000;
    let listen = Listen {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        tls: None,
    };
    let gateway = Gateway::start(ports, options, vec![listen], None)?;
    let beside = |upstream| {
        let options = ext_proc::Options {
            upstream,
            ..ext_proc::Options::default()
        };
        let bound = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        Server::start(bound, None, gateway.front(), options)
    };
    let (relay, direct) = (beside(Upstream::Relay)?, beside(Upstream::Direct)?);
    let gateway_address = gateway.addresses()[0];
    println!("{gateway_address} {} {}", relay.address(), direct.address());
    runtime.block_on(std::future::pending::<()>());
    Ok(())
}
