//! A memory store whose lists and watches fail on request.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use model::{Key, Version};
use parking_lot::Mutex;
use store::{
    Change, Deletion, Draft, Listing, Outcome, Precondition, Query, Record, Scope, Store,
    StoreError, Watch, WatchEvent, memory::MemoryStore,
};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// Fails in a way that may pass.
    Unavailable,
    /// Fails in a way that will not.
    Refused,
    /// Never answers.
    Hangs,
}

/// How open watches are ended.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Not,
    Unavailable,
    Expired,
}

#[derive(Debug)]
pub(crate) struct Flaky {
    pub(crate) inner: Arc<MemoryStore>,
    pub(crate) list_troubles: Mutex<VecDeque<Trouble>>,
    pub(crate) watch_troubles: Mutex<VecDeque<Trouble>>,
    /// Changed to end every open watch.
    cut: watch::Sender<Cut>,
    lists: AtomicUsize,
    /// From which versions watches were opened.
    pub(crate) watched_from: Mutex<Vec<Version>>,
}

impl Flaky {
    pub(crate) fn new(inner: Arc<MemoryStore>) -> Self {
        Self {
            inner,
            list_troubles: Mutex::default(),
            watch_troubles: Mutex::default(),
            cut: watch::Sender::new(Cut::Not),
            lists: AtomicUsize::new(0),
            watched_from: Mutex::default(),
        }
    }

    /// Ends every open watch as a connection that broke.
    pub(crate) fn cut_watches(&self) {
        self.cut.send_replace(Cut::Unavailable);
    }

    /// Ends every open watch as one that fell behind, though the store forgot nothing.
    pub(crate) fn expire_watches(&self) {
        self.cut.send_replace(Cut::Expired);
    }

    pub(crate) fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable {
        outcome: Outcome::NotApplied,
        reason: "injected".into(),
    }
}

async fn meet(troubles: &Mutex<VecDeque<Trouble>>, key: &str) -> Result<(), StoreError> {
    let next = troubles.lock().pop_front();
    match next {
        None => Ok(()),
        Some(Trouble::Unavailable) => Err(unavailable()),
        Some(Trouble::Refused) => Err(StoreError::NotFound(crate::world::key("default", key))),
        Some(Trouble::Hangs) => pending().await,
    }
}

#[async_trait]
impl Store for Flaky {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        meet(&self.list_troubles, "list").await?;
        self.inner.list(query).await
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        self.inner.create(draft).await
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        self.inner.update(change).await
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        self.inner.delete(key, only_if).await
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        meet(&self.watch_troubles, "watch").await?;
        self.watched_from.lock().push(after);
        let inner = self.inner.watch(scope, after).await?;
        let cut = self.cut.subscribe();
        Ok(Box::new(FlakyWatch { inner, cut }))
    }
}

#[derive(Debug)]
struct FlakyWatch {
    inner: Box<dyn Watch>,
    cut: watch::Receiver<Cut>,
}

#[async_trait]
impl Watch for FlakyWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        tokio::select! {
            biased;
            _ = self.cut.changed() => match *self.cut.borrow() {
                Cut::Expired => Err(StoreError::Expired { after: Version::ZERO }),
                Cut::Unavailable | Cut::Not => Err(unavailable()),
            },
            event = self.inner.next() => event,
        }
    }
}
