//! A real control loop over a runtime that misbehaves on request, and a sandbox that sleeps.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use cache::RoutingCache;
use control::{Builder, Control, Waiters};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Epoch, Metadata, Name, Namespace, Sandbox, SandboxId, StringMap, Timestamp,
    lifecycle::{Phase, Traffic},
    sandbox::{DesiredState, OnTimeout, Owner, SandboxSpec, Timeouts},
};
use routes::Route;
use runtime::fake::FakeRuntime;
use store::{Store, StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;
use wake::{Flights, Options};

pub(crate) const NOW: i64 = 1_000_000_000_000;

pub(crate) struct World {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) runtime: Arc<FakeRuntime>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    pub(crate) routes: RoutingCache,
    /// The flights that control tells of what it sees, if any.
    pub(crate) told: Arc<Told>,
    control: Control,
}

#[derive(Debug, Default)]
pub(crate) struct Told(pub(crate) OnceLock<Flights>);

impl Waiters for Told {
    fn awake(&self, sandbox: &Sandbox) {
        if let Some(flights) = self.0.get() {
            flights.awake(sandbox);
        }
    }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(90)
}

impl World {
    pub(crate) async fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::starting_at(NOW));
        let entropy = Arc::new(Entropy::seeded(1));
        let store = Arc::new(MemoryStore::new(clock.clone(), entropy.clone()));
        let tasks = Tasks::default();
        let runtime = Arc::new(FakeRuntime::new(tasks.child()));
        let told = Arc::new(Told::default());
        let control = Builder::new(
            store.clone(),
            runtime.clone(),
            clock.clone(),
            entropy.clone(),
        )
        .waiters(told.clone())
        .start(&tasks, soon())
        .await
        .unwrap();
        let as_store: Arc<dyn Store> = store.clone();
        let routes = RoutingCache::start(as_store, cache::Options::new(entropy), soon(), &tasks);
        Self {
            routes: routes.await.unwrap(),
            store,
            runtime,
            clock,
            tasks,
            told,
            control,
        }
    }

    pub(crate) fn flights(&self, options: Options) -> Flights {
        Flights::new(
            self.store.clone(),
            self.routes.clone(),
            self.clock.clone(),
            self.tasks.clone(),
            options,
        )
    }

    /// A sandbox that sleeps, and its route.
    pub(crate) async fn asleep(
        &self,
        change: impl FnOnce(&mut SandboxSpec),
    ) -> (Sandbox, Arc<Route>) {
        let team = Namespace::new("team").unwrap();
        let mut spec = SandboxSpec {
            images: StringMap::from_iter([("main", "base")]),
            owner: Some(Owner {
                team: team.clone(),
                user: None,
                key: None,
            }),
            sandbox_id: Some(SandboxId::new("i1").unwrap()),
            epoch: Epoch(1),
            desired_state: DesiredState::Running,
            wake_on_traffic: true,
            timeouts: Timeouts {
                end_at: Some(Timestamp::from_micros(NOW + 60_000_000)),
                seconds: Some(60),
                on_timeout: OnTimeout::Pause,
                ..Timeouts::default()
            },
            ..SandboxSpec::default()
        };
        change(&mut spec);
        let meta = Metadata::new(Some(team), Name::new("box").unwrap());
        let made = self.store.create_object(&Sandbox::new(meta, spec)).await;
        let made = made.unwrap();
        self.becomes(&made, Phase::Running).await;
        self.wants(&made, DesiredState::Paused).await;
        let made = self.becomes(&made, Phase::Paused).await;
        let paused = |route: Option<&Route>| route.is_some_and(|r| r.state == Traffic::Paused);
        let route = self.routes.wait_for(&made.key(), paused, soon()).await;
        (Sandbox::clone(&made), route.unwrap().unwrap())
    }

    pub(crate) async fn wants(&self, sandbox: &Sandbox, state: DesiredState) {
        let mut next = self.read(sandbox).await;
        next.spec.desired_state = state;
        self.store.update_spec(&next).await.unwrap();
    }

    pub(crate) async fn read(&self, sandbox: &Sandbox) -> Sandbox {
        self.store.find(&sandbox.key()).await.unwrap().unwrap()
    }

    pub(crate) async fn becomes(&self, sandbox: &Sandbox, phase: Phase) -> Arc<Sandbox> {
        let is = move |s: Option<&Sandbox>| s.is_some_and(|s| s.status.phase == phase);
        let sandboxes = &self.control.caches().sandboxes;
        let found = sandboxes.wait_for(&sandbox.key(), is, soon()).await;
        found.unwrap().unwrap()
    }

    pub(crate) fn thaws(&self, sandbox: &Sandbox) -> u64 {
        self.runtime.truth()[&sandbox.uid()].thaws
    }
}
