//! What can go wrong, and whose fault it is.
//!
//! Two kinds: a request that is refused at once, and a build that failed later. The second is no
//! error of anybody's request: it is what the build's record says.

use std::io;

use auth::QuotaExceeded;
use store::StoreError;
use thiserror::Error;

/// What a request to build answers.
pub type Result<T, E = Refused> = std::result::Result<T, E>;

/// Why a request was refused. Nothing was changed.
#[derive(Debug, Error)]
pub enum Refused {
    /// A field is wrong: the caller's fault.
    #[error("{field}: {why}")]
    Bad {
        /// Which.
        field: Box<str>,
        /// Why, and what to do.
        why: Box<str>,
    },
    /// There is no such thing, or it is somebody else's.
    #[error("{0} not found")]
    NotFound(Box<str>),
    /// It cannot be done to what is there.
    #[error("{0}")]
    Conflict(Box<str>),
    /// The team has too many of them: try again later.
    #[error("{0}")]
    TooMany(Box<str>),
    /// What was sent is larger than anything that is taken.
    #[error("{0}")]
    TooLarge(Box<str>),
    /// The team may not have that much.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The disk failed: ours.
    #[error("{doing}")]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Refused {
    pub(crate) fn bad(field: impl Into<Box<str>>, why: impl Into<Box<str>>) -> Self {
        Self::Bad {
            field: field.into(),
            why: why.into(),
        }
    }
}

/// Says what was tried when the disk failed.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| Refused::Disk { doing, source })
    }
}

/// Which part of a build something is about, in the words that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// What it starts from.
    Base,
    /// A step, counted from 1.
    Step(usize),
    /// After the last step.
    Finish,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Step(number) => number.fmt(f),
            Self::Finish => f.write_str("finalize"),
        }
    }
}

/// Why a build failed, in words for whoever asked for it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Option<Stage>,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn at(stage: Stage, message: impl Into<String>) -> Self {
        Self {
            stage: Some(stage),
            message: message.into(),
        }
    }
}
