//! What can go wrong with a cluster, and what each failure means.
//!
//! The API server says why it refuses in a `Status`; [`ClusterError::reason`] reads its machine
//! words, nothing goes by its text. What fails on the way there or back is told apart by whether
//! the request can have arrived: who wrote something must know whether to look before trying again.

use std::error::Error as StdError;

use hyper_util::client::legacy::Error as Client;
use kube::core::Status;
use thiserror::Error;

use crate::lane::Silence;

/// A refusal or failure of a cluster.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "no cluster is configured: set KUBECONFIG, or run in a Pod with a service account: {0}"
    )]
    NoConfig(#[source] kube::config::InferConfigError),
    /// This process has no service account.
    #[error("this process does not run in a Pod with a service account: {0}")]
    NotInCluster(#[source] kube::config::InClusterError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] kube::Error),
}

/// Why an API server refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object, its namespace or its kind is not there.
    NotFound,
    /// Something has that name already.
    AlreadyExists,
    /// It has changed, or is another one.
    Conflict,
    /// It breaks a rule of its schema, or of an admission webhook.
    Invalid,
    /// This process may not do that, or a quota is used up.
    Forbidden,
    /// This process is not known.
    Unauthorized,
    /// The version is too old to list or watch from.
    Expired,
    /// There are too many requests; nothing was done.
    TooManyRequests,
    /// The object is too large.
    TooLarge,
    /// The API server failed; what was asked for may have happened.
    Failed,
}

impl Reason {
    /// Reads the machine words of a status.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        match (status.reason.as_str(), status.code) {
            ("AlreadyExists", _) => Self::AlreadyExists,
            ("NotFound", _) | (_, 404) => Self::NotFound,
            ("Conflict", _) | (_, 409) => Self::Conflict,
            ("Expired" | "Gone", _) | (_, 410) => Self::Expired,
            ("RequestEntityTooLarge", _) | (_, 413) => Self::TooLarge,
            ("Invalid" | "BadRequest", _) | (_, 400 | 422) => Self::Invalid,
            ("Forbidden", _) | (_, 403) => Self::Forbidden,
            ("Unauthorized", _) | (_, 401) => Self::Unauthorized,
            ("TooManyRequests", _) | (_, 429) => Self::TooManyRequests,
            (_, _) => Self::Failed,
        }
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller asked for something that cannot be.
    Caller,
    /// Another writer was first.
    Race,
    /// Whoever set up this process or its rights.
    Operator,
    /// The cluster's.
    Cluster,
}

impl ClusterError {
    /// What the API server said, if it answered.
    #[must_use]
    pub const fn status(&self) -> Option<&Status> {
        match self {
            Self::Call(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// Why the API server refused, if it answered.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.status().map(Reason::of)
    }

    /// Whether what was asked for may have happened all the same.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Kubeconfig(_) | Self::NoConfig(_) | Self::NotInCluster(_) => false,
            Self::Call(error) => match error {
                kube::Error::Api(status) => Reason::of(status) == Reason::Failed,
                kube::Error::BuildRequest(_) | kube::Error::Auth(_) => false,
                kube::Error::Service(error) => !is_before_sending(error.as_ref()),
                _ => true,
            },
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match (self, self.reason()) {
            (Self::Kubeconfig(_) | Self::NoConfig(_) | Self::NotInCluster(_), _) => false,
            (Self::Call(_), Some(reason)) => match reason {
                Reason::Conflict
                | Reason::Expired
                | Reason::TooManyRequests
                | Reason::Failed
                | Reason::Forbidden
                | Reason::Unauthorized => true,
                Reason::NotFound | Reason::AlreadyExists | Reason::Invalid | Reason::TooLarge => {
                    false
                }
            },
            (Self::Call(error), None) => !matches!(error, kube::Error::BuildRequest(_)),
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match (self, self.reason()) {
            (Self::Kubeconfig(_) | Self::NoConfig(_) | Self::NotInCluster(_), _)
            | (_, Some(Reason::Forbidden | Reason::Unauthorized)) => Fault::Operator,
            (_, Some(Reason::Conflict | Reason::Expired)) => Fault::Race,
            (
                _,
                Some(Reason::NotFound | Reason::AlreadyExists | Reason::Invalid | Reason::TooLarge),
            ) => Fault::Caller,
            (Self::Call(_), Some(Reason::TooManyRequests | Reason::Failed) | None) => {
                Fault::Cluster
            }
        }
    }

    /// What to write into a log or a condition: the API server's words, or why it was not reached.
    #[must_use]
    pub fn explain(&self) -> String {
        match self.status() {
            Some(status) if !status.message.is_empty() => status.message.clone(),
            _ => {
                let mut text = self.to_string();
                let mut source = StdError::source(self);
                while let Some(cause) = source {
                    let said = cause.to_string();
                    if !text.contains(&said) {
                        text = format!("{text}: {said}");
                    }
                    source = cause.source();
                }
                text
            }
        }
    }
}

/// Whether a request failed before any of it was sent.
fn is_before_sending(error: &(dyn StdError + 'static)) -> bool {
    on_the_way(error).is_some_and(Client::is_connect)
}

/// Whether a request failed because the connection was lost that it was on.
pub(crate) fn is_cut_off(error: &kube::Error) -> bool {
    match error {
        kube::Error::Service(error) => {
            on_the_way(error.as_ref()).is_some_and(|error| !error.is_connect())
        }
        _ => false,
    }
}

/// What went wrong between here and the API server.
fn on_the_way<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Client> {
    let mut at = Some(error);
    while let Some(error) = at {
        if error.is::<Silence>() {
            return None;
        }
        if let Some(client) = error.downcast_ref() {
            return Some(client);
        }
        at = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(reason: &str, code: u16) -> ClusterError {
        kube::Error::Api(Status::failure("said", reason).with_code(code).boxed()).into()
    }

    #[test]
    fn a_refusal_is_read_from_its_machine_words() {
        for (reason, code, expected) in [
            ("AlreadyExists", 409, Reason::AlreadyExists),
            ("Conflict", 409, Reason::Conflict),
            ("NotFound", 404, Reason::NotFound),
            ("Expired", 410, Reason::Expired),
            ("Invalid", 422, Reason::Invalid),
            ("Forbidden", 403, Reason::Forbidden),
            ("Timeout", 504, Reason::Failed),
            ("", 500, Reason::Failed),
            ("TooManyRequests", 429, Reason::TooManyRequests),
        ] {
            assert_eq!(
                api(reason, code).reason(),
                Some(expected),
                "{reason} {code}"
            );
        }
    }

    #[test]
    fn only_failures_of_the_server_are_in_doubt() {
        assert!(api("InternalError", 500).may_have_happened());
        assert!(api("Timeout", 504).may_have_happened());
        assert!(!api("TooManyRequests", 429).may_have_happened());
        assert!(!api("Conflict", 409).may_have_happened());
        let silence: ClusterError = kube::Error::Service(Box::new(Silence)).into();
        assert!(silence.may_have_happened());
    }
}
