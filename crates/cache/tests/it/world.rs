//! A store, tasks, and sandboxes to put into it.

use std::{sync::Arc, time::Duration};

use cache::{Cache, Options, SandboxCache, View};
use kit::{Entropy, ManualClock, Tasks};
use model::{
    Epoch, Key, Metadata, Name, Namespace, Object, Spec as _, Version,
    lifecycle::Phase,
    sandbox::{Owner, Sandbox, SandboxSpec},
};
use store::{Draft, Store as _, StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

use crate::flaky::Flaky;

pub(crate) struct World {
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) store: Arc<Flaky>,
    pub(crate) tasks: Tasks,
    pub(crate) entropy: Arc<Entropy>,
}

impl World {
    pub(crate) fn new() -> Self {
        let entropy = Arc::new(Entropy::seeded(7));
        let clock = Arc::new(ManualClock::starting_at(1_700_000_000_000_000));
        let memory = Arc::new(MemoryStore::new(clock, Arc::clone(&entropy)));
        Self {
            store: Arc::new(Flaky::new(Arc::clone(&memory))),
            memory,
            tasks: Tasks::default(),
            entropy,
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(Arc::clone(&self.entropy))
    }

    pub(crate) async fn start<V: View>(&self, options: Options) -> Cache<V> {
        Cache::start(self.store.clone(), options, within(60), &self.tasks)
            .await
            .unwrap()
    }

    pub(crate) async fn sandboxes(&self) -> SandboxCache {
        self.start(self.options()).await
    }

    pub(crate) async fn create(&self, name: &str) -> Sandbox {
        self.put(sandbox(name)).await
    }

    pub(crate) async fn put(&self, sandbox: Sandbox) -> Sandbox {
        self.memory.create_object(&sandbox).await.unwrap()
    }

    /// Puts a record that is no sandbox where one should be.
    pub(crate) async fn put_garbage(&self, name: &str) {
        let mut draft = Draft::of(&sandbox(name));
        draft.spec = r#"{"epoch":"many"}"#.into();
        self.memory.create(draft).await.unwrap();
    }

    pub(crate) async fn set_phase(&self, name: &str, phase: Phase) -> Sandbox {
        let mut sandbox = self.read(name);
        sandbox.status.phase = phase;
        self.memory.update_status(&sandbox).await.unwrap()
    }

    pub(crate) async fn touch(&self, name: &str) -> Sandbox {
        let mut sandbox = self.read(name);
        sandbox.spec.epoch = sandbox.spec.epoch.next();
        self.memory.update_spec(&sandbox).await.unwrap()
    }

    pub(crate) async fn label(&self, name: &str, key: &str, value: &str) -> Sandbox {
        let mut sandbox = self.read(name);
        sandbox.metadata.labels.insert(key, value);
        self.memory.update_spec(&sandbox).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str) {
        let sandbox = self.read(name);
        self.memory.delete_object(&sandbox).await.unwrap();
    }

    /// Reads past the faults: they are for the cache.
    fn read(&self, name: &str) -> Sandbox {
        let mut truth = self.memory.truth().into_iter();
        let record = truth.find(|record| record.key() == at(name)).unwrap();
        record.decode().unwrap()
    }

    /// Waits until a cache has everything that is in the store.
    pub(crate) async fn caught_up<V: View>(&self, cache: &Cache<V>) {
        let version = self.memory.version();
        cache.wait_for_version(version, within(3600)).await.unwrap();
    }
}

/// Lets everything run that can.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) fn within(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

pub(crate) fn key(namespace: &str, name: &str) -> Key {
    let (namespace, name) = (Namespace::new(namespace), Name::new(name));
    Key::namespaced(SandboxSpec::KIND, namespace.unwrap(), name.unwrap())
}

pub(crate) fn at(name: &str) -> Key {
    key("default", name)
}

pub(crate) fn sandbox(name: &str) -> Sandbox {
    sandbox_in("default", name)
}

pub(crate) fn sandbox_in(namespace: &str, name: &str) -> Sandbox {
    let namespace = Namespace::new(namespace).unwrap();
    let owner = Owner {
        team: namespace.clone(),
        user: None,
        key: None,
    };
    let metadata = Metadata::new(Some(namespace), Name::new(name).unwrap());
    let spec = SandboxSpec {
        owner: Some(owner),
        epoch: Epoch(1),
        ..SandboxSpec::default()
    };
    Object::new(metadata, spec)
}

pub(crate) fn in_phase(phase: Phase) -> impl Fn(Option<&Sandbox>) -> bool {
    move |sandbox| sandbox.is_some_and(|sandbox| sandbox.status.phase == phase)
}

/// Names and versions in a cache, in its order.
pub(crate) fn content(cache: &SandboxCache) -> Vec<(String, Version)> {
    let all = cache.find_all();
    all.iter()
        .map(|s| (s.metadata.name.to_string(), s.version()))
        .collect()
}
