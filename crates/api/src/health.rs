//! Health and version, open to everybody.

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::StatusCode;
use serde_json::json;

use crate::{render::json_response, resource_api::Api};

/// Paths that need no token.
pub(crate) const OPEN_PATHS: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// The process answers.
pub(crate) async fn live() -> &'static str {
    "ok"
}

/// The process can do its work.
pub(crate) async fn ready(State(api): State<Api>) -> Response {
    let ready = api.readiness.borrow().clone();
    match ready {
        Ok(()) => "ok".into_response(),
        Err(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        )
            .into_response(),
    }
}

/// Which Kubernetes API this is like, and which Dormouse it is.
pub(crate) async fn version() -> Response {
    json_response(&json!({
        "major": "1",
        "minor": "32",
        "gitVersion": concat!("v1.32.0+dormouse.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    }))
}
