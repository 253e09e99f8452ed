//! The builder, the workers, start and drain.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cache::{Cache, Changes, SandboxIndex, SnapshotIndex, StartError, View};
use claims::Desk;
use kit::{Backoff, Clock, Entropy, Tasks};
use model::{
    Key, Name, Spec as _, Timestamp, Uid,
    event::{About, Severity},
    pool::PoolSpec,
};
use parking_lot::Mutex;
use plan::Note;
use plugins::Plugins;
use runtime::Runtime;
use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    claim,
    events::{self, EventSink, NoEvents},
    flights::Crew,
    history::{self, Retention},
    pool,
    queue::WorkQueue,
    reception::Reception,
    sandbox, snapshot, sweep,
    world::{
        ActivitySource, AgentTokens, Caches, Done, Followers, NoFollowers, NoTokens, NoWaiters,
        Ports, RecordOnly, Waiters, World,
    },
};

/// How the loop runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Turns at a time.
    pub workers: usize,
    /// How long a call on the runtime may take.
    pub step_timeout: Duration,
    /// How often left-overs are looked for.
    pub sweep_every: Duration,
    /// Between failed turns of one key.
    pub backoff: Backoff,
    /// How long what is inside a sandbox has to end before it is put to sleep all the same.
    pub drain_timeout: Duration,
    /// How much history is kept.
    pub history: Retention,
    /// Whether no other process claims from the same store: what another one claimed and did not
    /// hand over then is nobody's.
    pub claims_alone: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 16,
            step_timeout: Duration::from_secs(120),
            sweep_every: Duration::from_secs(30),
            backoff: Backoff {
                first: Duration::from_millis(20),
                cap: Duration::from_secs(30),
            },
            drain_timeout: Duration::from_millis(250),
            history: Retention::default(),
            claims_alone: false,
        }
    }
}

/// What there is to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Sandbox(Key),
    Snapshot(Key),
    Pool(Key),
    Claim(Key),
    Sweep,
}

/// Puts a control loop together. Every port can be replaced.
#[derive(Debug)]
pub struct Builder {
    ports: Ports,
    options: Options,
}

impl Builder {
    /// A loop over these ports that stores no events and measures no use.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
    ) -> Self {
        let (activity, events) = (Arc::new(RecordOnly), Arc::new(NoEvents));
        let ports = Ports {
            store,
            runtime,
            clock,
            entropy,
            activity,
            followers: Arc::new(NoFollowers),
            waiters: Arc::new(NoWaiters),
            events,
            tokens: Arc::new(NoTokens),
            reception: None,
        };
        Self {
            ports,
            options: Options::default(),
        }
    }

    /// With a source of activity.
    #[must_use]
    pub fn activity(mut self, source: Arc<dyn ActivitySource>) -> Self {
        self.ports.activity = source;
        self
    }

    /// With those who let traffic in.
    #[must_use]
    pub fn followers(mut self, followers: Arc<dyn Followers>) -> Self {
        self.ports.followers = followers;
        self
    }

    /// With those who wait for sandboxes that sleep.
    #[must_use]
    pub fn waiters(mut self, waiters: Arc<dyn Waiters>) -> Self {
        self.ports.waiters = waiters;
        self
    }

    /// With a sink for events.
    #[must_use]
    pub fn events(mut self, sink: Arc<dyn EventSink>) -> Self {
        self.ports.events = sink;
        self
    }

    /// With tokens for agents.
    #[must_use]
    pub fn tokens(mut self, tokens: Arc<dyn AgentTokens>) -> Self {
        self.ports.tokens = tokens;
        self
    }

    /// With who receives records that came by themselves.
    #[must_use]
    pub fn reception(mut self, reception: Arc<dyn Reception>) -> Self {
        self.ports.reception = Some(reception);
        self
    }

    /// With other options.
    #[must_use]
    pub const fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Syncs the caches and starts the workers.
    ///
    /// # Errors
    /// If a cache does not sync before the deadline.
    pub async fn start(self, tasks: &Tasks, deadline: Instant) -> Result<Control, StartError> {
        self.start_with(tasks, deadline, |_| Plugins::default())
            .await
    }

    /// The same, with plugins that may look at what the loop looks at.
    ///
    /// # Errors
    /// If a cache does not sync before the deadline.
    pub async fn start_with(
        self,
        tasks: &Tasks,
        deadline: Instant,
        plugins: impl FnOnce(&Caches) -> Plugins + Send,
    ) -> Result<Control, StartError> {
        let tasks = tasks.child();
        let caches = sync(&self.ports, deadline, &tasks).await?;
        let plugins = plugins(&caches);
        pass_barrier(&self.ports, &caches, deadline).await?;
        let queue = Arc::new(WorkQueue::new(
            self.options.backoff,
            Arc::clone(&self.ports.entropy),
        ));
        let asked = Arc::clone(&queue);
        let desk = Desk::start(
            caches.sandboxes.clone(),
            caches.pools.clone(),
            Arc::clone(&self.ports.entropy),
            move |pool| asked.add(Work::Pool(pool.clone()), Instant::now()),
            &tasks,
        );
        let kill = CancellationToken::new();
        let crew = Crew {
            tasks: tasks.clone(),
            queue: Arc::clone(&queue),
            kill: kill.clone(),
        };
        let inner = Arc::new(Inner {
            world: World::new(self.ports, caches, self.options, desk, plugins, crew),
            queue,
            pools_of: Mutex::default(),
            kill,
        });
        let control = Control { inner, tasks };
        control.feed();
        control.work();
        Ok(control)
    }
}

async fn sync(ports: &Ports, deadline: Instant, tasks: &Tasks) -> Result<Caches, StartError> {
    async fn start<V: View>(
        ports: &Ports,
        deadline: Instant,
        tasks: &Tasks,
    ) -> Result<Cache<V>, StartError> {
        let options = cache::Options::new(Arc::clone(&ports.entropy));
        Cache::start(Arc::clone(&ports.store), options, deadline, tasks).await
    }
    Ok(Caches {
        templates: start(ports, deadline, tasks).await?,
        pools: start(ports, deadline, tasks).await?,
        claims: start(ports, deadline, tasks).await?,
        snapshots: start(ports, deadline, tasks).await?,
        sandboxes: start(ports, deadline, tasks).await?,
    })
}

/// Waits until the caches have seen everything that was written before this loop began.
///
/// A first list may be old, and what a former loop asked for and expected is forgotten: a loop that
/// decided on such a list would make members a second time. Only a write tells where now is, so the
/// start itself is recorded, as an event people can read.
async fn pass_barrier(ports: &Ports, caches: &Caches, deadline: Instant) -> Result<(), StartError> {
    let backoff = Backoff {
        first: Duration::from_millis(10),
        cap: Duration::from_secs(1),
    };
    let mut attempt = 0;
    let version = loop {
        let now = Timestamp::from_micros(ports.clock.wall_micros());
        match events::write(ports.store.as_ref(), this_loop(), started(), now).await {
            Ok(version) => break version,
            Err(error) if Instant::now() >= deadline => {
                return Err(StartError::DeadlineReached { last: Some(error) });
            }
            Err(_) => {
                attempt += 1;
                tokio::time::sleep(backoff.delay(attempt, &ports.entropy)).await;
            }
        }
    };
    let Caches {
        sandboxes,
        pools,
        claims,
        snapshots,
        templates,
    } = caches;
    let late = |_| StartError::DeadlineReached { last: None };
    sandboxes
        .wait_for_version(version, deadline)
        .await
        .map_err(late)?;
    pools
        .wait_for_version(version, deadline)
        .await
        .map_err(late)?;
    claims
        .wait_for_version(version, deadline)
        .await
        .map_err(late)?;
    snapshots
        .wait_for_version(version, deadline)
        .await
        .map_err(late)?;
    templates
        .wait_for_version(version, deadline)
        .await
        .map_err(late)
}

fn this_loop() -> About {
    // No record stands behind it; the uid only ties its events together.
    About {
        kind: "Control".into(),
        namespace: None,
        name: name("control"),
        uid: Uid::from_random(0),
    }
}

fn started() -> Note {
    let message = "the control loop has started".into();
    Note {
        severity: Severity::Normal,
        reason: "Started",
        message,
    }
}

/// A running control loop.
#[derive(Debug)]
pub struct Control {
    inner: Arc<Inner>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Inner {
    world: World,
    queue: Arc<WorkQueue<Work, Key>>,
    /// The pool of each member, so that a pool hears of a member that is gone.
    pools_of: Mutex<BTreeMap<Key, Key>>,
    kill: CancellationToken,
}

impl Control {
    /// The caches it decides on.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.inner.world.caches
    }

    /// Where claims are served; whoever else claims in this process does so there.
    #[must_use]
    pub fn desk(&self) -> &Arc<Desk> {
        &self.inner.world.desk
    }

    /// Whether a turn is under way or due within `horizon`, or one will be asked for by what is under
    /// way. Sweeping does not count.
    #[must_use]
    pub fn is_busy(&self, horizon: Duration) -> bool {
        let Inner { world, queue, .. } = &*self.inner;
        let flies = !world.commands.is_empty() || !world.pins.is_empty();
        flies || queue.is_busy(Instant::now() + horizon)
    }

    /// Looks now for what changed by itself and for what is left over, as it does from time to time.
    pub async fn sweep(&self) {
        self.inner.sweep().await;
    }

    /// Stops taking turns, waits for those under way, and drops what is not done within `grace`.
    pub async fn drain(&self, grace: Duration) {
        if let Err(left) = self.tasks.drain(grace).await {
            tracing::warn!(left, "control did not drain in time; its turns are dropped");
        }
        self.inner.kill.cancel();
    }

    /// Drops everything where it is, as a crash would.
    pub fn crash(&self) {
        self.inner.kill.cancel();
        self.tasks.stopping().cancel();
    }

    fn feed(&self) {
        let caches = self.caches().clone();
        self.follow(caches.sandboxes.subscribe(), Inner::sandbox_changed);
        self.follow(caches.snapshots.subscribe(), |inner, key| {
            inner.snapshot_changed(key);
        });
        self.follow(caches.pools.subscribe(), |inner, key| {
            inner.ask(Work::Pool(key));
        });
        self.follow(caches.claims.subscribe(), |inner, key| {
            inner.ask(Work::Claim(key));
        });
        self.follow(caches.templates.subscribe(), |inner, key| {
            inner.template_changed(&key);
        });
        self.inner.queue.add(
            Work::Sweep,
            Instant::now() + self.inner.world.options.sweep_every,
        );
    }

    fn follow<V: View>(&self, mut changes: Changes<V>, changed: fn(&Inner, Key)) {
        let inner = Arc::clone(&self.inner);
        let stop = self.tasks.stopping().clone();
        self.tasks.spawn(async move {
            loop {
                let next = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    next = changes.next() => next,
                };
                match next {
                    Ok(key) => changed(&inner, key),
                    Err(reason) => {
                        tracing::error!(%reason, "control lost a cache");
                        return;
                    }
                }
            }
        });
    }

    fn work(&self) {
        for _ in 0..self.inner.world.options.workers {
            let inner = Arc::clone(&self.inner);
            let stop = self.tasks.stopping().clone();
            self.tasks.spawn(async move {
                let kill = inner.kill.clone();
                tokio::select! {
                    biased;
                    () = kill.cancelled() => {}
                    () = inner.work_until(stop) => {}
                }
            });
        }
    }
}

/// A pool is looked at whole, and changes with each of its members: it rests this many times as
/// long as the last look took, so that many changes are one look and one write.
const POOL_RESTS: u32 = 9;
const LONGEST_REST: Duration = Duration::from_millis(100);

impl Inner {
    async fn work_until(&self, stop: CancellationToken) {
        loop {
            let turn = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                turn = self.queue.next(|work| self.lane_of(work)) => turn,
            };
            let work = turn.key().clone();
            let begun = Instant::now();
            let done = self.turn(&work).await;
            if matches!((&work, &done), (Work::Pool(_), Done::Rest(_))) {
                let rest = (begun.elapsed() * POOL_RESTS).min(LONGEST_REST);
                self.queue.rest(work.clone(), Instant::now() + rest);
            }
            // First ask for the next turn, then free the lane: nobody sees it neither busy nor due.
            self.settle(work, done);
            drop(turn);
        }
    }

    async fn turn(&self, work: &Work) -> Done {
        let world = &self.world;
        match work {
            Work::Sandbox(key) => sandbox::drive(world, key, self.queue.failures(work)).await,
            Work::Snapshot(key) => {
                // Looked up before: the snapshot may be gone after.
                let source = world.caches.snapshots.find(key);
                let source = source.map(|snapshot| snapshot::source_of(&snapshot));
                let done = snapshot::drive(world, key).await;
                // It may have left its sandbox frozen; the sandbox's own plan knows what is due.
                if let Some(source) = source {
                    self.ask(Work::Sandbox(source));
                }
                done
            }
            Work::Pool(key) => pool::drive(world, key).await,
            Work::Claim(key) => claim::drive(world, &self.queue, key).await,
            Work::Sweep => {
                self.sweep().await;
                Done::Rest(Some(world.options.sweep_every))
            }
        }
    }

    async fn sweep(&self) {
        let world = &self.world;
        world.deadlines.look_at_the_clock();
        if let Ok(there) = world.ports.runtime.list().await {
            for key in sweep::disagreeing(world, &there) {
                self.ask(Work::Sandbox(key));
            }
            sweep::orphans(world, &there).await;
        }
        sweep::old_events(world).await;
        if world.is_history_due()
            && let Err(error) = history::sweep(world).await
        {
            tracing::warn!(%error, "the history was not looked through");
        }
    }

    fn settle(&self, work: Work, done: Done) {
        match done {
            Done::Gone => self.queue.succeeded(&work),
            Done::Rest(after) => {
                self.queue.succeeded(&work);
                if let Some(after) = after {
                    self.queue.add(work, Instant::now() + after);
                }
            }
            // A little later: what changed underneath has to arrive in the cache first.
            Done::Again => self
                .queue
                .add(work, Instant::now() + Duration::from_millis(1)),
            Done::Retry => self.queue.retry(work),
        }
    }

    fn ask(&self, work: Work) {
        self.queue.add(work, Instant::now());
    }

    fn lane_of(&self, work: &Work) -> Key {
        match work {
            Work::Sandbox(key) | Work::Pool(key) | Work::Claim(key) => key.clone(),
            Work::Snapshot(key) => match self.world.caches.snapshots.find(key) {
                Some(snapshot) => snapshot::source_of(&snapshot),
                None => key.clone(),
            },
            Work::Sweep => sweep_lane(),
        }
    }

    fn sandbox_changed(&self, key: Key) {
        let sandbox = self.world.caches.sandboxes.find(&key);
        let pool = match &sandbox {
            Some(sandbox) => sandbox.spec.pool.clone().map(|name| Key {
                kind: PoolSpec::KIND,
                namespace: key.namespace.clone(),
                name,
            }),
            None => self.pools_of.lock().remove(&key),
        };
        if let Some(pool) = pool {
            if sandbox.is_some() {
                self.pools_of.lock().insert(key.clone(), pool.clone());
            }
            self.ask(Work::Pool(pool));
        }
        if let Some(namespace) = &key.namespace {
            let of = self
                .world
                .caches
                .snapshots
                .find_by(SnapshotIndex::Sandbox, (namespace, &key.name));
            of.iter()
                .for_each(|snapshot| self.ask(Work::Snapshot(snapshot.key())));
        }
        self.ask(Work::Sandbox(key));
    }

    /// Sandboxes that wait for it look again.
    fn snapshot_changed(&self, key: Key) {
        if let Some(namespace) = &key.namespace {
            let waiting = self
                .world
                .caches
                .sandboxes
                .find_by(SandboxIndex::WaitsForSnapshot, (namespace, &key.name));
            waiting
                .iter()
                .for_each(|sandbox| self.ask(Work::Sandbox(sandbox.key())));
        }
        self.ask(Work::Snapshot(key));
    }

    fn template_changed(&self, key: &Key) {
        let pools = self
            .world
            .caches
            .pools
            .find_by(cache::PoolIndex::Template, key.name.as_str());
        pools
            .iter()
            .for_each(|pool| self.ask(Work::Pool(pool.key())));
    }
}

/// Sweeping has a lane of its own.
fn sweep_lane() -> Key {
    Key {
        kind: model::KindName("Sweep"),
        namespace: None,
        name: name("sweep"),
    }
}

fn name(label: &'static str) -> Name {
    Name::new(label).unwrap_or_else(|_| unreachable!("{label} is a valid label"))
}
