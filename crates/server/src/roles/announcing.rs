//! A store that tells the other processes of an installation what was written through it.
//!
//! Every role writes through one of these, so whoever decides what to write need not know that others
//! hear of it. What is said has happened: a write that failed is not said, nor one of which nobody
//! knows whether it happened; those who need to know look at the store.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use model::{Key, Sandbox, Spec as _, Version, sandbox::SandboxSpec};
use routes::{Message, Route};
use store::{
    Change, Deletion, Draft, Listing, Precondition, Query, Record, Scope, Store, StoreError, Watch,
};

/// Who tells the others.
pub(crate) trait Crier: Send + Sync + std::fmt::Debug {
    /// Says it, without waiting for anybody.
    fn say(&self, message: Message);
}

/// The voice of a process; silent until somebody lends it one. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Voice(Arc<OnceLock<Arc<dyn Crier>>>);

impl Voice {
    /// From now on this one speaks. The first stays.
    pub(crate) fn lend(&self, crier: Arc<dyn Crier>) {
        let _ = self.0.set(crier);
    }

    fn say(&self, message: Message) {
        if let Some(crier) = self.0.get() {
            crier.say(message);
        }
    }
}

/// A store that tells.
#[derive(Debug)]
pub(crate) struct Announcing {
    store: Arc<dyn Store>,
    voice: Voice,
}

impl Announcing {
    pub(crate) fn new(store: Arc<dyn Store>, voice: Voice) -> Self {
        Self { store, voice }
    }

    fn tell(&self, record: &Record) {
        if let Some(message) = message_of(record) {
            self.voice.say(message);
        }
    }
}

/// What is to be said of a record as it was written; nothing of one that is no sandbox's.
fn message_of(record: &Record) -> Option<Message> {
    // Who took the last finalizer off a record that was to be deleted has removed it.
    if record.meta.is_deleting() && record.meta.finalizers.is_empty() {
        return removal(&record.key(), record.version());
    }
    if record.kind != SandboxSpec::KIND {
        return None;
    }
    let sandbox: Sandbox = record.decode().ok()?;
    Route::of(&sandbox).map(Message::from)
}

fn removal(key: &Key, version: Version) -> Option<Message> {
    if key.kind != SandboxSpec::KIND {
        return None;
    }
    Some(Message::Delete(routes::Deletion {
        namespace: key.namespace.clone()?,
        name: key.name.clone(),
        version,
    }))
}

#[async_trait]
impl Store for Announcing {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        self.store.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        self.store.list(query).await
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        let record = self.store.create(draft).await?;
        self.tell(&record);
        Ok(record)
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        let record = self.store.update(change).await?;
        self.tell(&record);
        Ok(record)
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        let deletion = self.store.delete(key, only_if).await?;
        match &deletion {
            Deletion::Removed(record) => {
                if let Some(message) = removal(key, record.version()) {
                    self.voice.say(message);
                }
            }
            Deletion::Marked(record) => self.tell(record),
        }
        Ok(deletion)
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(scope, after).await
    }
}

#[cfg(test)]
mod tests {
    use kit::{Entropy, SystemClock};
    use model::{Metadata, Name, Namespace, SandboxTemplate, meta::Object, template::TemplateSpec};
    use parking_lot::Mutex;
    use store::{
        StoreExt as _,
        memory::{MemoryStore, WriteFault},
    };

    use super::*;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<Message>>);

    impl Crier for Heard {
        fn say(&self, message: Message) {
            self.0.lock().push(message);
        }
    }

    impl Heard {
        fn take(&self) -> Vec<Message> {
            std::mem::take(&mut self.0.lock())
        }
    }

    fn world() -> (Arc<MemoryStore>, Announcing, Arc<Heard>) {
        let clock = Arc::new(SystemClock::default());
        let memory = Arc::new(MemoryStore::new(clock, Arc::new(Entropy::seeded(1))));
        let (voice, heard) = (Voice::default(), Arc::new(Heard::default()));
        voice.lend(heard.clone());
        let store = Announcing::new(memory.clone(), voice);
        (memory, store, heard)
    }

    fn sandbox(finalizer: Option<&str>) -> Sandbox {
        let team = Namespace::new("team").unwrap();
        let mut metadata = Metadata::new(Some(team), Name::new("box").unwrap());
        metadata.finalizers.extend(finalizer.map(Into::into));
        Sandbox::new(metadata, SandboxSpec::default())
    }

    fn upserted(message: &Message) -> Version {
        match message {
            Message::Upsert(route) => route.version,
            other => panic!("{other:?}"),
        }
    }

    fn deleted(message: &Message) -> Version {
        match message {
            Message::Delete(deletion) => deletion.version,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn every_write_of_a_sandbox_is_said_once_at_its_version() {
        let (_, store, heard) = world();
        let made = store.create_object(&sandbox(None)).await.unwrap();
        let said = heard.take();
        assert_eq!(
            said.iter().map(upserted).collect::<Vec<_>>(),
            [made.version()]
        );
        let mut next = made.clone();
        next.spec.wake_on_traffic = true;
        let written = store.update_spec(&next).await.unwrap();
        let said = heard.take();
        assert_eq!(
            said.iter().map(upserted).collect::<Vec<_>>(),
            [written.version()]
        );
        let gone = store.delete(&made.key(), Precondition::default()).await;
        let Deletion::Removed(record) = gone.unwrap() else {
            panic!("nothing holds it")
        };
        let said = heard.take();
        assert_eq!(
            said.iter().map(deleted).collect::<Vec<_>>(),
            [record.version()]
        );
    }

    #[tokio::test]
    async fn one_that_is_held_is_said_to_end_and_then_to_be_gone() {
        let (_, store, heard) = world();
        let made = store
            .create_object(&sandbox(Some("test/hold")))
            .await
            .unwrap();
        store
            .delete(&made.key(), Precondition::default())
            .await
            .unwrap();
        let said = heard.take();
        let Some(Message::Upsert(ending)) = said.last() else {
            panic!("{said:?}")
        };
        assert!(!routes::keep(ending.state));
        let mut last: Sandbox = store.find(&made.key()).await.unwrap().unwrap();
        last.metadata.finalizers.clear();
        let removed = store.update_spec(&last).await.unwrap();
        let said = heard.take();
        assert_eq!(
            said.iter().map(deleted).collect::<Vec<_>>(),
            [removed.version()]
        );
    }

    #[tokio::test]
    async fn what_failed_or_is_in_doubt_is_not_said_nor_what_is_no_sandbox() {
        let (memory, store, heard) = world();
        let made = store.create_object(&sandbox(None)).await.unwrap();
        heard.take();
        assert!(store.create_object(&sandbox(None)).await.is_err());
        let mut stale = made.clone();
        stale.metadata.resource_version = Some(Version::from_u64(1 << 40));
        assert!(store.update_spec(&stale).await.is_err());
        for fault in [WriteFault::FailBefore, WriteFault::FailAfter] {
            memory.faults().fail_nth_write(1, fault);
            let mut next = made.clone();
            next.spec.wake_on_traffic = true;
            assert!(store.update_spec(&next).await.is_err());
        }
        memory.faults().fail_nth_write(1, WriteFault::FailAfter);
        assert!(
            store
                .delete(&made.key(), Precondition::default())
                .await
                .is_err()
        );
        let base = Metadata::new(None, Name::new("base").unwrap());
        let template: SandboxTemplate = Object::new(base, TemplateSpec::default());
        store.create_object(&template).await.unwrap();
        assert_eq!(heard.take(), []);
    }
}
