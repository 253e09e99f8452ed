//! A store with a team in it, and keys over it.

use std::{sync::Arc, time::Duration};

use auth::{Caller, Keys, key::NewKey};
use cache::{Cache, Options, PoolCache, SandboxCache, TemplateCache};
use kit::{Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Team,
    team::{Quotas, TeamSpec},
    workload::Secret,
};
use store::{StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

pub(crate) struct World {
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) tasks: Tasks,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) keys: Keys,
}

impl World {
    /// With the teams `blue` and `red`.
    pub(crate) async fn new() -> Self {
        let entropy = Arc::new(Entropy::seeded(11));
        let clock = Arc::new(ManualClock::starting_at(1_700_000_000_000_000));
        let memory = Arc::new(MemoryStore::new(clock, Arc::clone(&entropy)));
        let tasks = Tasks::default();
        let store = Arc::clone(&memory);
        let keys = Keys::start(store, Arc::clone(&entropy), within(60), &tasks)
            .await
            .unwrap();
        let world = Self {
            memory,
            tasks,
            entropy,
            keys,
        };
        for team in ["blue", "red"] {
            world.put_team(team, Quotas::default()).await;
        }
        world
    }

    pub(crate) async fn put_team(&self, name: &str, quotas: Quotas) -> Team {
        let spec = TeamSpec {
            quotas,
            ..TeamSpec::default()
        };
        let team: Team = Object::new(Metadata::new(None, Name::new(name).unwrap()), spec);
        let store = self.keys.store();
        let Some(mut old) = store.find::<TeamSpec>(&team.key()).await.unwrap() else {
            return store.create_object(&team).await.unwrap();
        };
        old.spec = team.spec;
        store.update_spec(&old).await.unwrap()
    }

    /// A new key of a team, as its text.
    pub(crate) async fn key(&self, of: &str, quotas: Quotas) -> Secret {
        let wish = NewKey {
            quotas,
            ..NewKey::named("a key")
        };
        self.keys.create(&team(of), wish).await.unwrap().key
    }

    pub(crate) async fn caller(&self, of: &str, quotas: Quotas) -> Caller {
        let key = self.key(of, quotas).await;
        self.keys.authenticate(key.reveal()).unwrap()
    }

    fn options(&self) -> Options {
        Options::new(Arc::clone(&self.entropy))
    }

    pub(crate) async fn sandboxes(&self) -> SandboxCache {
        let store = Arc::clone(&self.memory);
        Cache::start(store, self.options(), within(60), &self.tasks)
            .await
            .unwrap()
    }

    pub(crate) async fn pools(&self) -> PoolCache {
        let store = Arc::clone(&self.memory);
        Cache::start(store, self.options(), within(60), &self.tasks)
            .await
            .unwrap()
    }

    pub(crate) async fn templates(&self) -> TemplateCache {
        let store = Arc::clone(&self.memory);
        Cache::start(store, self.options(), within(60), &self.tasks)
            .await
            .unwrap()
    }
}

pub(crate) fn team(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

pub(crate) fn within(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}
