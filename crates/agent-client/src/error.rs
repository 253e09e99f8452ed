//! How a call fails.

use std::io;

use http::StatusCode;
use wire::connect::Code;

/// What a call answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection: nothing was sent. The sandbox may be gone, asleep, or not started yet.
    #[error("the agent cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The agent understood, and said no. The code says whose fault it is.
    #[error("the agent refused: {message}")]
    Refused {
        /// The kind of refusal.
        code: Code,
        /// In the agent's words, which may be shown to the caller.
        message: String,
    },
    /// What answered does not speak as an agent does, or not a version that is known here.
    #[error("the agent is not understood: {0}")]
    Protocol(String),
    /// The connection broke before the answer was complete. What was asked for may have been done.
    #[error("the agent's answer broke off")]
    EndedEarly(#[source] Option<io::Error>),
    /// What was to be sent could not be read.
    #[error("read what is to be sent")]
    Source(#[source] io::Error),
}

impl Error {
    /// Whether the same call may work later. A call that is not idempotent may have worked
    /// already if the answer broke off.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::EndedEarly(_) => true,
            Self::Refused { code, .. } => matches!(
                code,
                Code::Unavailable | Code::ResourceExhausted | Code::Aborted
            ),
            Self::Protocol(_) | Self::Source(_) => false,
        }
    }

    /// The code of a refusal.
    #[must_use]
    pub const fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unreachable(_) | Self::Protocol(_) | Self::EndedEarly(_) | Self::Source(_) => {
                None
            }
        }
    }
}

impl From<wire::connect::Error> for Error {
    fn from(why: wire::connect::Error) -> Self {
        Self::Refused {
            code: why.code,
            message: why.message,
        }
    }
}

impl From<hyper::Error> for Error {
    fn from(why: hyper::Error) -> Self {
        if why.is_parse() {
            Self::Protocol(why.to_string())
        } else {
            Self::EndedEarly(Some(io::Error::other(why)))
        }
    }
}

/// The code that comes nearest to a status, where an answer has no code of its own.
pub(crate) fn code_of(status: StatusCode) -> Code {
    match status.as_u16() {
        400 | 406 | 411 | 413 | 416 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        405 | 415 | 501 => Code::Unimplemented,
        408 | 504 => Code::DeadlineExceeded,
        409 => Code::Aborted,
        429 | 507 => Code::ResourceExhausted,
        499 => Code::Canceled,
        500 => Code::Internal,
        502 | 503 => Code::Unavailable,
        _ => Code::Unknown,
    }
}
