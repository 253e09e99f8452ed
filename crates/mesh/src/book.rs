//! What a mesh reads from and writes to.

use std::{fmt::Debug, time::Duration};

use model::Version;
use routes::{Changes, Everything, Message, Outcome, Resync, Snapshot, Table, Writer};

/// A route table, as a mesh uses it. There is one real one, [`routes::Table`]; the simulator puts
/// others in its place.
pub trait Book: Send + Sync + Debug {
    /// Takes what a peer says.
    fn apply(&self, message: Message, now: Duration) -> Outcome;
    /// Takes everything a peer knows, as [`Table::adopt`].
    fn replace_all(&self, snapshot: Snapshot, now: Duration) -> Resync;
    /// See [`Table::since`].
    fn since(&self, after: Version, told: Option<u64>) -> Option<Changes>;
    /// See [`Table::everything`].
    fn everything(&self) -> Option<Everything>;
    /// See [`Table::watched`].
    fn watched(&self) -> Version;
    /// See [`Table::synced`].
    fn synced(&self) -> bool;
}

impl Book for Table {
    fn apply(&self, message: Message, now: Duration) -> Outcome {
        Table::apply(self, Writer::Peer, message, now)
    }

    fn replace_all(&self, snapshot: Snapshot, now: Duration) -> Resync {
        Table::adopt(self, snapshot, now)
    }

    fn since(&self, after: Version, told: Option<u64>) -> Option<Changes> {
        Table::since(self, after, told)
    }

    fn everything(&self) -> Option<Everything> {
        Table::everything(self)
    }

    fn watched(&self) -> Version {
        Table::watched(self)
    }

    fn synced(&self) -> bool {
        Table::synced(self)
    }
}

/// Hears what peers say, where there is no table: in a replica of the API.
pub trait Heard: Send + Sync + Debug {
    /// A peer has written this. It is acknowledged when this returns.
    fn heard(&self, message: &Message);

    /// How far the own watch has come: a peer that could not be told of something older need not
    /// worry.
    fn watched(&self) -> Version;
}
