//! What keeps a store from opening, and a backup from being made or taken back.

use std::{io, path::PathBuf};

use redb::{DatabaseError, StorageError};
use thiserror::Error;

/// A store that did not open. The data directory is as it was.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{0} is in use by another process: stop that one, or give this one its own directory")]
    InUse(PathBuf),
    /// A later version of the product wrote it.
    #[error(
        "{path} says format {found}; this version reads up to format {supported}: run the version that wrote it, or a newer one"
    )]
    NewerFormat {
        /// The file that says so.
        path: PathBuf,
        /// What it says.
        found: u32,
        /// What this version reads.
        supported: u32,
    },
    /// The format cannot be told.
    #[error(
        "{path} holds {content:?} instead of a format number: put the number back, or restore a backup"
    )]
    UnreadableFormat {
        /// The file.
        path: PathBuf,
        /// What it holds.
        content: String,
    },
    /// There was a database, and it is not there.
    #[error(
        "{0} is missing from a data directory that had one: put it back or restore a backup; to begin with an empty store, use an empty directory"
    )]
    Missing(PathBuf),
    /// The database is torn, truncated or not one.
    #[error(
        "{path} is damaged ({reason}): keep it for inspection and restore a backup; nothing was changed in it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl OpenError {
    /// Wraps an operating system error.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// What an error of the engine means for the file it was opening.
    pub(crate) fn engine(path: impl Into<PathBuf>, error: impl Into<redb::Error>) -> Self {
        let path = path.into();
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::InUse(path),
            redb::Error::Io(source)
                if !matches!(
                    source.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Self::Io {
                    action: "open the database",
                    path,
                    source,
                }
            }
            other => Self::Damaged {
                path,
                reason: other.to_string(),
            },
        }
    }
}

/// A backup that was not made, or not taken back.
#[derive(Debug, Error)]
pub enum BackupError {
    /// Something is where the backup should go.
    #[error("{0} exists already: choose another name; a backup never overwrites")]
    Exists(PathBuf),
    /// The file is not a backup this version can take back.
    #[error("{path} is not a backup that this version can restore: {reason}")]
    NotABackup {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Every incarnation has been used.
    #[error("{0} has been restored 65535 times, which is as often as versions can tell apart")]
    IncarnationsExhausted(PathBuf),
    /// The store cannot be read.
    #[error("read the store: {0}")]
    Source(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// The copy cannot be written.
    #[error("write {path}: {source}")]
    Write {
        /// The copy.
        path: PathBuf,
        /// Why not.
        source: redb::Error,
    },
    /// The operating system refused something.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl BackupError {
    /// Wraps an operating system error.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// A step of the engine that failed. One type, because what follows is the same for all.
pub(crate) type EngineError = redb::Error;

/// Whether there was no room for a write.
pub(crate) fn is_full(error: &EngineError) -> bool {
    matches!(error, redb::Error::Io(e) if matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ))
}

/// Brings the engine's narrow errors to the one type.
pub(crate) fn widen(error: DatabaseError) -> EngineError {
    match error {
        DatabaseError::Storage(StorageError::Io(e)) => EngineError::Io(e),
        other => other.into(),
    }
}
