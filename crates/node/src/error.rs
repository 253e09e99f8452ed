//! What can go wrong on a node, and whose fault it is.

use std::{io, path::PathBuf};

use images::ImageError;
use runtime::node::Rank;
use thiserror::Error;

use crate::containerd::Code;

/// Why something was not done on a node.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Nobody answers at containerd's socket.
    #[error("containerd cannot be reached at {}: {source}", .socket.display())]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// What was seen.
        #[source]
        source: io::Error,
    },
    /// containerd did not answer in time.
    #[error("containerd did not answer {call} in time")]
    Late {
        /// Which call.
        call: &'static str,
    },
    /// containerd's answer is none.
    #[error("containerd's answer to {call} makes no sense: {why}")]
    Nonsense {
        /// Which call.
        call: &'static str,
        /// In which way.
        why: String,
    },
    /// containerd says no.
    #[error("containerd refused {call}: {message} ({code:?})")]
    Refused {
        /// Which call.
        call: &'static str,
        /// Its word for it.
        code: Code,
        /// In its words.
        message: String,
    },
    /// There is no such container.
    #[error("container {0} does not exist on this node")]
    Absent(String),
    /// A container that is not the sandbox of a Pod of ours.
    #[error("container {id} is not touched: {why}")]
    Foreign {
        /// Its id.
        id: String,
        /// What shows it.
        why: &'static str,
    },
    /// Its processes have ended, or were never started.
    #[error("container {0} does not run")]
    Ended(String),
    /// containerd does not know what its processes do.
    #[error("containerd does not know what container {0} does")]
    Unclear(String),
    /// Somebody newer has spoken.
    #[error("order {rank} for container {id} is not obeyed: {newest} is newer")]
    Stale {
        /// The container's id.
        id: String,
        /// How new the order is.
        rank: Rank,
        /// How new the newest is.
        newest: Rank,
    },
    /// Somebody else let it go on while it was captured.
    #[error("container {0} did not stay frozen while it was captured")]
    Disturbed(String),
    /// Its files are kept in a way that cannot be read.
    #[error("the files of container {id} cannot be captured: {why}")]
    Files {
        /// Its id.
        id: String,
        /// Why.
        why: String,
    },
    /// An image, a layer, or a registry.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The node's own disk.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// What was done.
        doing: &'static str,
        /// What was seen.
        #[source]
        source: io::Error,
    },
    /// Whoever waits for it has said to stop.
    #[error("it was told to stop")]
    Stopped,
}

/// A result of the node's.
pub type Result<T, E = NodeError> = std::result::Result<T, E>;

impl NodeError {
    /// Whether trying again may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Late { .. }
            | Self::Disk { .. }
            | Self::Disturbed(_)
            | Self::Unclear(_)
            | Self::Stopped => true,
            Self::Refused { code, .. } => code.is_passing(),
            Self::Image(error) => error.is_retryable(),
            Self::Nonsense { .. }
            | Self::Absent(_)
            | Self::Foreign { .. }
            | Self::Ended(_)
            | Self::Stale { .. }
            | Self::Files { .. } => false,
        }
    }

    /// The field of a sandbox that has to change for this to work, if one has.
    #[must_use]
    pub const fn field(&self) -> Option<&'static str> {
        match self {
            Self::Image(error) if !error.is_retryable() => Some("snapshotRegistry"),
            Self::Files { .. } => Some("snapshot"),
            _ => None,
        }
    }
}
