//! How a request that has no other answer ended.

use std::io::{self, ErrorKind};

use thiserror::Error;

use crate::codec::packet;

const STATUS: u8 = 101;

/// Why there is no other answer.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// There is no more to read.
    #[error("end of file")]
    End,
    /// The request makes no sense.
    #[error("bad message")]
    BadMessage,
    /// Nobody knows how.
    #[error("operation unsupported")]
    Unsupported,
    /// No such handle, or one of another kind.
    #[error("no such handle")]
    NoHandle,
    /// As much is open as may be.
    #[error("too many open files")]
    TooMany,
    /// The system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Failure {
    const fn code(&self, kind: Option<ErrorKind>) -> u32 {
        match (self, kind) {
            (Self::End, _) => 1,
            (_, Some(ErrorKind::NotFound | ErrorKind::NotADirectory)) => 2,
            (_, Some(ErrorKind::PermissionDenied)) => 3,
            (Self::BadMessage, _) => 5,
            (Self::Unsupported, _) => 8,
            (Self::NoHandle | Self::TooMany | Self::Io(_), _) => 4,
        }
    }
}

/// The answer to a request that did or did not work.
pub(crate) fn status(id: u32, outcome: &Result<(), Failure>) -> Vec<u8> {
    let (code, message) = match outcome {
        Ok(()) => (0, "Success".to_owned()),
        Err(failure) => {
            let kind = match failure {
                Failure::Io(error) => Some(error.kind()),
                _ => None,
            };
            (failure.code(kind), failure.to_string())
        }
    };
    let mut answer = packet(STATUS);
    answer
        .u32(id)
        .u32(code)
        .string(message.as_bytes())
        .string(b"en");
    answer.finish()
}
