//! The cache at 100,000 sandboxes: bytes for each, and how soon a waiter runs.
//!
//! Memory is counted by the allocator, with what glibc adds to each request, after the store and
//! everything else that was needed to fill the cache is gone: text that the cache shares with the
//! store's records counts as the cache's. Wakes are timed from before the write to the store until
//! the waiter's own code runs; the baseline is a bare `Notify` in the same run.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bench::{Samples, Target, human, verdict};
use cache::{Cache, Options, SandboxCache, SandboxIndex, View, condition, routing::Routing};
use kit::{Entropy, SystemClock, Tasks};
use model::{
    Epoch, Generation, Key, Metadata, Name, Namespace, Object, OperationId, SandboxId, Timestamp,
    Version,
    lifecycle::{OperationKind, Phase},
    meta::{Condition, ConditionStatus},
    sandbox::{
        Address, Operation, OperationState, Owner, SANDBOX_FINALIZER, Sandbox, SandboxSpec, Via,
    },
};
use store::{Change, Store as _, StoreExt as _, memory::MemoryStore};
use tokio::{
    runtime::Runtime,
    sync::{Notify, mpsc},
};

const SANDBOXES: usize = 100_000;
const TEAMS: usize = 200;
const WAITERS: usize = 10_000;
const WAKES: usize = 20_000;
const ROUNDS: usize = 20;

#[global_allocator]
static COUNTED: Counted = Counted;
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with an account of what is live.
struct Counted;

/// What glibc takes for a request: a header of eight bytes, in steps of sixteen.
fn charged(layout: Layout) -> i64 {
    ((layout.size() + 8).next_multiple_of(16).max(32)) as i64
}

#[expect(unsafe_code, reason = "an allocator is counted by being one")]
// SAFETY: every call is passed on unchanged; the counter is beside it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(charged(layout), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(charged(layout), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!("{SANDBOXES} sandboxes in {TEAMS} teams");
    memory::<cache::Full<SandboxSpec, SandboxIndex>>(&runtime, "full view, bytes each", 2048.0)?;
    memory::<Routing>(&runtime, "routing view, bytes each", 512.0)?;
    let own = runtime.block_on(wake_own())?;
    let one = runtime.block_on(wake_one())?;
    let (bare, bare_all) = (runtime.block_on(bare_own())?, runtime.block_on(bare_one())?);
    println!("\n{WAITERS} waiters registered");
    bare.print("own object: bare Notify");
    own.print("own object: wait_for");
    let micros = |samples: &Samples, q| samples.quantile(q).as_secs_f64() * 1e6;
    verdict(
        "own object: wait_for p99, ms",
        micros(&own, 0.99) / 1e3,
        Target::AtMost(1.0),
    );
    bare_all.print("one object, all 10,000: bare Notify");
    one.print("one object, all 10,000: wait_for");
    verdict(
        "one object: p99, times a bare Notify's",
        micros(&one, 0.99) / micros(&bare_all, 0.99),
        Target::AtMost(3.0),
    );
    Ok(())
}

/// Fills a cache, takes everything else away, and counts what is left.
fn memory<V: View>(runtime: &Runtime, name: &str, most: f64) -> Outcome {
    let before = LIVE.load(Ordering::Relaxed);
    let world = World::default();
    let cache = runtime.block_on(async {
        for n in 0..SANDBOXES {
            world.store.create_object(&sandbox(n)?).await?;
        }
        let began = Instant::now();
        let cache: Cache<V> = world.start().await?;
        println!("{name}: synced in {}", human(began.elapsed()));
        world.tasks.drain(Duration::from_secs(5)).await.ok();
        Ok::<_, Box<dyn Error>>(cache)
    })?;
    drop(world);
    let bytes = LIVE.load(Ordering::Relaxed) - before;
    assert_eq!(cache.len(), SANDBOXES);
    verdict(name, bytes as f64 / SANDBOXES as f64, Target::AtMost(most));
    Ok(())
}

/// Each of many waiters on its own object; one object changes at a time.
async fn wake_own() -> Outcome<Samples> {
    let world = World::default();
    let mut at = Vec::new();
    for n in 0..WAITERS {
        at.push(world.store.create_object(&sandbox(n)?).await?);
    }
    let cache: SandboxCache = world.start().await?;
    let (woken, mut awake) = mpsc::unbounded_channel();
    let ready = Arc::new(AtomicUsize::new(0));
    for sandbox in &at {
        let (cache, woken, ready) = (cache.clone(), woken.clone(), Arc::clone(&ready));
        let (key, mut seen) = (sandbox.key(), sandbox.version());
        world.tasks.spawn(async move {
            ready.fetch_add(1, Ordering::Relaxed);
            while let Ok(now) = next_version(&cache, &key, seen).await {
                let ran = Instant::now();
                seen = now;
                if woken.send(ran).is_err() {
                    return;
                }
            }
        });
    }
    settled(&ready).await;
    let mut samples = Samples::default();
    for n in 0..WAKES {
        let sandbox = &mut at[(n * 7919) % WAITERS];
        sandbox.spec.epoch = sandbox.spec.epoch.next();
        let change = Change::spec(sandbox);
        let began = Instant::now();
        *sandbox = world.store.update(change).await?.decode()?;
        let ran = awake.recv().await.ok_or("the waiters are gone")?;
        samples.record(ran.saturating_duration_since(began));
    }
    world.tasks.drain(Duration::from_secs(5)).await.ok();
    Ok(samples)
}

/// All waiters on one object, which changes now and then.
async fn wake_one() -> Outcome<Samples> {
    let world = World::default();
    let mut sandbox = world.store.create_object(&sandbox(0)?).await?;
    let cache: SandboxCache = world.start().await?;
    let (woken, mut awake) = mpsc::unbounded_channel();
    let ready = Arc::new(AtomicUsize::new(0));
    for _ in 0..WAITERS {
        let (cache, woken, ready) = (cache.clone(), woken.clone(), Arc::clone(&ready));
        let (key, mut seen) = (sandbox.key(), sandbox.version());
        world.tasks.spawn(async move {
            ready.fetch_add(1, Ordering::Relaxed);
            while let Ok(now) = next_version(&cache, &key, seen).await {
                let ran = Instant::now();
                seen = now;
                if woken.send(ran).is_err() {
                    return;
                }
            }
        });
    }
    settled(&ready).await;
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        sandbox.spec.epoch = sandbox.spec.epoch.next();
        let change = Change::spec(&sandbox);
        let began = Instant::now();
        sandbox = world.store.update(change).await?.decode()?;
        for _ in 0..WAITERS {
            let ran = awake.recv().await.ok_or("the waiters are gone")?;
            samples.record(ran.saturating_duration_since(began));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.tasks.drain(Duration::from_secs(5)).await.ok();
    Ok(samples)
}

async fn next_version(
    cache: &SandboxCache,
    key: &Key,
    seen: Version,
) -> Result<Version, cache::WaitError> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(600);
    let newer = condition::version_at_least(seen.next());
    let found = cache.wait_for(key, newer, deadline).await?;
    Ok(found.map_or(seen, |sandbox| sandbox.version()))
}

/// The baseline: a task on a bare `Notify`, while as many others wait on theirs.
async fn bare_own() -> Outcome<Samples> {
    let tasks = Tasks::default();
    let (woken, mut awake) = mpsc::unbounded_channel();
    let ready = Arc::new(AtomicUsize::new(0));
    let bells: Vec<_> = (0..WAITERS).map(|_| Arc::new(Notify::new())).collect();
    for bell in &bells {
        let (bell, woken, ready) = (Arc::clone(bell), woken.clone(), Arc::clone(&ready));
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            ready.fetch_add(1, Ordering::Relaxed);
            while stop.run_until_cancelled(bell.notified()).await.is_some() {
                if woken.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
    }
    settled(&ready).await;
    let mut samples = Samples::default();
    for n in 0..WAKES {
        let began = Instant::now();
        bells[(n * 7919) % WAITERS].notify_one();
        let ran = awake.recv().await.ok_or("the waiters are gone")?;
        samples.record(ran.saturating_duration_since(began));
    }
    tasks.drain(Duration::from_secs(5)).await.ok();
    Ok(samples)
}

/// The baseline for one object: as many tasks on one bare `Notify`.
async fn bare_one() -> Outcome<Samples> {
    let tasks = Tasks::default();
    let (woken, mut awake) = mpsc::unbounded_channel();
    let ready = Arc::new(AtomicUsize::new(0));
    let bell = Arc::new(Notify::new());
    for _ in 0..WAITERS {
        let (bell, woken, ready) = (Arc::clone(&bell), woken.clone(), Arc::clone(&ready));
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            ready.fetch_add(1, Ordering::Relaxed);
            while stop.run_until_cancelled(bell.notified()).await.is_some() {
                if woken.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
    }
    settled(&ready).await;
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        bell.notify_waiters();
        for _ in 0..WAITERS {
            let ran = awake.recv().await.ok_or("the waiters are gone")?;
            samples.record(ran.saturating_duration_since(began));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tasks.drain(Duration::from_secs(5)).await.ok();
    Ok(samples)
}

/// Until every waiter has begun, and a moment more for the last to be waiting.
async fn settled(ready: &AtomicUsize) {
    while ready.load(Ordering::Relaxed) < WAITERS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
}

struct World {
    store: Arc<MemoryStore>,
    entropy: Arc<Entropy>,
    tasks: Tasks,
}

impl Default for World {
    fn default() -> Self {
        let entropy = Arc::new(Entropy::seeded(1));
        let clock = Arc::new(SystemClock::default());
        Self {
            store: Arc::new(MemoryStore::new(clock, Arc::clone(&entropy))),
            entropy,
            tasks: Tasks::default(),
        }
    }
}

impl World {
    async fn start<V: View>(&self) -> Outcome<Cache<V>> {
        let options = Options::new(Arc::clone(&self.entropy));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        Ok(Cache::start(self.store.clone(), options, deadline, &self.tasks).await?)
    }
}

/// A sandbox as they are in the field.
fn sandbox(n: usize) -> Outcome<Sandbox> {
    let team = Namespace::new(format!("team-{:03}", n % TEAMS))?;
    let now = Timestamp::from_micros(1_760_000_000_000_000 + n as i64);
    let mut metadata = Metadata::new(Some(team.clone()), Name::new(format!("sandbox-{n:08}"))?);
    metadata.finalizers.push(SANDBOX_FINALIZER.into());
    metadata.labels.insert("dormouse.dev/pool", "python-small");
    metadata.labels.insert("dormouse.dev/revision", "5f6d8c9b7");
    let mut spec = SandboxSpec {
        template: Some(Name::new("python-data-science")?),
        owner: Some(Owner {
            team,
            user: Some(format!("key-{:04}", n % 1000).into()),
            key: None,
        }),
        sandbox_id: Some(SandboxId::from_random(
            n as u128 * 0x9e37_79b9_7f4a_7c15_1234,
        )),
        epoch: Epoch(1),
        claimed_at: Some(now),
        wake_on_traffic: true,
        ..SandboxSpec::default()
    };
    spec.env
        .insert("OPENAI_BASE_URL", "https://models.example.com/v1");
    spec.env.insert("WORKSPACE", "/home/user/project");
    spec.metadata.insert("agent", "code-reviewer");
    spec.metadata.insert("conversation", "c9b1f3a27e5d");
    spec.timeouts.end_at = Some(now.plus(Duration::from_secs(300)));
    spec.timeouts.idle_seconds = Some(120);
    let mut sandbox = Object::new(metadata, spec);
    let status = &mut sandbox.status;
    status.phase = Phase::Running;
    status.observed_generation = Generation(1);
    status.armed_epoch = Epoch(1);
    status.address = Some(Address {
        via: Via::Pod,
        ip: Some(format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255).into()),
    });
    status.started_at = Some(now);
    status.last_active_at = Some(now);
    status.last_operation = Some(Box::new(Operation {
        kind: OperationKind::Start,
        id: OperationId(1),
        generation: Generation(1),
        state: OperationState::Succeeded,
        started_at: now,
        attempts: 1,
        error: None,
    }));
    status.conditions.push(Condition {
        kind: "Ready".into(),
        status: ConditionStatus::True,
        reason: "AgentAnswers".into(),
        message: "The agent answers.".into(),
        last_transition_time: now,
        observed_generation: Generation(1),
    });
    Ok(sandbox)
}
