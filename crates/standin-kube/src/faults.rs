//! How the API server misbehaves on request.
//!
//! Faults are before or around the whole server, so what they do to a request is what a client
//! would see of a busy, broken or restarted one. The controllers and the kubelet do not see them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use futures_util::StreamExt as _;
use http::{HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Names whom the sender of a request acts as.
const ACTS_AS: &str = "impersonate-user";

/// What is done to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Refused as one whose object has changed, before it takes effect.
    Conflict,
    /// Refused for now; to be tried again after so many seconds.
    TooManyRequests(u32),
    /// Refused as one that its sender has no right to.
    Forbidden,
    /// Failed before it takes effect.
    Internal,
    /// Failed after it took effect, so that the client cannot know.
    InternalAfter,
    /// Answered late.
    Delay(Duration),
}

/// Which requests a fault is for.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Of this method; `None` for all.
    pub method: Option<Method>,
    /// Whose path has this in it.
    pub path: String,
    /// What is done to them.
    pub fault: Fault,
    /// To how many of them.
    pub times: u32,
}

/// A request that was served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: String,
    /// What was answered.
    pub status: u16,
    /// As whom its sender acts; none for itself.
    pub user: Option<String>,
}

/// The faults of one server, and what it has served.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    watches: Mutex<CancellationToken>,
    /// Users whose watches bring nothing.
    held: watch::Sender<BTreeSet<String>>,
}

impl Faults {
    /// Adds a fault. Of two that fit a request the older one is done.
    pub fn add(&self, rule: Rule) {
        self.rules.lock().push(rule);
    }

    /// Does this to the next requests of a method whose path has this in it.
    pub fn next(&self, times: u32, method: &Method, path: &str, fault: Fault) {
        self.add(Rule {
            method: Some(method.clone()),
            path: path.to_owned(),
            fault,
            times,
        });
    }

    /// Forgets all faults.
    pub fn clear(&self) {
        self.rules.lock().clear();
    }

    /// Ends every open watch, as a server does that has had enough of it.
    pub fn cut_watches(&self) {
        let old = std::mem::take(&mut *self.watches.lock());
        old.cancel();
    }

    /// Holds back from the watches of who acts as this user (`as` in a kubeconfig) what happens from now
    /// on. Everything else of theirs is served.
    pub fn hold_watches_of(&self, user: &str) {
        self.held.send_modify(|held| {
            held.insert(user.to_owned());
        });
    }

    /// Lets their watches catch up.
    pub fn release_watches_of(&self, user: &str) {
        self.held.send_modify(|held| {
            held.remove(user);
        });
    }

    /// What was served since the last look.
    #[must_use]
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock())
    }

    fn find(&self, method: &Method, path: &str) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let at = rules.iter().position(|rule| {
            path.contains(&rule.path) && rule.method.as_ref().is_none_or(|m| m == method)
        })?;
        let fault = rules[at].fault;
        rules[at].times = rules[at].times.saturating_sub(1);
        if rules[at].times == 0 {
            rules.remove(at);
        }
        Some(fault)
    }
}

/// Does to a request what was asked for.
pub(crate) async fn around(
    State(faults): State<Arc<Faults>>,
    request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let user = request.headers().get(ACTS_AS);
    let user = user.and_then(|user| user.to_str().ok().map(str::to_owned));
    let watches = query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"));
    let response = match faults.find(&method, &path) {
        Some(Fault::Conflict) => refusal(StatusCode::CONFLICT, "Conflict", None),
        Some(Fault::TooManyRequests(after)) => refusal(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            Some(after),
        ),
        Some(Fault::Forbidden) => refusal(StatusCode::FORBIDDEN, "Forbidden", None),
        Some(Fault::Internal) => internal(),
        Some(Fault::InternalAfter) => {
            next.run(request).await;
            internal()
        }
        Some(Fault::Delay(by)) => {
            tokio::time::sleep(by).await;
            next.run(request).await
        }
        None => next.run(request).await,
    };
    faults.seen.lock().push(Seen {
        method,
        path,
        status: response.status().as_u16(),
        user: user.clone(),
    });
    if !watches {
        return response;
    }
    let cut = faults.watches.lock().clone();
    let held = faults.held.subscribe();
    let gate = move |part| {
        let (mut held, user) = (held.clone(), user.clone());
        async move {
            let is_held = |held: &BTreeSet<String>| user.as_ref().is_some_and(|u| held.contains(u));
            // Who held them is there as long as the server is.
            let _ = held.wait_for(|held| !is_held(held)).await;
            part
        }
    };
    response.map(|body| {
        let parts = body.into_data_stream().then(gate);
        Body::from_stream(parts.take_until(cut.cancelled_owned()))
    })
}

fn internal() -> Response {
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", None)
}

fn refusal(code: StatusCode, reason: &str, after: Option<u32>) -> Response {
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "asked for by a test",
        "reason": reason,
        "code": code.as_u16(),
    });
    if let Some(seconds) = after {
        status["details"] = json!({"retryAfterSeconds": seconds});
    }
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    if let Some(seconds) = after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
