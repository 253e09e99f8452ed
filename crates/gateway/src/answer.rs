//! What the gateway answers by itself: one table.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value};

use crate::{
    address::{AddressError, Port},
    metrics::Outcome,
};

/// A refusal. Each has its row in [`Refusal::row`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The address makes no sense.
    Address(AddressError),
    /// The request cannot be forwarded whatever its address.
    Malformed(&'static str),
    /// Unknown, killed, expired, foreign, or asleep and not to be woken.
    NotFound,
    /// It runs, and nothing listens there.
    PortClosed,
    /// The agent's port wants its token.
    Unauthorized,
    /// A signature that fits no sandbox.
    InvalidSignature,
    /// A signature whose time is over.
    ExpiredSignature,
    /// The port wants the traffic token.
    Forbidden,
    /// A route of the agent's that is the platform's alone.
    Internal,
    /// Waking failed, took too long, or too many wait.
    NotWoken { retry_after: u32 },
    /// The team has no room for another running sandbox.
    TeamLimit { retry_after: u32 },
    /// The body is longer than one may be.
    TooLarge,
    /// Some of the body is owed, and none of it came for too long.
    BodyLate,
    /// Too many requests of this sandbox are open.
    TooMany,
    /// Nothing is served yet.
    Starting,
    /// The routes are not known yet.
    NotSynced,
    /// The version that the client says it has seen is none.
    BadVersion,
    /// The client has seen more than is known here.
    Behind,
    /// The gateway is short of something.
    Overloaded,
    /// The sandbox took the connection and gave no answer.
    NoAnswer,
}

struct Row {
    status: StatusCode,
    message: &'static str,
    retry_after: Option<u32>,
    outcome: Outcome,
}

impl Refusal {
    fn row(self) -> Row {
        let row = |status, message, outcome| Row {
            status,
            message,
            retry_after: None,
            outcome,
        };
        let later = |status, message, seconds, outcome| Row {
            status,
            message,
            retry_after: Some(seconds),
            outcome,
        };
        match self {
            Self::Address(_) => row(StatusCode::BAD_REQUEST, "", Outcome::BadAddress),
            Self::Malformed(why) => row(StatusCode::BAD_REQUEST, why, Outcome::BadAddress),
            Self::NotFound => row(
                StatusCode::BAD_GATEWAY,
                "The sandbox was not found",
                Outcome::NotFound,
            ),
            Self::PortClosed => row(
                StatusCode::BAD_GATEWAY,
                "The sandbox is running but port is not open",
                Outcome::PortClosed,
            ),
            Self::Unauthorized => row(
                StatusCode::UNAUTHORIZED,
                "unauthorized access, please provide a valid access token",
                Outcome::Unauthorized,
            ),
            Self::InvalidSignature => row(
                StatusCode::UNAUTHORIZED,
                "invalid signature",
                Outcome::Unauthorized,
            ),
            Self::ExpiredSignature => row(
                StatusCode::UNAUTHORIZED,
                "signature is already expired",
                Outcome::Unauthorized,
            ),
            Self::Forbidden => row(
                StatusCode::FORBIDDEN,
                "this port needs a valid e2b-traffic-access-token header",
                Outcome::Forbidden,
            ),
            Self::Internal => row(StatusCode::NOT_FOUND, "not found", Outcome::Internal),
            Self::NotWoken { retry_after } => later(
                StatusCode::SERVICE_UNAVAILABLE,
                "The sandbox could not be woken in time",
                retry_after,
                Outcome::NotWoken,
            ),
            Self::TeamLimit { retry_after } => later(
                StatusCode::TOO_MANY_REQUESTS,
                "the team's limit of running sandboxes is reached",
                retry_after,
                Outcome::TooMany,
            ),
            Self::TooLarge => row(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is longer than this gateway takes: send it in parts, or have \
                 gateway.max_body_bytes raised",
                Outcome::TooLarge,
            ),
            Self::BodyLate => row(
                StatusCode::REQUEST_TIMEOUT,
                "the rest of the body did not come in time: send it without long breaks, or have \
                 gateway.body_timeout raised",
                Outcome::BodyLate,
            ),
            Self::TooMany => later(
                StatusCode::TOO_MANY_REQUESTS,
                "too many connections to the sandbox",
                1,
                Outcome::TooMany,
            ),
            Self::Starting => later(
                StatusCode::SERVICE_UNAVAILABLE,
                "the server is starting: try again",
                1,
                Outcome::NotSynced,
            ),
            Self::NotSynced => later(
                StatusCode::SERVICE_UNAVAILABLE,
                "the gateway does not know all sandboxes yet",
                1,
                Outcome::NotSynced,
            ),
            Self::BadVersion => row(
                StatusCode::BAD_REQUEST,
                "Dormouse-Version: send what an answer of the API gave in the same header, once, or \
                 leave it out",
                Outcome::BadAddress,
            ),
            Self::Behind => later(
                StatusCode::SERVICE_UNAVAILABLE,
                "the gateway has not heard of the latest change yet",
                1,
                Outcome::NotSynced,
            ),
            Self::Overloaded => later(
                StatusCode::SERVICE_UNAVAILABLE,
                "the gateway is overloaded",
                1,
                Outcome::Overloaded,
            ),
            Self::NoAnswer => row(
                StatusCode::BAD_GATEWAY,
                "The sandbox closed the connection without an answer",
                Outcome::NoAnswer,
            ),
        }
    }

    /// How it is counted.
    pub(crate) fn outcome(self) -> Outcome {
        self.row().outcome
    }

    /// The answer; a page for a person who looks at it in a browser.
    pub(crate) fn answer(
        self,
        about: About<'_>,
        is_navigation: bool,
        request_id: HeaderValue,
    ) -> Response<Bytes> {
        let row = self.row();
        let message = match self {
            Self::Address(why) => why.to_string(),
            _ => row.message.to_owned(),
        };
        let code = row.status.as_u16();
        let mut response = if is_navigation {
            // Nothing in it comes from the request.
            let page = format!(
                "<!doctype html><title>{code}</title><h1>{code}</h1><p>{}</p>\n",
                row.message
            );
            let mut response = Response::new(Bytes::from(page));
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        } else {
            let mut body = Map::new();
            // The agent would have said it, and says no more.
            let about = match self {
                Self::InvalidSignature | Self::ExpiredSignature => About::default(),
                _ => about,
            };
            if let Some(id) = about.id {
                body.insert("sandboxId".into(), Value::from(id));
            }
            body.insert("message".into(), Value::from(message));
            body.insert("code".into(), Value::from(code));
            if let Some(port) = about.port {
                body.insert("port".into(), Value::from(port.get()));
            }
            let mut response = Response::new(Bytes::from(Value::Object(body).to_string()));
            let kind = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        };
        *response.status_mut() = row.status;
        let headers = response.headers_mut();
        if let Some(seconds) = row.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Clients in browsers must be able to read why.
        let any = HeaderValue::from_static("*");
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any);
        headers.insert(REQUEST_ID, request_id);
        response
    }
}

/// What a refusal is about, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About<'a> {
    pub(crate) id: Option<&'a str>,
    pub(crate) port: Option<Port>,
}

pub(crate) const REQUEST_ID: http::HeaderName = http::HeaderName::from_static("x-request-id");

/// Lets a page of any origin ask, in the agent's stead: the token decides.
pub(crate) fn preflight(asked: &HeaderMap) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let any = HeaderValue::from_static("*");
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any.clone());
    let methods = HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(any));
    response
}
