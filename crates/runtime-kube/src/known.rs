//! What this process remembers of workloads: the newest call of each, and what was last learnt of its
//! container by asking. All of it can be learnt again.

use std::{collections::BTreeMap, sync::Arc};

use ::runtime::{Fence, RuntimeError};
use model::{Epoch, Generation, OperationId, Uid};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// More than these are not remembered once they are gone.
const REMEMBERED: usize = 100_000;

/// What was learnt of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Learnt {
    pub(crate) container_id: Box<str>,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) frozen: Option<bool>,
}

#[derive(Debug, Default)]
struct Memory {
    rank: (Generation, OperationId),
    learnt: Learnt,
    /// Held by the one call that changes the workload.
    turn: Arc<AsyncMutex<()>>,
}

/// What is remembered, by workload.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<Uid, Memory>>);

impl Known {
    /// Waits for its turn to change a workload. A call that is older than one seen before has none.
    pub(crate) async fn enter(&self, fence: Fence) -> Result<OwnedMutexGuard<()>, RuntimeError> {
        self.admit(fence)?;
        let turn = {
            let mut all = self.0.lock();
            Arc::clone(&all.entry(fence.uid).or_default().turn)
        };
        let turn = turn.lock_owned().await;
        // Somebody newer may have been waiting, too.
        self.admit(fence)?;
        Ok(turn)
    }

    fn admit(&self, fence: Fence) -> Result<(), RuntimeError> {
        let mut all = self.0.lock();
        if all.len() >= REMEMBERED && !all.contains_key(&fence.uid) {
            all.retain(|_, memory| Arc::strong_count(&memory.turn) > 1);
        }
        let memory = all.entry(fence.uid).or_default();
        if fence.rank() < memory.rank {
            return Err(RuntimeError::Stale(fence));
        }
        memory.rank = fence.rank();
        Ok(())
    }

    /// What was learnt of a container; nothing if it was another.
    pub(crate) fn of(&self, uid: Uid, container_id: &str) -> Learnt {
        let all = self.0.lock();
        let learnt = all.get(&uid).map(|memory| &memory.learnt);
        match learnt.filter(|learnt| *learnt.container_id == *container_id) {
            Some(learnt) => learnt.clone(),
            None => Learnt {
                container_id: container_id.into(),
                ..Learnt::default()
            },
        }
    }

    /// Remembers which delivery a container is armed for.
    pub(crate) fn armed(&self, uid: Uid, container_id: &str, epoch: Epoch) {
        self.learn(uid, container_id, |learnt| learnt.epoch = Some(epoch));
    }

    /// Remembers whether a container is frozen.
    pub(crate) fn frozen(&self, uid: Uid, container_id: &str, frozen: bool) {
        self.learn(uid, container_id, |learnt| learnt.frozen = Some(frozen));
    }

    /// Forgets whether a container is frozen: the next look asks.
    pub(crate) fn doubt(&self, uid: Uid, container_id: &str) {
        self.learn(uid, container_id, |learnt| learnt.frozen = None);
    }

    fn learn(&self, uid: Uid, container_id: &str, how: impl FnOnce(&mut Learnt)) {
        let mut next = self.of(uid, container_id);
        how(&mut next);
        self.0.lock().entry(uid).or_default().learnt = next;
    }

    /// Forgets a workload that is gone. A call that comes late then finds nothing to do.
    pub(crate) fn forget(&self, uid: Uid) {
        self.0.lock().remove(&uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(generation: u64, operation: u64) -> Fence {
        Fence {
            uid: Uid::from_random(1),
            generation: Generation(generation),
            operation: OperationId(operation),
        }
    }

    #[tokio::test]
    async fn an_older_call_has_no_turn_even_if_it_was_waiting_first() {
        let known = Known::default();
        let first = known.enter(fence(2, 1)).await.unwrap();
        let waiting = known.enter(fence(2, 2));
        let newer = known.enter(fence(3, 1));
        let (waiting, newer, ()) = tokio::join!(waiting, newer, async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(
            matches!(waiting, Err(RuntimeError::Stale(_))),
            "{waiting:?}"
        );
        drop(newer.unwrap());
        assert!(known.enter(fence(2, 9)).await.is_err());
    }

    #[test]
    fn what_was_learnt_is_of_one_container() {
        let (known, uid) = (Known::default(), Uid::from_random(1));
        known.armed(uid, "a", Epoch(3));
        known.frozen(uid, "a", true);
        let learnt = known.of(uid, "a");
        assert_eq!((learnt.epoch, learnt.frozen), (Some(Epoch(3)), Some(true)));
        assert_eq!(known.of(uid, "b").epoch, None);
        known.doubt(uid, "a");
        assert_eq!(known.of(uid, "a").frozen, None);
        known.frozen(uid, "b", false);
        assert_eq!(known.of(uid, "a").epoch, None);
    }
}
