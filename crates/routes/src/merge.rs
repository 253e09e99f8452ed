//! Which of two accounts of one key wins.
//!
//! | The table knows | Upsert at v | Delete at v |
//! |---|---|---|
//! | nothing | taken if v is above the floor | taken if v is above the floor |
//! | a route at r | taken if v > r; at v = r by [`Writer`], then content | taken if v ≥ r |
//! | a tombstone at d | taken if v > d | taken if v > d |
//!
//! What a peer says that would be taken is not if the own watch has passed v: it brought what there was.
//!
//! Before all this, v at or below the base is refused. Each row takes the maximum of one total
//! order, (version, dead, writer, content), so the order of arrival cannot matter.

use std::sync::Arc;

use model::Version;

use crate::{graves::Ticket, message::Writer, outcome::Ignored, route::Route};

/// What the table knows of one key.
#[derive(Debug)]
pub(crate) enum Slot {
    Live {
        route: Arc<Route>,
        writer: Writer,
    },
    Dead {
        version: Version,
        ticket: Ticket,
        writer: Writer,
    },
}

impl Slot {
    pub(crate) fn version(&self) -> Version {
        match self {
            Self::Live { route, .. } => route.version,
            Self::Dead { version, .. } => *version,
        }
    }

    /// Whether it is something that the own watch has not told of.
    pub(crate) fn is_peers(&self) -> bool {
        match self {
            Self::Live { writer, .. } | Self::Dead { writer, .. } => *writer == Writer::Peer,
        }
    }

    /// The own watch has told of it, too.
    pub(crate) fn vouch(&mut self) {
        match self {
            Self::Live { writer, .. } | Self::Dead { writer, .. } => *writer = Writer::Watch,
        }
    }
}

/// Everything at or below these was settled before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// The newest full snapshot.
    pub(crate) base: Version,
    /// The newest tombstone ever collected.
    pub(crate) floor: Version,
}

/// What to do with an upsert.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Upsert {
    Take,
    /// Take it over another account of the same version.
    TakeInConflict,
    /// The same, now by the own watch: what it says outranks peers at this version.
    Vouch,
    Ignore(Ignored),
}

/// Judges an upsert against what the table knows.
pub(crate) fn judge_upsert(marks: Marks, slot: Option<&Slot>, new: &Route, by: Writer) -> Upsert {
    if new.version <= marks.base {
        return Upsert::Ignore(Ignored::Covered);
    }
    match slot {
        None if new.version <= marks.floor => Upsert::Ignore(Ignored::BelowFloor),
        None => Upsert::Take,
        Some(Slot::Dead { version, .. }) if new.version > *version => Upsert::Take,
        Some(Slot::Dead { .. }) => Upsert::Ignore(Ignored::Older),
        Some(Slot::Live { route, writer }) => {
            if new.version > route.version {
                Upsert::Take
            } else if new.version < route.version {
                Upsert::Ignore(Ignored::Older)
            } else if *new == **route {
                if by > *writer {
                    Upsert::Vouch
                } else {
                    Upsert::Ignore(Ignored::Duplicate)
                }
            } else if (by, new) > (*writer, &**route) {
                Upsert::TakeInConflict
            } else {
                Upsert::Ignore(Ignored::Conflict)
            }
        }
    }
}

/// What to do with a delete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delete {
    Take,
    /// The same, now by the own watch.
    Vouch,
    Ignore(Ignored),
}

/// Judges a delete against what the table knows.
pub(crate) fn judge_delete(
    marks: Marks,
    slot: Option<&Slot>,
    version: Version,
    by: Writer,
) -> Delete {
    if version <= marks.base {
        return Delete::Ignore(Ignored::Covered);
    }
    match slot {
        // The floor already refuses all that this tombstone would.
        None if version <= marks.floor => Delete::Ignore(Ignored::BelowFloor),
        None => Delete::Take,
        Some(Slot::Live { route, .. }) if version >= route.version => Delete::Take,
        Some(Slot::Live { .. }) => Delete::Ignore(Ignored::Older),
        Some(Slot::Dead {
            version: known,
            writer,
            ..
        }) => {
            if version > *known {
                Delete::Take
            } else if version < *known {
                Delete::Ignore(Ignored::Older)
            } else if by > *writer {
                Delete::Vouch
            } else {
                Delete::Ignore(Ignored::Duplicate)
            }
        }
    }
}
