//! Accepts TLS connections and serves a router on them, until told to stop; then drains.
//!
//! What one client can hold is bounded: a handshake, the headers of a request and a peer that does
//! not read have deadlines, a dead HTTP/2 peer is found by pings, and when all connections are taken the next ones wait in the
//! kernel's queue.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use kit::Tasks;
use mesh::Mesh;
use peer::Identity;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::stall::Impatient;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a peer may take to read some of what it was sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most of a request's headers, or of a body not yet read by its handler, in memory.
const BUFFER_BYTES: usize = 64 << 10;
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Connection: close\r\n\r\nThis port speaks HTTPS: use https:// and the CA in the kubeconfig.\n";

/// Serves until `tasks` is asked to stop, and then until the requests under way have ended.
/// Whoever waits for this decides how long that may take.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    router: Router,
    max_connections: usize,
    tasks: Tasks,
) {
    serve_all(listener, acceptor, router, max_connections, None, tasks).await;
}

/// The same for processes of the installation: who asks for the protocol of the mesh speaks with that.
pub(crate) async fn serve_peers(
    listener: TcpListener,
    identity: Identity,
    router: Router,
    max_connections: usize,
    mesh: Mesh,
    tasks: Tasks,
) {
    let acceptor = TlsAcceptor::from(mesh::server_config(&identity));
    serve_all(
        listener,
        acceptor,
        router,
        max_connections,
        Some(mesh),
        tasks,
    )
    .await;
}

async fn serve_all(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    router: Router,
    max_connections: usize,
    mesh: Option<Mesh>,
    tasks: Tasks,
) {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let http = Arc::new(http);
    let service = TowerToHyperService::new(router);
    let slots = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();

    loop {
        let (slot, (stream, from)) = tokio::select! {
            biased;
            () = tasks.stopping().cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (acceptor, http, service) = (acceptor.clone(), http.clone(), service.clone());
        let (watcher, mesh) = (graceful.watcher(), mesh.clone());
        let stopping = tasks.stopping().clone();
        tasks.spawn(async move {
            let shaken = tokio::select! {
                // Nobody waits for a peer that has not asked for anything yet.
                () = stopping.cancelled() => return,
                shaken = timeout(HANDSHAKE_TIMEOUT, shake(stream, acceptor)) => shaken,
            };
            match (shaken, mesh) {
                // It keeps count of its links itself.
                (Ok(Ok(Some(stream))), Some(mesh)) if mesh::is_mesh(&stream) => {
                    mesh.accept(stream, from);
                }
                (Ok(Ok(Some(stream))), _) => {
                    let stream = TokioIo::new(Impatient::new(stream, WRITE_TIMEOUT));
                    let connection = http.serve_connection(stream, service);
                    // The peer's manners are its own affair.
                    if let Err(error) = watcher.watch(connection.into_owned()).await {
                        tracing::debug!(%error, "connection ended");
                    }
                }
                (Ok(Ok(None)), _) => {}
                (Ok(Err(error)), Some(mesh)) if mesh::is_refusal(&error) => mesh.refuse(from),
                (Ok(Err(error)), _) => tracing::debug!(%error, "TLS handshake failed"),
                (Err(_), _) => tracing::debug!("TLS handshake took too long"),
            }
            drop(slot);
        });
    }
    // Nobody new: the port answers "refused" from here on.
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (
    Option<tokio::sync::OwnedSemaphorePermit>,
    (TcpStream, SocketAddr),
) {
    // Never closed, so there is always a permit in the end.
    let slot = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok(accepted) => return (slot, accepted),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// The TLS handshake; `None` for a client that speaks plain HTTP, which was told so.
async fn shake(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    stream.set_nodelay(true)?;
    let mut first = [0];
    // A TLS client begins with 0x16, an HTTP one with the letter of a method.
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        stream.write_all(PLAIN_HTTP).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    acceptor.accept(stream).await.map(Some)
}
