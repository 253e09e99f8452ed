//! Dialling ports inside workloads.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

use model::Uid;
use tokio::net::{TcpSocket, TcpStream};

use crate::{Family, Inside};

/// Connects to a port on a workload's loopback. The socket is made at once; who waits for the rest
/// holds nothing of `inside`.
pub fn dial(
    inside: &dyn Inside,
    uid: Uid,
    port: u16,
) -> impl Future<Output = io::Result<TcpStream>> + use<> {
    let socket = inside.socket(uid, Family::V4).map_err(io::Error::other);
    async move { connect(socket?, port).await }
}

/// Connects an IPv4 socket that was made inside a workload to a port on its loopback.
///
/// # Errors
/// If nothing listens there.
pub async fn connect(socket: OwnedFd, port: u16) -> io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpSocket::from_std_stream(socket.into())
        .connect(address)
        .await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
