//! The way into Pods: through the forwarder of the agent inside, with the key of the delivery that is
//! meant. An address that another has by now is told from the right one by that.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use ::runtime::{Delivered, PodError, Pods};
use agent_client::{ForwardError, forward};
use async_trait::async_trait;
use auth::Seal;
use tokio::net::{TcpSocket, TcpStream};

use crate::address::Port;

/// Reaches ports of Pods through their agents.
#[derive(Clone, Debug)]
pub struct Forwarded(Seal);

impl Forwarded {
    /// With the keys that are derived from the server's secret.
    #[must_use]
    pub const fn new(seal: Seal) -> Self {
        Self(seal)
    }
}

#[async_trait]
impl Pods for Forwarded {
    async fn connect(&self, at: IpAddr, to: Delivered, port: u16) -> Result<TcpStream, PodError> {
        let agent = SocketAddr::new(at, Port::AGENT.get());
        let socket = match agent {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let stream = socket.map_err(PodError::Local)?.connect(agent).await;
        let stream = stream.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(PodError::Local)?;
        let key = self.0.door_key(to.uid, to.epoch);
        let forwarded = forward(stream, port, &wire::Secret::from(key.reveal())).await;
        forwarded.map_err(|error| match error {
            ForwardError::PortClosed => PodError::PortClosed,
            ForwardError::Busy => PodError::Slow,
            ForwardError::NotYours | ForwardError::Protocol(_) => PodError::Another,
            ForwardError::Unreachable(_) => PodError::Gone,
        })
    }
}

/// An agent that does not listen is none.
fn unreachable(error: io::Error) -> PodError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::AddrNotAvailable => PodError::Gone,
        io::ErrorKind::TimedOut => PodError::Slow,
        _ => PodError::Local(error),
    }
}
