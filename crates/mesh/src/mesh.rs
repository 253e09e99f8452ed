//! The mesh of a process, as those see it who are in it.
//!
//! What they say goes through an inbox that is never waited for; the driver takes it from there.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use kit::{Clock, Entropy, Tasks};
use model::Version;
use parking_lot::Mutex;
use peer::Identity;
use routes::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, oneshot, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    book::{Book, Heard},
    core::{Core, Ground},
    options::Options,
    stats::Stats,
    why::Why,
    wires::{Bytes, Made},
};

mod doorway;
mod driver;
mod serve;

use driver::Driver;
pub use serve::Others;

/// Where the others are; nothing while that is not known.
pub type Seeds = watch::Receiver<Option<BTreeSet<SocketAddr>>>;

/// What a mesh stands on.
#[derive(Debug)]
pub struct Means {
    /// The table of this process, if it has one.
    pub book: Option<Arc<dyn Book>>,
    /// Who hears what peers say, besides the table.
    pub ear: Option<Arc<dyn Heard>>,
    /// By what peers know each other.
    pub identity: Identity,
    /// Where the others are.
    pub seeds: Seeds,
    /// Time: only what has elapsed.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<Entropy>,
}

/// The mesh of this process. Clones share it.
#[derive(Clone)]
pub struct Mesh(Arc<Shared>);

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({:016x})", self.0.process)
    }
}

struct Shared {
    process: u64,
    most: usize,
    core: Mutex<Core>,
    inbox: Mutex<Inbox>,
    called: Notify,
    leaving: CancellationToken,
    left: CancellationToken,
    bytes: Arc<Bytes>,
}

/// What callers want.
#[derive(Default)]
struct Inbox {
    said: VecDeque<Message>,
    /// The newest version of what did not fit.
    lost: Version,
    waits: Vec<(Version, oneshot::Sender<bool>)>,
    accepted: Vec<(SocketAddr, Made)>,
    refused: Vec<(SocketAddr, Why)>,
}

impl Mesh {
    /// Joins the others, until `tasks` end.
    #[must_use]
    pub fn start(options: Options, means: Means, tasks: &Tasks) -> Self {
        let process = means.entropy.u64();
        let ground = Ground {
            process,
            book: means.book,
            ear: means.ear,
            seed: means.entropy.u64(),
        };
        let most = options.max_said;
        let core = Core::new(options, ground, means.clock.monotonic());
        let mesh = Self(Arc::new(Shared {
            process,
            most,
            core: Mutex::new(core),
            inbox: Mutex::default(),
            called: Notify::new(),
            leaving: tasks.stopping().child_token(),
            left: CancellationToken::new(),
            bytes: Arc::default(),
        }));
        let driver = Driver::new(mesh.clone(), &means.identity, means.clock);
        tasks.spawn(driver.run(means.seeds));
        mesh
    }

    /// The number of this process, which no other has.
    #[must_use]
    pub fn process(&self) -> u64 {
        self.0.process
    }

    /// Takes a link that a peer has made. Who that is was settled by its key.
    fn accept<S>(&self, stream: S, from: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let made = Made(Box::new(stream));
        self.0.inbox.lock().accepted.push((from, made));
        self.0.called.notify_one();
    }

    /// Somebody dialled and was not let in: counted, and told to people once.
    fn refuse(&self, from: SocketAddr, why: Why) {
        let mut inbox = self.0.inbox.lock();
        if inbox.refused.len() < self.0.most {
            inbox.refused.push((from, why));
        }
        drop(inbox);
        self.0.called.notify_one();
    }

    /// Tells the others what this process has written. Never waits, never fails: who cannot be told
    /// hears of it by its own watch, or asks.
    pub fn say(&self, message: Message) {
        let mut inbox = self.0.inbox.lock();
        if inbox.said.len() >= self.0.most
            && let Some(lost) = inbox.said.pop_front()
        {
            inbox.lost = inbox.lost.max(Core::version_of(&lost));
        }
        inbox.said.push_back(message);
        drop(inbox);
        self.0.called.notify_one();
    }

    /// Waits until every peer in good standing has acknowledged what this process said of a version:
    /// for `ack_timeout` at most, and then not again for who was late until it has caught up.
    /// Answers whether everybody who is known has.
    pub async fn heard(&self, version: Version) -> bool {
        let (sender, over) = oneshot::channel();
        self.0.inbox.lock().waits.push((version, sender));
        self.0.called.notify_one();
        tokio::select! {
            biased;
            heard = over => heard.unwrap_or(false),
            // Nobody is told any more.
            () = self.0.left.cancelled() => false,
        }
    }

    /// A look from outside.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.0.core.lock().stats();
        stats.bytes_sent = self.0.bytes.sent.load(Ordering::Relaxed);
        stats.bytes_received = self.0.bytes.received.load(Ordering::Relaxed);
        stats
    }

    /// Tells the others that this process leaves, and ends all links.
    pub async fn leave(&self) {
        self.0.leaving.cancel();
        self.0.left.cancelled().await;
    }
}
