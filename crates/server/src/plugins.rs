//! The plugins of this server, in the order in which they are asked. Another one is added here; see
//! `docs/plugins.md`.

use std::sync::Arc;

use auth::{Keys, Ledger, members::TeamQuota, quota::Size};
use control::world::Caches;
use plugins::{Plugin, Plugins};

/// Who has a say in what is made.
#[derive(Debug)]
pub(crate) struct Say {
    pub(crate) plugins: Plugins,
    /// One for all: what the API reserves, a claim and a flight see.
    pub(crate) ledger: Arc<Ledger>,
}

/// Puts them together. `usual` is the size of a sandbox that does not say how large it is.
pub(crate) fn assemble(keys: Keys, usual: Size, caches: &Caches) -> Say {
    let ledger = Ledger::new(caches.sandboxes.clone(), caches.templates.clone(), usual);
    let ledger = Arc::new(ledger);
    let quota = TeamQuota::new(keys, Arc::clone(&ledger), caches.pools.clone());
    let all: Vec<Arc<dyn Plugin>> = vec![Arc::new(quota)];
    Say {
        plugins: Plugins::new(all),
        ledger,
    }
}
