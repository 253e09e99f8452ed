//! The steps of a script: a request, and what becomes of its answer.

use http::Method;
use serde_json::Value;

/// One request.
pub(super) struct Step {
    /// What it is for.
    pub(super) does: &'static str,
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) media: &'static str,
    pub(super) body: Value,
    /// Under which name the answer is kept for later steps.
    pub(super) keep: Option<&'static str>,
    /// Repeated until it is answered so.
    pub(super) until: Option<Until>,
}

/// What a step that is repeated waits for.
pub(super) enum Until {
    /// An answer with this code.
    Status(u16),
    /// An answer with this text at this pointer.
    Is(&'static str, &'static str),
}

pub(super) const JSON: &str = "application/json";
pub(super) const MERGE: &str = "application/merge-patch+json";
pub(super) const PATCH: &str = "application/json-patch+json";
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(super) const APPLY: &str = "application/apply-patch+yaml";

pub(super) fn get(does: &'static str, path: &'static str) -> Step {
    Step {
        does,
        method: Method::GET,
        path,
        media: "",
        body: Value::Null,
        keep: None,
        until: None,
    }
}

pub(super) fn post(does: &'static str, path: &'static str, body: Value) -> Step {
    Step {
        method: Method::POST,
        media: JSON,
        body,
        ..get(does, path)
    }
}

pub(super) fn put(does: &'static str, path: &'static str, body: Value) -> Step {
    Step {
        method: Method::PUT,
        media: JSON,
        body,
        ..get(does, path)
    }
}

pub(super) fn patch(
    does: &'static str,
    path: &'static str,
    media: &'static str,
    body: Value,
) -> Step {
    Step {
        method: Method::PATCH,
        media,
        body,
        ..get(does, path)
    }
}

pub(super) fn delete(does: &'static str, path: &'static str, body: Value) -> Step {
    Step {
        method: Method::DELETE,
        media: JSON,
        body,
        ..get(does, path)
    }
}

pub(super) fn keep(name: &'static str, step: Step) -> Step {
    Step {
        keep: Some(name),
        ..step
    }
}

pub(super) fn until(status: u16, step: Step) -> Step {
    Step {
        until: Some(Until::Status(status)),
        ..step
    }
}

pub(super) fn until_is(pointer: &'static str, text: &'static str, step: Step) -> Step {
    Step {
        until: Some(Until::Is(pointer, text)),
        ..step
    }
}
