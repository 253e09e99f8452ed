//! How far this process has written, for watches that hear nothing of it, and whether the cluster is where
//! it was.

use std::sync::Arc;

use model::Version;
use store::StoreError;
use tokio::sync::watch;

/// The newest version that this process wrote. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Arc<watch::Sender<Version>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Version::ZERO)))
    }
}

impl Progress {
    pub(crate) fn wrote(&self, version: Version) {
        self.0.send_if_modified(|newest| {
            let newer = version > *newest;
            if newer {
                *newest = version;
            }
            newer
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Version> {
        self.0.subscribe()
    }
}

/// Whether the cluster was seen to go back, as one that was restored from a backup. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Past(Arc<watch::Sender<bool>>);

impl Default for Past {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Past {
    /// Compares a version of the cluster with one that was seen before.
    pub(crate) fn check(&self, now: Version, seen: Version) -> Result<(), StoreError> {
        if now >= seen {
            return Ok(());
        }
        tracing::error!(%now, %seen, "the cluster went back: it was restored from a backup");
        self.0.send_replace(true);
        Err(StoreError::Expired { after: seen })
    }

    pub(crate) async fn returned(&self) {
        // The sender is here, so this ends only with that.
        let _ = self.0.subscribe().wait_for(|went_back| *went_back).await;
    }
}
