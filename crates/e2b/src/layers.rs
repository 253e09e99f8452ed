//! What happens around every request, known route or not: its id, and errors in one shape.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::{refusal::Refusal, service::Api};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a request is called, so that a client's report, the log and the audit can be brought
/// together.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Names the request. The path may be logged; headers and bodies are not, for they carry secrets.
pub(crate) async fn name(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID);
    let given = given
        .and_then(|id| id.to_str().ok())
        .filter(|id| is_sane(id));
    let id: Arc<str> = match given {
        Some(id) => id.into(),
        None => format!("{:032x}", api.entropy.u128()).into(),
    };
    request.extensions_mut().insert(RequestId(Arc::clone(&id)));
    let started = api.clock.monotonic();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    tracing::debug!(
        request_id = &*id,
        %method,
        path,
        status = response.status().as_u16(),
        took = ?api.clock.monotonic().saturating_sub(started),
        "request"
    );
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn is_sane(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
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
