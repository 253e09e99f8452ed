//! Telling of a delivery the moment it is ready, while its record is still being written.
//!
//! ```text
//!  claimer: expect(id) ──▶ the claim's write ──▶ waits ······················▶ told ──▶ answers
//!  control:                                       arms, runs hooks ──▶ hand_over ──▶ writes `Running`
//! ```
//!
//! A claim is durable when it was written, and a delivery that has all it needs is known by what the
//! runtime shows of it: whatever dies after that, the record follows. So who asked need not wait for
//! the second write. It is told through the desk, which claimers and control share, by the id of the
//! delivery, which names one delivery of one sandbox and no other.
//!
//! Only the host itself can take back what was told: one that restarts before that write has ended
//! the sandbox, and its record says so.
//!
//! Until the cache shows what was told, a delivery is *unsaid*: whoever carries traffic to it waits
//! for that.

use std::{collections::BTreeMap, sync::Arc};

use cache::SandboxCache;
use model::{Key, Sandbox, SandboxId, lifecycle::Phase};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Deliveries that somebody waits for, and those that were told of and are not in the cache yet.
#[derive(Debug, Default)]
pub(crate) struct Handovers {
    entries: Mutex<BTreeMap<SandboxId, Entry>>,
}

#[derive(Debug)]
enum Entry {
    Expected(oneshot::Sender<Arc<Sandbox>>),
    /// As it was told.
    Unsaid(Arc<Sandbox>),
}

/// Waits for a delivery. Dropped, nobody does.
#[derive(Debug)]
pub struct Expected {
    handovers: Arc<Handovers>,
    id: SandboxId,
    told: oneshot::Receiver<Arc<Sandbox>>,
}

impl Expected {
    /// The delivery, as its record will show it; never, if nobody of this process makes it ready.
    pub async fn told(&mut self) -> Arc<Sandbox> {
        match (&mut self.told).await {
            Ok(sandbox) => sandbox,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut entries = self.handovers.entries.lock();
        if matches!(entries.get(&self.id), Some(Entry::Expected(_))) {
            entries.remove(&self.id);
        }
    }
}

impl Handovers {
    pub(crate) fn expect(self: &Arc<Self>, id: &SandboxId) -> Expected {
        let (tell, told) = oneshot::channel();
        let mut entries = self.entries.lock();
        entries.insert(id.clone(), Entry::Expected(tell));
        Expected {
            handovers: Arc::clone(self),
            id: id.clone(),
            told,
        }
    }

    /// Tells who waits for a delivery, if anybody does.
    pub(crate) fn hand_over(&self, ready: &Sandbox) {
        let Some(id) = &ready.spec.sandbox_id else {
            return;
        };
        let mut entries = self.entries.lock();
        if !matches!(entries.get(id), Some(Entry::Expected(_))) {
            return;
        }
        let told = Arc::new(ready.clone());
        let unsaid = Entry::Unsaid(Arc::clone(&told));
        if let Some(Entry::Expected(tell)) = entries.insert(id.clone(), unsaid)
            && tell.send(told).is_err()
        {
            // It has left just now, and told nobody.
            entries.remove(id);
        }
    }

    /// Looks which of these the cache shows by now.
    pub(crate) fn look_at(&self, keys: &[Key], sandboxes: &SandboxCache) {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| match entry {
            Entry::Expected(_) => true,
            Entry::Unsaid(told) => !keys.contains(&told.key()) || is_unsaid(told, sandboxes),
        });
    }

    fn is_unsaid(&self, id: &SandboxId) -> bool {
        matches!(self.entries.lock().get(id), Some(Entry::Unsaid(_)))
    }
}

/// Whether the cache is behind what was told: it shows this delivery, and not that it is ready. One
/// that has ended meanwhile is not waited for.
fn is_unsaid(told: &Sandbox, sandboxes: &SandboxCache) -> bool {
    let now = sandboxes.find(&told.key());
    now.is_some_and(|now| {
        now.spec.sandbox_id == told.spec.sandbox_id
            && now.status.armed_epoch != told.spec.epoch
            && !now.metadata.is_deleting()
            && !matches!(
                now.status.phase,
                Phase::Stopping | Phase::Stopped | Phase::Failed
            )
    })
}

impl crate::Desk {
    /// Waits for a delivery from before its claim is written.
    #[must_use]
    pub fn expect(&self, id: &SandboxId) -> Expected {
        self.handovers.expect(id)
    }

    /// A delivery has all it needs: who waits for it is told, as its record will show it.
    pub fn hand_over(&self, ready: &Sandbox) {
        self.handovers.hand_over(ready);
        // What has gone meanwhile changes no more.
        self.handovers.look_at(&[ready.key()], &self.sandboxes);
    }

    /// Whether somebody was told of a delivery that the cache does not show as ready yet.
    #[must_use]
    pub fn is_unsaid(&self, id: &SandboxId) -> bool {
        self.handovers.is_unsaid(id)
    }
}

#[cfg(test)]
mod tests {
    use model::{Metadata, Name, Namespace, sandbox::SandboxSpec};

    use super::*;

    fn ready(id: &str) -> Sandbox {
        let meta = Metadata::new(Namespace::new("team").ok(), Name::new("box").unwrap());
        let spec = SandboxSpec {
            sandbox_id: SandboxId::new(id).ok(),
            ..SandboxSpec::default()
        };
        Sandbox::new(meta, spec)
    }

    #[tokio::test]
    async fn only_who_waits_for_a_delivery_is_told_of_it() {
        let handovers = Arc::new(Handovers::default());
        let [mine, other] = ["mine", "other"].map(|id| SandboxId::new(id).unwrap());
        handovers.hand_over(&ready("other"));
        let mut waits = handovers.expect(&mine);
        handovers.hand_over(&ready("other"));
        handovers.hand_over(&ready("mine"));
        assert_eq!(waits.told().await.spec.sandbox_id.as_ref(), Some(&mine));
        assert!(handovers.is_unsaid(&mine));
        assert!(!handovers.is_unsaid(&other));
    }

    #[tokio::test]
    async fn who_leaves_leaves_nothing() {
        let handovers = Arc::new(Handovers::default());
        drop(handovers.expect(&SandboxId::new("mine").unwrap()));
        handovers.hand_over(&ready("mine"));
        assert!(handovers.entries.lock().is_empty());
    }
}
