//! The agent as a whole: what it holds, and how it listens.

#![expect(
    unsafe_code,
    reason = "taking over a descriptor that was inherited has no safe form"
)]

use std::{
    io::{self, Cursor},
    net::{SocketAddr, TcpListener},
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kit::{Clock, SystemClock, Tasks};
use rustix::{
    fs::Mode,
    process::{DumpableBehavior, set_dumpable_behavior},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    signal::unix::{SignalKind, signal},
};
use wire::connect::Error;

use crate::{
    args::{Args, Listen},
    children::Children,
    forward::{self, Onward, Way},
    http, metrics, pid1,
    process::Processes,
    settings::Settings,
    users::{self, User},
    watch::Watchers,
};

/// How long a request's head may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// What a connection holds of what is on its way in or out. Larger blocks would not come from the
/// allocator's own stock: see the program's `ALLOCATOR`.
const MAX_BUFFER: usize = 192 * 1024;
/// How long a client may go on sending after its last answer, and how long it may pause.
const LINGER: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(2);

/// Why the agent cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, or not ours.
    #[error("listen at {address}")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        why: io::Error,
    },
    /// The descriptor is not a listening socket.
    #[error("descriptor {0} is not a listening socket")]
    NotListening(RawFd),
    /// The kernel refuses what every process needs.
    #[error("set up: {0}")]
    SetUp(#[from] io::Error),
}

/// Everything the agent knows.
#[derive(Debug)]
pub struct Agent {
    pub(crate) settings: Settings,
    pub(crate) children: Children,
    pub(crate) processes: Processes,
    pub(crate) watchers: Watchers,
    pub(crate) metrics: metrics::Sampler,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
}

impl Agent {
    /// An agent that serves nobody yet.
    #[must_use]
    pub fn new(args: &Args) -> Arc<Self> {
        Arc::new(Self {
            settings: Settings::new(args),
            children: Children::new(args.pid1),
            processes: Processes::default(),
            watchers: Watchers::default(),
            metrics: metrics::Sampler::default(),
            clock: Arc::new(SystemClock::default()),
            tasks: Tasks::default(),
        })
    }

    /// Who is meant by a name, or by none.
    pub(crate) fn user(&self, name: Option<&str>) -> Result<User, Error> {
        match name {
            Some(name) => users::find(name),
            None => users::find(&self.settings.default_user()),
        }
    }

    /// Serves until asked to stop.
    ///
    /// # Errors
    /// If the kernel refuses the listener or the signals.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> Result<(), ServeError> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut ended = signal(SignalKind::child())?;
        let agent = Arc::clone(&self);
        self.tasks.spawn(async move {
            loop {
                agent.children.reap();
                tokio::select! {
                    _ = ended.recv() => {}
                    () = agent.tasks.stopping().cancelled() => return,
                }
            }
        });
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.tasks.stopping().cancelled() => return Ok(()),
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                // Too many descriptors, or a client that was gone at once: neither is for ever.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            // Small events must not wait for each other.
            stream.set_nodelay(true).ok();
            let agent = Arc::clone(&self);
            let way = Way::new(stream.local_addr().ok(), from);
            self.tasks.spawn(async move {
                tokio::select! {
                    () = agent.attend(stream, way) => {}
                    () = agent.tasks.stopping().cancelled() => {}
                }
            });
        }
    }

    /// Serves one connection to its end.
    async fn attend(self: &Arc<Self>, stream: TcpStream, way: Way) {
        let way = Arc::new(way);
        let Some((stream, begun)) = self.talk(stream, &way).await else {
            return;
        };
        match way.taken() {
            Some(Onward::Program(inside)) => forward::join(stream, &begun, inside).await,
            Some(Onward::Agent) => {
                let (read, write) = stream.into_split();
                let stream = tokio::io::join(Cursor::new(begun).chain(read), write);
                let way = Arc::new(way.through_the_door());
                let Some((stream, begun)) = self.talk(stream, &way).await else {
                    return;
                };
                match way.taken() {
                    Some(Onward::Program(inside)) => forward::join(stream, &begun, inside).await,
                    Some(Onward::Agent) | None => leave(stream).await,
                }
            }
            None => leave(stream).await,
        }
    }

    /// Answers requests until there are no more. Answers the stream, and what was read of it since.
    async fn talk<S>(self: &Arc<Self>, stream: S, way: &Arc<Way>) -> Option<(S, Bytes)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let service = service_fn(|request| http::serve(Arc::clone(self), Arc::clone(way), request));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        // How a connection ends is the client's business.
        let parts = connection.without_shutdown().await.ok()?;
        Some((parts.io.into_inner(), parts.read_buf))
    }
}

async fn leave(stream: impl AsyncRead + AsyncWrite + Unpin) {
    tokio::time::timeout(LINGER, linger(stream)).await.ok();
}

/// Takes leave of a client. One that is refused early may still be sending: closing at once would
/// make the kernel throw away the answer that it has not read yet.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut room = [0; 8 * 1024];
    if stream.shutdown().await.is_err() {
        return;
    }
    loop {
        let read = tokio::time::timeout(SILENCE, stream.read(&mut room)).await;
        if !matches!(read, Ok(Ok(1..))) {
            return;
        }
    }
}

/// Opens or takes over the listening socket.
///
/// # Errors
/// If it cannot be had.
pub fn bind(listen: Listen) -> Result<TcpListener, ServeError> {
    match listen {
        Listen::Address(address) => {
            TcpListener::bind(address).map_err(|why| ServeError::Bind { address, why })
        }
        Listen::Inherited(number) => {
            // SAFETY: whoever started this process says by `--listen-fd` that the descriptor is
            // ours; nothing else here knows its number. That it is open and listening is checked
            // before anything else is done with it.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            if !rustix::net::sockopt::socket_acceptconn(&fd).unwrap_or(false) {
                // Not ours after all: closing it could hit something that is.
                std::mem::forget(fd);
                return Err(ServeError::NotListening(number));
            }
            // Programs of the sandbox must not inherit it.
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).map_err(io::Error::from)?;
            Ok(TcpListener::from(fd))
        }
    }
}

/// Runs an agent until it is asked to stop.
///
/// # Errors
/// If it cannot listen or be set up.
pub fn run(args: Args) -> Result<(), ServeError> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if args.init_key_hash.is_some() {
        // What is of the same user inside must not read keys from this one's memory.
        let closed = DumpableBehavior::NotDumpable;
        set_dumpable_behavior(closed).map_err(io::Error::from)?;
    }
    let listener = bind(args.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let agent = Agent::new(&args);
    drop(args);
    runtime.block_on(async {
        pid1::start(&agent)?;
        agent.serve(listener).await
    })
}
