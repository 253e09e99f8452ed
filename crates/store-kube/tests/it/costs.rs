//! What a claim, a pause, a resume and a release cost an API server: one write each on the way of who
//! asks, with the real control loop at work behind.

use std::{sync::Arc, time::Duration};

use cache::SandboxIndex;
use claims::{Ask, Wait};
use cluster_kube::Tally;
use control::{Builder, Control, Options, events::StoredEvents};
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{
    Key, Metadata, Name, Namespace, Object, Sandbox, SandboxId, SandboxPool, SandboxTemplate,
    Timestamp,
    lifecycle::Phase,
    pool::{PoolSpec, RecyclePolicy},
    sandbox::{DesiredState, Owner},
};
use plan::claim::{Delivery, Ending, claimed, released};
use runtime::fake::FakeRuntime;
use serde_json::json;
use store::{Store, StoreExt as _};
use store_kube::KubeStore;
use tokio::time::Instant;

use crate::cluster::{Lab, store_of};

fn team() -> Namespace {
    Namespace::new("costs").unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Control, and somebody with a connection of their own.
struct World {
    control: Control,
    caller: KubeStore,
    callers: cluster_kube::Cluster,
    entropy: Arc<Entropy>,
    clock: Arc<dyn Clock>,
}

impl World {
    async fn start(lab: &Lab, tasks: &Tasks) -> Self {
        let store = lab.store();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let entropy = Arc::new(Entropy::from_os());
        let shared: Arc<dyn Store> = Arc::new(store.background());
        let template: SandboxTemplate = Object::new(
            Metadata::new(None, Name::new("base").unwrap()),
            serde_json::from_value(json!({"image": "base"})).unwrap(),
        );
        store.create_object(&template).await.unwrap();
        let mut spec = PoolSpec::new(Name::new("base").unwrap(), 2, 2, 2);
        spec.recycle_policy = RecyclePolicy::Recycle;
        let metadata = Metadata::new(Some(team()), Name::new("warm").unwrap());
        let pool: SandboxPool = Object::new(metadata, spec);
        store.create_object(&pool).await.unwrap();
        let events = StoredEvents::start(Arc::clone(&shared), Arc::clone(&clock), tasks);
        let runtime = Arc::new(FakeRuntime::new(tasks.child()));
        let control = Builder::new(shared, runtime, Arc::clone(&clock), Arc::clone(&entropy))
            .events(Arc::new(events))
            .options(Options::default())
            .start(tasks, soon())
            .await
            .unwrap();
        let callers = lab.connect();
        Self {
            control,
            caller: store_of(&callers),
            callers,
            entropy,
            clock,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }

    async fn all_idle(&self) {
        let sandboxes = &self.control.caches().sandboxes;
        let deadline = soon();
        while sandboxes.find_by(SandboxIndex::Phase, "Idle").len() < 2 {
            assert!(
                Instant::now() < deadline,
                "the members are not idle in time"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn claim(&self) -> Sandbox {
        let owner = Owner {
            team: team(),
            user: None,
            key: None,
        };
        let delivery = Delivery::new(owner, SandboxId::from_random(self.entropy.u128()));
        let pool = Key::namespaced(
            <PoolSpec as model::Spec>::KIND,
            team(),
            Name::new("warm").unwrap(),
        );
        let ask = Ask {
            store: &self.caller,
            pool: &pool,
            tenant: "",
            wait: Wait::Until(soon()),
        };
        let now = self.now();
        let write = |member: &Sandbox| claimed(member, &delivery, now);
        let desk = self.control.desk();
        desk.claim(ask, write, std::future::pending())
            .await
            .unwrap()
    }

    async fn wait_for(
        &self,
        key: &Key,
        is: impl Fn(&Sandbox) -> bool + Send + Sync,
    ) -> Arc<Sandbox> {
        let sandboxes = &self.control.caches().sandboxes;
        let is = |s: Option<&Sandbox>| s.is_some_and(&is);
        sandboxes.wait_for(key, is, soon()).await.unwrap().unwrap()
    }

    /// What the caller has asked of the API server while doing something.
    async fn cost<T>(&self, work: impl Future<Output = T>) -> (T, Tally) {
        let before = self.callers.tally();
        let done = work.await;
        (done, self.callers.tally().since(&before))
    }
}

#[tokio::test]
async fn a_claim_a_pause_a_resume_and_a_release_are_one_write_each() {
    let lab = Lab::new().await;
    let tasks = Tasks::default();
    let world = World::start(&lab, &tasks).await;
    world.all_idle().await;

    let (sandbox, cost) = world.cost(world.claim()).await;
    assert_eq!(
        (cost.all_writes(), cost.0.len()),
        (1, 1),
        "a claim: {cost:?}"
    );
    let ready =
        |s: &Sandbox| s.status.phase == Phase::Running && s.status.armed_epoch == s.spec.epoch;
    let mut now = Sandbox::clone(&*world.wait_for(&sandbox.key(), ready).await);

    for (state, phase) in [
        (DesiredState::Paused, Phase::Paused),
        (DesiredState::Running, Phase::Running),
    ] {
        let mut next = now.clone();
        next.spec.desired_state = state;
        let (written, cost) = world.cost(world.caller.update_spec(&next)).await;
        written.unwrap();
        assert_eq!(
            (cost.all_writes(), cost.0.len()),
            (1, 1),
            "{state:?}: {cost:?}"
        );
        let there = |s: &Sandbox| s.status.phase == phase;
        now = Sandbox::clone(&*world.wait_for(&sandbox.key(), there).await);
    }

    let given_back = released(&now, Ending::by_owner(world.now()));
    let (written, cost) = world.cost(world.caller.update_spec(&given_back)).await;
    written.unwrap();
    assert_eq!(
        (cost.all_writes(), cost.0.len()),
        (1, 1),
        "a release: {cost:?}"
    );
    world.all_idle().await;

    tasks.drain(Duration::from_secs(10)).await.unwrap();
}
