//! Errors as clients see them: a Kubernetes `Status`, with the field and the remedy.
//!
//! The table from [`StoreError`] to HTTP is here and nowhere else. What operators should know and
//! callers should not is logged here, once.

use std::time::Duration;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use model::{
    Key, KindName, Spec as _, Version, event::EventSpec, kinds, meta::GROUP, validate::Problem,
};
use serde_json::{Value, json};
use store::{Outcome, StoreError};

/// The most fields that one answer names. Who has more of them wrong gets the next ones next time.
pub(crate) const MAX_NAMED: usize = 100;
/// Longest message of an answer, in bytes: messages repeat what was sent, some of it more than once.
const MAX_MESSAGE: usize = 16 << 10;
/// Longest name of a field, or word about one, in bytes.
const MAX_WORDS: usize = 1 << 10;

/// A request that was not served. Boxed, for it is carried along where all is well too.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Facts>);

#[derive(Debug)]
struct Facts {
    code: StatusCode,
    reason: &'static str,
    message: String,
    about: Option<About>,
    causes: Vec<Cause>,
    retry_after: Option<u32>,
    challenge: bool,
}

/// What a refusal speaks of.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

impl About {
    fn of(key: &Key) -> Self {
        let (group, plural) = match (kinds::find(key.kind.0), key.kind) {
            (Some(info), _) => (GROUP, info.plural),
            (None, EventSpec::KIND) => ("", "events"),
            // Collections that are data are stored under `plural.group`.
            (None, KindName(stored_as)) => {
                let (plural, group) = stored_as.split_once('.').unwrap_or((stored_as, ""));
                (group, plural)
            }
        };
        Self {
            group,
            plural,
            kind: key.kind.0,
            name: key.name.to_string(),
        }
    }

    fn resource(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

/// One field that is wrong.
#[derive(Debug)]
struct Cause {
    field: String,
    message: String,
    reason: &'static str,
}

impl Refusal {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Facts {
            code,
            reason,
            message: clip(message.into(), MAX_MESSAGE),
            about: None,
            causes: Vec::new(),
            retry_after: None,
            challenge: false,
        }))
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// A 400 that names the field.
    pub(crate) fn bad_field(field: impl Into<String>, message: impl Into<String>) -> Self {
        let (field, message) = (field.into(), message.into());
        Self::bad_request(format!("{field}: {message}")).cause(field, message, "FieldValueInvalid")
    }

    pub(crate) fn unauthorized() -> Self {
        let mut refusal = Self::new(
            StatusCode::UNAUTHORIZED,
            "Unauthorized",
            "Unauthorized: send the token of this server as 'Authorization: Bearer <token>'",
        );
        refusal.0.challenge = true;
        refusal
    }

    /// There is no such path.
    pub(crate) fn no_such_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource: see /apis for what there is",
        )
    }

    pub(crate) fn not_found(about: About) -> Self {
        let message = format!("{} {:?} not found", about.resource(), about.name);
        let mut refusal = Self::new(StatusCode::NOT_FOUND, "NotFound", message);
        refusal.0.about = Some(about);
        refusal
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub(crate) fn not_acceptable() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml",
        )
    }

    pub(crate) fn unsupported_media(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    /// What Kubernetes answers to a creation that names a version: an error without a reason.
    pub(crate) fn versioned_create() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "",
            "resourceVersion should not be set on objects to be created",
        )
    }

    pub(crate) fn forbidden(about: About, why: &str) -> Self {
        let message = format!("{} {:?} is forbidden: {why}", about.resource(), about.name);
        let mut refusal = Self::new(StatusCode::FORBIDDEN, "Forbidden", message);
        refusal.0.about = Some(about);
        refusal
    }

    /// Another manager says otherwise of these fields.
    pub(crate) fn owned_by_others(about: About, fields: &[(String, String)]) -> Self {
        let mut refusal = Self::conflict(
            about,
            "fields are managed by others: use force, or leave them out",
        );
        for (manager, field) in fields {
            let what = format!("conflict with {manager:?}");
            refusal = refusal.cause(field.as_str(), what, "FieldManagerConflict");
        }
        refusal
    }

    pub(crate) fn conflict(about: About, message: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {:?}: {message}",
            about.resource(),
            about.name
        );
        let mut refusal = Self::new(StatusCode::CONFLICT, "Conflict", message);
        refusal.0.about = Some(about);
        refusal
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("the request body is longer than the limit of {limit} bytes: send less"),
        )
    }

    pub(crate) fn body_too_slow(limit: Duration) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "Timeout",
            format!(
                "the request body did not arrive within {} seconds: nothing was written; send it again, faster",
                limit.as_secs()
            ),
        )
    }

    pub(crate) fn uri_too_long(limit: usize) -> Self {
        Self::new(
            StatusCode::URI_TOO_LONG,
            "RequestURITooLong",
            format!("path and query are longer than {limit} bytes: use shorter selectors"),
        )
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// The client asks for something newer than there is; it may come.
    pub(crate) fn too_new(asked: Version, current: Version) -> Self {
        let mut refusal = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Too large resource version: {asked}, current: {current}"),
        )
        .cause("", "Too large resource version", "ResourceVersionTooLarge");
        refusal.0.retry_after = Some(1);
        refusal
    }

    pub(crate) fn too_many_watches(limit: usize) -> Self {
        let mut refusal = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            format!("{limit} watches are open already: close some, or try again later"),
        );
        refusal.0.retry_after = Some(5);
        refusal
    }

    pub(crate) fn too_much_unread(limit: usize) -> Self {
        let mut refusal = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            format!(
                "answers of {limit} bytes wait to be read already: read them, list in pages with limit, or try again later"
            ),
        );
        refusal.0.retry_after = Some(1);
        refusal
    }

    pub(crate) fn internal(what: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", what)
    }

    /// A query parameter, or an option of a deletion, that breaks a rule.
    pub(crate) fn invalid_option(field: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{field}: {message}"),
        )
        .cause(field, message, "FieldValueInvalid")
    }

    /// An object that breaks rules.
    pub(crate) fn invalid(about: About, problems: &[Problem]) -> Self {
        let problems = &problems[..problems.len().min(MAX_NAMED)];
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let list = match all.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let subject = match about.group {
            "" => about.kind.to_owned(),
            group => format!("{}.{group}", about.kind),
        };
        let message = format!("{subject} {:?} is invalid: {list}", about.name);
        let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        // As in Kubernetes: what is invalid is an object of a kind, not a place.
        refusal.0.about = Some(About {
            plural: about.kind,
            ..about
        });
        for problem in problems {
            let what = format!("{}: {}: {}", problem.cause, problem.reason, problem.remedy);
            refusal = refusal.cause(problem.field.as_str(), what, problem.cause.reason());
        }
        refusal
    }

    /// What a plugin says against it.
    pub(crate) fn plugin(about: About, refused: plugins::Refused) -> Self {
        let by = refused.by;
        match refused.refusal {
            plugins::Refusal::Invalid(mut problem) => {
                problem.reason = format!("{by}: {}", problem.reason);
                Self::invalid(about, &[problem])
            }
            plugins::Refusal::Forbidden(why) => Self::forbidden(about, &format!("{by}: {why}")),
            plugins::Refusal::NotNow { why, retry_after } => {
                Self::later(format!("{by}: {why}"), retry_after)
            }
        }
    }

    /// A plugin admits no more for now.
    pub(crate) fn limited(limited: &plugins::Limited) -> Self {
        Self::later(limited.to_string(), limited.retry_after)
    }

    fn later(message: String, after: Duration) -> Self {
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        let seconds = after.as_secs().max(1);
        refusal.0.retry_after = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
        refusal
    }

    /// Fields that strict validation does not let pass.
    pub(crate) fn strict(unknown: &[String], duplicate: &[String]) -> Self {
        let all: Vec<String> = field_warnings(unknown, duplicate).take(MAX_NAMED).collect();
        let mut refusal = Self::bad_request(format!("strict decoding error: {}", all.join(", ")));
        for field in unknown {
            let what = "unknown field: remove it, or pass fieldValidation=Warn to have it dropped";
            refusal = refusal.cause(field.as_str(), what, "FieldValueInvalid");
        }
        for field in duplicate {
            refusal = refusal.cause(
                field.as_str(),
                "duplicate field: say it once",
                "FieldValueDuplicate",
            );
        }
        refusal
    }

    fn cause(
        mut self,
        field: impl Into<String>,
        message: impl Into<String>,
        reason: &'static str,
    ) -> Self {
        if self.0.causes.len() < MAX_NAMED {
            self.0.causes.push(Cause {
                field: clip(field.into(), MAX_WORDS),
                message: clip(message.into(), MAX_WORDS),
                reason,
            });
        }
        self
    }

    /// Whether another writer was first, so that reading again may help.
    pub(crate) fn is_conflict(&self) -> bool {
        self.0.reason == "Conflict"
    }

    /// Whether the object is gone, or another one has its name: somebody else was first.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.reason == "NotFound" || self.is_conflict()
    }

    /// Whether the name is taken.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.reason == "AlreadyExists"
    }

    /// The `Status` object.
    pub(crate) fn to_status(&self) -> Value {
        let mut details = json!({});
        if let Some(about) = &self.0.about {
            if !about.name.is_empty() {
                details["name"] = clip(about.name.clone(), MAX_WORDS).into();
            }
            details["kind"] = about.plural.into();
            if !about.group.is_empty() {
                details["group"] = about.group.into();
            }
        }
        if !self.0.causes.is_empty() {
            details["causes"] = self
                .0
                .causes
                .iter()
                .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
                .collect();
        }
        if let Some(seconds) = self.0.retry_after {
            details["retryAfterSeconds"] = seconds.into();
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.0.message,
            "code": self.0.code.as_u16(),
        });
        if !self.0.reason.is_empty() {
            status["reason"] = self.0.reason.into();
        }
        if details != json!({}) {
            status["details"] = details;
        }
        status
    }
}

/// A text that is not longer than this.
pub(crate) fn clip(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// What to say of each field that validation does not know or saw twice.
pub(crate) fn field_warnings<'a>(
    unknown: &'a [String],
    duplicate: &'a [String],
) -> impl Iterator<Item = String> + 'a {
    let unknown = unknown.iter().map(|f| format!("unknown field {f:?}"));
    unknown.chain(duplicate.iter().map(|f| format!("duplicate field {f:?}")))
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(key) => Self::not_found(About::of(&key)),
            StoreError::AlreadyExists(key) => {
                let about = About::of(&key);
                let message = format!("{} {:?} already exists", about.resource(), about.name);
                let mut refusal = Self::new(StatusCode::CONFLICT, "AlreadyExists", message);
                refusal.0.about = Some(about);
                refusal
            }
            StoreError::Conflict { key, expected, actual } => Self::conflict(
                About::of(&key),
                &format!(
                    "the object has been modified (it is at {actual}, not {expected}); please apply your changes to the latest version and try again"
                ),
            )
            .cause("metadata.resourceVersion", "read the object again and repeat the change", "FieldValueInvalid"),
            StoreError::OtherUid { key, expected, actual } => Self::conflict(
                About::of(&key),
                &format!("Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"),
            )
            .cause("metadata.uid", "the object you mean is gone; read the one that has its name now", "FieldValueInvalid"),
            StoreError::TooLarge { key, size, limit } => {
                let about = About::of(&key);
                let mut refusal = Self::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "RequestEntityTooLarge",
                    format!(
                        "{} {:?} takes {size} bytes, and the most an object may take is {limit}: keep large data elsewhere",
                        about.resource(),
                        about.name
                    ),
                )
                .cause("spec", format!("use at most {limit} bytes in all"), "FieldValueTooLong");
                refusal.0.about = Some(about);
                refusal
            }
            StoreError::Invalid { key, reason } => {
                let about = About::of(&key);
                let message = format!("{} {:?} is invalid: {reason}", about.resource(), about.name);
                let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
                refusal.0.about = Some(about);
                refusal
            }
            StoreError::Expired { after } => Self::expired(format!(
                "too old resource version: {after}: list again, and watch from the list's version"
            )),
            StoreError::Undecodable { ref key, .. } => {
                tracing::error!(error = %error, "a stored record cannot be read");
                let about = About::of(key);
                let mut refusal = Self::internal("the stored object cannot be read by this version: see the server's log");
                refusal.0.about = Some(about);
                refusal
            }
            StoreError::Unavailable { outcome, reason } => {
                tracing::error!(%reason, ?outcome, "the store is unavailable");
                let (message, retry_after) = match outcome {
                    Outcome::NotApplied => ("the store is unavailable: nothing was written; try again", Some(1)),
                    // No hint: clients obey it blindly, and the write may have happened.
                    Outcome::Unknown => ("the store is unavailable: the write may have happened; read before trying again", None),
                };
                let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
                refusal.0.retry_after = retry_after;
                refusal
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_status().to_string()));
        *response.status_mut() = self.0.code;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(seconds) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.0.challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{KindName, Name, Namespace, Uid, codec::DecodeError};

    #[test]
    fn each_store_error_has_one_answer() {
        let key = || {
            Key::namespaced(
                KindName("Sandbox"),
                Namespace::new("t").unwrap(),
                Name::new("a").unwrap(),
            )
        };
        let unavailable = |outcome| StoreError::Unavailable {
            outcome,
            reason: "secret path".into(),
        };
        let table = [
            (StoreError::NotFound(key()), 404, "NotFound", None),
            (StoreError::AlreadyExists(key()), 409, "AlreadyExists", None),
            (
                StoreError::Conflict {
                    key: key(),
                    expected: Version::ZERO,
                    actual: Version::ZERO.next(),
                },
                409,
                "Conflict",
                None,
            ),
            (
                StoreError::OtherUid {
                    key: key(),
                    expected: Uid::from_random(1),
                    actual: Uid::from_random(2),
                },
                409,
                "Conflict",
                None,
            ),
            (
                StoreError::TooLarge {
                    key: key(),
                    size: 2,
                    limit: 1,
                },
                413,
                "RequestEntityTooLarge",
                None,
            ),
            (
                StoreError::Invalid {
                    key: key(),
                    reason: "too many".into(),
                },
                422,
                "Invalid",
                None,
            ),
            (
                StoreError::Expired {
                    after: Version::ZERO,
                },
                410,
                "Expired",
                None,
            ),
            (
                StoreError::Undecodable {
                    key: key(),
                    source: DecodeError {
                        field: "f".into(),
                        message: "secret".into(),
                    },
                },
                500,
                "InternalError",
                None,
            ),
            (
                unavailable(Outcome::NotApplied),
                503,
                "ServiceUnavailable",
                Some(1),
            ),
            (
                unavailable(Outcome::Unknown),
                503,
                "ServiceUnavailable",
                None,
            ),
        ];
        for (error, code, reason, retry_after) in table {
            let refusal = Refusal::from(error);
            let status = refusal.to_status();
            assert_eq!((refusal.0.code.as_u16(), refusal.0.reason), (code, reason));
            assert_eq!(refusal.0.retry_after, retry_after, "{reason}");
            assert!(!status.to_string().contains("secret"), "{status}");
        }
    }
}
