//! A bare stream of bytes to a port of a sandbox: for tunnels through HTTP, SSH, and ports of the
//! host that lead into sandboxes.
//!
//! ```text
//!  who asks ─▶ gate ─▶ state ──────────────▶ dial inside ─▶ stream
//!             (denied)   └─ asleep ─▶ wake ──▲                │ looks at the route again and again:
//!                                                             │ another delivery, or none: cut
//! ```
//!
//! The rules are those of requests, in the same order: who may not pass learns nothing of the
//! sandbox and wakes nothing. A stream belongs to one delivery. It counts as use while it is open.
//! Bytes for a sandbox that was put to sleep under it wake it, as those of a new client do. When
//! the delivery is over the stream ends with an error, never as if the program had said goodbye.
//!
//! Through HTTP it is asked for with `Upgrade: dormouse-tcp`, at any path. The answer is a 101 once
//! the port is connected, and else what a request would be told. The agent's own port is not to be
//! had so: some of its routes are the platform's alone, and nobody would look at what is asked.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use model::{Name, Namespace, Version};
use routes::{Route, State, TokenHash};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Interval, MissedTickBehavior, interval, timeout_at},
};

use crate::{
    WakeError,
    activity::{Held, NotIn},
    address::Port,
    answer::Refusal,
    dial::reach,
    gate::{Passage, passage},
    gateway::Shared,
};

/// What `Upgrade` says.
pub const PROTOCOL: &str = "dormouse-tcp";
/// How often a stream looks whether its delivery is still there.
const LOOK: Duration = Duration::from_secs(1);

/// Which sandbox.
#[derive(Clone, Copy, Debug)]
pub enum To<'a> {
    /// By what clients call it.
    Id(&'a str),
    /// By the key of its record.
    Name(&'a Namespace, &'a Name),
}

/// With what somebody asks for a port.
#[derive(Clone, Copy)]
pub enum Proof<'a> {
    /// The token that the port may want.
    Token(Option<&'a [u8]>),
    /// Somebody who was found to act for a team. Sandboxes of others do not exist for it.
    Team(&'a Namespace),
    /// Whoever runs the server.
    Operator,
}

// Not derived: a token is a secret.
impl std::fmt::Debug for Proof<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token(token) => write!(f, "Token({})", token.is_some()),
            Self::Team(team) => write!(f, "Team({team})"),
            Self::Operator => f.write_str("Operator"),
        }
    }
}

/// Why there is no stream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// Unknown, ended, another team's, or asleep and not to be woken.
    #[error("the sandbox was not found")]
    NotFound,
    /// The port wants a token that was not shown.
    #[error("the port needs a token")]
    Denied,
    /// It runs, and nothing listens there.
    #[error("the sandbox is running but the port is not open")]
    PortClosed,
    /// It took the connection and did not go on.
    #[error("the sandbox does not answer")]
    NoAnswer,
    /// Waking failed or took too long.
    #[error("the sandbox could not be woken in time")]
    NotWoken,
    /// The team may not run another sandbox now.
    #[error("the team's limit of running sandboxes is reached")]
    TeamLimit,
    /// Too much is open already.
    #[error("too many connections to the sandbox")]
    TooMany,
    /// The gateway is short of something, or does not know all sandboxes yet.
    #[error("the gateway cannot tell or take more now")]
    Busy,
}

impl OpenError {
    /// Whether the same may work in a moment.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::NotFound | Self::Denied => false,
            Self::PortClosed
            | Self::NoAnswer
            | Self::NotWoken
            | Self::TeamLimit
            | Self::TooMany
            | Self::Busy => true,
        }
    }
}

impl From<Refusal> for OpenError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Address(_)
            | Refusal::Malformed(_)
            | Refusal::BadVersion
            | Refusal::NotFound => Self::NotFound,
            Refusal::PortClosed => Self::PortClosed,
            Refusal::Unauthorized
            | Refusal::InvalidSignature
            | Refusal::ExpiredSignature
            | Refusal::Forbidden
            | Refusal::Internal => Self::Denied,
            Refusal::NotWoken { .. } => Self::NotWoken,
            Refusal::TeamLimit { .. } => Self::TeamLimit,
            Refusal::TooMany => Self::TooMany,
            Refusal::Starting | Refusal::NotSynced | Refusal::Behind | Refusal::Overloaded => {
                Self::Busy
            }
            // A stream has no body of a request.
            Refusal::NoAnswer | Refusal::TooLarge | Refusal::BodyLate => Self::NoAnswer,
        }
    }
}

/// Opens streams. Clones are the same.
#[derive(Clone, Debug)]
pub struct Streams(Arc<Shared>);

impl Streams {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// A stream to a port that is not the agent's. One that sleeps and opted in is woken.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(
        &self,
        to: To<'_>,
        port: Port,
        proof: Proof<'_>,
    ) -> Result<Stream, OpenError> {
        if port == Port::AGENT {
            return Err(OpenError::Denied);
        }
        self.pass(to, port, proof).await
    }

    /// A stream to the agent of a sandbox of a team, for what the server itself does for one of
    /// that team. What is said over it is the server's choice, never a client's bytes.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_agent(&self, id: &str, team: &Namespace) -> Result<Stream, OpenError> {
        self.pass(To::Id(id), Port::AGENT, Proof::Team(team)).await
    }

    async fn pass(&self, to: To<'_>, port: Port, proof: Proof<'_>) -> Result<Stream, OpenError> {
        let shared = &self.0;
        let route = self.find(to)?;
        admit(&route, proof)?;
        // Who waits is there: a sandbox must not be put to sleep under it.
        let limit = shared.options.limits.open_per_sandbox;
        let waiting = shared
            .activity
            .let_wait(&shared.ports.routes, &route, limit);
        let (mut held, route) = waiting.map_err(|why| match why {
            NotIn::TooMany => OpenError::TooMany,
            NotIn::Closed => OpenError::NotFound,
        })?;
        let route = match passage(&route) {
            Passage::Forward => route,
            Passage::Park => {
                let woken = wake(shared, &route).await?;
                // What the port demands may have changed meanwhile.
                admit(&woken, proof)?;
                woken
            }
            Passage::NotFound => return Err(OpenError::NotFound),
        };
        held.enter();
        let socket = reach(shared, &route, port).await?;
        Ok(Stream::new(shared.clone(), route, socket, Some(held)))
    }

    fn find(&self, to: To<'_>) -> Result<Arc<Route>, OpenError> {
        let routes = &self.0.ports.routes;
        let found = match to {
            To::Id(id) => routes.lookup(id),
            To::Name(namespace, name) => routes.find(namespace, name),
        };
        match found {
            Some(route) => Ok(route),
            None if routes.synced() => Err(OpenError::NotFound),
            None => Err(OpenError::Busy),
        }
    }
}

fn admit(route: &Route, proof: Proof<'_>) -> Result<(), OpenError> {
    match proof {
        Proof::Operator => Ok(()),
        Proof::Team(team) if route.owner.as_ref() == Some(team) => Ok(()),
        Proof::Team(_) => Err(OpenError::NotFound),
        Proof::Token(token) => {
            let hash = token.map(|token| TokenHash(Sha256::digest(token).into()));
            match route.traffic.admits(hash.as_ref()) {
                true => Ok(()),
                false => Err(OpenError::Denied),
            }
        }
    }
}

/// Waits until a delivery can be dialled.
async fn wake(shared: &Shared, route: &Route) -> Result<Arc<Route>, Refusal> {
    let deadline = Instant::now() + shared.options.wake_timeout;
    let woken = match timeout_at(deadline, shared.ports.wake.wake(route, deadline)).await {
        Ok(woken) => woken.map_err(Refusal::from)?,
        Err(_) => return Err(WakeError::Timeout.into()),
    };
    if woken.is_delivery(route.uid, route.epoch) && woken.state == State::Running {
        Ok(woken)
    } else {
        Err(Refusal::NotFound)
    }
}

/// Whether a request asks for the port itself.
pub(crate) fn is_asked<B>(request: &Request<B>) -> bool {
    let upgrade = request.headers().get(header::UPGRADE);
    upgrade.is_some_and(|protocol| protocol == PROTOCOL)
        && request.method() == Method::GET
        && request.version() == http::Version::HTTP_11
}

/// The answer to one that got it.
pub(crate) fn switching() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

type Waking = Pin<Box<dyn Future<Output = Result<Arc<Route>, Refusal>> + Send>>;

/// Bytes to and from a port of one delivery of a sandbox. Ending one direction leaves the other.
pub struct Stream {
    socket: TcpStream,
    shared: Arc<Shared>,
    route: Arc<Route>,
    /// Counts it as use while it lives.
    _held: Option<Held>,
    looks: Interval,
    /// When a byte last moved.
    moved: Instant,
    /// It was awake at this version, whatever the table has heard of until then.
    awake: Version,
    waking: Option<Waking>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("uid", &self.route.uid)
            .field("epoch", &self.route.epoch)
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// A stream over a connection to this delivery; `held` where nobody else counts it as use.
    pub(crate) fn new(
        shared: Arc<Shared>,
        route: Arc<Route>,
        socket: TcpStream,
        held: Option<Held>,
    ) -> Self {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            awake: route.version,
            socket,
            shared,
            route,
            _held: held,
            looks,
            moved: Instant::now(),
            waking: None,
        }
    }

    /// The delivery's route as it is now; an error if there is no such delivery any more.
    fn now(&self) -> io::Result<Arc<Route>> {
        let route = &self.route;
        let gone = || io::Error::new(io::ErrorKind::ConnectionReset, "the sandbox is gone");
        let id = route.id.as_ref().ok_or_else(gone)?;
        let found = self.shared.ports.routes.check(id, route.uid, route.epoch);
        found.map_err(|_| gone())
    }

    /// Looks once in a while whether it may go on.
    fn poll_look(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let limit = self.shared.options.limits.silence_timeout;
        while self.looks.poll_tick(context).is_ready() {
            self.now()?;
            if self.moved.elapsed() > limit {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Ready when the sandbox can take bytes.
    fn poll_awake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waking.is_none() {
            let route = self.now()?;
            // One that is not to be woken takes them when it is awake again.
            if passage(&route) != Passage::Park || route.version <= self.awake {
                return Poll::Ready(Ok(()));
            }
            let shared = self.shared.clone();
            self.waking = Some(Box::pin(async move { wake(&shared, &route).await }));
        }
        let Some(waking) = &mut self.waking else {
            return Poll::Ready(Ok(()));
        };
        let woken = ready!(waking.as_mut().poll(context));
        self.waking = None;
        Poll::Ready(match woken {
            Ok(woken) => {
                self.awake = woken.version.max(self.awake);
                Ok(())
            }
            Err(refusal) => Err(io::Error::other(OpenError::from(refusal))),
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let progress = Pin::new(&mut self.socket).poll_read(context, buffer);
        if progress.is_pending() {
            self.poll_look(context)?;
            return Poll::Pending;
        }
        self.moved = Instant::now();
        let is_end = buffer.filled().len() == before;
        // A program whose sandbox was ended under it has not said goodbye.
        if is_end && buffer.remaining() > 0 {
            self.now()?;
        }
        progress
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_awake(context))?;
        let progress = Pin::new(&mut self.socket).poll_write(context, bytes);
        match progress.is_pending() {
            true => self.poll_look(context)?,
            false => self.moved = Instant::now(),
        }
        progress
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
