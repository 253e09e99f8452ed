//! Many that sleep: what each costs a gateway, and what it costs to wake one of ten thousand beside
//! one of ten. The store is the embedded one, the runtime costs nothing, the rest is as in a server:
//! control, the routes as a gateway has them, and flights.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Result, Samples, Target, human, resident_bytes, verdict};
use cache::{RouteFeed, RoutingCache, Watched};
use control::{Builder, Control};
use futures_util::future::try_join_all;
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{
    Epoch, Metadata, Name, Namespace, Sandbox, SandboxId, StringMap,
    lifecycle::{Phase, Traffic},
    sandbox::{DesiredState, OnTimeout, Owner, SandboxSpec, Timeouts},
};
use routes::Table;
use runtime::fake::FakeRuntime;
use store::{Store, StoreExt as _};
use store_redb::RedbStore;
use wake::{Flights, Options};

const FEW: usize = 10;
const MANY: usize = 10_000;
const ROUNDS: usize = 300;
/// Gateways that are measured together.
const COPIES: u64 = 4;
/// Records that are written at once.
const BATCH: usize = 500;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let few = runtime.block_on(wakes(FEW))?;
    let many = runtime.block_on(wakes(MANY))?;
    for q in [0.5, 0.99] {
        verdict(
            &format!("waking one of {MANY} / of {FEW}, p{:.0}", q * 100.0),
            many.quantile(q).as_secs_f64() / few.quantile(q).as_secs_f64(),
            Target::AtMost(1.5),
        );
    }
    Ok(())
}

struct World {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    tasks: Tasks,
    control: Control,
}

/// Has so many asleep, and wakes one after the other.
async fn wakes(count: usize) -> Result<Samples> {
    let directory = tempfile::tempdir()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    let options = store_redb::Options::default();
    let store = RedbStore::open(directory.path(), clock.clone(), entropy.clone(), options)?;
    let store: Arc<dyn Store> = Arc::new(store);
    let tasks = Tasks::default();
    let runtime = Arc::new(FakeRuntime::new(tasks.child()));
    let control = Builder::new(store.clone(), runtime, clock.clone(), entropy.clone())
        .start(&tasks, soon())
        .await?;
    let world = World {
        store,
        clock,
        entropy,
        tasks,
        control,
    };
    let begun = Instant::now();
    for first in (0..count).step_by(BATCH) {
        let batch = first..count.min(first + BATCH);
        try_join_all(batch.map(|number| world.asleep(number))).await?;
    }
    println!("{count} asleep after {}", human(begun.elapsed()));

    let (table, routing) = world.gateway(&world.tasks).await?;
    if count == MANY {
        let bytes = world.bytes_of_copies().await? / count as u64;
        println!(
            "{bytes} bytes of a gateway for one that sleeps: its route, and what flights look at"
        );
    }
    let flights = Flights::new(
        world.store.clone(),
        routing,
        world.clock.clone(),
        world.tasks.child(),
        Options::default(),
    );
    let mut woken = Samples::default();
    for round in 0..ROUNDS {
        let id = id_of((round * 7919) % count);
        let route = table.lookup(&id).ok_or("a route is missing")?;
        let begun = Instant::now();
        let awake = flights.wake(&route, soon()).await?;
        woken.record(begun.elapsed());
        if awake.state != Traffic::Running {
            return Err(format!("{id} was not woken").into());
        }
        world.pause(id_of((round * 7919) % count)).await?;
        while table.lookup(&id).is_none_or(|r| r.state != Traffic::Paused) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    woken.print(&format!("waking one of {count}"));
    let _ = world.tasks.drain(Duration::from_secs(10)).await;
    Ok(woken)
}

impl World {
    /// Makes one, and waits until it sleeps.
    async fn asleep(&self, number: usize) -> Result<()> {
        let team = Namespace::new("team")?;
        let id = id_of(number);
        let spec = SandboxSpec {
            images: StringMap::from_iter([("main", "base")]),
            owner: Some(Owner {
                team: team.clone(),
                user: None,
                key: None,
            }),
            sandbox_id: Some(SandboxId::new(&id)?),
            epoch: Epoch(1),
            wake_on_traffic: true,
            timeouts: Timeouts {
                on_timeout: OnTimeout::Pause,
                ..Timeouts::default()
            },
            ..SandboxSpec::default()
        };
        let meta = Metadata::new(Some(team), Name::new(&id)?);
        let made = self.store.create_object(&Sandbox::new(meta, spec)).await?;
        self.becomes(&made, Phase::Running).await?;
        self.pause(id).await
    }

    /// Puts one to sleep.
    async fn pause(&self, id: String) -> Result<()> {
        let key = model::Key::namespaced(
            <SandboxSpec as model::Spec>::KIND,
            Namespace::new("team")?,
            Name::new(&id)?,
        );
        loop {
            let found = self.store.find::<SandboxSpec>(&key).await?;
            let mut sandbox = found.ok_or("a record is missing")?;
            sandbox.spec.desired_state = DesiredState::Paused;
            match self.store.update_spec(&sandbox).await {
                Ok(written) => return self.becomes(&written, Phase::Paused).await,
                Err(store::StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn becomes(&self, sandbox: &Sandbox, phase: Phase) -> Result<()> {
        let since = sandbox.version();
        let is = move |s: Option<&Sandbox>| {
            s.is_some_and(|s| s.status.phase == phase && s.version() >= since)
        };
        let sandboxes = &self.control.caches().sandboxes;
        sandboxes.wait_for(&sandbox.key(), is, soon()).await?;
        Ok(())
    }

    /// What a gateway keeps of all: their routes, and what flights look at.
    async fn gateway(&self, tasks: &Tasks) -> Result<(Arc<Table>, RoutingCache)> {
        let options = cache::Options::new(self.entropy.clone());
        let routing = RoutingCache::start(self.store.clone(), options, soon(), tasks).await?;
        Ok((self.routes(tasks).await?, routing))
    }

    /// How much memory another gateway takes. What reading them takes meanwhile was taken before, by
    /// the first of several.
    async fn bytes_of_copies(&self) -> Result<u64> {
        let tasks = self.tasks.child();
        let mut kept = vec![self.gateway(&tasks).await?];
        let before = resident_bytes("self")?;
        for _ in 0..COPIES {
            kept.push(self.gateway(&tasks).await?);
        }
        let bytes = resident_bytes("self")?.saturating_sub(before) / COPIES;
        let _ = tasks.drain(Duration::from_secs(10)).await;
        Ok(bytes)
    }

    /// The routes of all, as a gateway has them.
    async fn routes(&self, tasks: &Tasks) -> Result<Arc<Table>> {
        let table = Arc::new(Table::new(routes::Limits::default()));
        let feed = RouteFeed {
            store: self.store.clone(),
            table: table.clone(),
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            watched: Watched::default(),
        };
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = feed.follow(|_| {}) => {}
            }
        });
        while !table.synced() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(table)
    }
}

fn id_of(number: usize) -> String {
    format!("i{number:020}")
}

fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(120)
}
