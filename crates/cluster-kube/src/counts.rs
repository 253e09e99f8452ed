//! How many requests of which kind an API server was sent.

use std::{collections::BTreeMap, fmt};

use http::{Method, Request};
use kube::client::Body;
use parking_lot::Mutex;

/// Requests so far, by what they do to what.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<BTreeMap<Call, u64>>);

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// The resource in its plural, with its subresource: `sandboxes`, `sandboxes/status`.
    pub resource: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

impl Call {
    /// Whether it changes something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete")
    }
}

/// The requests up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<Call, u64>);

impl Tally {
    /// What was added since an earlier tally.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let more = self.0.iter().filter_map(|(call, count)| {
            let before = earlier.0.get(call).copied().unwrap_or(0);
            (*count > before).then(|| (call.clone(), count - before))
        });
        Self(more.collect())
    }

    /// How many requests changed, or tried to change, this resource or one of its subresources.
    #[must_use]
    pub fn writes(&self, resource: &str) -> u64 {
        let of = |call: &Call| call.resource.split('/').next() == Some(resource);
        let writes = self
            .0
            .iter()
            .filter(|(call, _)| call.is_write() && of(call));
        writes.map(|(_, count)| count).sum()
    }

    /// How many requests changed, or tried to change, anything.
    #[must_use]
    pub fn all_writes(&self) -> u64 {
        let writes = self.0.iter().filter(|(call, _)| call.is_write());
        writes.map(|(_, count)| count).sum()
    }
}

impl Counts {
    pub(crate) fn note(&self, request: &Request<Body>) {
        let query = request.uri().query().unwrap_or_default();
        let call = call(request.method(), request.uri().path(), query);
        *self.0.lock().entry(call).or_default() += 1;
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally(self.0.lock().clone())
    }
}

fn call(method: &Method, path: &str, query: &str) -> Call {
    let mut steps = path.split('/').filter(|step| !step.is_empty()).peekable();
    // `/api/v1/…` or `/apis/group/version/…`
    let before = match steps.peek() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => 0,
    };
    let mut steps: Vec<&str> = steps.skip(before).collect();
    // What is below a namespace is counted under its own name; a namespace itself as one.
    if steps.len() > 2 && steps[0] == "namespaces" {
        steps.drain(..2);
    }
    let resource = match steps[..] {
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
        [resource, ..] => resource.to_owned(),
        [] => "/".to_owned(),
    };
    let watches = query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let verb = match (method.as_str(), steps.len() > 1) {
        ("GET", _) if watches => "watch",
        ("GET", false) => "list",
        ("GET", true) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (_, _) => "other",
    };
    Call { verb, resource }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_do_to_what() {
        for (method, path, query, expected) in [
            (
                Method::GET,
                "/apis/dormouse.dev/v1alpha1/sandboxes",
                "limit=5",
                "list sandboxes",
            ),
            (
                Method::GET,
                "/apis/dormouse.dev/v1alpha1/sandboxes",
                "watch=true",
                "watch sandboxes",
            ),
            (
                Method::GET,
                "/apis/dormouse.dev/v1alpha1/namespaces/t/sandboxes/a",
                "",
                "get sandboxes",
            ),
            (
                Method::PUT,
                "/apis/dormouse.dev/v1alpha1/namespaces/t/sandboxes/a/status",
                "",
                "update sandboxes/status",
            ),
            (Method::POST, "/api/v1/namespaces", "", "create namespaces"),
            (
                Method::DELETE,
                "/api/v1/namespaces/t",
                "",
                "delete namespaces",
            ),
            (
                Method::PATCH,
                "/api/v1/namespaces/t/pods/p",
                "",
                "patch pods",
            ),
            (Method::GET, "/version", "", "list version"),
        ] {
            assert_eq!(call(&method, path, query).to_string(), expected, "{path}");
        }
    }
}
