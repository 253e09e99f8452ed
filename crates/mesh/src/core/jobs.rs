//! What takes long with a large table.
//!
//! The core decides that it is to be done and what follows from it; whoever drives it runs the job
//! elsewhere. At most one of each kind is under way: a table is gathered once for all who have asked by
//! the time it is there, so many that join at once cost one, and of two snapshots one would be in vain.
//!
//! **What is said meanwhile is taken meanwhile.** A push that arrives while a snapshot is adopted goes
//! into the table at once and is acknowledged, so nobody waits for one that joins. That is right because
//! the rules of the table give the same end in any order, and possible because [`routes::Table::adopt`]
//! lets other writers in between. To hold such pushes back until the end would keep every writer waiting
//! for `ack_timeout` once; not to wait for one that is not synced would be wrong, because one whose watch
//! was lost is not synced either and still serves what it knows.
//!
//! What is gone is taken before the rest: who sees that the table is synced sees it without them.

use std::{sync::Arc, time::Duration};

use model::Version;
use routes::{Everything, Message, Outcome, Resync, Snapshot};

use super::{Ground, LinkId, tell::in_parts};
use crate::{book::Book, frame::fits};

/// Something that takes long.
#[derive(Debug)]
pub enum Job {
    /// To say all that the own table knows.
    Gather(Arc<dyn Book>),
    /// To take all that a peer knows.
    Adopt(Adoption),
}

/// All that a peer knows.
#[derive(Debug)]
pub struct Adoption {
    /// The link it came over.
    pub from: LinkId,
    pub(super) ground: Ground,
    pub(super) snapshot: Snapshot,
    pub(super) deletions: Vec<Message>,
}

/// What became of a job.
#[derive(Debug)]
pub enum Done {
    /// Of [`Job::Gather`].
    Gathered(Gathered),
    /// Of [`Job::Adopt`].
    Adopted(Adopted),
}

/// All that the own table knows, or why that is not told.
#[derive(Debug)]
pub enum Gathered {
    /// For any number of peers.
    All(All),
    /// It does not know enough itself.
    Unsynced,
    /// Something fits into no frame, and what a snapshot lacks would count as gone.
    TooLarge,
}

/// All that a table knows.
#[derive(Clone, Debug)]
pub struct All {
    pub(super) parts: Vec<Arc<[Message]>>,
    pub(super) stamp: u64,
    pub(super) watched: Version,
}

/// What became of all that a peer knows.
#[derive(Debug)]
pub struct Adopted {
    /// Of its routes.
    pub resync: Resync,
    /// Of what is gone and newer than those.
    pub(super) deletions: Vec<Outcome>,
}

impl Job {
    /// Does it, for as long as that takes.
    #[must_use]
    pub fn run(self, now: Duration) -> Done {
        match self {
            Self::Gather(book) => Done::Gathered(Gathered::of(book.everything())),
            Self::Adopt(adoption) => Done::Adopted(adoption.run(now)),
        }
    }

    /// What is said of it if it cannot be run to its end.
    #[must_use]
    pub fn given_up(&self) -> Done {
        match self {
            Self::Gather(_) => Done::Gathered(Gathered::Unsynced),
            Self::Adopt(_) => Done::Adopted(Adopted {
                resync: Resync::Older,
                deletions: Vec::new(),
            }),
        }
    }
}

impl Gathered {
    fn of(all: Option<Everything>) -> Self {
        let Some(all) = all else {
            return Self::Unsynced;
        };
        let routes = all.snapshot.routes.into_iter().map(Message::Upsert);
        let deletions = all.deletions.into_iter().map(Message::Delete);
        let messages: Vec<Message> = routes.chain(deletions).collect();
        if !messages.iter().all(fits) {
            return Self::TooLarge;
        }
        Self::All(All {
            parts: in_parts(messages),
            stamp: all.stamp,
            watched: all.snapshot.version,
        })
    }
}

impl Adoption {
    fn run(self, now: Duration) -> Adopted {
        let gone = self.deletions.into_iter();
        let deletions = gone.map(|message| self.ground.hear(message, now)).collect();
        let resync = match &self.ground.book {
            Some(book) => book.replace_all(self.snapshot, now),
            None => Resync::Older,
        };
        Adopted { resync, deletions }
    }
}
