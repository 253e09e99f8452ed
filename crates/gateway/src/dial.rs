//! Connecting to a port of a sandbox, from the thread that needs it and without blocking it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ::runtime::{Family, Inside, RuntimeError};
use model::Uid;
use routes::{Address, Route, StaleReport, State};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};

use crate::{address::Port, answer::Refusal, gateway::Shared, options::Limits};

/// How long to wait before each further try of a refused connection. Together below a second.
const RETRIES: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(450),
];

/// Why there is no connection.
#[derive(Debug)]
enum DialError {
    /// There is no such sandbox any more, or it has no address.
    Gone,
    /// Nothing listens.
    Refused,
    /// Whatever has the address does not answer: it may be stale.
    Unreachable,
    /// It has too many waiting.
    Slow,
    /// The gateway is out of sockets, or something like it.
    Local(io::Error),
}

impl DialError {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Gone | Self::Unreachable => Refusal::NotFound,
            Self::Refused => Refusal::PortClosed,
            Self::Slow => Refusal::NoAnswer,
            Self::Local(_) => Refusal::Overloaded,
        }
    }
}

/// Connects to a delivery that runs, and to no other: an address that turns out to be stale is
/// reported, and the newer one tried.
pub(crate) async fn reach(
    shared: &Shared,
    route: &Route,
    port: Port,
) -> Result<TcpStream, Refusal> {
    let (routes, limits) = (&shared.ports.routes, &shared.options.limits);
    let id = route.id.as_ref().ok_or(Refusal::NotFound)?;
    let mut dialled = dial(&*shared.ports.inside, route, port, limits).await;
    if matches!(dialled, Err(DialError::Unreachable)) {
        let report = routes.report_stale(id, route.uid, route.version);
        if let StaleReport::Superseded(newer) = report
            && newer.is_delivery(route.uid, route.epoch)
            && newer.state == State::Running
        {
            dialled = dial(&*shared.ports.inside, &newer, port, limits).await;
        }
    }
    let stream = dialled.map_err(|error| {
        if let DialError::Local(error) = &error {
            tracing::warn!(%error, uid = %route.uid, "cannot connect to a sandbox");
        }
        error.refusal()
    })?;
    // It may have been given to somebody else while the connection was made.
    routes
        .check(id, route.uid, route.epoch)
        .map_err(|_| Refusal::NotFound)?;
    Ok(stream)
}

/// Connects; tries a refused connection again for a moment.
async fn dial(
    inside: &dyn Inside,
    route: &Route,
    port: Port,
    limits: &Limits,
) -> Result<TcpStream, DialError> {
    let address = route.address.ok_or(DialError::Gone)?;
    let give_up = Instant::now() + limits.connect_patience;
    let mut waits = RETRIES.iter();
    loop {
        let tried = match address {
            Address::Netns => try_inside(inside, route.uid, port, limits).await,
            Address::Pod(ip) => {
                let to = SocketAddr::new(ip, port.get());
                match socket_for(to) {
                    Ok(socket) => connect(socket, to, limits).await,
                    Err(error) => Err(DialError::Local(error)),
                }
            }
        };
        match (tried, waits.next()) {
            (Err(DialError::Refused), Some(wait)) if Instant::now() + *wait <= give_up => {
                sleep(*wait).await;
            }
            (tried, _) => return tried,
        }
    }
}

/// One try within the sandbox's network namespace: its loopback, both kinds of addresses.
async fn try_inside(
    inside: &dyn Inside,
    uid: Uid,
    port: Port,
    limits: &Limits,
) -> Result<TcpStream, DialError> {
    let by = [
        (Family::V4, IpAddr::V4(Ipv4Addr::LOCALHOST)),
        (Family::V6, IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ];
    for (family, ip) in by {
        let socket = match inside.socket(uid, family) {
            Ok(socket) => std::net::TcpStream::from(socket),
            Err(RuntimeError::Absent(_)) => return Err(DialError::Gone),
            // A host without IPv6.
            Err(_) if family == Family::V6 => return Err(DialError::Refused),
            Err(error) => return Err(DialError::Local(io::Error::other(error))),
        };
        let socket = TcpSocket::from_std_stream(socket);
        match connect(socket, SocketAddr::new(ip, port.get()), limits).await {
            Err(DialError::Refused) => {}
            // A sandbox without IPv6.
            Err(DialError::Unreachable) if family == Family::V6 => {}
            other => return other,
        }
    }
    Err(DialError::Refused)
}

fn socket_for(to: SocketAddr) -> io::Result<TcpSocket> {
    match to {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

async fn connect(
    socket: TcpSocket,
    to: SocketAddr,
    limits: &Limits,
) -> Result<TcpStream, DialError> {
    match timeout(limits.connect_timeout, socket.connect(to)).await {
        Ok(Ok(stream)) => {
            stream.set_nodelay(true).map_err(DialError::Local)?;
            Ok(stream)
        }
        Ok(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => DialError::Refused,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable => DialError::Unreachable,
            io::ErrorKind::TimedOut => DialError::Slow,
            _ => DialError::Local(error),
        }),
        Err(_) => Err(DialError::Slow),
    }
}
