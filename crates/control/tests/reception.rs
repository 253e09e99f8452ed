//! Sandboxes that came by themselves, as the control loop receives them.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use control::{
    Builder, Reception,
    events::{EventSink, fingerprint},
};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Sandbox, SandboxId, SandboxTemplate,
    event::About,
    lifecycle::{OperationKind, Phase},
    meta::{Condition, ConditionStatus},
    sandbox::{Access, DesiredState, Owner, SandboxSpec},
    template::TemplateSpec,
};
use parking_lot::Mutex;
use plan::Note;
use plugins::{Admission, Creation, Plugin, Plugins, Purpose};
use runtime::fake::FakeRuntime;
use store::{Standing, StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

fn token(id: &SandboxId) -> Option<Box<str>> {
    Some(format!("{:064x}", fingerprint(&[id.as_str()])).into())
}

/// What a store would say of the sandbox of each name; ours are all others.
#[derive(Debug, Default)]
struct Desk(Mutex<BTreeMap<Name, Standing>>);

impl Desk {
    fn says(&self, text: &str, standing: Standing) {
        self.0.lock().insert(name(text), standing);
    }
}

impl Reception for Desk {
    fn standing(&self, sandbox: &Sandbox) -> Standing {
        let said = self.0.lock();
        let said = said.get(&sandbox.metadata.name);
        said.cloned().unwrap_or(Standing::Ours)
    }

    fn access(&self, id: &SandboxId) -> Access {
        Access {
            traffic_token: token(id),
            ..Access::default()
        }
    }
}

/// Remembers why.
#[derive(Debug, Default)]
struct Reasons(Mutex<Vec<&'static str>>);

impl EventSink for Reasons {
    fn record(&self, _: About, note: Note) {
        self.0.lock().push(note.reason);
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
        assert_ne!(wanted.purpose, Purpose::Request);
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
    desk: Arc<Desk>,
    events: Arc<Reasons>,
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
    let (desk, events) = (Arc::<Desk>::default(), Arc::<Reasons>::default());
    let deadline = Instant::now() + Duration::from_secs(10);
    let control = Builder::new(store.clone(), runtime, clock, entropy)
        .reception(desk.clone())
        .events(events.clone())
        .start_with(&tasks, deadline, |_| plugins)
        .await
        .unwrap();
    World {
        store,
        room,
        desk,
        events,
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
    let access = now.spec.access.as_ref().unwrap();
    assert_eq!(
        access.traffic_token,
        token(now.spec.sandbox_id.as_ref().unwrap())
    );
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

fn admitted(sandbox: &Sandbox) -> &Condition {
    let conditions = &sandbox.status.conditions;
    conditions.iter().find(|c| &*c.kind == "Admitted").unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_member_that_its_pool_has_not_made_is_refused() {
    let world = world(1).await;
    let sandbox = applied("one");
    let unproven = Standing::Unproven(vec!["spec.pool".into()]);
    world.desk.says("one", unproven);
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Pending);
    assert!(now.spec.owner.is_none());
    assert_eq!(&*admitted(&now).reason, "Invalid");
    assert!(admitted(&now).message.starts_with("spec.pool"));
}

#[tokio::test(start_paused = true)]
async fn what_lost_its_proof_while_it_ran_is_left_alone_and_says_so() {
    let world = world(1).await;
    let sandbox = applied("one");
    world.apply(&sandbox).await;
    let mut running = world.later(&sandbox, 5).await;
    world.desk.says("one", Standing::Unproven(Vec::new()));
    let id = running.spec.sandbox_id.take();
    running.spec.desired_state = DesiredState::Paused;
    world.store.update_spec(&running).await.unwrap();
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Running);
    assert_eq!(&*admitted(&now).reason, "Unproven");
    assert!(id.is_some() && now.spec.sandbox_id.is_none(), "{id:?}");
    // It can still be ended.
    world.store.delete_object(&now).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let gone: Option<Sandbox> = world.store.find(&sandbox.key()).await.unwrap();
    assert_eq!(gone, None);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_changed_is_written_back_and_told() {
    let world = world(1).await;
    let sandbox = applied("one");
    world.apply(&sandbox).await;
    let running = world.later(&sandbox, 5).await;
    let altered = Standing::Altered(vec!["spec.owner".into()]);
    world.desk.says("one", altered);
    let mut touched = running.clone();
    touched.spec.env.insert("A", "1");
    let touched = world.store.update_spec(&touched).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    world.desk.says("one", Standing::Ours);
    let now = world.later(&sandbox, 5).await;
    assert!(now.version() > touched.version());
    assert_eq!(now.spec, touched.spec);
    assert!(world.events.0.lock().contains(&"ChangeIgnored"));
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
    sandbox.spec.sandbox_id = Some(id);
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn what_another_process_made_is_weighed_before_its_first_step_only() {
    let world = world(0).await;
    let mut sandbox = applied("one");
    sandbox.spec.owner = Some(Owner {
        team: Namespace::new("team").unwrap(),
        user: None,
        key: None,
    });
    sandbox.spec.epoch = model::Epoch(1);
    sandbox.spec.sandbox_id = Some(SandboxId::from_random(7));
    world.desk.says("one", Standing::Made);
    world.apply(&sandbox).await;
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Pending);
    assert_eq!(&*admitted(&now).reason, "Limited");
    *world.room.0.lock() = 1;
    let now = world.later(&sandbox, 60).await;
    assert_eq!(now.status.phase, Phase::Running);
    assert_eq!(admitted(&now).status, ConditionStatus::True);
    // There is no room for it any more, and it needs none.
    let mut touched = now;
    touched.spec.env.insert("A", "1");
    world.store.update_spec(&touched).await.unwrap();
    let now = world.later(&sandbox, 5).await;
    assert_eq!(admitted(&now).status, ConditionStatus::True);
    assert_eq!(*world.room.0.lock(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_to_wake_where_there_is_no_room_stays_asleep_and_says_why() {
    let world = world(1).await;
    let sandbox = applied("one");
    world.apply(&sandbox).await;
    let mut now = world.later(&sandbox, 5).await;
    now.spec.desired_state = DesiredState::Paused;
    world.store.update_spec(&now).await.unwrap();
    let mut now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Paused);
    // As a gateway that traffic comes to.
    now.spec.desired_state = DesiredState::Running;
    world.store.update_spec(&now).await.unwrap();
    let mut now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Paused);
    assert_eq!(now.spec.desired_state, DesiredState::Paused);
    let failed = now.status.last_operation.as_ref().unwrap();
    assert_eq!(failed.kind, OperationKind::Resume);
    assert_eq!(failed.error.as_deref(), Some("room: it is full"));
    *world.room.0.lock() = 1;
    now.spec.desired_state = DesiredState::Running;
    world.store.update_spec(&now).await.unwrap();
    let now = world.later(&sandbox, 5).await;
    assert_eq!(now.status.phase, Phase::Running);
    assert_eq!(*world.room.0.lock(), 0);
}
