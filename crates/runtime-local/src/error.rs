//! What can go wrong in the engine.

use std::io;

use ::runtime::RuntimeError;
use images::ImageError;
use model::Uid;
use thiserror::Error;

/// A failure of the engine.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A system call of the server failed.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: Box<str>,
        /// What the kernel said.
        source: io::Error,
    },
    /// The first process could not be set up.
    #[error("inside the new sandbox, {doing}: {source}")]
    Inside {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The host cannot run sandboxes.
    #[error("this host lacks {name}: {detail}. {remedy}")]
    Lacking {
        /// The capability.
        name: &'static str,
        /// What was seen.
        detail: Box<str>,
        /// What to do about it.
        remedy: &'static str,
    },
    /// An OCI runtime failed.
    #[error("{runtime} {doing}: {said}")]
    Oci {
        /// Which one.
        runtime: &'static str,
        /// What it was told to do.
        doing: Box<str>,
        /// What it said.
        said: Box<str>,
    },
    /// What is on disk is not what the engine wrote.
    #[error("{what} is damaged: {how}")]
    Damaged {
        /// Which thing.
        what: Box<str>,
        /// In which way.
        how: Box<str>,
    },
    /// Another process has what this engine needs for itself.
    #[error("{0}")]
    InUse(Box<str>),
    /// A sandbox that this process cannot see the processes of.
    #[error(
        "sandbox {0} of this data directory runs where process numbers are others (a container, or \
         outside of this one), or was started in this container by a version before. Start the \
         server there, or end what runs there first"
    )]
    Elsewhere(Uid),
    /// An image cannot be had now.
    #[error(transparent)]
    Image(ImageError),
    /// An answer in the words of the port.
    #[error(transparent)]
    Refused(#[from] RuntimeError),
}

/// What the engine's functions return.
pub(crate) type Result<T, E = EngineError> = std::result::Result<T, E>;

impl From<EngineError> for RuntimeError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refused) => refused,
            EngineError::System { ref source, .. } if is_full(source) => {
                Self::NoRoom(error.to_string().into())
            }
            EngineError::Image(error) => Self::Pull(error.to_string().into()),
            EngineError::System { .. }
            | EngineError::Inside { .. }
            | EngineError::Lacking { .. }
            | EngineError::Oci { .. }
            | EngineError::Damaged { .. }
            | EngineError::InUse(_)
            | EngineError::Elsewhere(_) => Self::Failed(error.to_string().into()),
        }
    }
}

/// Whether a disk is full, or what somebody may have of it.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Says what was being done when a system call failed.
pub(crate) trait Doing<T> {
    /// Verb and object: "open the upper directory".
    fn doing(self, doing: impl AsRef<str>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: impl AsRef<str>) -> Result<T> {
        self.map_err(|error| EngineError::System {
            doing: doing.as_ref().into(),
            source: error.into(),
        })
    }
}

/// A refusal that names the field of the spec.
pub(crate) fn impossible(field: &'static str, reason: impl Into<Box<str>>) -> EngineError {
    EngineError::Refused(RuntimeError::Impossible {
        field,
        reason: reason.into(),
    })
}
