//! Connecting to workloads that have an address of their own.

use std::{fmt::Debug, io, net::IpAddr};

use async_trait::async_trait;
use model::{Epoch, Uid};
use thiserror::Error;
use tokio::net::TcpStream;

/// One delivery of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivered {
    /// Of which workload.
    pub uid: Uid,
    /// Which one.
    pub epoch: Epoch,
}

/// Connects to ports of workloads at addresses, each of which may be another's tomorrow.
#[async_trait]
pub trait Pods: Send + Sync + Debug {
    /// Connects to a port of this delivery, and of no other. A connection that is not made yet when
    /// its future is dropped is not made.
    async fn connect(&self, at: IpAddr, to: Delivered, port: u16) -> Result<TcpStream, PodError>;
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum PodError {
    /// Nothing listens on that port.
    #[error("the port is not open")]
    PortClosed,
    /// What has the address now is not this delivery.
    #[error("another sandbox has this address")]
    Another,
    /// Nothing answers there: the workload may be gone, or its node away for a moment.
    #[error("nothing answers at the address of the sandbox")]
    Gone,
    /// What listens takes no connection.
    #[error("the sandbox does not answer")]
    Slow,
    /// This machine is out of sockets, or something like it.
    #[error("connect: {0}")]
    Local(io::Error),
}

/// Takes addresses at their word, and dials the port itself: for programs that stand for sandboxes in
/// tests and measurements.
#[derive(Clone, Copy, Debug)]
pub struct Trusting;

#[async_trait]
impl Pods for Trusting {
    async fn connect(&self, at: IpAddr, _: Delivered, port: u16) -> Result<TcpStream, PodError> {
        let connected = async {
            let stream = TcpStream::connect((at, port)).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        connected
            .await
            .map_err(|error: io::Error| match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
                    PodError::PortClosed
                }
                io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::AddrNotAvailable => PodError::Gone,
                io::ErrorKind::TimedOut => PodError::Slow,
                _ => PodError::Local(error),
            })
    }
}
