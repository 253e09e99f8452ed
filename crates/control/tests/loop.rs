//! The loop as its owner sees it: start, drain, and how many writes each transition costs.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::{sync::Arc, time::Duration};

use control::{Builder, Control, Options, events::StoredEvents};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Sandbox, SandboxId, SandboxTemplate,
    lifecycle::Phase,
    sandbox::{DesiredState, Owner, SandboxSpec},
    template::TemplateSpec,
};
use runtime::fake::{Call, CallFault, FakeRuntime};
use store::{
    Query, Store, StoreExt as _,
    memory::{MemoryStore, WriteFault},
};
use tokio::time::Instant;

struct World {
    store: Arc<MemoryStore>,
    runtime: Arc<FakeRuntime>,
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    tasks: Tasks,
}

impl World {
    async fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::starting_at(1_000_000_000));
        let entropy = Arc::new(Entropy::seeded(1));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Arc::clone(&entropy)));
        let tasks = Tasks::default();
        let runtime = Arc::new(FakeRuntime::new(tasks.child()));
        let spec = template();
        let meta = Metadata::new(None, Name::new("base").unwrap());
        store
            .create_object(&SandboxTemplate::new(meta, spec))
            .await
            .unwrap();
        Self {
            store,
            runtime,
            clock,
            entropy,
            tasks,
        }
    }

    fn builder(&self) -> Builder {
        let (store, runtime) = (self.store.clone(), self.runtime.clone());
        Builder::new(
            store,
            runtime,
            Arc::clone(&self.clock),
            Arc::clone(&self.entropy),
        )
    }

    async fn start(&self) -> Control {
        self.builder()
            .start(&self.tasks, in_seconds(10))
            .await
            .unwrap()
    }

    async fn create(&self) -> Sandbox {
        let team = Namespace::new("team").unwrap();
        let spec = SandboxSpec {
            template: Name::new("base").ok(),
            owner: Some(Owner {
                team: team.clone(),
                user: None,
                key: None,
            }),
            sandbox_id: Some(SandboxId::new("i1").unwrap()),
            epoch: model::Epoch(1),
            ..SandboxSpec::default()
        };
        let meta = Metadata::new(Some(team), Name::new("box").unwrap());
        self.store
            .create_object(&Sandbox::new(meta, spec))
            .await
            .unwrap()
    }

    async fn wants(&self, sandbox: &Sandbox, state: DesiredState) {
        let mut next: Sandbox = self.store.find(&sandbox.key()).await.unwrap().unwrap();
        next.spec.desired_state = state;
        self.store.update_spec(&next).await.unwrap();
    }

    async fn ends_within(&self, control: &Control, sandbox: &Sandbox, seconds: u64) {
        let key = sandbox.key();
        let now: Sandbox = self.store.find(&key).await.unwrap().unwrap();
        self.store.delete_object(&now).await.unwrap();
        let gone = cache::condition::gone(sandbox.uid());
        let sandboxes = &control.caches().sandboxes;
        sandboxes
            .wait_for(&key, gone, in_seconds(seconds))
            .await
            .unwrap();
    }

    async fn becomes(&self, control: &Control, sandbox: &Sandbox, phase: Phase) -> Arc<Sandbox> {
        let is = move |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == phase);
        let found = control
            .caches()
            .sandboxes
            .wait_for(&sandbox.key(), is, in_seconds(60))
            .await;
        found.unwrap().unwrap()
    }
}

fn in_seconds(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

fn template() -> TemplateSpec {
    TemplateSpec {
        image: "base".into(),
        image_pull_policy: model::template::ImagePullPolicy::Never,
        ..TemplateSpec::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_freeze_and_a_thaw_cost_one_write_besides_the_intent() {
    let world = World::new().await;
    let control = world.start().await;
    let sandbox = world.create().await;
    world.becomes(&control, &sandbox, Phase::Running).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (state, phase) in [
        (DesiredState::Paused, Phase::Paused),
        (DesiredState::Running, Phase::Running),
    ] {
        let before = world.store.faults().writes();
        world.wants(&sandbox, state).await;
        world.becomes(&control, &sandbox, phase).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            world.store.faults().writes() - before,
            2,
            "to {phase}: intent and outcome"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_cannot_sync_says_so_to_whoever_started_it() {
    let world = World::new().await;
    world.store.faults().on_write(|_| WriteFault::FailBefore);
    let started = world.builder().start(&world.tasks, in_seconds(5)).await;
    assert!(
        matches!(
            started,
            Err(cache::StartError::DeadlineReached { last: Some(_) })
        ),
        "{started:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_turn_under_way_and_takes_no_other() {
    let world = World::new().await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(3)),
        _ => CallFault::None,
    });
    let control = world.start().await;
    let sandbox = world.create().await;
    world.becomes(&control, &sandbox, Phase::Starting).await;
    control.drain(Duration::from_secs(10)).await;
    let left: Sandbox = world.store.find(&sandbox.key()).await.unwrap().unwrap();
    assert_eq!(left.status.phase, Phase::Running, "the turn was finished");
    world.wants(&sandbox, DesiredState::Paused).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let left: Sandbox = world.store.find(&sandbox.key()).await.unwrap().unwrap();
    assert_eq!(left.status.phase, Phase::Running, "and no other was taken");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_call_that_never_answers_is_given_up_and_recorded() {
    let world = World::new().await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(1_000_000)),
        _ => CallFault::None,
    });
    let options = Options {
        step_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let control = world
        .builder()
        .options(options)
        .start(&world.tasks, in_seconds(10))
        .await
        .unwrap();
    let sandbox = world.create().await;
    let failed = world.becomes(&control, &sandbox, Phase::Failed).await;
    let operation = failed.status.last_operation.as_ref().unwrap();
    assert!(
        operation
            .error
            .as_ref()
            .unwrap()
            .contains("no answer within 1s"),
        "{operation:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_counted_not_repeated_and_bounded_per_object() {
    let world = World::new().await;
    let store: Arc<dyn Store> = world.store.clone();
    let sink = Arc::new(StoredEvents::start(
        store,
        Arc::clone(&world.clock),
        &world.tasks,
    ));
    let control = world
        .builder()
        .events(sink)
        .start(&world.tasks, in_seconds(10))
        .await
        .unwrap();
    let sandbox = world.create().await;
    world.becomes(&control, &sandbox, Phase::Running).await;
    for _ in 0..5 {
        world.wants(&sandbox, DesiredState::Paused).await;
        world.becomes(&control, &sandbox, Phase::Paused).await;
        world.wants(&sandbox, DesiredState::Running).await;
        world.becomes(&control, &sandbox, Phase::Running).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let query = Query::kind(<model::event::EventSpec as model::Spec>::KIND)
        .label(model::event::ABOUT_LABEL, sandbox.uid().to_string());
    let (events, _) = world
        .store
        .list_objects::<model::event::EventSpec>(&query)
        .await
        .unwrap();
    let paused: Vec<_> = events
        .iter()
        .filter(|e| &*e.spec.reason == "Paused")
        .collect();
    assert_eq!(paused.len(), 1, "{events:?}");
    assert_eq!(paused[0].spec.count, 5);
    assert!(events.len() <= model::event::MAX_EVENTS_PER_OBJECT);
}

/// Gives the template commands.
async fn with_commands(world: &World) {
    let key = model::Key {
        kind: <TemplateSpec as model::Spec>::KIND,
        namespace: None,
        name: Name::new("base").unwrap(),
    };
    let mut template: SandboxTemplate = world.store.find(&key).await.unwrap().unwrap();
    template.spec.start_command = vec!["/bin/serve".into()];
    template.spec.ready_command = vec!["/bin/true".into()];
    world.store.update_spec(&template).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_ready_once_its_commands_brought_it_up_and_can_be_removed_before() {
    let world = World::new().await;
    with_commands(&world).await;
    world.runtime.on_call(|call, _| match call {
        Call::Boot => CallFault::Slow(Duration::from_secs(20)),
        _ => CallFault::None,
    });
    let control = world.start().await;
    let sandbox = world.create().await;
    let began = Instant::now();
    world.becomes(&control, &sandbox, Phase::Running).await;
    assert!(began.elapsed() >= Duration::from_secs(20), "virtual time");
    assert_eq!(world.runtime.truth()[&sandbox.uid()].boots, 1);
    for state in [DesiredState::Paused, DesiredState::Running] {
        world.wants(&sandbox, state).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.runtime.truth()[&sandbox.uid()].boots, 1, "a thaw");
    world.ends_within(&control, &sandbox, 10).await;
    let sandbox = world.create().await;
    world.becomes(&control, &sandbox, Phase::Starting).await;
    world.ends_within(&control, &sandbox, 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_its_commands_do_not_bring_up_says_why() {
    let world = World::new().await;
    with_commands(&world).await;
    world.runtime.on_call(|call, _| match call {
        Call::Boot => CallFault::NeverReady,
        _ => CallFault::None,
    });
    let control = world.start().await;
    let sandbox = world.create().await;
    let failed = world.becomes(&control, &sandbox, Phase::Failed).await;
    let operation = failed.status.last_operation.as_ref().unwrap();
    assert_eq!(operation.attempts, 1, "it would be in vain");
    let error = operation.error.as_deref().unwrap();
    assert_eq!(error, "its ready command did not succeed in time: injected");
    let condition = failed
        .status
        .conditions
        .iter()
        .find(|c| &*c.kind == model::sandbox::BOOTED_CONDITION)
        .unwrap();
    assert_eq!(&*condition.reason, "NotReadyInTime");
    assert!(world.runtime.truth().is_empty(), "nothing is left of it");
}
