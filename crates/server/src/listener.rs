//! Accepts TLS connections and serves a router on them, until told to stop; then drains.
//!
//! What one client can hold is bounded: a handshake, the headers of a request and a peer that does
//! not read have deadlines, a dead HTTP/2 peer is found by pings, and when all connections are taken the next ones wait in the
//! kernel's queue. Peers come in by the mesh, whose links must not wait for others: there the next ones are sent away.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::{
    body::Incoming,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use kit::Tasks;
use mesh::{Mesh, Others};
use parking_lot::Mutex;
use peer::Identity;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::stall::Impatient;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a peer may take to read some of what it was sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most of a request's headers, or of a body not yet read by its handler, in memory.
const BUFFER_BYTES: usize = 64 << 10;
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long who was let in just before the end has for a first request.
const ARRIVAL: Duration = Duration::from_millis(500);
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
    let http = Arc::new(Http::new(router));
    let slots = Arc::new(Semaphore::new(max_connections));
    loop {
        let (slot, stream) = tokio::select! {
            biased;
            () = tasks.stopping().cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (acceptor, http) = (acceptor.clone(), Arc::clone(&http));
        let (stopping, arriving) = (tasks.stopping().clone(), http.arriving.token());
        tasks.spawn(async move {
            let too_late = async {
                stopping.cancelled().await;
                sleep(ARRIVAL).await;
            };
            let shaken = tokio::select! {
                // Nobody waits long for a peer that has not asked for anything yet.
                () = too_late => return,
                shaken = timeout(HANDSHAKE_TIMEOUT, shake(stream, acceptor)) => shaken,
            };
            match shaken {
                Ok(Ok(Some(stream))) => http.serve(stream, arriving).await,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            }
            drop(slot);
        });
    }
    // Nobody new: the port answers "refused" from here on.
    drop(listener);
    http.shutdown().await;
}

/// The same for processes of the installation, who come in by the mesh: who asks for its protocol
/// speaks with that.
pub(crate) async fn serve_peers(
    listener: TcpListener,
    identity: Identity,
    router: Router,
    max_connections: usize,
    mesh: Mesh,
    tasks: Tasks,
) {
    let http = Arc::new(Http::new(router));
    let slots = Arc::new(Semaphore::new(max_connections));
    let (serving, owner) = (Arc::clone(&http), tasks.clone());
    let others: Others = Arc::new(move |stream, from| {
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            tracing::warn!(%from, "a peer is sent away: there are too many");
            return;
        };
        let http = Arc::clone(&serving);
        let arriving = http.arriving.token();
        owner.spawn(async move {
            http.serve(stream, arriving).await;
            drop(slot);
        });
    });
    mesh.serve(listener, &identity, Some(others), &tasks).await;
    http.shutdown().await;
}

/// HTTP on connections that were accepted.
struct Http {
    builder: Builder<TokioExecutor>,
    service: TowerToHyperService<Router>,
    /// Nothing once it shuts down.
    graceful: Mutex<Option<GracefulShutdown>>,
    /// Connections on which nothing was asked yet.
    arriving: TaskTracker,
}

impl Http {
    fn new(router: Router) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(BUFFER_BYTES);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        Self {
            builder,
            service: TowerToHyperService::new(router),
            graceful: Mutex::new(Some(GracefulShutdown::new())),
            arriving: TaskTracker::new(),
        }
    }

    /// Serves one connection to its end.
    async fn serve(&self, stream: TlsStream<TcpStream>, arriving: TaskTrackerToken) {
        let watcher = self.graceful.lock().as_ref().map(GracefulShutdown::watcher);
        let Some(watcher) = watcher else {
            return;
        };
        let stream = TokioIo::new(Impatient::new(stream, WRITE_TIMEOUT));
        let (service, arriving) = (self.service.clone(), Mutex::new(Some(arriving)));
        let service = service_fn(move |request: Request<Incoming>| {
            drop(arriving.lock().take());
            service.call(request)
        });
        let connection = self.builder.serve_connection(stream, service);
        // The peer's manners are its own affair.
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Ends connections after the requests that are under way, and waits for that. The library hangs up on
    /// who has not asked yet, so they have a moment for it.
    async fn shutdown(&self) {
        self.arriving.close();
        let _ = timeout(ARRIVAL, self.arriving.wait()).await;
        let graceful = self.graceful.lock().take();
        if let Some(graceful) = graceful {
            graceful.shutdown().await;
        }
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (Option<tokio::sync::OwnedSemaphorePermit>, TcpStream) {
    // Never closed, so there is always a permit in the end.
    let slot = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (slot, stream),
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
