//! Connections of Envoys: start and stop.

use std::{
    convert::Infallible, future::Ready, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration,
};

use futures_util::Stream;
use gateway::Front;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kit::Tasks;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming, body::Body, server::Grpc};
use tonic_prost::ProstCodec;

use crate::{
    Options,
    attendance::{Attendance, Unattended},
    conversation::{Shared, converse},
    metrics::{Fault, Metrics},
    proto::{ProcessingRequest, ProcessingResponse},
};

/// The one call there is.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// An Envoy that is gone is noticed by its silence.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// An external processor that serves.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics: Metrics,
    tasks: Tasks,
    leaving: CancellationToken,
    /// Ends what is left.
    cut: CancellationToken,
}

impl Server {
    /// Serves Envoys by the decisions of a gateway, with TLS as that says. What is said here includes
    /// the tokens of clients, so anything but connections within one machine wants TLS.
    ///
    /// # Errors
    /// If the listener does not know its address.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        front: Front,
        options: Options,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (metrics, leaving) = (Metrics::default(), CancellationToken::new());
        let shared = Arc::new(Shared {
            front,
            options,
            metrics: metrics.clone(),
            leaving: leaving.clone(),
        });
        let (tasks, cut) = (Tasks::default(), CancellationToken::new());
        let door = Door {
            room: Arc::new(Semaphore::new(shared.options.connections)),
            shared,
            acceptor: tls.map(TlsAcceptor::from),
            tasks: tasks.clone(),
            cut: cut.clone(),
        };
        tasks.spawn(door.accept(listener));
        Ok(Self {
            address,
            metrics,
            tasks,
            leaving,
            cut,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Once this is cancelled, nobody is refused and nobody waits here any more: what would be goes on to
    /// the gateway's entrance, which decides. So it needs to know nothing new, and nobody waits for
    /// whoever is about to take its place.
    #[must_use]
    pub fn leave_to_gateway(&self) -> CancellationToken {
        self.leaving.clone()
    }

    /// Takes no more requests, lets those under way finish for at most `grace`, and ends.
    ///
    /// # Errors
    /// With the number of connections that were dropped in the middle of something.
    pub async fn drain(self, grace: Duration) -> Result<(), usize> {
        self.tasks.drain(grace).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
        self.cut.cancel();
    }
}

struct Door {
    shared: Arc<Shared>,
    /// For connections that may be opened yet.
    room: Arc<Semaphore>,
    acceptor: Option<TlsAcceptor>,
    tasks: Tasks,
    cut: CancellationToken,
}

impl Door {
    async fn accept(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.tasks.stopping().cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of an Envoy");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn welcome(&self, stream: TcpStream) {
        let Ok(place) = self.room.clone().try_acquire_owned() else {
            let why = "more connections than there may be";
            return self.shared.metrics.fault(Fault::Crowded, why);
        };
        let (shared, acceptor) = (self.shared.clone(), self.acceptor.clone());
        let (stopping, cut) = (self.tasks.stopping().clone(), self.cut.clone());
        self.tasks.spawn(async move {
            let _place = place;
            let serving = async {
                stream.set_nodelay(true)?;
                // One that asks nothing holds a place for nobody, however long its greetings are.
                let first = Instant::now() + shared.options.silence;
                match acceptor {
                    None => serve(shared, stream, first, &stopping).await,
                    Some(acceptor) => match timeout_at(first, acceptor.accept(stream)).await {
                        Ok(stream) => serve(shared, stream?, first, &stopping).await,
                        Err(_) => {
                            silent(&shared);
                            Ok(())
                        }
                    },
                }
            };
            tokio::select! {
                biased;
                () = cut.cancelled() => {}
                served = serving => if let Err(error) = served {
                    tracing::debug!(%error, "the connection of an Envoy ended");
                },
            }
        });
    }
}

fn silent(shared: &Shared) {
    let why = "a connection without a request";
    shared.metrics.fault(Fault::Silent, why);
}

/// Serves one connection, until its client goes, it is of no use or it is time to stop.
async fn serve<S>(
    shared: Arc<Shared>,
    stream: S,
    first: Instant,
    stopping: &CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(shared.options.streams);
    let attendance = Attendance::new();
    let service = service_fn(|request| {
        let (shared, attendance) = (shared.clone(), attendance.clone());
        async move { Ok::<_, Infallible>(call(shared, attendance, request).await) }
    });
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = serving.as_mut() => ended,
        unattended = attendance.unattended(first, shared.options.idle) => match unattended {
            Unattended::Never => {
                silent(&shared);
                return Ok(());
            }
            // What it asks in this very moment is answered.
            Unattended::AnyMore => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        },
        () = stopping.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    ended.map_err(io::Error::other)
}

async fn call(
    shared: Arc<Shared>,
    attendance: Attendance,
    request: Request<Incoming>,
) -> Response<Body> {
    if request.uri().path() != PROCESS {
        let why = "only envoy.service.ext_proc.v3.ExternalProcessor is served here";
        shared.metrics.fault(Fault::OtherCall, why);
        return Status::unimplemented(why).into_http();
    }
    let limit = shared.options.message_bytes;
    let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(limit);
    grpc.streaming(Process(shared, attendance), request).await
}

struct Process(Arc<Shared>, Attendance);

impl tonic::server::StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let replies = converse(self.0.clone(), self.1.begin(), request.into_inner());
        std::future::ready(Ok(tonic::Response::new(Box::pin(replies))))
    }
}
