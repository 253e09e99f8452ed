//! The handle that readers hold.

use std::{fmt, sync::Arc};

use kit::{Backoff, Entropy, Tasks};
use model::{Key, Namespace, Version, lifecycle::OperationKind};
use parking_lot::{Mutex, RwLock};
use store::{Query, Store, record::LabelTerm};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::DropGuard;

use crate::{
    Changes, Health, Hold, OperationConflict, StartError, Stats, StopReason, Term, View,
    changes::Inboxes, hold::Holds, notes::Notes, place::Place, reflector, slots::Slots,
    table::Table,
};

/// What a cache follows, and how it retries.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only this namespace; `None` for all.
    pub namespace: Option<Namespace>,
    /// Only objects for which all of these hold. One for which they cease to hold leaves the
    /// cache as if it had been removed.
    pub labels: Vec<LabelTerm>,
    /// Between tries after a failure of the store.
    pub backoff: Backoff,
    /// Jitters the tries.
    pub entropy: Arc<Entropy>,
}

impl Options {
    /// All objects of the kind, retried after 50 ms to 10 s.
    #[must_use]
    pub const fn new(entropy: Arc<Entropy>) -> Self {
        use std::time::Duration;
        Self {
            namespace: None,
            labels: Vec::new(),
            backoff: Backoff {
                first: Duration::from_millis(50),
                cap: Duration::from_secs(10),
            },
            entropy,
        }
    }

    /// Narrowed to a namespace.
    #[must_use]
    pub fn within(mut self, namespace: Namespace) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Narrowed by labels.
    #[must_use]
    pub fn matching(mut self, term: LabelTerm) -> Self {
        self.labels.push(term);
        self
    }

    pub(crate) fn query<V: View>(&self) -> Query {
        Query {
            namespace: self.namespace.clone(),
            labels: self.labels.clone(),
            ..Query::kind(V::KIND)
        }
    }
}

/// The objects of one kind, as of a moment ago, in memory. Cheap to clone; when the last handle
/// is dropped, it stops following the store.
pub struct Cache<V: View> {
    shared: Arc<Shared<V>>,
    /// Tells the reflector to stop when the last handle goes.
    following: Arc<DropGuard>,
}

/// What the one writer and the readers share.
pub(crate) struct Shared<V: View> {
    /// Held for lookups and for applying decoded batches; never across an await.
    pub(crate) table: RwLock<Table<V>>,
    pub(crate) waits: Slots<Place>,
    pub(crate) version_waits: Slots<Version>,
    pub(crate) inboxes: Inboxes,
    pub(crate) holds: Holds,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) notes: Mutex<Notes>,
}

impl<V: View> Shared<V> {
    pub(crate) fn new() -> Self {
        Self {
            table: RwLock::new(Table::new()),
            waits: Slots::new(),
            version_waits: Slots::new(),
            inboxes: Inboxes::default(),
            holds: Holds::default(),
            health: watch::Sender::new(Health::Live),
            notes: Mutex::new(Notes::new()),
        }
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        match &*self.health.borrow() {
            Health::Stopped(reason) => Some(reason.clone()),
            Health::Live | Health::Retrying { .. } => None,
        }
    }
}

impl<V: View> Cache<V> {
    /// Lists, and from then on follows, the objects of the view's kind. Answers once the first
    /// list is in: nothing can be served from a cache that has not synced, because there is none.
    /// Failures that may pass are retried until the deadline.
    ///
    /// # Errors
    /// If it does not sync before the deadline, if `tasks` are told to stop first, or if the store
    /// refuses in a way that trying again does not mend.
    pub async fn start(
        store: Arc<dyn Store>,
        options: Options,
        deadline: Instant,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        let (shared, following) = reflector::start(store, options, deadline, tasks).await?;
        Ok(Self {
            shared,
            following: Arc::new(following.drop_guard()),
        })
    }

    /// What is at a key. Nothing is at a key of another kind.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<Arc<V::Value>> {
        if key.kind != V::KIND {
            return None;
        }
        self.shared.table.read().get(&Place::of(key)).cloned()
    }

    /// What an index finds, in the order of namespace and name.
    #[must_use]
    pub fn find_by<'t>(&self, index: V::Index, term: impl Into<Term<'t>>) -> Vec<Arc<V::Value>> {
        let table = self.shared.table.read();
        table.find_by(index, term.into()).cloned().collect()
    }

    /// The first that an index finds, in the order of namespace and name.
    #[must_use]
    pub fn find_one_by<'t>(
        &self,
        index: V::Index,
        term: impl Into<Term<'t>>,
    ) -> Option<Arc<V::Value>> {
        let table = self.shared.table.read();
        table.find_by(index, term.into()).next().cloned()
    }

    /// The first that an index finds and `is_meant` accepts, in the order of namespace and name. The
    /// cache is held meanwhile, so it must be brief.
    #[must_use]
    pub fn find_one_where<'t>(
        &self,
        index: V::Index,
        term: impl Into<Term<'t>>,
        mut is_meant: impl FnMut(&V::Value) -> bool,
    ) -> Option<Arc<V::Value>> {
        let table = self.shared.table.read();
        table
            .find_by(index, term.into())
            .find(|value| is_meant(value))
            .cloned()
    }

    /// How many an index finds.
    #[must_use]
    pub fn count_by<'t>(&self, index: V::Index, term: impl Into<Term<'t>>) -> usize {
        self.shared.table.read().find_by(index, term.into()).count()
    }

    /// Everything, in the order of namespace and name.
    #[must_use]
    pub fn find_all(&self) -> Vec<Arc<V::Value>> {
        self.shared.table.read().values().cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.table.read().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything up to this version of the store is in the cache.
    #[must_use]
    pub fn version(&self) -> Version {
        self.shared.table.read().version()
    }

    /// Every key there is, and from then on every key that changed, each once until it is taken.
    #[must_use]
    pub fn subscribe(&self) -> Changes<V> {
        Changes::subscribe(self)
    }

    /// Holds an object for one kind of operation. Take it before writing the intent.
    ///
    /// # Errors
    /// If it is held for another kind.
    pub fn hold(&self, key: &Key, kind: OperationKind) -> Result<Hold<V>, OperationConflict> {
        Hold::acquire(self, key, kind)
    }

    /// How it is now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.borrow().clone()
    }

    /// How it is, and each later change of that.
    #[must_use]
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// Whether answers may be served from it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.health.borrow().is_ready()
    }

    /// What it has been doing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let (objects, version) = {
            let table = shared.table.read();
            (table.len(), table.version())
        };
        Stats {
            objects,
            version,
            waited_keys: shared.waits.len(),
            waited_versions: shared.version_waits.len(),
            held_keys: shared.holds.len(),
            subscriptions: shared.inboxes.len(),
            ..shared.notes.lock().stats(V::KIND)
        }
    }

    pub(crate) fn shared(&self) -> &Shared<V> {
        &self.shared
    }
}

impl<V: View> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            following: Arc::clone(&self.following),
        }
    }
}

impl<V: View> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("kind", &V::KIND)
            .field("objects", &self.len())
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}
