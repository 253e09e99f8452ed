//! The control loop with a thousand sandboxes and with ten thousand, a hundred to a pool, over the
//! memory store and the fake runtime: what one look at a sandbox costs, what a claim costs, what a
//! look at everything costs, and what each sandbox takes of memory. All of it should not depend on
//! how many there are.
//!
//! Each size runs in a process of its own, so that the memory of one is not the other's. What is
//! measured is the time that its threads were at work: what else the machine does is not counted.

use std::{process::Command, sync::Arc, time::Duration};

use bench::{Result, Target, human, resident_bytes, verdict};
use cache::SandboxIndex;
use claims::{Ask, Wait};
use control::{Builder, Control, Options, events::StoredEvents};
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{
    Key, Metadata, Name, Namespace, Object, Sandbox, SandboxId, SandboxPool, SandboxTemplate,
    Timestamp,
    pool::{PoolSpec, RecyclePolicy},
    sandbox::Owner,
};
use plan::claim::{Delivery, Ending, claimed, released};
use runtime::fake::FakeRuntime;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use store::{Store, StoreExt as _, memory::MemoryStore};

const SIZES: [usize; 2] = [1_000, 10_000];
const PER_POOL: usize = 100;
const CLAIMS: usize = 500;
/// The pools that are claimed from: as many of them at each size, with more or fewer others around.
const CLAIMED: usize = 10;
/// Measured this often; the best counts.
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [size] = words.as_slice() {
        let measured = measure(size.parse()?)?;
        println!("{measured}");
        return Ok(());
    }
    let mut all = Vec::new();
    for size in SIZES {
        let output = Command::new(std::env::current_exe()?)
            .arg(size.to_string())
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let measured: Value = serde_json::from_slice(&output.stdout)?;
        println!("{size} sandboxes in {} pools", size / PER_POOL);
        for (name, what) in TIMES {
            let nanos = measured[name].as_u64().unwrap_or_default();
            println!("  {what:<42} {:>10}", human(Duration::from_nanos(nanos)));
        }
        let bytes = measured["bytes"].as_u64().unwrap_or_default();
        println!("  {:<42} {bytes:>8} B", "memory for each sandbox");
        all.push(measured);
    }
    let ratio = |name: &str| {
        let of = |n: usize| all[n][name].as_f64().unwrap_or(f64::NAN);
        of(1) / of(0)
    };
    for (name, what) in TIMES {
        verdict(
            &format!("{what}, 10,000 / 1,000"),
            ratio(name),
            Target::AtMost(1.5),
        );
    }
    verdict(
        "memory for each, 10,000 / 1,000",
        ratio("bytes"),
        Target::AtMost(1.2),
    );
    Ok(())
}

const TIMES: [(&str, &str); 4] = [
    ("made", "made and started, each"),
    ("reconciled", "reconciled after a change, each"),
    ("claimed", "claimed and made ready, each"),
    ("looked", "looked at by the sweep, each"),
];

struct World {
    store: Arc<MemoryStore>,
    control: Control,
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
}

fn measure(size: usize) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()?;
    runtime.block_on(async {
        let tasks = Tasks::default();
        let world = World::start(&tasks).await?;
        let before = resident_bytes("self")?;
        let begun = at_work();
        world.fill(size).await?;
        let made = at_work() - begun;
        world.rest().await;
        let bytes = resident_bytes("self")?.saturating_sub(before) / size as u64;
        let mut reconciled = Duration::MAX;
        let mut claimed = Duration::MAX;
        for round in 0..ROUNDS {
            reconciled = reconciled.min(world.touch(round).await?);
            claimed = claimed.min(world.claim_some().await?);
        }
        let looked = world.sweep().await;
        let nanos = |took: Duration, of: usize| took.as_nanos() as u64 / of as u64;
        Ok(json!({
            "made": nanos(made, size),
            "reconciled": nanos(reconciled, CLAIMS),
            "claimed": nanos(claimed, CLAIMS),
            "looked": nanos(looked, size),
            "bytes": bytes,
        }))
    })
}

impl World {
    async fn start(tasks: &Tasks) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let entropy = Arc::new(Entropy::from_os());
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Arc::clone(&entropy)));
        let shared: Arc<dyn Store> = store.clone();
        let events = StoredEvents::start(Arc::clone(&shared), Arc::clone(&clock), tasks);
        let runtime = Arc::new(FakeRuntime::new(tasks.child()));
        let options = Options {
            // Looked at by itself.
            sweep_every: Duration::from_secs(3600),
            ..Options::default()
        };
        let control = Builder::new(shared, runtime, Arc::clone(&clock), Arc::clone(&entropy))
            .events(Arc::new(events))
            .options(options)
            .start(tasks, tokio::time::Instant::now() + Duration::from_secs(60))
            .await?;
        Ok(Self {
            store,
            control,
            clock,
            entropy,
        })
    }

    /// Makes the pools and waits until all members are idle.
    async fn fill(&self, size: usize) -> Result<()> {
        let template: SandboxTemplate = Object::new(
            Metadata::new(None, Name::new("base")?),
            serde_json::from_value(json!({"image": "base"}))?,
        );
        self.store.create_object(&template).await?;
        let members = PER_POOL as u32;
        for n in 0..size / PER_POOL {
            let mut spec = PoolSpec::new(Name::new("base")?, members, members, members);
            spec.recycle_policy = RecyclePolicy::Recycle;
            let pool: SandboxPool = Object::new(
                Metadata::new(Some(team()?), Name::new(format!("pool-{n}"))?),
                spec,
            );
            self.store.create_object(&pool).await?;
        }
        self.until(|| self.idle() == size).await
    }

    fn idle(&self) -> usize {
        let sandboxes = &self.control.caches().sandboxes;
        sandboxes.find_by(SandboxIndex::Phase, "Idle").len()
    }

    /// Waits until nothing is left to do.
    async fn rest(&self) {
        while self.control.is_busy(Duration::from_millis(200)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until(&self, done: impl Fn() -> bool) -> Result<()> {
        for _ in 0..12_000 {
            if done() {
                return Ok(());
            }
            // A look is work, too.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("it took far too long".into())
    }

    /// Changes some sandboxes of a few pools at once, and waits until each was looked at.
    async fn touch(&self, round: usize) -> Result<Duration> {
        let all = self.control.caches().sandboxes.find_all();
        let some: Vec<_> = all.iter().take(CLAIMS).collect();
        let begun = at_work();
        let mut keys = Vec::new();
        for sandbox in some {
            let mut next = Sandbox::clone(sandbox);
            next.spec.metadata.insert("round", round.to_string());
            let written = self.store.update_spec(&next).await?;
            keys.push((written.key(), written.metadata.generation));
        }
        let sandboxes = &self.control.caches().sandboxes;
        let seen = |(key, generation): &(Key, model::Generation)| {
            sandboxes
                .find(key)
                .is_some_and(|s| s.status.observed_generation >= *generation)
        };
        self.until(|| keys.iter().all(seen)).await?;
        let took = at_work() - begun;
        self.rest().await;
        Ok(took)
    }

    /// Claims some members, from a few pools in turns, and waits until all are ready; then gives all of
    /// them back.
    async fn claim_some(&self) -> Result<Duration> {
        let caches = self.control.caches();
        let pools = caches.pools.find_all();
        let begun = at_work();
        let mut taken = Vec::new();
        for n in 0..CLAIMS {
            let pool = pools[n % CLAIMED].key();
            taken.push(self.claim(&pool).await?);
        }
        let ready = |key: &Key| {
            let found = caches.sandboxes.find(key);
            found.is_some_and(|s| s.status.armed_epoch == s.spec.epoch)
        };
        self.until(|| taken.iter().all(ready)).await?;
        let took = at_work() - begun;
        for key in &taken {
            let Some(member) = caches.sandboxes.find(key) else {
                return Err("a claimed member is gone".into());
            };
            let ending = Ending::by_owner(self.now());
            self.store.update_spec(&released(&member, ending)).await?;
        }
        let size = caches.sandboxes.find_all().len();
        self.until(|| self.idle() == size).await?;
        self.rest().await;
        Ok(took)
    }

    async fn claim(&self, pool: &Key) -> Result<Key> {
        let owner = Owner {
            team: team()?,
            user: None,
            key: None,
        };
        let id = SandboxId::from_random(self.entropy.u128());
        let delivery = Delivery::new(owner, id);
        let ask = Ask {
            store: &*self.store,
            pool,
            tenant: "",
            wait: Wait::Until(tokio::time::Instant::now() + Duration::from_secs(60)),
        };
        let now = self.now();
        let desk = self.control.desk();
        let write = |member: &Sandbox| claimed(member, &delivery, now);
        let member = desk.claim(ask, write, std::future::pending()).await?;
        Ok(member.key())
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }

    /// The best of several sweeps.
    async fn sweep(&self) -> Duration {
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let begun = at_work();
            self.control.sweep().await;
            best = best.min(at_work() - begun);
        }
        best
    }
}

fn team() -> Result<Namespace> {
    Ok(Namespace::new("team")?)
}

/// How long the threads of this process were at work.
fn at_work() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (spent.tv_sec, spent.tv_nsec);
    Duration::new(
        u64::try_from(seconds).unwrap_or(0),
        u32::try_from(nanos).unwrap_or(0),
    )
}
