//! Connecting to a port of a sandbox, from the thread that needs it and without blocking it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ::runtime::{Delivered, Family, Inside, PodError, RuntimeError};
use model::Uid;
use routes::{Address, Route, StaleReport, State};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};

use crate::{
    address::Port,
    answer::Refusal,
    gateway::{Ports, Shared},
    options::Limits,
};

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
    /// What has the address is another.
    Stale,
    /// Nothing that has the address answers: it may be stale, or its node away for a moment.
    Unreachable,
    /// It has too many waiting.
    Slow,
    /// The gateway is out of sockets, or something like it.
    Local(io::Error),
}

impl DialError {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Gone | Self::Stale | Self::Unreachable => Refusal::NotFound,
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
    let (ports, limits) = (&shared.ports, &shared.options.limits);
    let routes = &ports.routes;
    let id = route.id.as_ref().ok_or(Refusal::NotFound)?;
    let mut dialled = dial(ports, route, port, limits).await;
    let newer = match &dialled {
        Err(DialError::Stale) => match routes.report_stale(id, route.uid, route.version) {
            StaleReport::Superseded(newer) => Some(newer),
            StaleReport::Withheld | StaleReport::Gone => None,
        },
        // Withholding an address that is right after all would take away a sandbox that runs.
        Err(DialError::Unreachable) => routes.lookup(id).filter(|now| now.version != route.version),
        Err(_) | Ok(_) => None,
    };
    if let Some(newer) = newer
        && newer.is_delivery(route.uid, route.epoch)
        && newer.state == State::Running
    {
        dialled = dial(ports, &newer, port, limits).await;
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
    ports: &Ports,
    route: &Route,
    port: Port,
    limits: &Limits,
) -> Result<TcpStream, DialError> {
    let address = route.address.ok_or(DialError::Gone)?;
    let give_up = Instant::now() + limits.connect_patience;
    let mut waits = RETRIES.iter();
    loop {
        let tried = match address {
            Address::Netns => try_inside(&*ports.inside, route.uid, port, limits).await,
            Address::Pod(ip) => {
                let to = Delivered {
                    uid: route.uid,
                    epoch: route.epoch,
                };
                let connecting = ports.pods.connect(ip, to, port.get());
                match timeout(limits.connect_timeout, connecting).await {
                    Ok(connected) => connected.map_err(DialError::from),
                    Err(_) => Err(DialError::Slow),
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

impl From<PodError> for DialError {
    fn from(error: PodError) -> Self {
        match error {
            PodError::PortClosed => Self::Refused,
            PodError::Another => Self::Stale,
            PodError::Gone => Self::Unreachable,
            PodError::Slow => Self::Slow,
            PodError::Local(error) => Self::Local(error),
        }
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
