//! What is known of one link.

use std::{net::SocketAddr, time::Duration};

use model::Version;

use super::{standing::Memory, tell::Giving};
use crate::frame::Hello;

/// Names a link of this process; none is ever named again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(super) u64);

/// Which end of a link this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It dialled this address.
    Dialled(SocketAddr),
    /// It was dialled from this one.
    Accepted(SocketAddr),
}

impl Side {
    /// What people are told; the port of one who dialled means nothing.
    pub(super) fn shown(self) -> SocketAddr {
        match self {
            Self::Dialled(to) => to,
            Self::Accepted(from) => SocketAddr::new(from.ip(), 0),
        }
    }
}

/// What its hello said, and how far it has come since.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) process: u64,
    pub(super) address: SocketAddr,
    pub(super) listens: bool,
    pub(super) keeps: bool,
    pub(super) watched: Version,
}

impl Peer {
    pub(super) fn new(hello: &Hello) -> Self {
        Self {
            process: hello.process,
            address: hello.address,
            listens: hello.listens,
            keeps: hello.keeps,
            watched: hello.watched,
        }
    }
}

/// A question that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) round: u64,
    pub(super) is_full: bool,
    pub(super) since: Duration,
    /// When it was asked, or the last part came.
    pub(super) at: Duration,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) side: Side,
    pub(super) since: Duration,
    pub(super) heard_at: Duration,
    pub(super) next_in: u64,
    pub(super) next_out: u64,
    /// After its hello.
    pub(super) peer: Option<Peer>,

    // Of who dialled:
    pub(super) pushed_at: Duration,
    /// The next saying to push, and the first that is not acknowledged.
    pub(super) cursor: u64,
    pub(super) acked: u64,
    /// It was not told of what is up to this version, and has to hear of it by its own watch.
    pub(super) missed: Option<Version>,
    pub(super) in_standing: bool,
    pub(super) memory: Memory,
    pub(super) asked: Option<Asked>,
    /// The stamp of its last answer.
    pub(super) told: Option<u64>,

    // Of who was dialled:
    pub(super) giving: Option<Giving>,
}

impl Link {
    pub(super) fn new(side: Side, now: Duration) -> Self {
        Self {
            side,
            since: now,
            heard_at: now,
            pushed_at: now,
            next_in: 0,
            next_out: 0,
            peer: None,
            cursor: 0,
            acked: 0,
            missed: None,
            in_standing: false,
            memory: Memory::default(),
            asked: None,
            told: None,
            giving: None,
        }
    }

    pub(super) fn same_side(&self, side: Side) -> bool {
        matches!(
            (self.side, side),
            (Side::Dialled(_), Side::Dialled(_)) | (Side::Accepted(_), Side::Accepted(_))
        )
    }

    /// Whether it was dialled and nobody has said hello yet.
    pub(super) fn is_new_dialled(&self) -> bool {
        matches!(self.side, Side::Dialled(_)) && self.peer.is_none()
    }

    /// Whether pushes, questions and datagrams can go over it.
    pub(super) fn is_speaking(&self) -> bool {
        matches!(self.side, Side::Dialled(_)) && self.peer.is_some()
    }

    /// Whether an answer to this question is still wanted.
    pub(super) fn is_asked(&self, round: u64) -> bool {
        self.asked.is_some_and(|asked| asked.round == round)
    }

    /// Whether it is told of changes.
    pub(super) fn is_told(&self) -> bool {
        self.is_speaking() && self.peer.as_ref().is_some_and(|peer| peer.listens)
    }
}
