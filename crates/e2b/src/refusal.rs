//! Errors as E2B's clients read them: one shape on every answer that is not a success.
//!
//! The Python client parses the body into a strict model and the JavaScript client decides by its
//! `code`, so every refusal, of whichever layer, is made here. The tables from the errors of the
//! store and of a wait to HTTP are here and nowhere else. What operators should know and callers
//! should not is logged here, once.

use std::time::Duration;

use auth::{Denied, QuotaExceeded, manage::KeysError};
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use cache::WaitError;
use claims::Stock;
use http::{HeaderName, HeaderValue, StatusCode, header};
use plugins::Limited;
use serde_json::json;
use store::{Outcome, StoreError};

/// Whether the Python client should try again; it also does so by itself for some statuses.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");
/// Longest message, in bytes: messages repeat what was sent.
const MAX_MESSAGE: usize = 4 << 10;

/// The codes that clients know.
pub(crate) mod code {
    pub(crate) const CREATE_FAILED: &str = "sandbox_create_failed";
    pub(crate) const PLACEMENT_TIMEOUT: &str = "sandbox_placement_timeout";
    pub(crate) const INTERNAL: &str = "internal_server_error";
    pub(crate) const POOL_EMPTY: &str = "sandbox_pool_empty";
    pub(crate) const FILESYSTEM_ONLY: &str = "snapshot_filesystem_only_disabled";
}

/// A request that was not served. Boxed, for it is carried along where all is well too.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Facts>);

#[derive(Debug)]
struct Facts {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
    retry: Retry,
}

/// What is said about trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// Nothing: the status says it.
    Unsaid,
    /// It would be in vain, or do the same thing twice.
    Never,
    /// After this many seconds.
    After(u64),
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            message.push('…');
        }
        Self(Box::new(Facts {
            status,
            message,
            error_code: None,
            retry: Retry::Unsaid,
        }))
    }

    fn code(mut self, code: &'static str) -> Self {
        self.0.error_code = Some(code);
        self
    }

    fn retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// The same refusal of something that must not be repeated by itself: a create without a key
    /// that was half-way may have happened.
    pub(crate) fn not_to_be_repeated(self) -> Self {
        self.retry(Retry::Never)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A 400 that names the field.
    pub(crate) fn bad_field(field: &str, message: impl AsRef<str>) -> Self {
        Self::bad_request(format!("{field}: {}", message.as_ref()))
    }

    /// A 400 for a field that has a meaning which is not built yet.
    pub(crate) fn unsupported_field(field: &str) -> Self {
        Self::bad_field(field, "is not supported by this server: leave it out")
    }

    /// A 400 because sleep without memory is not to be had.
    pub(crate) fn filesystem_only(field: &str, why: &str) -> Self {
        Self::bad_field(field, why).code(code::FILESYSTEM_ONLY)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "Invalid API key: send a valid one in the header X-API-KEY",
        )
    }

    /// An address that this server did not give away, or long ago.
    pub(crate) fn unsigned() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "the address of this upload is not valid, or no longer: ask for it again",
        )
    }

    /// A caller who is known, and may not do this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// A sandbox that is not there, or is somebody else's: the same answer for both.
    pub(crate) fn no_sandbox(id: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            format!("sandbox {:?} not found", clipped(id)),
        )
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// What is meant where nothing is named was never made: not the client's fault, nor its to mend.
    pub(crate) fn no_default_template(name: &str) -> Self {
        Self::not_found(format!(
            "template {name:?} not found: whoever runs this installation has not made it yet, by \
             applying a SandboxTemplate of that name; until then name another template"
        ))
    }

    pub(crate) fn no_template(name: &str) -> Self {
        Self::not_found(format!("template {:?} not found", clipped(name)))
    }

    pub(crate) fn no_such_path() -> Self {
        Self::not_found("there is no such path")
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this path does not take this method",
        )
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn key_reused() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Idempotency-Key: it was used with another request: use a new one",
        )
    }

    /// More than a team may have at once: after a while there is room again.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message).retry(Retry::Never)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::too_large(format!("the request body is longer than {limit} bytes"))
    }

    pub(crate) fn body_too_slow(limit: Duration) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            format!(
                "the request body did not arrive within {} seconds",
                limit.as_secs()
            ),
        )
    }

    pub(crate) fn uri_too_long(limit: usize) -> Self {
        Self::new(
            StatusCode::URI_TOO_LONG,
            format!("path and query are longer than {limit} bytes"),
        )
    }

    pub(crate) fn encoded_body(encoding: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!(
                "content-encoding {:?}: send the body as it is",
                clipped(encoding)
            ),
        )
    }

    /// A route of E2B's that this server does not have.
    pub(crate) fn not_built(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            format!("{what} are not supported by this server"),
        )
        .retry(Retry::Never)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).code(code::INTERNAL)
    }

    /// A sandbox that could not be started, with the reason its owner may see.
    pub(crate) fn create_failed(reason: &str) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the sandbox could not be started: {reason}"),
        )
        .code(code::CREATE_FAILED)
    }

    /// An operation on a sandbox that was tried and given up.
    pub(crate) fn operation_failed(what: &str, reason: &str) -> Self {
        Self::internal(format!("the sandbox could not be {what}: {reason}"))
    }

    pub(crate) fn start_took_too_long(limit: Duration) -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the sandbox was not ready within {} seconds and was removed",
                limit.as_secs()
            ),
        )
        .code(code::PLACEMENT_TIMEOUT)
        // The Python client repeats a bare 504 three times.
        .retry(Retry::Never)
    }

    /// A pool that has nobody to give, with how it stands and what would help.
    pub(crate) fn pool_is_empty(pool: &str, why: &impl std::fmt::Display, stock: &Stock) -> Self {
        let message = format!("pool {pool:?}: {why}: {}", stock.hint());
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
            .code(code::POOL_EMPTY)
            .retry(Retry::After(stock.retry_after().as_secs()))
    }

    /// What was asked for is recorded and under way, but not done in time.
    pub(crate) fn took_too_long(what: &str) -> Self {
        Self::unavailable(format!("the sandbox is still being {what}: try again"))
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry(Retry::After(1))
    }

    /// Something is not seen without which nothing true can be said.
    pub(crate) fn blind(what: &str) -> Self {
        Self::unavailable(format!(
            "the server is not ready: it does not see its {what}"
        ))
    }

    /// This server has not seen what the client has.
    pub(crate) fn behind() -> Self {
        Self::unavailable("this server has not seen the latest change yet: try again")
    }

    pub(crate) fn bad_version() -> Self {
        Self::bad_request(
            "Dormouse-Version: send what an answer of this API gave in the same header, once, or \
             leave it out",
        )
    }

    pub(crate) fn too_many_conflicts() -> Self {
        Self::unavailable("the sandbox is being changed by many at once: try again")
    }
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(128)]
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Malformed | Denied::Unknown | Denied::NoTeam => Self::unauthorized(),
            Denied::NotReady => Self::unavailable(denied.public()),
        }
    }
}

impl From<QuotaExceeded> for Refusal {
    fn from(exceeded: QuotaExceeded) -> Self {
        // Trying again does not help until something is ended.
        Self::new(StatusCode::TOO_MANY_REQUESTS, exceeded.to_string()).retry(Retry::Never)
    }
}

impl From<Limited> for Refusal {
    fn from(limited: Limited) -> Self {
        let after = limited.retry_after.as_secs().max(1);
        Self::new(StatusCode::TOO_MANY_REQUESTS, limited.to_string()).retry(Retry::After(after))
    }
}

impl From<KeysError> for Refusal {
    fn from(error: KeysError) -> Self {
        match error {
            KeysError::NotFound(_) => Self::not_found("the team has no such API key"),
            KeysError::NoTeam(_) => Self::unauthorized(),
            KeysError::Invalid(problem) => {
                Self::bad_field("name", format!("{}: {}", problem.reason, problem.remedy))
            }
            KeysError::TooMany => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).retry(Retry::Never)
            }
            KeysError::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(_) => Self::not_found("the sandbox is gone"),
            StoreError::AlreadyExists(_)
            | StoreError::Conflict { .. }
            | StoreError::OtherUid { .. } => Self::too_many_conflicts(),
            StoreError::TooLarge { size, limit, .. } => Self::bad_request(format!(
                "the sandbox's settings take {size} bytes; the most they may take is {limit}"
            )),
            StoreError::Invalid { reason, .. } => {
                Self::bad_request(format!("the sandbox's settings are refused: {reason}"))
            }
            StoreError::Unavailable { outcome, reason } => {
                tracing::warn!(%reason, ?outcome, "the store is unavailable");
                match outcome {
                    Outcome::NotApplied | Outcome::Unknown => {
                        Self::unavailable("the server's store is unavailable: try again")
                    }
                }
            }
            error @ (StoreError::Expired { .. } | StoreError::Undecodable { .. }) => {
                tracing::error!(%error, "the store failed");
                Self::internal("the server failed to read its records: see its log")
            }
        }
    }
}

impl From<WaitError> for Refusal {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::DeadlineReached { .. } => {
                Self::unavailable("the server did not see the change in time: try again")
            }
            WaitError::CacheStopped(reason) => {
                tracing::warn!(%reason, "a request waited on a stopped cache");
                Self::unavailable("the server is stopping: try again")
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Facts {
            status,
            message,
            error_code,
            retry,
        } = *self.0;
        let mut body = json!({"code": status.as_u16(), "message": message});
        if let Some(code) = error_code {
            body["error_code"] = code.into();
        }
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        match retry {
            Retry::Unsaid => {}
            Retry::Never => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Retry::After(seconds) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("true"));
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
        }
        response
    }
}
