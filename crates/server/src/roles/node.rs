//! `dormouse node`: on every node of a cluster, freezes and thaws sandboxes for the control loop.
//!
//! It speaks to containerd and to who holds the peer key, and to nobody else: not to the API server. It
//! does not hold that key itself, but an identity that opens nothing (`peer::node`).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context as _;
use node::{
    Containerd,
    containerd::{NAMESPACE, SOCKET},
    daemon,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::ground;
use crate::{config::Settings, serve::Signals};

/// Runs the daemon until it is told to stop.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let identity = ground::node_identity(settings)?;
    let socket = settings.kubernetes_containerd_socket.0.as_deref();
    let containerd = Containerd::new(socket.unwrap_or(SOCKET), NAMESPACE);
    match containerd.version().await {
        Ok(version) => tracing::info!(version, "containerd answers"),
        // It may come later, and everything that is asked meanwhile says so.
        Err(error) => tracing::warn!(%error, "containerd does not answer"),
    }
    let port = settings.kubernetes_node_port.0;
    // On all addresses of both kinds, where there are both.
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = match TcpListener::bind(any).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .await
            .with_context(|| format!("listen on port {port} (kubernetes.node_port)"))?,
    };
    let stopping = CancellationToken::new();
    let mut serving = Box::pin(daemon::serve(
        listener,
        identity,
        containerd,
        stopping.clone(),
    ));
    tokio::select! {
        ended = &mut serving => return ended.context("serve control loops"),
        name = signals.next() => tracing::info!(signal = name, "stops"),
    }
    stopping.cancel();
    serving.await.context("serve control loops")
}
