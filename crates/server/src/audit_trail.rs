//! The audit of the resource API: every write that an administrator asked for, and what became of
//! it. Dry runs write nothing, and strangers are no actors: neither is recorded.

use std::sync::Arc;

use auth::{
    Audit,
    audit::{Action, Actor, Entry},
};
use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use kit::Clock;
use model::{SandboxId, Timestamp, meta::GROUP_VERSION};
use serde_json::Value;

/// Answers longer than this are of many records at once, and are not looked into.
const LONGEST_LOOKED_INTO: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Trail {
    audit: Audit,
    clock: Arc<dyn Clock>,
}

/// The same router, recorded.
pub(crate) fn recorded(router: Router, audit: Audit, clock: Arc<dyn Clock>) -> Router {
    router.layer(middleware::from_fn_with_state(
        Trail { audit, clock },
        record,
    ))
}

async fn record(State(trail): State<Trail>, request: Request, next: Next) -> Response {
    let action = action(request.method());
    let place = Place::read(request.uri().path());
    let is_tried = request.uri().query().is_some_and(|q| q.contains("dryRun="));
    let response = next.run(request).await;
    let (Some(action), Some(mut place)) = (action, place) else {
        return response;
    };
    if is_tried || response.status() == StatusCode::UNAUTHORIZED {
        return response;
    }
    let (response, made) = look_into(response).await;
    if let Some(made) = &made {
        place.complete(made);
    }
    let now = Timestamp::from_micros(trail.clock.wall_micros());
    let mut entry = Entry::new(now, Actor::default(), action);
    let status = response.status();
    let word = status.canonical_reason().unwrap_or("unknown");
    if status.is_server_error() {
        entry = entry.failed(word);
    } else if !status.is_success() {
        entry = entry.refused(word);
    }
    entry.object = Some(place.to_text());
    entry.sandbox = made.as_ref().and_then(|made| {
        let id = made.pointer("/spec/sandboxId")?.as_str()?;
        SandboxId::new(id).ok()
    });
    let id = response.headers().get("x-request-id");
    entry.request = id.and_then(|id| id.to_str().ok()).map(Into::into);
    trail.audit.record(entry).await;
    response
}

fn action(method: &Method) -> Option<Action> {
    Some(Action::new(match *method {
        Method::POST => "resource.create",
        Method::PUT => "resource.replace",
        Method::PATCH => "resource.change",
        Method::DELETE => "resource.delete",
        _ => return None,
    }))
}

/// The answer, and the record in it where it is one.
async fn look_into(response: Response) -> (Response, Option<Value>) {
    let length = response.body().size_hint().exact();
    if !response.status().is_success() || length.is_none_or(|n| n > LONGEST_LOOKED_INTO) {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    // It is in memory already.
    let Ok(collected) = body.collect().await else {
        return (Response::from_parts(parts, Body::empty()), None);
    };
    let bytes = collected.to_bytes();
    let made = serde_json::from_slice(&bytes).ok();
    (Response::from_parts(parts, Body::from(bytes)), made)
}

/// Which record, as far as the path says.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    kind: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Place {
    fn read(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/apis/")?.strip_prefix(GROUP_VERSION)?;
        let mut parts = rest.strip_prefix('/')?.split('/').map(str::to_owned);
        let first = parts.next()?;
        let (namespace, kind) = match first.as_str() {
            "namespaces" => (Some(parts.next()?), parts.next()?),
            _ => (None, first),
        };
        let name = parts.next();
        Some(Self {
            kind,
            namespace,
            name,
        })
    }

    /// A new record's name may be the server's choice.
    fn complete(&mut self, made: &Value) {
        let name = made.pointer("/metadata/name").and_then(Value::as_str);
        self.name = self.name.take().or(name.map(str::to_owned));
    }

    fn to_text(&self) -> Box<str> {
        let parts = [
            Some(&self.kind),
            self.namespace.as_ref(),
            self.name.as_ref(),
        ];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        parts.join("/").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_which_record() {
        let text = |path: &str| Place::read(path).map(|place| place.to_text().into_string());
        for (path, expected) in [
            (
                "/apis/dormouse.dev/v1alpha1/namespaces/a/sandboxes/b",
                Some("sandboxes/a/b"),
            ),
            (
                "/apis/dormouse.dev/v1alpha1/namespaces/a/sandboxes/b/status",
                Some("sandboxes/a/b"),
            ),
            (
                "/apis/dormouse.dev/v1alpha1/namespaces/a/sandboxes",
                Some("sandboxes/a"),
            ),
            ("/apis/dormouse.dev/v1alpha1/teams/t", Some("teams/t")),
            ("/apis/other/v1/teams/t", None),
            ("/healthz", None),
        ] {
            assert_eq!(text(path).as_deref(), expected, "{path}");
        }
    }
}
