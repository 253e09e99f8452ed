//! What the affairs of a whole server share: who may ask for them, and how they are refused.

use api::Authenticator;
use axum::{
    Json,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde_json::json;

/// The answer to whoever does not have the administrator's token.
pub(crate) fn refused(admins: &Authenticator, headers: &HeaderMap) -> Option<Response> {
    let authorization = headers.get(header::AUTHORIZATION);
    if admins.admits(authorization.map(|value| value.as_bytes())) {
        return None;
    }
    let why = "this needs the administrator's token";
    Some(refusal(StatusCode::UNAUTHORIZED, "Unauthorized", why))
}

/// A refusal in the words of the resource API.
pub(crate) fn refusal(code: StatusCode, reason: &str, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": message,
    });
    (code, Json(body)).into_response()
}
