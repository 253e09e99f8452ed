//! One thread: its runtime, its clients, its kept connections.

use std::{
    cell::{Cell, RefCell, RefMut},
    collections::HashMap,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use model::SandboxId;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    gateway::Shared,
    h2c,
    link::Link,
    metrics::Counters,
    pool::{Key, Pool},
    serve,
    upstream::Upstream,
};

/// How often the ticker looks at everything.
const TICK: Duration = Duration::from_secs(1);
/// How often records of use that lead nowhere are removed, in ticks.
const SWEEP_TICKS: u32 = 60;
/// How much is read at once.
const SCRATCH_BYTES: usize = 64 << 10;
/// How many buffers for heads are kept, and how large one may be.
const MOST_HEADS: usize = 256;
const MOST_HEAD_BYTES: usize = 16 << 10;
/// How often the first request of who was let in just before the end is looked for.
const LOOK: Duration = Duration::from_millis(2);
/// How long telling clients that their time is over may take.
const LEAVE: Duration = Duration::from_millis(500);
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What one thread has.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Pool,
    /// Connections in HTTP/2.
    pub(crate) calls: h2c::Shared,
    pub(crate) counters: Arc<Counters>,
    pub(crate) http1: http1::Builder,
    pub(crate) http2: http2::Builder<LocalTasks>,
    /// Where bytes are read to, and where what is made of them is written, within one turn.
    scratch: RefCell<Box<[u8]>>,
    out: RefCell<Vec<u8>>,
    /// Buffers for heads that no connection needs now.
    heads: RefCell<Vec<Vec<u8>>>,
    pub(crate) tasks: LocalTasks,
    links: RefCell<HashMap<u64, Rc<Link>>>,
    next_link: Cell<u64>,
    /// Rung when a connection ends.
    freed: Notify,
    max_links: usize,
    /// Seconds since the gateway's clock began.
    now: Rc<Cell<u32>>,
    request_ids: Cell<u64>,
}

/// Tasks of this thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalTasks(TaskTracker);

impl LocalTasks {
    pub(crate) fn run(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn_local(task);
    }
}

impl<F> hyper::rt::Executor<F> for LocalTasks
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn_local(task);
    }
}

/// A listener of one thread.
pub(crate) struct Door {
    pub(crate) listener: std::net::TcpListener,
    pub(crate) acceptor: Option<TlsAcceptor>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, counters: Arc<Counters>, number: usize) -> Rc<Self> {
        let limits = &shared.options.limits;
        let tasks = LocalTasks::default();
        let mut http1 = http1::Builder::new();
        http1
            .max_buf_size(limits.buffer_bytes)
            .max_header_size(limits.head_bytes)
            // Who has said all it will say may listen; see `link`.
            .half_close(true)
            .writev(false);
        let mut http2 = http2::Builder::new(tasks.clone());
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20))
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
            .initial_stream_window_size(512 << 10)
            .initial_connection_window_size(2 << 20)
            .max_send_buf_size(limits.buffer_bytes)
            .enable_connect_protocol();
        let max_links = limits.connections.div_ceil(shared.options.threads).max(1);
        let worker = Self {
            pool: Pool::new(),
            calls: h2c::Shared::default(),
            counters,
            http1,
            http2,
            scratch: RefCell::new(vec![0; SCRATCH_BYTES].into()),
            out: RefCell::default(),
            heads: RefCell::default(),
            tasks,
            links: RefCell::default(),
            next_link: Cell::new(0),
            freed: Notify::new(),
            max_links,
            now: Rc::default(),
            request_ids: Cell::new(shared.ports.entropy.u64() ^ number as u64),
            shared,
        };
        worker.look_at_the_clock();
        Rc::new(worker)
    }

    fn look_at_the_clock(&self) {
        let seconds = self.monotonic().as_secs();
        self.now.set(u32::try_from(seconds).unwrap_or(u32::MAX));
    }

    /// Seconds since the gateway's clock began, exact to a tick.
    pub(crate) fn now(&self) -> u32 {
        self.now.get()
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.shared.ports.clock.monotonic()
    }

    /// An id for a request that brought none: different, not secret.
    pub(crate) fn new_request_id(&self) -> HeaderValue {
        let n = self.request_ids.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.request_ids.set(n);
        let mixed = (n ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let text = format!("{:016x}", mixed ^ (mixed >> 29));
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("none"))
    }

    /// Memory to read into. Nothing in it outlives a turn.
    pub(crate) fn scratch(&self) -> RefMut<'_, Box<[u8]>> {
        self.scratch.borrow_mut()
    }

    /// Memory to write into, likewise.
    pub(crate) fn out(&self) -> RefMut<'_, Vec<u8>> {
        self.out.borrow_mut()
    }

    /// An empty buffer for a head.
    pub(crate) fn take_head(&self) -> Vec<u8> {
        self.heads.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes it back.
    pub(crate) fn put_head(&self, mut head: Vec<u8>) {
        let mut heads = self.heads.borrow_mut();
        if heads.len() < MOST_HEADS && head.capacity() <= MOST_HEAD_BYTES {
            head.clear();
            heads.push(head);
        }
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&self, key: Key, id: &SandboxId, upstream: Upstream) {
        let limits = &self.shared.options.limits;
        self.pool.put(key, id, upstream, self.now.get(), limits);
    }

    /// Serves until told to stop; then lets what is under way finish for as long as `grace` says.
    /// Answers how many connections were left.
    pub(crate) async fn run(self: Rc<Self>, doors: Vec<Door>, stop: Stop) -> usize {
        self.tasks.0.spawn_local(self.clone().tick());
        self.tasks.0.spawn_local(self.clone().reap());
        for door in doors {
            let accepting = self.clone().accept(door, stop.asked.clone());
            self.tasks.0.spawn_local(accepting);
        }
        stop.asked.cancelled().await;
        for link in self.links.borrow().values() {
            link.drain();
        }
        let arrival = self.shared.options.limits.arrival_timeout;
        let _ = timeout(arrival, self.arrivals()).await;
        for link in self.links.borrow().values() {
            link.hurry();
        }
        stop.arrived.send_modify(|threads| *threads += 1);
        let all_gone = async {
            while !self.links.borrow().is_empty() {
                self.freed.notified().await;
            }
        };
        tokio::select! {
            () = all_gone => return 0,
            () = stop.now.cancelled() => {}
        }
        let left = self.links.borrow().len();
        for link in self.links.borrow().values() {
            link.leave();
        }
        let is_told = || !self.links.borrow().values().any(|link| link.takes_leave());
        let all_told = async {
            while !is_told() {
                self.freed.notified().await;
            }
        };
        // Who does not read is not waited for.
        let _ = timeout(LEAVE, all_told).await;
        left
    }

    /// Waits until everybody who was let in has asked for something, or left.
    async fn arrivals(&self) {
        while self.links.borrow().values().any(|link| link.arrives()) {
            sleep(LOOK).await;
        }
    }

    async fn tick(self: Rc<Self>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let limits = &self.shared.options.limits;
        let mut count = 0u32;
        loop {
            ticks.tick().await;
            self.look_at_the_clock();
            let links = self.links.borrow();
            let is_full = links.len() >= self.max_links;
            for link in links.values() {
                if link.is_overdue(limits, is_full) {
                    link.doom();
                } else if link.is_body_late(limits) || link.is_half_closed() {
                    link.nudge();
                }
            }
            drop(links);
            let oldest = u64::from(self.now.get()).saturating_sub(limits.keep_timeout.as_secs());
            self.sweep_pool(u32::try_from(oldest).unwrap_or(0));
            count = count.wrapping_add(1);
            if count.is_multiple_of(SWEEP_TICKS) {
                self.shared.activity.sweep(&self.shared.ports.routes);
            }
        }
    }

    fn sweep_pool(&self, oldest: u32) {
        self.pool.sweep(&self.shared.ports.routes, oldest);
        self.calls.sweep(&self.shared.ports.routes, oldest);
        self.counters.keeps(self.pool.len());
    }

    async fn reap(self: Rc<Self>) {
        loop {
            self.pool.rung().await;
            self.sweep_pool(0);
        }
    }

    async fn accept(self: Rc<Self>, door: Door, stop: CancellationToken) {
        let listener = match TcpListener::from_std(door.listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "cannot watch a listener");
                return;
            }
        };
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = self.next_client(&listener) => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.welcome(stream, peer, door.acceptor.clone()),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn next_client(
        &self,
        listener: &TcpListener,
    ) -> std::io::Result<(TcpStream, SocketAddr)> {
        while self.links.borrow().len() >= self.max_links {
            self.freed.notified().await;
        }
        listener.accept().await
    }

    fn welcome(
        self: &Rc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        acceptor: Option<TlsAcceptor>,
    ) {
        let number = self.next_link.get();
        self.next_link.set(number + 1);
        let link = Rc::new(Link::new(peer, acceptor.is_some(), self.now.clone()));
        self.links.borrow_mut().insert(number, link.clone());
        self.counters.accepted();
        let leaving = Leaving {
            worker: self.clone(),
            number,
        };
        let worker = self.clone();
        self.tasks.0.spawn_local(async move {
            let _leaving = leaving;
            serve::connection(worker, link, stream, acceptor).await;
        });
    }
}

/// When to stop, and when to stop waiting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    pub(crate) asked: CancellationToken,
    pub(crate) now: CancellationToken,
    /// How many threads know of all that was asked of them.
    pub(crate) arrived: watch::Sender<usize>,
}

/// Takes a connection off the list, however it ends.
struct Leaving {
    worker: Rc<Worker>,
    number: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let link = self.worker.links.borrow_mut().remove(&self.number);
        drop(link);
        self.worker.counters.closed();
        self.worker.freed.notify_waiters();
        self.worker.freed.notify_one();
    }
}
