//! From what a cluster answers to what the port says.

use ::runtime::RuntimeError;
use kube::Error;

/// The status of a refusal, if it is one.
pub(crate) fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// What the API server says.
fn message(error: &Error) -> String {
    match error {
        Error::Api(status) => format!("{} ({})", status.message, status.reason),
        other => other.to_string(),
    }
}

/// A call that failed: it may work later.
pub(crate) fn failed(doing: &str, error: &Error) -> RuntimeError {
    RuntimeError::Failed(format!("{doing}: {}", message(error)).into())
}

/// A Pod that the cluster does not take. A refusal by a quota, a webhook or a policy has the same
/// form as one of too narrow rights, and is told in the cluster's own words.
pub(crate) fn refused(doing: &str, error: &Error) -> RuntimeError {
    match code(error) {
        Some(403) => RuntimeError::NotAdmitted(message(error).into()),
        Some(400 | 422) => RuntimeError::Impossible {
            field: "pod",
            reason: message(error).into(),
        },
        Some(_) | None => failed(doing, error),
    }
}
