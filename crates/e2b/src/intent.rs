//! Finding a caller's sandbox, changing what is wanted of it in one write, and waiting for what is
//! then observed.
//!
//! A sandbox is named by the id of its delivery, looked up anew for every try. A write names the
//! version it was decided on, so it never lands on another delivery, nor on top of something that
//! was not seen.

use std::{sync::Arc, time::Duration};

use cache::{SandboxIndex, WaitError};
use model::{
    Key, Namespace, Sandbox, SandboxId, Spec as _, Version,
    pool::{PoolSpec, RecyclePolicy},
};
use plan::claim::{Ending, released};
use store::{Deletion, Outcome, Precondition, Query, StoreError, StoreExt as _};
use tokio::time::Instant;

use crate::{
    idempotency,
    refusal::Refusal,
    rung,
    service::E2b,
    state::{State, state_of},
};

/// How often a change is tried again when another writer was first.
const ATTEMPTS: usize = 16;
/// How long the cache may take to show what is known to be written.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How often a removal that nobody waits for is tried while the store is unavailable.
const REMOVALS: u32 = 8;

/// What to do to a sandbox as it stands.
pub(crate) enum Decision {
    /// Write this.
    Write(Box<Sandbox>),
    /// Nothing.
    Keep,
}

/// A sandbox after a decision.
pub(crate) struct Amended {
    /// As written, or as it stood.
    pub(crate) sandbox: Arc<Sandbox>,
    /// The delivery.
    pub(crate) id: SandboxId,
}

impl E2b {
    /// The caller's sandbox of this id. One of somebody else's is looked up and not found in the
    /// same way as one that does not exist.
    pub(crate) fn find(&self, team: &Namespace, id: &str) -> Option<Arc<Sandbox>> {
        let of_team = |id: &str| {
            let found = self.caches.sandboxes.find_by(SandboxIndex::Id, id);
            found
                .into_iter()
                .find(|s| s.metadata.namespace.as_ref() == Some(team) && s.spec.owner.is_some())
        };
        // Old clients append the id of a client.
        of_team(id).or_else(|| of_team(id.split_once('-')?.0))
    }

    /// The caller's sandbox of this id, if its owner has heard of it and it has not ended.
    pub(crate) fn find_live(&self, team: &Namespace, id: &str) -> Result<Arc<Sandbox>, Refusal> {
        self.find(team, id)
            .filter(|s| matches!(state_of(s), State::Running | State::Paused))
            .ok_or_else(|| Refusal::no_sandbox(id))
    }

    /// Changes what is wanted of a sandbox by one write, decided on what it is at that moment.
    /// When this returns, the change is in the cache.
    pub(crate) async fn amend(
        &self,
        team: &Namespace,
        id: &str,
        decide: impl Fn(&Sandbox) -> Result<Decision, Refusal>,
    ) -> Result<Amended, Refusal> {
        for _ in 0..ATTEMPTS {
            let seen = self.find(team, id).ok_or_else(|| Refusal::no_sandbox(id))?;
            let delivery = seen
                .spec
                .sandbox_id
                .clone()
                .ok_or_else(|| Refusal::no_sandbox(id))?;
            let next = match decide(&seen)? {
                Decision::Keep => {
                    return Ok(Amended {
                        sandbox: seen,
                        id: delivery,
                    });
                }
                Decision::Write(next) => next,
            };
            match self.store.update_spec(&*next).await {
                Ok(written) => {
                    self.catch_up(&written.key(), written.version()).await?;
                    return Ok(Amended {
                        sandbox: Arc::new(written),
                        id: delivery,
                    });
                }
                Err(StoreError::Conflict { actual, .. }) => {
                    self.catch_up(&seen.key(), actual).await?;
                }
                Err(StoreError::NotFound(_) | StoreError::OtherUid { .. }) => {
                    return Err(Refusal::no_sandbox(id));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refusal::too_many_conflicts())
    }

    /// Waits until the cache, and what is made of it, shows a version.
    pub(crate) async fn catch_up(&self, key: &Key, version: Version) -> Result<(), WaitError> {
        let deadline = Instant::now() + CATCH_UP;
        let sandboxes = &self.caches.sandboxes;
        sandboxes.wait_for_version(version, deadline).await?;
        self.roster.refresh(key);
        Ok(())
    }

    /// Waits until `judge` has something to say of a delivery, from this version on. It is asked
    /// about `None` once the delivery is over.
    pub(crate) async fn until<T>(
        &self,
        key: &Key,
        id: &SandboxId,
        since: Version,
        deadline: Instant,
        judge: impl Fn(Option<&Sandbox>) -> Option<T>,
    ) -> Result<T, WaitError> {
        let sandboxes = &self.caches.sandboxes;
        sandboxes.wait_for_version(since, deadline).await?;
        let judge =
            |s: Option<&Sandbox>| judge(s.filter(|s| s.spec.sandbox_id.as_ref() == Some(id)));
        let seen = sandboxes
            .wait_for(key, |s| judge(s).is_some(), deadline)
            .await?;
        self.roster.refresh(key);
        judge(seen.as_deref()).ok_or(WaitError::DeadlineReached { last: None })
    }

    /// Ends a delivery, whatever state it is in. Answers at which version; nothing if there was none
    /// to end.
    pub(crate) async fn end(
        &self,
        key: &Key,
        id: &SandboxId,
    ) -> Result<Option<Version>, StoreError> {
        for _ in 0..ATTEMPTS {
            let Some(now) = self.store.find(key).await? else {
                return Ok(None);
            };
            let sandbox: Sandbox = now;
            if sandbox.spec.sandbox_id.as_ref() != Some(id) || sandbox.metadata.is_deleting() {
                return Ok(None);
            }
            let written = match self.given_back(&sandbox) {
                Some(member) => self.store.update_spec(&member).await.map(|s| s.version()),
                None => {
                    let only_if = Precondition {
                        uid: sandbox.metadata.uid,
                        version: sandbox.metadata.resource_version,
                    };
                    let deleted = self.store.delete(key, only_if).await;
                    deleted.map(|deletion| match deletion {
                        Deletion::Removed(record) | Deletion::Marked(record) => record.version(),
                    })
                }
            };
            let version = match written {
                Ok(version) => version,
                Err(StoreError::Conflict { .. } | StoreError::OtherUid { .. }) => continue,
                // Somebody else's removal was first.
                Err(StoreError::NotFound(_)) => {
                    self.seen_without(key, id, sandbox.version()).await?
                }
                Err(error) => return Err(error),
            };
            // Who asks next must find it gone; a cache that lags is not a failure to end.
            let _ = self.catch_up(key, version).await;
            self.followers.have_seen(key, version).await;
            return Ok(Some(version));
        }
        Err(StoreError::Unavailable {
            outcome: Outcome::NotApplied,
            reason: "the record changes faster than it can be removed".into(),
        })
    }

    /// A version at which a delivery that somebody else removed is gone: nobody is told which it is, and
    /// the cache that shows it gone is there. What is listed would do as well, but it is as new as all the
    /// store, and watches of sandboxes come that far only when one of them changes.
    async fn seen_without(
        &self,
        key: &Key,
        id: &SandboxId,
        since: Version,
    ) -> Result<Version, StoreError> {
        let deadline = Instant::now() + CATCH_UP;
        let is_gone = |sandbox: Option<&Sandbox>| sandbox.is_none().then_some(());
        if self.until(key, id, since, deadline, is_gone).await.is_ok() {
            return Ok(self.caches.sandboxes.version());
        }
        let mut query = Query::kind(key.kind).field("spec.sandboxId", id.as_str());
        query.namespace.clone_from(&key.namespace);
        query.limit = Some(1);
        Ok(self.store.list(&query).await?.version.max(since))
    }

    /// The member as it goes back to a pool that recycles; `None` where it is removed instead.
    fn given_back(&self, sandbox: &Sandbox) -> Option<Sandbox> {
        let ready = matches!(state_of(sandbox), State::Running | State::Paused);
        let key = Key {
            kind: PoolSpec::KIND,
            namespace: sandbox.metadata.namespace.clone(),
            name: sandbox.spec.pool.clone()?,
        };
        let pool = self.caches.pools.find(&key)?;
        let recycles = pool.spec.recycle_policy == RecyclePolicy::Recycle;
        // One of the same name is another, and would not know it.
        let its = sandbox.metadata.controller().map(|owner| owner.uid) == Some(pool.uid());
        (ready && recycles && its && !pool.metadata.is_deleting()).then(|| {
            let mut member = released(sandbox, Ending::by_owner(self.now()));
            idempotency::forget(&mut member.metadata.annotations);
            rung::forget(&mut member);
            member
        })
    }

    /// Ends a delivery that nobody was told of, and does not give up easily: it would be nobody's
    /// until its timeout.
    pub(crate) async fn discard(&self, key: &Key, id: &SandboxId) {
        let backoff = kit::Backoff {
            first: Duration::from_millis(50),
            cap: Duration::from_secs(5),
        };
        for attempt in 1..=REMOVALS {
            match self.end(key, id).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%key, %error, attempt, "a failed sandbox was not removed");
                }
            }
            tokio::time::sleep(backoff.delay(attempt, &self.entropy)).await;
        }
        tracing::error!(%key, "a failed sandbox is left to its timeout");
    }

    /// Runs a change to its end, even if the client that asked for it leaves.
    pub(crate) async fn outlive<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        match self.tasks.spawn(change).await {
            Ok(result) => result,
            Err(_) => Err(Refusal::internal(
                "the request failed unexpectedly: see the server's log",
            )),
        }
    }
}
