//! Where a gateway listens, which can be bound before it has anything to serve.
//!
//! A server reads all it knows before it answers. A client whose connection is refused meanwhile
//! cannot tell that from no server at all, so whoever comes early is let in and told to come again.
//! One answer is all that a connection gets: the next request is to find whoever serves by then, and
//! a client of HTTP/2 would else stay.

use std::{
    convert::Infallible,
    fmt, io,
    net::{SocketAddr, TcpListener},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use http::{HeaderValue, Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use kit::Tasks;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpSocket, TcpStream},
    sync::{Notify, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{About, REQUEST_ID, Refusal},
    gateway::StartError,
    worker::Door,
};

/// How many connections the kernel holds before they are accepted, per thread.
const BACKLOG: u32 = 1024;
/// Who comes early: so many at once at one door, and for so long.
const MOST_EARLY: usize = 256;
const EARLY_TIME: Duration = Duration::from_secs(10);
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address; port 0 for any free one.
    pub address: SocketAddr,
    /// With TLS as this says. The certificates, and whether HTTP/2 is offered, are its affair.
    pub tls: Option<Arc<ServerConfig>>,
}

/// Addresses that are bound.
pub struct Doors {
    pub(crate) addresses: Vec<SocketAddr>,
    /// Those of each thread.
    pub(crate) of_threads: Vec<Vec<Door>>,
}

impl fmt::Debug for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Doors").field(&self.addresses).finish()
    }
}

impl Doors {
    /// Binds addresses for a gateway of so many threads.
    ///
    /// # Errors
    /// If one cannot be had.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn bind(listens: Vec<Listen>, threads: usize) -> Result<Self, StartError> {
        Self::take_over(listens.into_iter().map(|l| (l, Vec::new())), threads)
    }

    /// The same, where listeners of some addresses are there already, as [`Self::share`] gave them: so
    /// many there are of one address, so many threads the gateway has.
    ///
    /// # Errors
    /// If one cannot be had.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn take_over(
        listens: impl IntoIterator<Item = (Listen, Vec<TcpListener>)>,
        threads: usize,
    ) -> Result<Self, StartError> {
        let listens: Vec<_> = listens.into_iter().collect();
        let given = listens.iter().map(|(_, there)| there.len()).max();
        let threads = given.filter(|given| *given > 0).unwrap_or(threads).max(1);
        let mut addresses = Vec::new();
        let mut of_threads: Vec<Vec<Door>> = (0..threads).map(|_| Vec::new()).collect();
        for (listen, there) in listens {
            let bound = match there.is_empty() {
                true => bind(listen.address, threads),
                false => Bound::of(there),
            };
            let bound = bound.map_err(|source| StartError::Listen {
                address: listen.address,
                source,
            })?;
            addresses.push(bound.address);
            for (doors, listener) in of_threads.iter_mut().zip(bound.listeners) {
                let acceptor = listen.tls.clone().map(TlsAcceptor::from);
                doors.push(Door { listener, acceptor });
            }
        }
        Ok(Self {
            addresses,
            of_threads,
        })
    }

    /// Where they are, in the order they were asked for.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The listeners of each address, once more, for whoever serves there next: what waits in their
    /// queues is served by whoever accepts it, and refused only when the last of them is gone.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn share(&self) -> io::Result<Vec<Vec<TcpListener>>> {
        let of_address = |number: usize| {
            let doors = self.of_threads.iter().filter_map(|doors| doors.get(number));
            doors.map(|door| door.listener.try_clone()).collect()
        };
        (0..self.addresses.len()).map(of_address).collect()
    }

    /// Tells everybody who comes to come again, until the answer is dropped.
    ///
    /// # Errors
    /// If the kernel does not watch a listener.
    pub fn attend(&self) -> io::Result<Attendant> {
        let tasks = Tasks::default();
        for door in self.of_threads.iter().flatten() {
            let listener = tokio::net::TcpListener::from_std(door.listener.try_clone()?)?;
            let accepting = turn_away(listener, door.acceptor.clone(), tasks.clone());
            tasks.spawn(accepting);
        }
        Ok(Attendant(tasks))
    }
}

/// Stands at doors behind which nobody serves yet.
#[derive(Debug)]
pub struct Attendant(Tasks);

impl Drop for Attendant {
    fn drop(&mut self) {
        // Who was let in is still answered.
        self.0.stopping().cancel();
    }
}

async fn turn_away(listener: tokio::net::TcpListener, acceptor: Option<TlsAcceptor>, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(MOST_EARLY));
    loop {
        let next = async {
            // Never closed, so there is always a place in the end.
            let place = places.clone().acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = tasks.stopping().cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let acceptor = acceptor.clone();
                let stopping = tasks.stopping().clone();
                tasks.spawn(async move {
                    let _place = place;
                    // How it ends is the client's affair.
                    let _ = timeout(EARLY_TIME, tell(stream, acceptor, stopping)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn tell(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    stopping: CancellationToken,
) -> io::Result<()> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().keep_alive(false);
    builder.http2().timer(TokioTimer::new());
    let Some(acceptor) = acceptor else {
        // What a client speaks here its first bytes say. Who has sent none is still answered.
        return converse(stream, &builder, CancellationToken::new()).await;
    };
    let stream = acceptor.accept(stream).await?;
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return converse(stream, &builder.http2_only(), stopping).await;
    }
    converse(stream, &builder.http1_only(), CancellationToken::new()).await
}

/// Answers once. Where `leave` comes first, a client that has asked nothing is told to leave.
async fn converse<S>(
    stream: S,
    builder: &auto::Builder<TokioExecutor>,
    leave: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answered = Notify::new();
    let service = service_fn(|request| {
        answered.notify_one();
        async move { Ok::<_, Infallible>(early(&request)) }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = serving.as_mut() => ended,
        () = async {
            tokio::select! {
                () = answered.notified() => {}
                () = leave.cancelled() => {}
            }
        } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    ended.map_err(io::Error::other)
}

fn early(request: &Request<Incoming>) -> Response<Body> {
    let id = request.headers().get(REQUEST_ID).cloned();
    let id = id.unwrap_or_else(|| HeaderValue::from_static("none"));
    let answer = Refusal::Starting.answer(About::default(), false, id);
    answer.map(Body::from)
}

struct Bound {
    address: SocketAddr,
    listeners: Vec<TcpListener>,
}

impl Bound {
    fn of(listeners: Vec<TcpListener>) -> io::Result<Self> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        let first = listeners.first().map(TcpListener::local_addr);
        let address = first.ok_or(io::ErrorKind::InvalidInput)??;
        Ok(Self { address, listeners })
    }
}

/// One listener per thread on one address. The kernel spreads connections over them.
fn bind(wanted: SocketAddr, threads: usize) -> io::Result<Bound> {
    if wanted.port() != 0 {
        // Listeners that share would also share with another process of the same user.
        let alone = socket(wanted)?;
        alone.set_reuseaddr(true)?;
        alone.bind(wanted)?;
    }
    let mut address = wanted;
    let mut listeners = Vec::new();
    for _ in 0..threads {
        let socket = socket(address)?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.set_keepalive(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?.into_std()?;
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(Bound { address, listeners })
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}
