//! Feeds a route table from a store: a full snapshot first, then every change, and a full snapshot
//! again whenever the changes are lost.

use std::{sync::Arc, time::Duration};

use kit::{Backoff, Clock, Entropy};
use model::{Sandbox, Spec as _, sandbox::SandboxSpec};
use routes::{Deletion, Message, Route, Snapshot, Table, Writer};
use store::{Query, Scope, Store, StoreError, StoreExt as _, WatchEvent};

/// Between two tries to list.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    cap: Duration::from_secs(5),
};

/// What a feed needs.
#[derive(Clone, Debug)]
pub struct RouteFeed {
    /// Where sandboxes are recorded.
    pub store: Arc<dyn Store>,
    /// What is fed.
    pub table: Arc<Table>,
    /// Time, by which the table forgets.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for pauses.
    pub entropy: Arc<Entropy>,
}

impl RouteFeed {
    /// Feeds for ever, and tells `heard` of each change that the table was told of.
    pub async fn follow(&self, heard: impl Fn(&Message)) {
        let mut attempt = 0;
        loop {
            let Err(error) = self.once(&heard, &mut attempt).await else {
                continue;
            };
            tracing::debug!(%error, "the feed of routes lists again");
            attempt += 1;
            tokio::time::sleep(BACKOFF.delay(attempt, &self.entropy)).await;
        }
    }

    async fn once(&self, heard: &impl Fn(&Message), attempt: &mut u32) -> Result<(), StoreError> {
        let query = Query::kind(SandboxSpec::KIND);
        let (sandboxes, version) = self.store.list_objects::<SandboxSpec>(&query).await?;
        let routes = sandboxes
            .iter()
            .filter_map(Route::of)
            .map(Arc::new)
            .collect();
        self.table
            .replace_all(Snapshot { version, routes }, self.clock.monotonic());
        let scope = Scope::kind(SandboxSpec::KIND);
        let mut watch = self.store.watch(scope, version).await?;
        *attempt = 0;
        loop {
            let event = watch.next().await?;
            let now = self.clock.monotonic();
            if let Some(message) = message_of(&event)? {
                heard(&message);
                self.table.apply(Writer::Watch, message, now);
            }
            self.table.watch_passed(event.version(), now);
        }
    }
}

fn message_of(event: &WatchEvent) -> Result<Option<Message>, StoreError> {
    match event {
        WatchEvent::Put { record, .. } => {
            let sandbox: Sandbox = record.decode()?;
            Ok(Route::of(&sandbox).map(Message::from))
        }
        WatchEvent::Removed { record } => {
            let Some(namespace) = record.meta.namespace.clone() else {
                return Ok(None);
            };
            let (name, version) = (record.meta.name.clone(), record.version());
            Ok(Some(Message::Delete(Deletion {
                namespace,
                name,
                version,
            })))
        }
        WatchEvent::Bookmark(_) => Ok(None),
    }
}
