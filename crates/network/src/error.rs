//! What can go wrong with the network.

use std::io;

use model::Uid;
use thiserror::Error;

use crate::{options::Block, policy::PolicyError};

/// A failure of the network.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The kernel refused something.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The host cannot connect sandboxes.
    #[error("this host lacks {name}: {detail}. {remedy}")]
    Lacking {
        /// What it lacks.
        name: &'static str,
        /// What was seen.
        detail: Box<str>,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Another process has the policies of this engine's sandboxes.
    #[error(
        "another process has the packet filter of this data directory's sandboxes. Stop the other \
         server of this directory, or wait until the one that starts has looked for leftovers"
    )]
    Owned,
    /// A policy that can never be kept; the caller's fault.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Every address is taken.
    #[error("all addresses of {0} are taken")]
    Full(Block),
    /// A sandbox that is not connected.
    #[error("sandbox {0} is not connected")]
    Unknown(Uid),
}

/// What this crate's functions return.
pub(crate) type Result<T, E = NetworkError> = std::result::Result<T, E>;

/// Says what was being done when a system call failed.
pub(crate) trait Doing<T> {
    /// Verb and object: "open a netlink socket".
    fn doing(self, doing: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: &'static str) -> Result<T> {
        self.map_err(|error| NetworkError::System {
            doing,
            source: error.into(),
        })
    }
}
