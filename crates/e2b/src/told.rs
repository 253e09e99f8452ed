//! Sandboxes of which a team knows more than the cache shows yet.
//!
//! A create is answered as soon as its sandbox has all it needs, and a sandbox that was frozen answers
//! as soon as it runs; the record that says so is written meanwhile. Whoever was answered may ask at
//! once, so every other request of a team first waits until the cache shows what the team knows: a
//! moment, and hardly ever any.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{
    Namespace, Sandbox, SandboxId,
    lifecycle::{Traffic, traffic},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    service::E2b,
    state::{State, state_of},
};

/// How long the cache may take to show it, or all that a team was told.
const CATCH_UP: Duration = Duration::from_secs(10);

/// What creates told and is not shown yet.
#[derive(Debug, Default)]
pub(crate) struct Told(Arc<Mutex<Entries>>);

type Entries = BTreeMap<SandboxId, Arc<Sandbox>>;

/// One that was told. Dropped, it is forgotten that it was, however its create went on.
#[derive(Debug)]
#[must_use = "dropped, it is forgotten"]
pub(crate) struct Telling {
    told: Arc<Mutex<Entries>>,
    id: SandboxId,
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.told.lock().remove(&self.id);
    }
}

impl Told {
    /// Before anybody hears.
    pub(crate) fn add(&self, sandbox: &Arc<Sandbox>) -> Option<Telling> {
        let id = sandbox.spec.sandbox_id.clone()?;
        self.0.lock().insert(id.clone(), Arc::clone(sandbox));
        Some(Telling {
            told: Arc::clone(&self.0),
            id,
        })
    }

    fn of(&self, team: &Namespace) -> Vec<Arc<Sandbox>> {
        let told = self.0.lock();
        let of_team = |s: &&Arc<Sandbox>| s.metadata.namespace.as_ref() == Some(team);
        told.values().filter(of_team).cloned().collect()
    }
}

impl E2b {
    /// Waits until what was told of a sandbox is shown.
    pub(crate) async fn shown(&self, sandbox: &Sandbox) {
        let deadline = Instant::now() + CATCH_UP;
        self.wait_until_shown(sandbox, deadline).await;
    }

    /// Waits until everything is shown that a team was told.
    pub(crate) async fn all_shown(&self, team: &Namespace) {
        let deadline = Instant::now() + CATCH_UP;
        for sandbox in self.told.of(team) {
            self.wait_until_shown(&sandbox, deadline).await;
        }
        for key in self.unsaid.of(team) {
            let is_shown =
                |now: Option<&Sandbox>| now.is_none_or(|now| traffic(now) != Traffic::Resuming);
            let sandboxes = &self.caches.sandboxes;
            let _ = sandboxes.wait_for(&key, is_shown, deadline).await;
            self.roster.refresh(&key);
        }
    }

    async fn wait_until_shown(&self, told: &Sandbox, deadline: Instant) {
        let key = told.key();
        let is_shown = |now: Option<&Sandbox>| {
            let same = now.filter(|now| now.spec.sandbox_id == told.spec.sandbox_id);
            same.is_none_or(|now| state_of(now) != State::Creating)
        };
        // One that cannot be seen is told as what is seen.
        let _ = self
            .caches
            .sandboxes
            .wait_for(&key, is_shown, deadline)
            .await;
        self.roster.refresh(&key);
    }
}

#[cfg(test)]
mod tests {
    use model::{Metadata, Name, sandbox::SandboxSpec};

    use super::*;

    #[test]
    fn what_was_told_is_forgotten_when_its_create_is_over_however_it_ended() {
        let team = Namespace::new("team").unwrap();
        let spec = SandboxSpec {
            sandbox_id: Some(SandboxId::from_random(1)),
            ..SandboxSpec::default()
        };
        let meta = Metadata::new(Some(team.clone()), Name::new("a").unwrap());
        let sandbox = Arc::new(Sandbox::new(meta, spec));
        let told = Told::default();
        let telling = told.add(&sandbox);
        assert_eq!(told.of(&team).len(), 1);
        drop(telling);
        assert_eq!(told.of(&team).len(), 0);
    }
}
