//! The mesh of a process: the core, driven over TLS.
//!
//! One task owns the core. Links bring it frames through a bounded queue, so who sends faster than
//! this process applies is slowed by its own connection. What callers say goes through an inbox of
//! its own that is never waited for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use kit::{Clock, Entropy, Tasks};
use model::Version;
use parking_lot::Mutex;
use peer::Identity;
use routes::Message;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Notify, Semaphore, mpsc, oneshot, watch},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    book::{Book, Heard},
    core::{Core, Ground, LinkId, Output, Side, WaitId},
    frame::Numbered,
    options::Options,
    stats::Stats,
    why::Why,
    wires::{self, Bytes, Event, Made},
};

/// Where the others are; nothing while that is not known.
pub type Seeds = watch::Receiver<Option<BTreeSet<SocketAddr>>>;

/// Frames that links have read and nobody has looked at.
const EVENTS: usize = 256;
/// Frames of one link that wait to be written. More than a core sends before it is answered.
const FRAMES: usize = 4096;
/// How many events are taken before what follows from them is done.
const AT_ONCE: usize = 64;
/// How long links have to say their last words.
const LEAVING: Duration = Duration::from_secs(2);
/// How long a handshake may take, and how many there may be at once.
const HANDSHAKE: Duration = Duration::from_secs(5);
const HANDSHAKES: usize = 64;
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

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
        let (sender, events) = mpsc::channel(EVENTS);
        let driver = Driver {
            mesh: mesh.clone(),
            dialling: wires::client_config(&means.identity),
            clock: means.clock,
            sender,
            links: HashMap::new(),
            waits: BTreeMap::new(),
            tasks: Tasks::default(),
        };
        tasks.spawn(driver.run(events, means.seeds));
        mesh
    }

    /// The number of this process, which no other has.
    #[must_use]
    pub fn process(&self) -> u64 {
        self.0.process
    }

    /// Takes a link that a peer has made. Who that is was settled by its key; see [`wires::is_mesh`].
    pub fn accept<S>(&self, stream: S, from: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let made = Made(Box::new(stream));
        self.0.inbox.lock().accepted.push((from, made));
        self.0.called.notify_one();
    }

    /// Somebody dialled and did not pass the handshake: counted, and told to people once.
    pub fn refuse(&self, from: SocketAddr) {
        let mut inbox = self.0.inbox.lock();
        if inbox.refused.len() < self.0.most {
            inbox.refused.push((from, Why::Handshake));
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

    /// Accepts peers on a port that serves nothing else, for as long as it is polled.
    pub async fn serve(&self, listener: TcpListener, identity: &Identity, tasks: &Tasks) {
        let acceptor = TlsAcceptor::from(wires::server_config(identity));
        let slots = Arc::new(Semaphore::new(HANDSHAKES));
        loop {
            // Never closed, so there is always a permit in the end.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a peer");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let (mesh, acceptor) = (self.clone(), acceptor.clone());
            tasks.spawn(async move {
                let shaking = async {
                    stream.set_nodelay(true)?;
                    acceptor.accept(stream).await
                };
                match timeout(HANDSHAKE, shaking).await {
                    Ok(Ok(stream)) if wires::is_mesh(&stream) => mesh.accept(stream, from),
                    Ok(Err(error)) if !wires::is_refusal(&error) => {
                        tracing::debug!(%error, "a peer left in the handshake");
                    }
                    Ok(_) | Err(_) => mesh.refuse(from),
                }
                drop(slot);
            });
        }
    }
}

/// A link that frames can be sent over.
struct Line {
    frames: mpsc::Sender<Numbered>,
    closing: CancellationToken,
}

/// Drives the core.
struct Driver {
    mesh: Mesh,
    dialling: Arc<ClientConfig>,
    clock: Arc<dyn Clock>,
    sender: mpsc::Sender<Event>,
    links: HashMap<LinkId, Line>,
    waits: BTreeMap<WaitId, oneshot::Sender<bool>>,
    /// What links do.
    tasks: Tasks,
}

impl Driver {
    async fn run(mut self, mut events: mpsc::Receiver<Event>, mut seeds: Seeds) {
        let leaving = self.mesh.0.leaving.clone();
        let shared = Arc::clone(&self.mesh.0);
        let mut may_change = true;
        self.take_seeds(&mut seeds);
        loop {
            let now = self.clock.monotonic();
            let wake = shared.core.lock().next_wake().saturating_sub(now);
            let mut first = None;
            tokio::select! {
                biased;
                () = leaving.cancelled() => break,
                () = shared.called.notified() => {}
                event = events.recv() => first = event,
                changed = seeds.changed(), if may_change => {
                    may_change = changed.is_ok();
                    self.take_seeds(&mut seeds);
                }
                () = sleep(wake) => {}
            }
            self.take_inbox();
            let rest = std::iter::from_fn(|| events.try_recv().ok());
            let all: Vec<Event> = first.into_iter().chain(rest.take(AT_ONCE)).collect();
            for event in all {
                self.take(event);
            }
            let now = self.clock.monotonic();
            let mut core = shared.core.lock();
            if core.next_wake() <= now {
                core.tick(now);
            }
            drop(core);
            self.perform();
        }
        shared.core.lock().leave(self.clock.monotonic());
        self.perform();
        drop(events);
        let _ = self.tasks.drain(LEAVING).await;
        shared.left.cancel();
    }

    fn take_seeds(&mut self, seeds: &mut Seeds) {
        if let Some(seeds) = seeds.borrow_and_update().clone() {
            let now = self.clock.monotonic();
            self.mesh.0.core.lock().seeds(seeds, now);
        }
        self.perform();
    }

    fn take_inbox(&mut self) {
        let inbox = std::mem::take(&mut *self.mesh.0.inbox.lock());
        let now = self.clock.monotonic();
        for (from, made) in inbox.accepted {
            self.link(Side::Accepted(from), made);
        }
        let mut core = self.mesh.0.core.lock();
        for (from, why) in inbox.refused {
            core.refused(from, why);
        }
        if inbox.lost > Version::ZERO {
            core.lose(inbox.lost, now);
        }
        core.say(inbox.said, now);
        for (version, sender) in inbox.waits {
            self.waits.insert(core.wait(version, now), sender);
        }
        drop(core);
        self.perform();
    }

    fn take(&mut self, event: Event) {
        let now = self.clock.monotonic();
        let shared = Arc::clone(&self.mesh.0);
        match event {
            Event::Frame(id, numbered) => shared.core.lock().receive(id, numbered, now),
            Event::Down(id, why) => {
                self.links.remove(&id);
                shared.core.lock().link_down(id, why, now);
            }
            Event::Dialled(to, made) => self.link(Side::Dialled(to), made),
            Event::Unreachable(to, why) => shared.core.lock().unreachable(to, why, now),
        }
        self.perform();
    }

    fn link(&mut self, side: Side, made: Made) {
        let now = self.clock.monotonic();
        let id = self.mesh.0.core.lock().link_up(side, now);
        let (frames, queue) = mpsc::channel(FRAMES);
        let closing = CancellationToken::new();
        let line = Line {
            frames,
            closing: closing.clone(),
        };
        self.links.insert(id, line);
        let (events, bytes) = (self.sender.clone(), Arc::clone(&self.mesh.0.bytes));
        self.tasks
            .spawn(wires::carry(id, made, queue, closing, events, bytes));
        self.perform();
    }

    /// Does what the core says, and what follows from that.
    fn perform(&mut self) {
        loop {
            let outputs: Vec<Output> = self.mesh.0.core.lock().outputs().collect();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                self.perform_one(output);
            }
        }
    }

    fn perform_one(&mut self, output: Output) {
        match output {
            Output::Send(id, numbered) => {
                let Some(line) = self.links.get(&id) else {
                    return;
                };
                if line.frames.try_send(numbered).is_err() {
                    self.cut(id);
                }
            }
            Output::Close(id, why) => {
                tracing::debug!(?id, %why, "a link is closed");
                // What waits to be written still is, for a while.
                if let Some(line) = self.links.remove(&id) {
                    line.closing.cancel();
                }
            }
            Output::Dial(to) => {
                let (config, sender) = (Arc::clone(&self.dialling), self.sender.clone());
                let leaving = self.mesh.0.leaving.clone();
                self.tasks.spawn(async move {
                    let dialled = tokio::select! {
                        biased;
                        () = leaving.cancelled() => return,
                        event = wires::dial(to, config) => event,
                    };
                    // Nobody listens only when all ends.
                    let _ = sender.send(dialled).await;
                });
            }
            Output::Heard(wait, everybody) => {
                if let Some(sender) = self.waits.remove(&wait) {
                    // Who asked may have left.
                    let _ = sender.send(everybody);
                }
            }
            Output::Complain(peer, why) => {
                tracing::warn!(%peer, %why, "a peer is refused; this is said once");
            }
        }
    }

    /// Ends a link that does not take what it is sent.
    fn cut(&mut self, id: LinkId) {
        if let Some(line) = self.links.remove(&id) {
            line.closing.cancel();
            let now = self.clock.monotonic();
            self.mesh.0.core.lock().link_down(id, Why::Slow, now);
        }
    }
}
