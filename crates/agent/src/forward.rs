//! The way to the sandbox's ports where its address is not its own for ever.
//!
//! ```text
//! gateway ──GET /forward/8080, door key──▶ agent ──▶ 127.0.0.1:8080
//!         ◀────────────── 101, then bytes ──────────▶
//! ```
//!
//! The address of a Pod may be another's tomorrow, and who speaks to it cannot see that. So nobody
//! speaks to a port directly: the agent checks that who asks means the delivery it is armed for, and
//! only then joins the two ends. That reaches what listens on the loopback, too. The agent's own port is
//! not dialled: what follows is served where it is, as a call of who showed the key.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::TcpStream,
    time::timeout,
};
use wire::envd::{DOOR_KEY_HEADER, FORWARD_PROTOCOL};

use crate::{
    http::{Refusal, empty},
    rpc::Body,
    server::Agent,
    settings::Origin,
};

/// How long a program may take to take a connection: one whose queue is full takes none.
const PATIENCE: Duration = Duration::from_secs(10);

/// What becomes of one connection to the agent.
#[derive(Debug)]
pub(crate) struct Way {
    /// Where it came in: some programs listen there and not on the loopback.
    local: Option<SocketAddr>,
    /// And from where.
    pub(crate) origin: Origin,
    onward: Mutex<Option<Onward>>,
}

/// What follows a request that has opened a port.
#[derive(Debug)]
pub(crate) enum Onward {
    /// Bytes for a program.
    Program(TcpStream),
    /// Calls of this agent.
    Agent,
}

impl Way {
    /// A connection from an address. Whoever has the address that it came in by is in this sandbox.
    pub(crate) fn new(local: Option<SocketAddr>, from: SocketAddr) -> Self {
        let origin = match local.is_some_and(|local| local.ip() == from.ip()) {
            true => Origin::Inside,
            false => Origin::Outside,
        };
        Self {
            local,
            origin,
            onward: Mutex::new(None),
        }
    }

    /// What follows on this one, once the agent's own port was opened.
    pub(crate) const fn through_the_door(&self) -> Self {
        Self {
            local: self.local,
            origin: Origin::Door,
            onward: Mutex::new(None),
        }
    }

    /// What was asked for, if it is there.
    pub(crate) fn taken(&self) -> Option<Onward> {
        self.onward.lock().take()
    }

    /// Whether a port is the agent's own, and was not opened already.
    fn is_own(&self, port: u16) -> bool {
        let own = self.local.is_some_and(|local| local.port() == port);
        own && self.origin != Origin::Door
    }
}

/// Connects to a port for who may, and answers that the rest is a stream.
pub(crate) async fn open(
    agent: &Agent,
    way: &Way,
    port: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    let shown = headers.get(DOOR_KEY_HEADER).map(HeaderValue::as_bytes);
    if !agent.settings.opens(shown) {
        let why = "this is not the delivery that is meant";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, why));
    }
    let port = port.parse().ok().filter(|port: &u16| *port > 0);
    let Some(port) = port else {
        let why = "it takes the number of a port, 1 to 65535";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    };
    let asked = headers.get(header::UPGRADE);
    if asked.is_none_or(|protocol| protocol != FORWARD_PROTOCOL) {
        let why = "a port is reached by Upgrade: tcp";
        return Err(Refusal::new(StatusCode::UPGRADE_REQUIRED, why));
    }
    if way.is_own(port) {
        *way.onward.lock() = Some(Onward::Agent);
        return Ok(switched());
    }
    let inside = match timeout(PATIENCE, connect(port, way.local)).await {
        Ok(Ok(inside)) => inside,
        Ok(Err(why)) => {
            let why = format!("port {port} is not open: {why}");
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, why));
        }
        Err(_) => {
            let why = format!("what listens on port {port} takes no connection");
            return Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, why));
        }
    };
    inside.set_nodelay(true).ok();
    *way.onward.lock() = Some(Onward::Program(inside));
    Ok(switched())
}

fn switched() -> Response<Body> {
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(FORWARD_PROTOCOL));
    response
}

/// The loopback first, by both kinds of addresses, as a client on this machine would try.
async fn connect(port: u16, local: Option<SocketAddr>) -> io::Result<TcpStream> {
    let loopback = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let own = local.map(|local| local.ip());
    let mut failed = io::Error::from(io::ErrorKind::ConnectionRefused);
    for ip in loopback.into_iter().chain(own) {
        match TcpStream::connect((ip, port)).await {
            Ok(stream) => return Ok(stream),
            // A sandbox without IPv6 has nothing to say about it.
            Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => failed = why,
            Err(_) => {}
        }
    }
    Err(failed)
}

/// Moves bytes between both ends until both are done, or one breaks.
pub(crate) async fn join(
    mut outside: impl AsyncRead + AsyncWrite + Unpin,
    begun: &[u8],
    mut inside: TcpStream,
) {
    if inside.write_all(begun).await.is_ok() {
        // How it ends is between the two of them.
        copy_bidirectional(&mut outside, &mut inside).await.ok();
    }
}
