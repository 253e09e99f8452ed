//! Plugins as the control loop asks and tells them.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use control::{Builder, Control};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Sandbox, SandboxClaim, SandboxPool, SandboxTemplate,
    Version,
    claim::{ClaimPhase, ClaimSpec},
    pool::PoolSpec,
    sandbox::Resources,
    template::TemplateSpec,
};
use parking_lot::Mutex;
use plugins::{Admission, Creation, Hold, PATIENCE, Plugin, Plugins, Purpose};
use runtime::fake::FakeRuntime;
use store::{StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

/// Admits a few of each purpose, and writes down what it is told.
#[derive(Debug, Default)]
struct Door {
    members: Mutex<u32>,
    claims: Mutex<u32>,
    asked: Mutex<Vec<String>>,
    told: Mutex<Vec<String>>,
    slips: Arc<Mutex<Vec<&'static str>>>,
    /// The largest that it gives away.
    most_memory: Mutex<Option<u32>>,
    /// Whether it takes too long to answer.
    is_slow: AtomicBool,
}

/// Writes down what became of what was set aside.
#[derive(Debug)]
struct Slip {
    log: Arc<Mutex<Vec<&'static str>>>,
    end: &'static str,
}

impl Hold for Slip {
    fn written(mut self: Box<Self>, _: Version) {
        self.end = "written";
    }
}

impl Drop for Slip {
    fn drop(&mut self) {
        self.log.lock().push(self.end);
    }
}

impl Door {
    fn take(left: &Mutex<u32>, wanted: u32) -> Admission {
        let mut left = left.lock();
        let admitted = wanted.min(*left);
        *left -= admitted;
        Admission::some(admitted, "no more today", Duration::from_secs(60))
    }

    fn slips(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.slips.lock())
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock())
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock())
    }
}

#[async_trait]
impl Plugin for Door {
    fn name(&self) -> &'static str {
        "door"
    }

    async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
        let (word, left) = match wanted.purpose {
            Purpose::Member { .. } => ("members", &self.members),
            Purpose::Claim { .. } => ("claim", &self.claims),
            Purpose::Request
            | Purpose::Applied
            | Purpose::Changed
            | Purpose::Promised
            | Purpose::Woken => ("request", &self.members),
        };
        let memory = wanted.spec.resources.and_then(|it| it.memory_mib);
        let size = memory.map_or(String::new(), |memory| format!(" of {memory}"));
        let asked = format!("{word} {}{size}", wanted.count);
        self.asked.lock().push(asked);
        if self.is_slow.load(Ordering::Relaxed) {
            tokio::time::sleep(2 * PATIENCE).await;
        }
        let most = *self.most_memory.lock();
        if word == "claim" && most.is_some_and(|most| memory > Some(most)) {
            return Admission::some(0, "too large", Duration::from_secs(60));
        }
        let mut answer = Self::take(left, wanted.count);
        answer.holds.extend((0..answer.admitted).map(|_| {
            Box::new(Slip {
                log: Arc::clone(&self.slips),
                end: "given back",
            }) as Box<dyn Hold>
        }));
        answer
    }

    async fn on_ready(&self, sandbox: &Sandbox) {
        let word = format!("ready {}", sandbox.spec.epoch.0);
        self.told.lock().push(word);
    }

    async fn on_release(&self, sandbox: &Sandbox) {
        let word = format!("released {}", sandbox.spec.epoch.0);
        self.told.lock().push(word);
    }
}

struct World {
    store: Arc<MemoryStore>,
    control: Control,
    door: Arc<Door>,
}

async fn world(members: u32, claims: u32) -> World {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::starting_at(1_000_000_000));
    let entropy = Arc::new(Entropy::seeded(1));
    let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Arc::clone(&entropy)));
    let tasks = Tasks::default();
    let runtime = Arc::new(FakeRuntime::new(tasks.child()));
    let spec = TemplateSpec {
        image: "base".into(),
        ..TemplateSpec::default()
    };
    let template: SandboxTemplate = Object::new(Metadata::new(None, name("base")), spec);
    store.create_object(&template).await.unwrap();
    let door = Arc::new(Door {
        members: Mutex::new(members),
        claims: Mutex::new(claims),
        ..Door::default()
    });
    let plugins = Plugins::new(vec![Arc::clone(&door) as Arc<dyn Plugin>]);
    let deadline = Instant::now() + Duration::from_secs(10);
    let control = Builder::new(store.clone(), runtime, clock, entropy)
        .start_with(&tasks, deadline, |_| plugins)
        .await
        .unwrap();
    World {
        store,
        control,
        door,
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn meta(text: &str) -> Metadata {
    Metadata::new(Some(Namespace::new("team").unwrap()), name(text))
}

fn mebibytes(memory: u32) -> Resources {
    Resources {
        cpu_millis: None,
        memory_mib: Some(memory),
        disk_mib: None,
    }
}

impl World {
    async fn pool(&self, min_idle: u32) -> SandboxPool {
        self.pool_of(min_idle, None).await
    }

    async fn pool_of(&self, min_idle: u32, memory: Option<u32>) -> SandboxPool {
        let spec = PoolSpec {
            resources: memory.map(mebibytes),
            ..PoolSpec::new(name("base"), min_idle, 8, 8)
        };
        let pool = SandboxPool::new(meta("pool"), spec);
        self.store.create_object(&pool).await.unwrap()
    }

    async fn claim(&self, count: u32) -> SandboxClaim {
        let spec = ClaimSpec {
            count,
            timeout_seconds: 600,
            ..ClaimSpec::new(name("pool"))
        };
        let claim = SandboxClaim::new(meta("claim"), spec);
        self.store.create_object(&claim).await.unwrap()
    }

    async fn found<S: model::Spec>(&self, object: &Object<S>) -> Object<S> {
        self.store.find(&object.key()).await.unwrap().unwrap()
    }

    /// Lets what is due within a while happen.
    async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert!(!self.control.is_busy(Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_makes_what_is_admitted_and_asks_again_when_it_was_told_to() {
    let world = world(2, 0).await;
    let pool = world.pool(5).await;
    world.pass(5).await;
    let status = world.found(&pool).await.status;
    assert_eq!(status.idle, 2);
    assert_eq!(
        &*status.why,
        "door admits 0 of 3 new members: no more today"
    );
    let said = status.conditions.iter().find(|c| &*c.kind == "Admitted");
    assert_eq!(&*said.unwrap().message, "door: no more today");
    assert_eq!(world.door.asked(), ["members 5"]);
    assert_eq!(world.door.slips(), ["written"; 2]);
    // Not before the time that it named, though members come and go.
    world.pass(40).await;
    assert_eq!(world.door.asked(), [""; 0]);
    *world.door.members.lock() = 9;
    world.pass(30).await;
    assert_eq!(world.door.asked(), ["members 3"]);
    let status = world.found(&pool).await.status;
    assert_eq!((status.idle, &*status.why), (5, ""));
    // A change of what is wanted asks at once.
    *world.door.members.lock() = 0;
    let mut wider = world.found(&pool).await;
    wider.spec.min_idle = 6;
    let wider = world.store.update_spec(&wider).await.unwrap();
    world.pass(1).await;
    assert_eq!(world.door.asked(), ["members 1"]);
    let mut widest = world.found(&wider).await;
    widest.spec.min_idle = 7;
    world.store.update_spec(&widest).await.unwrap();
    world.pass(1).await;
    assert_eq!(world.door.asked(), ["members 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_takes_what_is_admitted_and_plugins_hear_of_deliveries() {
    let world = world(99, 6).await;
    world.pool(8).await;
    world.pass(5).await;
    world.door.asked();
    let claim = world.claim(8).await;
    world.pass(5).await;
    let status = world.found(&claim).await.status;
    assert_eq!((status.bound.len(), &*status.reason), (6, "Limited"));
    assert_eq!(world.door.asked()[..1], ["claim 8"]);
    assert_eq!(world.door.told(), ["ready 1"; 6]);
    *world.door.claims.lock() = 99;
    world.pass(70).await;
    let status = world.found(&claim).await.status;
    assert_eq!(
        (status.phase, status.bound.len()),
        (ClaimPhase::Completed, 8)
    );
    assert_eq!(world.door.told(), ["ready 1"; 2]);
    let key = model::Key::namespaced(
        model::KindName("Sandbox"),
        Namespace::new("team").unwrap(),
        status.bound[0].clone(),
    );
    let member: Sandbox = world.store.find(&key).await.unwrap().unwrap();
    world.store.delete_object(&member).await.unwrap();
    world.pass(5).await;
    assert_eq!(world.door.told(), ["released 1"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_is_asked_again_after_a_pause_and_not_at_once() {
    let world = world(9, 9).await;
    let pool = world.pool(1).await;
    world.pass(5).await;
    world.door.asked();
    world.door.is_slow.store(true, Ordering::Relaxed);
    let mut wider = world.found(&pool).await;
    wider.spec.min_idle = 3;
    world.store.update_spec(&wider).await.unwrap();
    let claim = world.claim(1).await;
    world.pass(PATIENCE.as_secs() + 8).await;
    let mut asked = world.door.asked();
    asked.sort();
    assert_eq!(asked, ["claim 1", "members 2"]);
    world.door.is_slow.store(false, Ordering::Relaxed);
    world.pass(PATIENCE.as_secs()).await;
    let status = world.found(&claim).await.status;
    assert_eq!(status.phase, ClaimPhase::Completed);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_for_members_of_a_pool_that_does_not_exist() {
    let world = world(9, 9).await;
    let claim = world.claim(2).await;
    world.pass(5).await;
    assert_eq!(&*world.found(&claim).await.status.reason, "NoSuchPool");
    assert_eq!(world.door.asked(), [""; 0]);
    world.pool_of(2, Some(512)).await;
    world.pass(5).await;
    let status = world.found(&claim).await.status;
    assert_eq!(
        (status.phase, status.bound.len()),
        (ClaimPhase::Completed, 2)
    );
    let asked = world.door.asked();
    assert!(asked.contains(&"claim 2 of 512".to_owned()), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_counts_as_the_member_it_takes_not_as_those_the_pool_would_make_now() {
    for (most, bound, ends) in [
        (Some(1024), 0, &["given back"][..]),
        (None, 1, &["given back", "written"]),
    ] {
        let world = world(2, 9).await;
        let pool = world.pool_of(2, Some(2048)).await;
        world.pass(5).await;
        world.door.asked();
        world.door.slips();
        *world.door.most_memory.lock() = most;
        let mut smaller = world.found(&pool).await;
        smaller.spec.resources = Some(mebibytes(512));
        world.store.update_spec(&smaller).await.unwrap();
        let claim = world.claim(1).await;
        world.pass(5).await;
        assert_eq!(world.found(&claim).await.status.bound.len(), bound);
        let mut asked = world.door.asked();
        asked.retain(|asked| asked.starts_with("claim"));
        assert_eq!(asked, ["claim 1 of 512", "claim 1 of 2048"]);
        assert_eq!(world.door.slips(), ends);
        // Those that are as the pool says now are in time for it.
        *world.door.members.lock() = 9;
        world.pass(70).await;
        let status = world.found(&claim).await.status;
        assert_eq!(status.phase, ClaimPhase::Completed);
    }
}
