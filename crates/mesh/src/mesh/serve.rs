//! How peers are let in: the one loop that accepts on a peer port.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kit::Tasks;
use peer::Identity;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Mesh, doorway::Doorway};
use crate::{why::Why, wires};

/// How long a handshake may take: who dials does not wait longer either. And how many there may be at
/// once.
const HANDSHAKE: Duration = Duration::from_secs(2);
const HANDSHAKES: usize = 256;
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Takes connections of those who hold the peer key and want something else than the mesh. Must not
/// wait.
pub type Others = Arc<dyn Fn(TlsStream<TcpStream>, SocketAddr) + Send + Sync>;

impl Mesh {
    /// Accepts peers until `tasks` end. Who asks for another protocol goes to `others`; if there are
    /// none, it is refused.
    ///
    /// Only handshakes are counted here: links are by the mesh, and the others by whoever takes them.
    pub async fn serve(
        &self,
        listener: TcpListener,
        identity: &Identity,
        others: Option<Others>,
        tasks: &Tasks,
    ) {
        let acceptor = TlsAcceptor::from(wires::server_config(identity));
        let slots = Arc::new(Semaphore::new(HANDSHAKES));
        let doorway = Arc::new(Doorway::default());
        let stop = tasks.stopping();
        loop {
            // Never closed, so there is always a permit in the end.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a peer");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let Some(shaking) = doorway.enter(from.ip()) else {
                self.refuse(from, Why::Crowd);
                continue;
            };
            let (mesh, acceptor) = (self.clone(), acceptor.clone());
            let (others, stop) = (others.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    // Nobody waits for a peer that has not asked for anything yet.
                    () = stop.cancelled() => {}
                    () = mesh.greet(stream, from, acceptor, others) => {}
                }
                drop((slot, shaking));
            });
        }
    }

    async fn greet(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        acceptor: TlsAcceptor,
        others: Option<Others>,
    ) {
        let shaking = async {
            stream.set_nodelay(true)?;
            acceptor.accept(stream).await
        };
        match (timeout(HANDSHAKE, shaking).await, others) {
            (Ok(Ok(stream)), _) if wires::is_mesh(&stream) => self.accept(stream, from),
            (Ok(Ok(stream)), Some(others)) => others(stream, from),
            (Ok(Err(error)), _) if !wires::is_refusal(&error) => {
                tracing::debug!(%error, "a peer left in the handshake");
            }
            (Ok(Ok(_)), None) => self.refuse(from, Why::Protocol),
            (Ok(Err(_)), _) => self.refuse(from, Why::Handshake),
            (Err(_), _) => self.refuse(from, Why::Stalled),
        }
    }
}
