//! A port that nobody listens on.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// Taken for as long as the socket lives, so that nobody else can listen there.
pub(crate) fn port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}
