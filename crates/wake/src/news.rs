//! What is said of a sandbox before its record says it.
//!
//! ```text
//!  flight:  writes the intent (durable) ──▶ waits ······▶ news ──▶ requests go on ──▶ the record ──▶ books
//!  control:                                 thaws, looks ──▶ tells ──▶ writes `Running`
//! ```
//!
//! A sandbox that was frozen is awake when its runtime shows that it runs. Nothing is lost if
//! whatever told of it dies before the record is written: the intent to be awake is durable, the
//! workload is the one that was frozen, and the next look finds it as it is. So requests need not
//! wait for the second write.
//!
//! News are an observation like any other: they carry the version of the record that was looked at,
//! and count for a flight only if that is at least as new as what it wrote.

use std::sync::Arc;

use model::Version;
use parking_lot::Mutex;
use routes::Route;
use tokio::sync::Notify;

/// The newest that was said of one delivery. One flight waits for it.
#[derive(Debug, Default)]
pub(crate) struct News {
    newest: Mutex<Option<Arc<Route>>>,
    came: Notify,
}

impl News {
    pub(crate) fn tell(&self, route: Arc<Route>) {
        let mut newest = self.newest.lock();
        if newest
            .as_ref()
            .is_none_or(|old| old.version < route.version)
        {
            *newest = Some(route);
        }
        drop(newest);
        // Kept, if the flight has not come to wait yet.
        self.came.notify_one();
    }

    pub(crate) fn newest(&self) -> Option<Arc<Route>> {
        self.newest.lock().clone()
    }

    /// Waits for what was seen at this version or later.
    pub(crate) async fn since(&self, version: Version) -> Arc<Route> {
        loop {
            if let Some(route) = self.newest().filter(|route| route.version >= version) {
                return route;
            }
            self.came.notified().await;
        }
    }
}
