//! A store whose writes of keys and teams answer once they are in force here.
//!
//! Keys are checked against caches, which see a write a moment after it is durable. Whoever revokes
//! a key must not have to know that: when the call returns, the next request with that key is
//! refused.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use cache::{ApiKeyCache, TeamCache, WaitError};
use model::{Key, KindName, Spec as _, Version, api_key::ApiKeySpec, team::TeamSpec};
use store::{
    Change, Deletion, Draft, Listing, Outcome, Precondition, Query, Record, Scope, Store,
    StoreError, Watch,
};
use tokio::time::Instant;

/// How long a write waits for the caches.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store as described above. All other records pass through.
pub struct Settled {
    store: Arc<dyn Store>,
    keys: ApiKeyCache,
    teams: TeamCache,
}

// Not derived: a store in memory would print every record, and with them the hashes of keys.
impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled")
            .field("keys", &self.keys)
            .field("teams", &self.teams)
            .finish_non_exhaustive()
    }
}

impl Settled {
    /// Over a store, with caches that follow it.
    pub(crate) fn new(store: Arc<dyn Store>, keys: ApiKeyCache, teams: TeamCache) -> Self {
        Self { store, keys, teams }
    }

    async fn settle(&self, kind: KindName, version: Version) -> Result<(), StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let seen = match kind {
            ApiKeySpec::KIND => self.keys.wait_for_version(version, deadline).await,
            TeamSpec::KIND => self.teams.wait_for_version(version, deadline).await,
            _ => Ok(()),
        };
        seen.map_err(|error| not_settled(kind, &error))
    }
}

fn not_settled(kind: KindName, error: &WaitError) -> StoreError {
    StoreError::Unavailable {
        // It is durable; whether it is in force here is what nobody knows.
        outcome: Outcome::Unknown,
        reason: format!("the {kind} is written, but not in force here yet: {error}").into(),
    }
}

#[async_trait]
impl Store for Settled {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        self.store.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        self.store.list(query).await
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        let record = self.store.create(draft).await?;
        self.settle(record.kind, record.version()).await?;
        Ok(record)
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        let record = self.store.update(change).await?;
        self.settle(record.kind, record.version()).await?;
        Ok(record)
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        let deletion = self.store.delete(key, only_if).await?;
        let (Deletion::Removed(record) | Deletion::Marked(record)) = &deletion;
        self.settle(record.kind, record.version()).await?;
        Ok(deletion)
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(scope, after).await
    }
}
