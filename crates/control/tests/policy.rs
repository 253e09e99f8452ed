//! Every field of a pause policy, from what a client sends to what the runtime is asked.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::{sync::Arc, time::Duration};

use control::{Builder, Control};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Digest, Metadata, Name, Namespace, Sandbox, SandboxId, SandboxSnapshot, Spec as _, Timestamp,
    Uid,
    hook::Hook,
    kinds::{self, Minting},
    lifecycle::Phase,
    meta::Object,
    sandbox::{DesiredState, NetworkPolicy, SandboxSpec},
    snapshot::SnapshotSpec,
};
use parking_lot::Mutex;
use runtime::{
    Abilities, Arming, Booting, Captured, Facts, Fence, Keeps, Observed, Outfit, Publication,
    Published, Runtime, RuntimeError, WorkloadSpec, fake::FakeRuntime,
};
use store::{StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

/// A runtime that remembers what it was asked.
#[derive(Debug)]
struct Recording {
    inner: FakeRuntime,
    published: Mutex<Vec<(Digest, Publication)>>,
    created: Mutex<Vec<WorkloadSpec>>,
}

#[async_trait::async_trait]
impl Runtime for Recording {
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        self.inner.inspect(uid).await
    }
    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError> {
        self.inner.list().await
    }
    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError> {
        self.created.lock().push(spec.clone());
        self.inner.create(fence, spec).await
    }
    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        self.inner.boot(fence).await
    }
    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        self.inner.arm(fence, arming).await
    }
    async fn run_hooks(&self, fence: Fence, hooks: &[Hook]) -> Result<Booting, RuntimeError> {
        self.inner.run_hooks(fence, hooks).await
    }
    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.inner.freeze(fence).await
    }
    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.inner.thaw(fence).await
    }
    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError> {
        self.inner.swap_images(fence, to).await
    }
    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        self.inner.set_network(fence, policy).await
    }
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }
    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        self.inner.capture(fence, to).await
    }
    async fn publish(&self, layer: &Digest, to: &Publication) -> Result<Box<str>, RuntimeError> {
        self.published.lock().push((layer.clone(), to.clone()));
        self.inner.publish(layer, to).await
    }
    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError> {
        self.inner.reset(fence, to).await
    }
    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.inner.delete(fence).await
    }
}

/// As the API takes it: unknown fields and rules that are broken are told.
fn submitted(spec: &str) -> Sandbox {
    let kind = kinds::ALL
        .iter()
        .find(|kind| kind.kind == SandboxSpec::KIND);
    let team = Namespace::new("team").unwrap();
    let metadata = Metadata::new(Some(team), Name::new("box").unwrap());
    let minting = Minting {
        now: Timestamp::from_micros(1),
        sandbox_id: SandboxId::new("i1").unwrap(),
    };
    let checked = kind.unwrap().check_new(metadata, spec, &minting).unwrap();
    assert!(checked.unknown.is_empty(), "{:?}", checked.unknown);
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    Object::decode(checked.metadata, &checked.spec, &checked.status).unwrap()
}

struct World {
    store: Arc<MemoryStore>,
    runtime: Arc<Recording>,
    control: Control,
    _tasks: Tasks,
}

impl World {
    async fn start() -> Self {
        Self::with(Abilities::ALL).await
    }

    async fn with(abilities: Abilities) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::starting_at(1_000_000_000));
        let entropy = Arc::new(Entropy::seeded(1));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Arc::clone(&entropy)));
        let tasks = Tasks::default();
        let runtime = Arc::new(Recording {
            inner: FakeRuntime::new(tasks.child()).able(abilities),
            published: Mutex::default(),
            created: Mutex::default(),
        });
        let control = Builder::new(store.clone(), runtime.clone(), clock, entropy)
            .start(&tasks, deadline())
            .await
            .unwrap();
        Self {
            store,
            runtime,
            control,
            _tasks: tasks,
        }
    }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test(start_paused = true)]
async fn every_field_of_a_pause_policy_reaches_the_runtime() {
    let World {
        store,
        runtime,
        control,
        ..
    } = World::start().await;
    let sandbox = submitted(
        r#"{"images": {"main": "base"}, "owner": {"team": "team"}, "pausePolicy": {
            "snapshotType": "Freeze", "snapshotRegistry": "r.example/kept",
            "snapshotPushSecretName": "push", "resumeImagePullSecretName": "pull",
            "descendAfter": 5, "wakeFromFilesystem": true}}"#,
    );
    let sandbox = store.create_object(&sandbox).await.unwrap();
    let becomes = async |phase: Phase| {
        let is = move |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == phase);
        let sandboxes = &control.caches().sandboxes;
        let found = sandboxes.wait_for(&sandbox.key(), is, deadline()).await;
        found.unwrap().unwrap()
    };
    let wants = async |state| {
        let mut next: Sandbox = store.find(&sandbox.key()).await.unwrap().unwrap();
        next.spec.desired_state = state;
        store.update_spec(&next).await.unwrap();
    };
    becomes(Phase::Running).await;
    wants(DesiredState::Paused).await;
    becomes(Phase::Paused).await;
    // Frozen first; it descends to its files when its time has come.
    let kept = |s: Option<&Sandbox>| s.is_some_and(|s| s.status.snapshot.is_some());
    let sandboxes = &control.caches().sandboxes;
    let asleep = sandboxes.wait_for(&sandbox.key(), kept, deadline()).await;
    let asleep = asleep.unwrap().unwrap();
    let layer = asleep.status.snapshot.clone().unwrap();
    let image = asleep.status.snapshot_image.clone().unwrap();
    assert_ne!(asleep.status.snapshot_size, 0);
    let expected = Publication {
        registry: "r.example/kept".into(),
        secret: Name::new("push").ok(),
        parent: None,
    };
    assert_eq!(*runtime.published.lock(), [(layer.clone(), expected)]);
    let policy = asleep.spec.pause_policy.as_ref().unwrap();
    assert_eq!(policy.descend_after, Some(5), "it has descended");
    assert!(policy.wake_from_filesystem, "read by whoever wakes it");

    wants(DesiredState::Running).await;
    let awake = becomes(Phase::Running).await;
    let created = runtime.created.lock().last().cloned().unwrap();
    assert_eq!(created.from, Some(layer));
    let published = Published {
        image,
        secret: Name::new("pull").ok(),
    };
    assert_eq!(created.published.as_deref(), Some(&published));
    assert_eq!(
        awake.status.snapshot_image, None,
        "it goes on from its own files"
    );
}

#[tokio::test(start_paused = true)]
async fn what_starts_from_a_published_snapshot_is_told_where_its_layer_is() {
    let world = World::start().await;
    let (store, caches) = (&world.store, world.control.caches());
    let source = submitted(
        r#"{"images": {"main": "base"}, "owner": {"team": "team"}, "pausePolicy": {
            "snapshotPushSecretName": "push", "snapshotRegistry": "r.example/own",
            "resumeImagePullSecretName": "pull"}}"#,
    );
    store.create_object(&source).await.unwrap();
    let team = source.metadata.namespace.clone();
    let named = |name: &str| Metadata::new(team.clone(), Name::new(name).unwrap());
    let mut wanted = SandboxSnapshot::new(
        named("snap"),
        SnapshotSpec::of(source.metadata.name.clone()),
    );
    wanted.spec.registry = Some("r.example/kept".into());
    let wanted = store.create_object(&wanted).await.unwrap();
    let mut child = submitted(r#"{"owner": {"team": "team"}, "snapshot": "snap"}"#);
    child.metadata.name = Name::new("child").unwrap();
    child.spec.sandbox_id = SandboxId::new("i2").ok();
    let child = store.create_object(&child).await.unwrap();
    let runs = |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == Phase::Running);
    let key = child.key();
    let awake = caches.sandboxes.wait_for(&key, runs, deadline());
    let awake = awake.await.unwrap().unwrap();
    let taken: SandboxSnapshot = store.find(&wanted.key()).await.unwrap().unwrap();
    let image = taken.status.image.clone().unwrap();
    let created = world.runtime.created.lock().last().cloned().unwrap();
    assert_eq!(
        created.from,
        Some(taken.status.containers[0].digest.clone())
    );
    let published = Published {
        image,
        secret: Name::new("pull").ok(),
    };
    assert_eq!(created.published.as_deref(), Some(&published));
    assert_eq!(awake.spec.pause_policy, None);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_can_be_frozen_a_pause_is_one_capture_that_is_published_already() {
    let world = World::with(Abilities {
        freeze: false,
        keeps: Keeps::InRegistry,
    })
    .await;
    let (store, caches) = (&world.store, world.control.caches());
    let sandbox = submitted(r#"{"images": {"main": "base"}, "owner": {"team": "team"}}"#);
    let sandbox = store.create_object(&sandbox).await.unwrap();
    let key = sandbox.key();
    let becomes = async |phase: Phase| {
        let is = move |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == phase);
        let found = caches.sandboxes.wait_for(&key, is, deadline());
        found.await.unwrap().unwrap()
    };
    let wants = async |state| {
        let mut next: Sandbox = store.find(&key).await.unwrap().unwrap();
        next.spec.desired_state = state;
        store.update_spec(&next).await.unwrap();
    };
    becomes(Phase::Running).await;
    wants(DesiredState::Paused).await;
    let asleep = becomes(Phase::Paused).await;
    let image = asleep.status.snapshot_image.clone().unwrap();
    assert!(asleep.status.snapshot.is_some());
    assert_eq!(*world.runtime.published.lock(), [], "once is enough");
    wants(DesiredState::Running).await;
    becomes(Phase::Running).await;
    let created = world.runtime.created.lock().last().cloned().unwrap();
    assert_eq!(created.published.map(|it| it.image), Some(image));
}

#[tokio::test(start_paused = true)]
async fn without_a_place_for_its_files_a_sandbox_runs_on_and_says_what_to_name() {
    let world = World::with(Abilities {
        freeze: false,
        keeps: Keeps::Nowhere,
    })
    .await;
    let (store, caches) = (&world.store, world.control.caches());
    let sandbox = submitted(r#"{"images": {"main": "base"}, "owner": {"team": "team"}}"#);
    let sandbox = store.create_object(&sandbox).await.unwrap();
    let key = sandbox.key();
    let runs = |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == Phase::Running);
    let running = caches.sandboxes.wait_for(&key, runs, deadline());
    let mut next = Sandbox::clone(&running.await.unwrap().unwrap());
    next.spec.desired_state = DesiredState::Paused;
    store.update_spec(&next).await.unwrap();
    let refused = |s: Option<&Sandbox>| {
        s.is_some_and(|s| {
            let operation = s.status.last_operation.as_ref();
            let error = operation.and_then(|op| op.error.as_deref());
            s.spec.desired_state == DesiredState::Running
                && s.status.phase == Phase::Running
                && error.is_some_and(|why| why.starts_with("pausePolicy.snapshotRegistry: "))
        })
    };
    let refused = caches.sandboxes.wait_for(&key, refused, deadline());
    assert!(refused.await.is_ok(), "it says why, and goes on");
}
