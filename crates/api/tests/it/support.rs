//! A server in the test's own process, and words to talk to it with.

use std::sync::Arc;

use ::plugins::Plugins;
use api::{Authenticator, Limits, ResourceApi};
use axum::{Router, body::Body, response::Response};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kit::{Entropy, ManualClock, Tasks};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use store::memory::MemoryStore;
use tower::ServiceExt as _;

pub(crate) const TOKEN: &str = "open sesame";
pub(crate) const SANDBOXES: &str = "/apis/dormouse.dev/v1alpha1/namespaces/team/sandboxes";
pub(crate) const TEMPLATES: &str = "/apis/dormouse.dev/v1alpha1/sandboxtemplates";
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

pub(crate) struct Server {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) api: Arc<ResourceApi>,
    pub(crate) tasks: Tasks,
    pub(crate) router: Router,
}

pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The fields that a refusal blames.
    pub(crate) fn blames(&self) -> Vec<String> {
        let causes = self.json()["details"]["causes"].clone();
        let causes = causes.as_array().cloned().unwrap_or_default();
        causes
            .iter()
            .map(|c| c["field"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Self {
        assert_eq!(self.code.as_u16(), code, "{}", self.text);
        self
    }

    /// Checks that this is a proper refusal.
    #[track_caller]
    pub(crate) fn refused(self, code: u16, reason: &str) -> Self {
        assert_eq!(self.code.as_u16(), code, "{}", self.text);
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["apiVersion"], "v1", "{status}");
        assert_eq!(status["status"], "Failure", "{status}");
        assert_eq!(status["reason"], reason, "{status}");
        assert_eq!(status["code"], code, "{status}");
        assert!(
            status["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{status}"
        );
        self
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::with(limits, Plugins::default())
    }

    pub(crate) fn with_plugins(plugins: Plugins) -> Self {
        Self::with(Limits::default(), plugins)
    }

    fn with(limits: Limits, plugins: Plugins) -> Self {
        let clock = Arc::new(ManualClock::starting_at(1_800_000_000_000_000));
        let entropy = Arc::new(Entropy::seeded(1));
        let store = Arc::new(MemoryStore::new(clock.clone(), Arc::clone(&entropy)));
        let auth = Authenticator::from_token_hashes(vec![Sha256::digest(TOKEN).into()]);
        let tasks = Tasks::default();
        let api = ResourceApi::new(store.clone(), clock, entropy, auth, limits)
            .with_tasks(tasks.clone())
            .with_plugins(plugins);
        let api = Arc::new(api);
        let router = api::router(Arc::clone(&api));
        Self {
            store,
            api,
            tasks,
            router,
        }
    }

    pub(crate) async fn open(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {TOKEN}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(self.open(request.body(body.into()).unwrap()).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Body::empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(
            Method::POST,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(
            Method::PUT,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Answer {
        self.send(
            Method::PATCH,
            path,
            &[("content-type", "application/merge-patch+json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn json_patch(&self, path: &str, body: &Value) -> Answer {
        self.send(
            Method::PATCH,
            path,
            &[("content-type", "application/json-patch+json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], Body::empty()).await
    }

    /// Creates a sandbox and answers it.
    pub(crate) async fn sandbox(&self, name: &str, labels: Value) -> Value {
        let body = sandbox(name, labels, json!({}));
        self.post(SANDBOXES, &body).await.expect(201).json()
    }
}

pub(crate) async fn answer(response: Response) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer {
        code: parts.status,
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the calls read better")]
pub(crate) fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "dormouse.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    })
}

pub(crate) fn sandbox(name: &str, labels: Value, spec: Value) -> Value {
    let mut object = object("Sandbox", name, spec);
    object["metadata"]["labels"] = labels;
    object
}
