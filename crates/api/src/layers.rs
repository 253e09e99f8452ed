//! What happens around every request: its id, limits, the token, and errors in one shape.

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody as _},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;

use crate::{health::OPEN_PATHS, refusal::Refusal, resource_api::Api};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Names the request, so that a client's report and the log can be brought together. The path may
/// be logged; headers and bodies are not, for they carry secrets.
pub(crate) async fn with_request_id(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Response {
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .filter(|id| is_sane(id))
        .cloned()
        .or_else(|| HeaderValue::from_str(&format!("{:032x}", api.entropy.u128())).ok());
    let started = api.clock.monotonic();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    tracing::debug!(
        request_id = id.as_ref().and_then(|id| id.to_str().ok()),
        %method,
        path,
        status = response.status().as_u16(),
        took = ?api.clock.monotonic().saturating_sub(started),
        "request"
    );
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn is_sane(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=128).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(b))
}

/// Refuses what is too long or comes without a known token.
pub(crate) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let uri = request.uri();
    let length = uri.path_and_query().map_or(0, |p| p.as_str().len());
    if length > api.limits.uri_bytes {
        return Refusal::uri_too_long(api.limits.uri_bytes).into_response();
    }
    let mut authorizations = request.headers().get_all(header::AUTHORIZATION).iter();
    // Of two, a proxy may have looked at the other one.
    let authorization = match (authorizations.next(), authorizations.next()) {
        (Some(only), None) => Some(only.as_bytes()),
        (_, _) => None,
    };
    if !OPEN_PATHS.contains(&uri.path()) && !api.auth.admits(authorization) {
        return Refusal::unauthorized().into_response();
    }
    next.run(request).await
}

/// Answers that are shorter than this are not counted.
const LONG_ANSWER: u64 = 64 << 10;

/// Bounds what all long answers to reads take together while slow clients have not read them. A write
/// is always answered: its client must know.
pub(crate) async fn bound_unread(State(api): State<Api>, request: Request, next: Next) -> Response {
    let reads = request.method().is_safe();
    let response = next.run(request).await;
    let Some(length) = response.body().size_hint().exact() else {
        return response;
    };
    if !reads || length < LONG_ANSWER {
        return response;
    }
    let limit = api.limits.unread_bytes;
    // One answer alone is always sent, or a long list could never be read.
    let wanted = (length >> 10).min(limit as u64 >> 10);
    let permits = u32::try_from(wanted).unwrap_or(u32::MAX);
    match Arc::clone(&api.unread_permits).try_acquire_many_owned(permits) {
        // It goes with the body, when that is sent or dropped.
        Ok(permit) => response.map(|body| {
            Body::new(body.map_err(move |error| {
                let _ = &permit;
                error
            }))
        }),
        Err(_) => Refusal::too_much_unread(limit).into_response(),
    }
}

/// Gives a body to the router's own refusals of a method.
pub(crate) async fn explain(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED
        || response.headers().contains_key(header::CONTENT_TYPE)
    {
        return response;
    }
    let mut explained = Refusal::method_not_allowed().into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        explained.headers_mut().insert(header::ALLOW, allow.clone());
    }
    explained
}
