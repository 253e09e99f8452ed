//! Plugins as the control loop asks and tells them.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use control::{Builder, Control};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Sandbox, SandboxClaim, SandboxPool, SandboxTemplate,
    claim::{ClaimPhase, ClaimSpec},
    pool::PoolSpec,
    template::TemplateSpec,
};
use parking_lot::Mutex;
use plugins::{Admission, Creation, Plugin, Plugins, Purpose};
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
}

impl Door {
    fn take(left: &Mutex<u32>, wanted: u32) -> Admission {
        let mut left = left.lock();
        let admitted = wanted.min(*left);
        *left -= admitted;
        Admission::some(admitted, "no more today", Duration::from_secs(60))
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
            Purpose::Request => ("request", &self.members),
        };
        self.asked.lock().push(format!("{word} {}", wanted.count));
        Self::take(left, wanted.count)
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

impl World {
    async fn pool(&self, min_idle: u32) -> SandboxPool {
        let pool = SandboxPool::new(meta("pool"), PoolSpec::new(name("base"), min_idle, 8, 8));
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
        let _ = self.control.is_busy(Duration::ZERO);
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
