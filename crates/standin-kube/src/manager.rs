//! What the controllers of a cluster do, as far as anything here depends on it.
//!
//! | Controller | What it does |
//! |---|---|
//! | definitions | serves what a CustomResourceDefinition describes, and says so in its status |
//! | garbage | deletes what no owner is left of, in the background |
//! | namespaces | deletes what is in a namespace that is going, then the namespace |
//! | jobs | see [`jobs`] |
//!
//! One task hears of every change in order, so it needs no caches of its own but the few indexes
//! below. Foreground deletion is done as background deletion.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{Key, KindName, Namespace, Uid};
use serde_json::{Value, json};
use store::{Precondition, Record, WatchEvent};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    jobs,
    kinds::{DEFINITIONS, JOBS, NAMESPACES, PODS},
    kubelet::Kubelet,
    world::World,
};

/// The controllers.
pub(crate) struct Manager {
    world: Arc<World>,
    kubelet: Option<Arc<Kubelet>>,
    /// Everything there is.
    live: BTreeMap<Uid, Key>,
    by_owner: BTreeMap<Uid, BTreeSet<Key>>,
    by_namespace: BTreeMap<Namespace, BTreeSet<Key>>,
    by_kind: BTreeMap<KindName, BTreeSet<Key>>,
    /// Namespaces that are going.
    ending: BTreeSet<Namespace>,
    /// Definitions by the generation that is served, and the kinds of those that are going.
    defined: BTreeMap<Key, u64>,
    ending_kinds: BTreeMap<KindName, Key>,
}

impl Manager {
    pub(crate) fn new(world: Arc<World>, kubelet: Option<Arc<Kubelet>>) -> Self {
        Self {
            world,
            kubelet,
            live: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            by_namespace: BTreeMap::new(),
            by_kind: BTreeMap::new(),
            ending: BTreeSet::new(),
            defined: BTreeMap::new(),
            ending_kinds: BTreeMap::new(),
        }
    }

    /// Works until there are no more changes to come.
    pub(crate) async fn run(mut self, mut changes: UnboundedReceiver<WatchEvent>) {
        while let Some(change) = changes.recv().await {
            match change {
                WatchEvent::Put { record, .. } => self.put(&record).await,
                WatchEvent::Removed { record } => self.removed(&record).await,
                WatchEvent::Bookmark(_) => {}
            }
        }
    }

    async fn put(&mut self, record: &Record) {
        let key = record.key();
        self.live.insert(record.uid(), key.clone());
        self.by_kind
            .entry(key.kind)
            .or_default()
            .insert(key.clone());
        if let Some(namespace) = &key.namespace {
            let within = self.by_namespace.entry(namespace.clone()).or_default();
            within.insert(key.clone());
        }
        for owner in &record.meta.owner_references {
            self.by_owner
                .entry(owner.uid)
                .or_default()
                .insert(key.clone());
        }
        if self.is_orphan(record) {
            self.delete(&key, record.uid()).await;
        }
        let Some(collection) = self.world.kinds.stored_as(key.kind) else {
            return;
        };
        let Ok(object) = collection.object(record) else {
            return;
        };
        match key.kind {
            kind if kind == DEFINITIONS.stored_as => self.define(&key, record, &object).await,
            kind if kind == NAMESPACES.stored_as && record.meta.is_deleting() => {
                self.end_namespace(&key).await;
            }
            kind if kind == JOBS.stored_as => jobs::tend(&self.world, &key).await,
            kind if kind == PODS.stored_as => {
                if let Some(kubelet) = &self.kubelet {
                    kubelet.put(&key, record.uid(), object);
                }
                self.tend_job_of(record).await;
            }
            _ => {}
        }
    }

    async fn removed(&mut self, record: &Record) {
        let key = record.key();
        self.live.remove(&record.uid());
        if let Some(all) = self.by_kind.get_mut(&key.kind) {
            all.remove(&key);
        }
        if let Some(namespace) = &key.namespace {
            if let Some(within) = self.by_namespace.get_mut(namespace) {
                within.remove(&key);
            }
            self.finish_namespace(namespace);
        }
        for owner in &record.meta.owner_references {
            if let Some(owned) = self.by_owner.get_mut(&owner.uid) {
                owned.remove(&key);
            }
        }
        self.collect(record.uid()).await;
        match key.kind {
            kind if kind == PODS.stored_as => {
                if let Some(kubelet) = &self.kubelet {
                    kubelet.removed(record.uid());
                }
                self.tend_job_of(record).await;
            }
            kind if kind == DEFINITIONS.stored_as => {
                self.defined.remove(&key);
                let name = json!({"metadata": {"name": key.name.as_str()}});
                self.world.kinds.undefine(&name);
            }
            kind => self.finish_definition(kind),
        }
    }

    /// Deletes what belonged to one that is gone, and to nobody else.
    async fn collect(&mut self, owner: Uid) {
        use store::Store as _;
        for key in self.by_owner.remove(&owner).unwrap_or_default() {
            if let Ok(Some(record)) = self.world.store.get(&key).await
                && self.is_orphan(&record)
            {
                self.delete(&key, record.uid()).await;
            }
        }
    }

    fn is_orphan(&self, record: &Record) -> bool {
        let owners = &record.meta.owner_references;
        !owners.is_empty()
            && !owners
                .iter()
                .any(|owner| self.live.contains_key(&owner.uid))
    }

    async fn delete(&self, key: &Key, uid: Uid) {
        if let Some(collection) = self.world.kinds.stored_as(key.kind) {
            self.world.delete(collection, key, &uid.to_string()).await;
        }
    }

    async fn tend_job_of(&self, pod: &Record) {
        if let Some(owner) = pod.meta.controller().filter(|owner| &*owner.kind == "Job") {
            let job = Key {
                kind: JOBS.stored_as,
                namespace: pod.meta.namespace.clone(),
                name: owner.name.clone(),
            };
            jobs::tend(&self.world, &job).await;
        }
    }

    async fn end_namespace(&mut self, key: &Key) {
        let Ok(namespace) = Namespace::new(&key.name) else {
            return;
        };
        if !self.ending.insert(namespace.clone()) {
            return;
        }
        let within = self.by_namespace.get(&namespace).cloned();
        self.delete_all(within.unwrap_or_default()).await;
        self.finish_namespace(&namespace);
    }

    async fn delete_all(&self, keys: BTreeSet<Key>) {
        use store::Store as _;
        for key in keys {
            if let Ok(Some(record)) = self.world.store.get(&key).await {
                self.delete(&key, record.uid()).await;
            }
        }
    }

    /// Removes a namespace that is going once nothing is in it.
    fn finish_namespace(&mut self, namespace: &Namespace) {
        let empty = self
            .by_namespace
            .get(namespace)
            .is_none_or(BTreeSet::is_empty);
        if empty
            && self.ending.remove(namespace)
            && let Ok(name) = model::Name::foreign(namespace)
        {
            let key = Key {
                kind: NAMESPACES.stored_as,
                namespace: None,
                name,
            };
            self.remove(&key);
        }
    }

    /// Removes what waited for nobody but its controller.
    fn remove(&self, key: &Key) {
        let nothing = Precondition::default();
        // Whoever was first, it is gone.
        let _ = self.world.store.delete_gracefully(key, nothing, None);
    }

    async fn define(&mut self, key: &Key, record: &Record, object: &Value) {
        let generation = record.meta.generation.0;
        if record.meta.is_deleting() {
            let spec = &object["spec"];
            let kind = format!(
                "{}.{}",
                spec["names"]["plural"].as_str().unwrap_or_default(),
                spec["group"].as_str().unwrap_or_default()
            );
            let found = self.by_kind.keys().find(|k| k.0 == kind).copied();
            let instances = found.and_then(|kind| self.by_kind.get(&kind).cloned());
            match (found, instances.filter(|all| !all.is_empty())) {
                (Some(kind), Some(instances)) => {
                    if self.ending_kinds.insert(kind, key.clone()).is_none() {
                        self.delete_all(instances).await;
                        self.finish_definition(kind);
                    }
                }
                (_, _) => self.remove(key),
            }
            return;
        }
        if self.defined.insert(key.clone(), generation) == Some(generation) {
            return;
        }
        self.world.kinds.define(object);
        let now = self.world.now();
        let condition = |kind: &str, reason: &str| {
            json!({
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "",
                "lastTransitionTime": now,
            })
        };
        let stored = object["spec"]["versions"].as_array().into_iter().flatten();
        let stored: Vec<&Value> = stored
            .filter(|v| v["storage"] == true)
            .map(|v| &v["name"])
            .collect();
        let status = json!({"status": {
            "acceptedNames": object["spec"]["names"],
            "storedVersions": stored,
            "conditions": [
                condition("NamesAccepted", "NoConflicts"),
                condition("Established", "InitialNamesAccepted"),
            ],
        }});
        self.world.patch(&DEFINITIONS, key, true, &status).await;
    }

    /// Removes a definition that is going once nothing of its kind is left.
    fn finish_definition(&mut self, kind: KindName) {
        let empty = self.by_kind.get(&kind).is_none_or(BTreeSet::is_empty);
        if empty && let Some(definition) = self.ending_kinds.remove(&kind) {
            self.remove(&definition);
        }
    }
}
