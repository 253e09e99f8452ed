//! How far this process has written, for watches that hear nothing of it.

use std::sync::Arc;

use model::Version;
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
