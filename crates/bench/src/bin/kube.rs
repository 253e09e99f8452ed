//! The store on custom resources, against the API server of `KUBECONFIG`, or without one the stand-in:
//! what a claim costs beside one raw update of a custom resource through the same server, in turns, for
//! one caller and for many; how many requests each step of a sandbox's life takes; and what ten thousand
//! Sandbox objects cost whoever has to know them all.
//!
//! The raw update is of a Sandbox as large as one that is claimed, in an API group that no control loop
//! watches. Both groups are its own (`bench.dormouse.dev`): it installs the definitions, and removes them
//! with all that they hold when it ends. Sandboxes are those of the runtime that costs nothing.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Result, Samples, Target, human, verdict};
use cache::{SandboxCache, SandboxIndex};
use claims::{Ask, Wait};
use cluster_kube::{Cluster, ClusterError};
use control::{Builder, Control, Options, events::StoredEvents};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{
    Key, Metadata, Name, Namespace, Object, Sandbox, SandboxId, SandboxPool, SandboxTemplate,
    Spec as _, Timestamp,
    lifecycle::Phase,
    pool::{PoolSpec, RecyclePolicy},
    sandbox::{DesiredState, Owner, SandboxSpec},
};
use plan::claim::{Delivery, Ending, claimed, released};
use runtime::fake::FakeRuntime;
use serde_json::json;
use standin_kube::Standin;
use store::{Change, Half, Query, Store, StoreError, StoreExt as _};
use store_kube::{KubeStore, crds};

const GROUP: &str = "bench.dormouse.dev";
/// The same kinds where nobody looks: for the raw updates.
const RAW: &str = "raw.bench.dormouse.dev";
const CALLERS: [usize; 3] = [1, 16, 64];
/// Claims of each number of callers.
const CLAIMS: usize = 320;
const MEMBERS: usize = 64;
const MANY: usize = 10_000;
/// Requests at once where many objects are written.
const IN_FLIGHT: usize = 32;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let place = Place::find().await?;
        let cluster = place.connect().await?;
        let ours: Vec<_> = [GROUP, RAW].into_iter().flat_map(crds::in_group).collect();
        crds::install_all(&cluster, &ours).await?;
        let measured = measure(&place, &cluster).await;
        let_go(&cluster).await?;
        crds::remove_all(&cluster, &ours).await?;
        measured
    })
}

/// The cluster of the environment, or where there is none the stand-in: what it shows is that all of
/// this works, and how many requests it takes.
struct Place {
    kubeconfig: Option<tempfile::NamedTempFile>,
    _standin: Option<Standin>,
}

impl Place {
    async fn find() -> Result<Self> {
        match Cluster::connect(None).await {
            Ok(_) => Ok(Self {
                kubeconfig: None,
                _standin: None,
            }),
            Err(ClusterError::NoConfig(_)) => {
                println!("no KUBECONFIG: this is the stand-in, whose times say little");
                let options = standin_kube::Options {
                    kubelet: false,
                    ..standin_kube::Options::default()
                };
                let standin = Standin::start(options).await?;
                let mut kubeconfig = tempfile::NamedTempFile::new()?;
                kubeconfig.write_all(standin.kubeconfig().as_bytes())?;
                Ok(Self {
                    kubeconfig: Some(kubeconfig),
                    _standin: Some(standin),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn connect(&self) -> Result<Cluster> {
        let path = self.kubeconfig.as_ref().map(tempfile::NamedTempFile::path);
        Ok(Cluster::connect(path).await?)
    }
}

/// Takes the finalizers off what is left: no control loop is there to do it. What the last one had on
/// its way may still arrive meanwhile, so who lost against it looks again.
async fn let_go(cluster: &Cluster) -> Result<()> {
    let store = KubeStore::of_group(cluster.clone(), GROUP);
    for kind in model::kinds::stored().map(|info| info.kind) {
        loop {
            let left = store.list(&Query::kind(kind)).await?.records;
            let held = left.iter().filter(|r| !r.meta.finalizers.is_empty());
            let freed: Vec<_> = stream::iter(held)
                .map(|record| {
                    let mut meta = Box::new(record.meta.clone());
                    meta.finalizers.clear();
                    let spec = Arc::clone(&record.spec);
                    store.update(Change {
                        key: record.key(),
                        uid: record.meta.uid,
                        expected: record.version(),
                        half: Half::Spec { meta, spec },
                        fields: record.fields.clone(),
                    })
                })
                .buffer_unordered(IN_FLIGHT)
                .collect()
                .await;
            if freed.is_empty() {
                break;
            }
            for result in freed {
                match result {
                    Ok(_) | Err(StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}

async fn measure(place: &Place, cluster: &Cluster) -> Result<()> {
    let tasks = Tasks::default();
    let world = World::start(place, cluster, &tasks).await?;
    for callers in CALLERS {
        world.claims(callers).await?;
    }
    world.one_life().await?;
    tasks.drain(Duration::from_secs(30)).await.ok();
    many(cluster).await
}

struct World {
    control: Control,
    caller: KubeStore,
    callers: Cluster,
    behind: Cluster,
    entropy: Arc<Entropy>,
    clock: Arc<dyn Clock>,
}

fn team() -> Result<Namespace> {
    Ok(Namespace::new("bench")?)
}

fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(120)
}

impl World {
    async fn start(place: &Place, callers: &Cluster, tasks: &Tasks) -> Result<Self> {
        let behind = place.connect().await?;
        let store = KubeStore::of_group(behind.clone(), GROUP);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let entropy = Arc::new(Entropy::from_os());
        let template: SandboxTemplate = Object::new(
            Metadata::new(None, Name::new("base")?),
            serde_json::from_value(json!({"image": "base"}))?,
        );
        store.create_object(&template).await?;
        let members = MEMBERS as u32;
        let mut spec = PoolSpec::new(Name::new("base")?, members, members, members);
        spec.recycle_policy = RecyclePolicy::Recycle;
        let metadata = Metadata::new(Some(team()?), Name::new("warm")?);
        let pool: SandboxPool = Object::new(metadata, spec);
        store.create_object(&pool).await?;
        let shared: Arc<dyn Store> = Arc::new(store.background());
        let events = StoredEvents::start(Arc::clone(&shared), Arc::clone(&clock), tasks);
        let runtime = Arc::new(FakeRuntime::new(tasks.child()));
        let begun = Instant::now();
        let control = Builder::new(shared, runtime, Arc::clone(&clock), Arc::clone(&entropy))
            .events(Arc::new(events))
            .options(Options::default())
            .start(tasks, soon())
            .await?;
        println!("control is ready after {}", human(begun.elapsed()));
        let world = Self {
            control,
            caller: KubeStore::of_group(callers.clone(), GROUP),
            callers: callers.clone(),
            behind,
            entropy,
            clock,
        };
        world.all_idle().await?;
        println!("{MEMBERS} members idle after {}", human(begun.elapsed()));
        Ok(world)
    }

    fn sandboxes(&self) -> &SandboxCache {
        &self.control.caches().sandboxes
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }

    async fn all_idle(&self) -> Result<()> {
        let begun = Instant::now();
        while self.sandboxes().find_by(SandboxIndex::Phase, "Idle").len() < MEMBERS {
            if begun.elapsed() > Duration::from_secs(120) {
                return Err("the members are not idle in time".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn claim(&self) -> Result<Sandbox> {
        let owner = Owner {
            team: team()?,
            user: None,
            key: None,
        };
        let delivery = Delivery::new(owner, SandboxId::from_random(self.entropy.u128()));
        let pool = Key::namespaced(PoolSpec::KIND, team()?, Name::new("warm")?);
        let ask = Ask {
            store: &self.caller,
            pool: &pool,
            tenant: "",
            wait: Wait::Until(soon()),
        };
        let now = self.now();
        let write = |member: &Sandbox| claimed(member, &delivery, now);
        let desk = self.control.desk();
        Ok(desk.claim(ask, write, std::future::pending()).await?)
    }

    async fn ready(&self, key: &Key) -> Result<Arc<Sandbox>> {
        let is = |s: Option<&Sandbox>| s.is_some_and(|s| s.status.armed_epoch == s.spec.epoch);
        let found = self.sandboxes().wait_for(key, is, soon()).await?;
        found.ok_or_else(|| "a claimed member is gone".into())
    }

    async fn give_back(&self, key: &Key) -> Result<()> {
        loop {
            let Some(now) = self.sandboxes().find(key) else {
                return Err("a claimed member is gone".into());
            };
            let ending = Ending::by_owner(self.now());
            match self.caller.update_spec(&released(&now, ending)).await {
                Ok(_) => return Ok(()),
                // Control was still writing of it.
                Err(store::StoreError::Conflict { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn latest(&self, key: &Key) -> Result<Sandbox> {
        let found = self.sandboxes().find(key);
        Ok(Sandbox::clone(&*found.ok_or("a claimed member is gone")?))
    }

    /// Waits until control has nothing left to do.
    async fn rest(&self) {
        while self.control.is_busy(Duration::from_millis(200)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Claims by so many callers at once, and raw updates of as many objects, in turns.
    async fn claims(&self, callers: usize) -> Result<()> {
        let [mut raw, mut claim, mut ready] = std::array::from_fn(|_| Samples::default());
        let raw_store = KubeStore::of_group(self.callers.clone(), RAW);
        let members = self.sandboxes().find_by(SandboxIndex::Phase, "Idle");
        let mut plain: Vec<Sandbox> = Vec::new();
        for (n, member) in members.iter().take(callers).enumerate() {
            let mut same = Sandbox::clone(member);
            same.metadata.name = Name::new(format!("plain-{callers}-{n}"))?;
            same.metadata.owner_references.clear();
            same.metadata.finalizers.clear();
            plain.push(raw_store.create_object(&same).await?);
        }
        for round in 0..CLAIMS / callers {
            let updates = plain.iter_mut().map(async |record| {
                record.spec.env.insert("ROUND", round.to_string());
                let begun = Instant::now();
                *record = raw_store.update_spec(&*record).await?;
                Ok::<_, store::StoreError>(begun.elapsed())
            });
            for took in futures_util::future::try_join_all(updates).await? {
                raw.record(took);
            }
            let claims = (0..callers).map(async |_| {
                let begun = Instant::now();
                let sandbox = self.claim().await?;
                let written = begun.elapsed();
                let sandbox = self.ready(&sandbox.key()).await?;
                let took = (written, begun.elapsed());
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>((took, sandbox))
            });
            let mut taken = Vec::new();
            for ((written, made_ready), sandbox) in
                futures_util::future::try_join_all(claims).await?
            {
                claim.record(written);
                ready.record(made_ready);
                taken.push(sandbox);
            }
            for sandbox in &taken {
                self.give_back(&sandbox.key()).await?;
            }
            self.all_idle().await?;
        }
        raw.print(&format!("{callers} callers: one raw update"));
        claim.print(&format!("{callers} callers: a claim, written"));
        ready.print(&format!("{callers} callers: a claim, ready"));
        let ratio = claim.quantile(0.5).as_secs_f64() / raw.quantile(0.5).as_secs_f64();
        verdict(
            &format!("{callers} callers: claim / raw update, p50"),
            ratio,
            Target::AtMost(2.0),
        );
        for record in &plain {
            raw_store.delete_object(record).await?;
        }
        Ok(())
    }

    /// The requests of each step of one sandbox's life, of who asks and of control.
    async fn one_life(&self) -> Result<()> {
        self.rest().await;
        let mut total = 0;
        let begun = self.behind.tally();
        let mut at = (self.callers.tally(), self.behind.tally());
        let mut say = |what: &str| {
            let now = (self.callers.tally(), self.behind.tally());
            let asked = now.0.since(&at.0);
            let behind = now.1.since(&at.1);
            println!(
                "{what:<10} writes on the caller's path {}, of control {} on sandboxes",
                asked.all_writes(),
                behind.writes("sandboxes"),
            );
            total += asked.all_writes();
            at = now;
            asked.all_writes()
        };
        let sandbox = self.claim().await?;
        self.ready(&sandbox.key()).await?;
        self.rest().await;
        let mut now = self.latest(&sandbox.key())?;
        let mut most = say("claim");
        for (what, state, phase) in [
            ("pause", DesiredState::Paused, Phase::Paused),
            ("resume", DesiredState::Running, Phase::Running),
        ] {
            now.spec.desired_state = state;
            self.caller.update_spec(&now).await?;
            let there = |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == phase);
            self.sandboxes().wait_for(&now.key(), there, soon()).await?;
            self.rest().await;
            now = self.latest(&now.key())?;
            most = most.max(say(what));
        }
        self.give_back(&now.key()).await?;
        self.all_idle().await?;
        self.rest().await;
        most = most.max(say("release"));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let all = self.behind.tally().since(&begun);
        println!(
            "a life in all: {total} writes of callers, {} of control ({} on sandboxes, {} on events, {} on pools)",
            all.all_writes(),
            all.writes("sandboxes"),
            all.writes("sandboxevents"),
            all.writes("sandboxpools"),
        );
        verdict(
            "writes on the caller's path, the most",
            most as f64,
            Target::AtMost(1.0),
        );
        Ok(())
    }
}

/// Ten thousand sandboxes: what a cache of them takes, how long one that starts needs, how fast a loop
/// that starts has looked at all.
async fn many(cluster: &Cluster) -> Result<()> {
    let store = KubeStore::of_group(cluster.clone(), GROUP);
    let begun = Instant::now();
    let numbers = stream::iter(0..MANY);
    numbers
        .map(|n| {
            let store = store.clone();
            async move {
                let metadata = Metadata::new(Some(team()?), Name::new(format!("many-{n}"))?);
                let spec = SandboxSpec {
                    template: Name::new("base").ok(),
                    // Asleep from the start: nothing is asked of a runtime.
                    desired_state: DesiredState::Paused,
                    owner: Some(Owner {
                        team: team()?,
                        user: None,
                        key: None,
                    }),
                    sandbox_id: Some(SandboxId::new(format!("many-{n}"))?),
                    epoch: model::Epoch(1),
                    ..SandboxSpec::default()
                };
                let sandbox: Sandbox = Object::new(metadata, spec);
                store.create_object(&sandbox).await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<()>>()
        .await?;
    let rate = MANY as f64 / begun.elapsed().as_secs_f64();
    println!("{MANY} sandboxes made, {rate:.0} a second");

    let tasks = Tasks::default();
    let before = resident()?;
    let begun = Instant::now();
    let options = cache::Options::new(Arc::new(Entropy::from_os()));
    let cache = SandboxCache::start(Arc::new(store.clone()), options, soon(), &tasks).await?;
    let took = begun.elapsed();
    let each = resident()?.saturating_sub(before) / cache.find_all().len().max(1);
    println!(
        "a cache of {} is in sync after {}, {each} B each",
        cache.find_all().len(),
        human(took)
    );
    drop(cache);
    tasks.drain(Duration::from_secs(10)).await.ok();

    let tasks = Tasks::default();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    let shared: Arc<dyn Store> = Arc::new(store.background());
    let runtime = Arc::new(FakeRuntime::new(tasks.child()));
    let begun = Instant::now();
    let control = Builder::new(shared, runtime, clock, entropy)
        .start(&tasks, soon())
        .await?;
    println!(
        "control over them is ready after {}",
        human(begun.elapsed())
    );
    let begun = Instant::now();
    let seen = || {
        let all = control.caches().sandboxes.find_all();
        let observed = |s: &&Arc<Sandbox>| s.status.observed_generation.0 > 0;
        all.iter().filter(observed).count()
    };
    let limit = Duration::from_secs(90);
    while seen() < MANY && begun.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let rate = seen() as f64 / begun.elapsed().as_secs_f64();
    println!("{} of them reconciled, {rate:.0} a second", seen());
    println!("resident with control over them: {} MiB", resident()? >> 20);
    tasks.drain(Duration::from_secs(30)).await.ok();
    Ok(())
}

/// Bytes of this process that are in memory.
fn resident() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("the kernel does not say how much memory is used")?
        .parse()?;
    Ok(kib << 10)
}
