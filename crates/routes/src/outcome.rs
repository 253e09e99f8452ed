//! What became of a message, and how often.

use std::sync::Arc;

use thiserror::Error;

use crate::route::Route;

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was news: the table changed.
    Applied(Change),
    /// It was not: the table is as before.
    Ignored(Ignored),
    /// It made no sense: the table is as before.
    Invalid(Invalid),
}

/// What an applied message changed for its key. Both sides are empty when only a tombstone moved.
///
/// Whoever holds connections or flights of `before` looks here for those to end or to wake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The route that was there.
    pub before: Option<Arc<Route>>,
    /// The route that is there now.
    pub after: Option<Arc<Route>>,
}

/// Why a message changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// The table knows something newer of that key.
    Older,
    /// The table knows just this.
    Duplicate,
    /// Another account of the same version wins.
    Conflict,
    /// A full snapshot at least that new was taken.
    Covered,
    /// The key is unknown, and tombstones at least that new were forgotten: it may be dead.
    BelowFloor,
    /// A peer tells of a version that the own watch has passed without bringing that.
    Passed,
    /// A delete of an unknown key while there are too many tombstones; the own watch will tell.
    TooManyTombstones,
}

/// Why a message made no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Invalid {
    /// It has no version, or none this build can read.
    #[error("the message has no version")]
    NoVersion,
    /// It has no state, or none this build knows.
    #[error("the message has no known state")]
    NoState,
    /// It does not say which sandbox it is about.
    #[error("the message does not say which sandbox it is about")]
    Incomplete,
}

/// What became of a full snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resync {
    /// The table now holds what the snapshot said, and what is newer.
    Taken {
        /// Routes added or changed.
        changed: usize,
        /// Routes deleted because the snapshot does not have them.
        deleted: usize,
        /// Keys left alone because the table knows something newer than the snapshot.
        newer: usize,
    },
    /// A newer snapshot was taken before; a peer's, also if the own watch has passed it.
    Older,
    /// The own list is older than a peer's snapshot that was taken before, which no own list has
    /// confirmed. The table is as before: either the list lags, or the store went back.
    OlderThanTold,
}

/// How many messages met which end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that changed the table.
    pub applied: u64,
    /// See [`Ignored::Older`].
    pub older: u64,
    /// See [`Ignored::Duplicate`].
    pub duplicate: u64,
    /// See [`Ignored::Covered`].
    pub covered: u64,
    /// See [`Ignored::BelowFloor`].
    pub below_floor: u64,
    /// See [`Ignored::Passed`].
    pub passed: u64,
    /// Routes that a peer had told of and that went when the own watch had passed their versions
    /// without bringing them. A fault upstream, or a store that was restored.
    pub refuted: u64,
    /// The same of deletions: what they had hidden came back with the list that followed.
    pub refuted_deletes: u64,
    /// See [`Ignored::TooManyTombstones`].
    pub too_many_tombstones: u64,
    /// Messages that contradicted another at the same version, whichever won. A fault upstream.
    pub conflicts: u64,
    /// See [`Invalid::NoVersion`].
    pub no_version: u64,
    /// See [`Invalid::NoState`].
    pub no_state: u64,
    /// See [`Invalid::Incomplete`].
    pub incomplete: u64,
    /// Full snapshots taken.
    pub snapshots: u64,
}

impl Counts {
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Applied(_) => &mut self.applied,
            Outcome::Ignored(Ignored::Older) => &mut self.older,
            Outcome::Ignored(Ignored::Duplicate) => &mut self.duplicate,
            Outcome::Ignored(Ignored::Conflict) => &mut self.conflicts,
            Outcome::Ignored(Ignored::Covered) => &mut self.covered,
            Outcome::Ignored(Ignored::BelowFloor) => &mut self.below_floor,
            Outcome::Ignored(Ignored::Passed) => &mut self.passed,
            Outcome::Ignored(Ignored::TooManyTombstones) => &mut self.too_many_tombstones,
            Outcome::Invalid(Invalid::NoVersion) => &mut self.no_version,
            Outcome::Invalid(Invalid::NoState) => &mut self.no_state,
            Outcome::Invalid(Invalid::Incomplete) => &mut self.incomplete,
        } += 1;
    }
}
