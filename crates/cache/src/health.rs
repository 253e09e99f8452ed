//! Readiness, errors, statistics.

use std::{sync::Arc, time::Duration};

use model::{Key, Version};
use store::StoreError;
use thiserror::Error;
use tokio::time::Instant;

/// How a cache is. There is no state before the first sync: such a cache does not exist.
#[derive(Clone, Debug)]
pub enum Health {
    /// It follows the store.
    Live,
    /// It has lost the store, serves what it has, and tries again.
    Retrying {
        /// What the store said last.
        error: Arc<StoreError>,
        /// Failures in a row.
        failures: u32,
        /// When the first of them was.
        since: Instant,
    },
    /// It no longer follows the store and never will.
    Stopped(StopReason),
}

impl Health {
    /// Whether answers may be served from it.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        match self {
            Self::Live | Self::Retrying { .. } => true,
            Self::Stopped(_) => false,
        }
    }
}

/// Why a cache stopped.
#[derive(Clone, Debug, Error)]
pub enum StopReason {
    /// Its owner asked it to.
    #[error("the cache was told to stop")]
    Told,
    /// The store refused in a way that trying again does not mend.
    #[error("the store refused the cache: {0}")]
    Refused(Arc<StoreError>),
    /// It has a defect.
    #[error("the cache's reflector panicked: {0}")]
    Panicked(Arc<str>),
}

/// Why there is no cache.
#[derive(Debug, Error)]
pub enum StartError {
    /// The first sync took too long.
    #[error("the cache did not sync before its deadline{}", last.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
    DeadlineReached {
        /// The last failure on the way, if there was one.
        last: Option<StoreError>,
    },
    /// Its owner stopped before the first sync.
    #[error("the cache was told to stop before it synced")]
    Told,
    /// The store refused in a way that trying again does not mend.
    #[error("the store refused the cache: {0}")]
    Refused(#[source] StoreError),
}

/// Why a wait ended without its level.
#[derive(Clone, Debug, Error)]
pub enum WaitError {
    /// The level was not reached in time.
    #[error("the deadline was reached{}", last.map(|v| format!("; last seen at version {v}")).unwrap_or_default())]
    DeadlineReached {
        /// The version of what was last seen; none if nothing was there.
        last: Option<Version>,
    },
    /// It would never be reached.
    #[error(transparent)]
    CacheStopped(#[from] StopReason),
}

/// What a cache has been doing.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Objects in it.
    pub objects: usize,
    /// Everything up to here is in it.
    pub version: Version,
    /// How long it has had no open watch; zero while it has one.
    pub lag: Duration,
    /// How long ago the store last said anything. Grows while a store is quiet.
    pub age: Duration,
    /// Changes received.
    pub events: u64,
    /// Lists after the first.
    pub relists: u64,
    /// Lists that were older than the cache and left no trace.
    pub stale_lists: u64,
    /// Watches that ended.
    pub lost_watches: u64,
    /// Records that do not fit the view, and are left out.
    pub undecodable: Vec<Undecodable>,
    /// Keys that somebody waits for.
    pub waited_keys: usize,
    /// Versions that somebody waits for.
    pub waited_versions: usize,
    /// Keys on which an operation is held.
    pub held_keys: usize,
    /// Subscriptions.
    pub subscriptions: usize,
}

/// A record that does not fit the view.
#[derive(Clone, Debug)]
pub struct Undecodable {
    /// Which.
    pub key: Key,
    /// As of which version.
    pub version: Version,
    /// What is wrong with it.
    pub error: Arc<StoreError>,
}
