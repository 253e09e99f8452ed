//! Starts a gateway, and stops it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ::runtime::{Inside, Pods};
use auth::Seal;
use kit::{Clock, Entropy};
use routes::Table;
use thiserror::Error;
use tokio::{
    runtime::{Builder, Handle},
    sync::{Semaphore, oneshot},
    task::LocalSet,
};
use tokio_util::task::TaskTracker;

use crate::{
    activity::Activity,
    address::Hosts,
    doors::{Doors, Listen},
    front::Front,
    metrics::{Counters, Metrics},
    options::Options,
    progress::{self, Progress},
    tcp::Streams,
    wake::Wake,
    worker::{Door, Stop, Worker},
};

/// How long threads may take to say what is still asked of them.
const LEAVING: Duration = Duration::from_secs(2);

/// What a gateway needs of others.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Where sandboxes are.
    pub routes: Arc<Table>,
    /// How to get into their networks, on this machine.
    pub inside: Arc<dyn Inside>,
    /// How to get to those that have an address of their own.
    pub pods: Arc<dyn Pods>,
    /// How they are woken.
    pub wake: Arc<dyn Wake>,
    /// How far what is known of them has come.
    pub progress: Arc<dyn Progress>,
    /// From which their tokens are derived, to find and check signed URLs.
    pub seal: Option<Seal>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<Entropy>,
}

/// Why a gateway did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Somebody listens there already, or may not.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The machine gives no thread or event queue.
    #[error("start a thread of the gateway")]
    Thread(#[source] io::Error),
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ports: Ports,
    pub(crate) options: Options,
    pub(crate) hosts: Hosts,
    pub(crate) activity: Activity,
    pub(crate) fallback: Option<axum::Router>,
    /// The runtime of whoever started the gateway.
    pub(crate) outside: Handle,
    /// Requests to `fallback` that are under way there, counted before they are begun.
    pub(crate) calls: TaskTracker,
    /// One search for a signed URL's sandbox at a time.
    pub(crate) searches: Semaphore,
    /// Those whose clients have seen more than is known here.
    pub(crate) behind: Semaphore,
    /// Whether every answer is the last of its connection.
    says_goodbye: AtomicBool,
}

impl Shared {
    pub(crate) fn says_goodbye(&self) -> bool {
        self.says_goodbye.load(Ordering::Relaxed)
    }
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Gateway {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    metrics: Metrics,
    stop: Stop,
    /// From each thread when it ends: how many connections it dropped.
    ends: Vec<oneshot::Receiver<usize>>,
}

impl Gateway {
    /// Binds the addresses and starts the threads. Requests that are for no sandbox go to
    /// `fallback`, on the runtime this is called in.
    ///
    /// # Errors
    /// If an address cannot be had, or a thread.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(
        ports: Ports,
        options: Options,
        listens: Vec<Listen>,
        fallback: Option<axum::Router>,
    ) -> Result<Self, StartError> {
        let doors = Doors::bind(listens, options.threads)?;
        let activity = Activity::new(ports.clock.clone());
        Self::behind(doors, activity, ports, options, fallback)
    }

    /// The same behind doors that are bound already. Use is noted in `activity`: who puts sandboxes
    /// to sleep has that before anybody is let in.
    ///
    /// # Errors
    /// If a thread cannot be had.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn behind(
        doors: Doors,
        activity: Activity,
        ports: Ports,
        mut options: Options,
        fallback: Option<axum::Router>,
    ) -> Result<Self, StartError> {
        let Doors {
            addresses,
            of_threads: doors,
        } = doors;
        options.threads = doors.len();
        let threads = doors.len();
        let counters: Arc<[Arc<Counters>]> = (0..threads).map(|_| Arc::default()).collect();
        ports.routes.listen(Arc::new(activity.clone()));
        let shared = Arc::new(Shared {
            hosts: Hosts::new(options.domain.as_deref()),
            ports,
            options,
            activity,
            fallback,
            outside: Handle::current(),
            calls: TaskTracker::new(),
            searches: Semaphore::new(1),
            behind: Semaphore::new(progress::MOST),
            says_goodbye: AtomicBool::new(false),
        });
        let mut gateway = Self {
            addresses,
            shared,
            metrics: Metrics(counters),
            stop: Stop::default(),
            ends: Vec::new(),
        };
        for (number, doors) in doors.into_iter().enumerate() {
            let end = gateway.thread(number, doors).map_err(StartError::Thread)?;
            gateway.ends.push(end);
        }
        Ok(gateway)
    }

    fn thread(&self, number: usize, doors: Vec<Door>) -> io::Result<oneshot::Receiver<usize>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (shared, stop) = (self.shared.clone(), self.stop.clone());
        let counters = self.metrics.0[number].clone();
        let (ended, end) = oneshot::channel();
        thread::Builder::new()
            .name(format!("gateway-{number}"))
            .spawn(move || {
                let local = LocalSet::new();
                let left = local.block_on(&runtime, async {
                    Worker::new(shared, counters, number).run(doors, stop).await
                });
                // Before anybody hears of the end, every connection has seen it.
                drop(local);
                drop(runtime);
                let _ = ended.send(left);
            })?;
        Ok(end)
    }

    /// Where it listens, in the order it was told to.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// From now on every answer in HTTP/1 is the last of its connection: who asks again goes elsewhere, and
    /// does not find its connection closed when this one stops.
    pub fn say_goodbye(&self) {
        self.shared.says_goodbye.store(true, Ordering::Relaxed);
    }

    /// Which sandboxes are in use.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.shared.activity.clone()
    }

    /// Streams to the ports of sandboxes, for others than clients of HTTP.
    #[must_use]
    pub fn streams(&self) -> Streams {
        Streams::new(self.shared.clone())
    }

    /// Its decisions, for somebody else who moves the bytes.
    #[must_use]
    pub fn front(&self) -> Front {
        Front::new(self.shared.clone())
    }

    /// What happened so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// How many requests to what is no sandbox are being answered.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.shared.calls.len()
    }

    /// Stops accepting and lets what is under way finish, without an end to that yet. Connections that
    /// rest are closed. Returns when all that will be asked here was asked, half a second later at most.
    pub async fn leave(&self) {
        self.stop.asked.cancel();
        let threads = self.metrics.0.len();
        let mut arrived = self.stop.arrived.subscribe();
        // A thread that has ended has nobody.
        let all = arrived.wait_for(|arrived| *arrived >= threads);
        let _ = tokio::time::timeout(LEAVING, all).await;
    }

    /// Stops accepting, lets what is under way finish for at most `grace`, and ends.
    ///
    /// # Errors
    /// With the number of connections that were dropped in the middle of something.
    pub async fn drain(self, grace: Duration) -> Result<(), usize> {
        self.drain_until(tokio::time::sleep(grace)).await
    }

    /// The same, until it is too late.
    ///
    /// # Errors
    /// With the number of connections that were dropped in the middle of something.
    pub async fn drain_until(mut self, late: impl Future<Output = ()>) -> Result<(), usize> {
        self.stop.asked.cancel();
        let stop = self.stop.clone();
        let mut left = 0;
        let mut ends = std::mem::take(&mut self.ends);
        let mut late = std::pin::pin!(late);
        for end in &mut ends {
            left += tokio::select! {
                ended = &mut *end => ended.unwrap_or_default(),
                () = &mut late, if !stop.now.is_cancelled() => {
                    stop.now.cancel();
                    end.await.unwrap_or_default()
                }
            };
        }
        if left == 0 { Ok(()) } else { Err(left) }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.asked.cancel();
        self.stop.now.cancel();
    }
}
