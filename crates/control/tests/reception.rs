//! Sandboxes that came by themselves, as the control loop receives them.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use control::{Builder, Reception, events::fingerprint};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Sandbox, SandboxId, SandboxTemplate,
    lifecycle::Phase,
    sandbox::{Access, Owner, SandboxSpec},
    template::TemplateSpec,
};
use parking_lot::Mutex;
use plugins::{Admission, Creation, Plugin, Plugins, Purpose};
use runtime::fake::FakeRuntime;
use store::{StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

/// Ours is what has this for a token.
fn sealed(id: &SandboxId) -> Option<Box<str>> {
    Some(format!("{:064x}", fingerprint(&[id.as_str()])).into())
}

#[derive(Debug)]
struct Desk;

impl Reception for Desk {
    fn is_ours(&self, sandbox: &Sandbox) -> bool {
        let id = sandbox.spec.sandbox_id.as_ref();
        let access = sandbox.spec.access.as_ref();
        id.zip(access)
            .is_some_and(|(id, access)| access.traffic_token == sealed(id))
    }

    fn access(&self, id: &SandboxId) -> Access {
        Access {
            traffic_token: sealed(id),
            ..Access::default()
        }
    }
}

/// Admits as many as there is room for.
#[derive(Debug)]
struct Room(Mutex<u32>);

#[async_trait]
impl Plugin for Room {
    fn name(&self) -> &'static str {
        "room"
    }

    async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
        assert!(matches!(wanted.purpose, Purpose::Applied));
        assert_eq!(wanted.team.as_str(), "team");
        let mut left = self.0.lock();
        let admitted = wanted.count.min(*left);
        *left -= admitted;
        Admission::some(admitted, "it is full", Duration::from_secs(60))
    }
}

struct World {
    store: Arc<MemoryStore>,
    room: Arc<Room>,
    _control: control::Control,
}

async fn world(room: u32) -> World {
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
    let room = Arc::new(Room(Mutex::new(room)));
    let plugins = Plugins::new(vec![Arc::clone(&room) as Arc<dyn Plugin>]);
    let deadline = Instant::now() + Duration::from_secs(10);
    let control = Builder::new(store.clone(), runtime, clock, entropy)
        .reception(Arc::new(Desk))
        .start_with(&tasks, deadline, |_| plugins)
        .await
        .unwrap();
    World {
        store,
        room,
        _control: control,
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn applied(text: &str) -> Sandbox {
    let metadata = Metadata::new(Some(Namespace::new("team").unwrap()), name(text));
    let spec = SandboxSpec {
        template: Some(name("base")),
        ..SandboxSpec::default()
    };
    Sandbox::new(metadata, spec)
}

impl World {
    async fn apply(&self, sandbox: &Sandbox) {
        self.store.create_object(sandbox).await.unwrap();
    }

    /// A sandbox after a while.
    async fn later(&self, sandbox: &Sandbox, seconds: u64) -> Sandbox {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        self.store.find(&sandbox.key()).await.unwrap().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn what_came_by_itself_gets_an_owner_an_id_and_tokens_and_runs() {
    let world = world(1).await;
    let sandbox = applied("one");
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Running);
    assert_eq!(now.spec.owner.as_ref().unwrap().team.as_str(), "team");
    assert!(Desk.is_ours(&now));
    assert!(now.status.conditions.iter().all(|c| &*c.kind != "Admitted"));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_admitted_waits_and_says_so_until_there_is_room() {
    let world = world(0).await;
    let sandbox = applied("one");
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Pending);
    assert!(now.spec.owner.is_none());
    let said = now
        .status
        .conditions
        .iter()
        .find(|c| &*c.kind == "Admitted");
    assert_eq!(&*said.unwrap().message, "room: it is full");
    *world.room.0.lock() = 1;
    // Not before the plugin said.
    let now = world.later(&sandbox, 30).await;
    assert_eq!(now.status.phase, Phase::Pending);
    let now = world.later(&sandbox, 60).await;
    assert_eq!(now.status.phase, Phase::Running);
    let said = now
        .status
        .conditions
        .iter()
        .find(|c| &*c.kind == "Admitted");
    assert_eq!(&*said.unwrap().reason, "Admitted");
}

#[tokio::test(start_paused = true)]
async fn an_owner_and_an_id_in_a_manifest_are_not_believed() {
    let world = world(1).await;
    let mut sandbox = applied("one");
    let forged = SandboxId::from_random(7);
    sandbox.spec.owner = Some(Owner {
        team: Namespace::new("another").unwrap(),
        user: None,
        key: None,
    });
    sandbox.spec.sandbox_id = Some(forged.clone());
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Running);
    assert_eq!(now.spec.owner.as_ref().unwrap().team.as_str(), "team");
    assert_ne!(now.spec.sandbox_id, Some(forged));
}

#[tokio::test(start_paused = true)]
async fn what_breaks_a_rule_is_refused_by_its_field() {
    let world = world(1).await;
    let mut sandbox = applied("one");
    sandbox.spec.images = [("main", "not an image")].into_iter().collect();
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Pending);
    let said = now
        .status
        .conditions
        .iter()
        .find(|c| &*c.kind == "Admitted");
    let said = said.unwrap();
    assert_eq!(&*said.reason, "Invalid");
    assert!(said.message.starts_with("spec.images"), "{}", said.message);
}

#[tokio::test(start_paused = true)]
async fn what_is_ours_is_not_weighed_again() {
    let world = world(0).await;
    let mut sandbox = applied("one");
    let id = SandboxId::from_random(7);
    sandbox.spec.owner = Some(Owner {
        team: Namespace::new("team").unwrap(),
        user: None,
        key: None,
    });
    sandbox.spec.epoch = model::Epoch(1);
    sandbox.spec.access = Some(Box::new(Desk.access(&id)));
    sandbox.spec.sandbox_id = Some(id);
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Running);
}
