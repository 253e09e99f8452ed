//! A server in this process, and a client of it.

use std::{sync::Arc, time::Duration};

use auth::{Audit, Keys, Ledger, Seal, key::NewKey, quota::Size};
use axum::{Router, body::Body};
use control::{Builder, Control, events::StoredEvents};
use e2b::{Caches, E2b, Options, Ports, Sampler, ports::Admins};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, SandboxPool, SandboxTemplate,
    pool::{PoolSpec, RecyclePolicy},
    team::{Quotas, TeamSpec},
    template::{ImagePullPolicy, TemplateSpec},
};
use runtime::fake::FakeRuntime;
use serde_json::{Value, json};
use store::{Store, StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::{
    ahead::{Told, Vast},
    handover::{Answered, FakeImages},
};

/// Everything but the runtime and the store is made anew by a restart.
pub(crate) struct World {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) runtime: Arc<FakeRuntime>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) keys: Keys,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) images: Arc<FakeImages>,
    pub(crate) unsaid: Arc<Answered>,
    pub(crate) vast: Arc<Vast>,
    pub(crate) told: Arc<Told>,
    pub(crate) api: Arc<E2b>,
    pub(crate) control: Option<Control>,
    pub(crate) tasks: Tasks,
    router: Router,
    _audit: tempfile::TempDir,
}

/// Who shows the one token.
#[derive(Debug)]
struct OneToken;

impl Admins for OneToken {
    fn admits(&self, authorization: &[u8]) -> bool {
        authorization == b"Bearer the-token"
    }
}

/// A team with a key.
#[derive(Clone)]
pub(crate) struct Client {
    router: Router,
    pub(crate) key: String,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    pub(crate) text: String,
}

pub(crate) fn in_seconds(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn team(text: &str) -> Namespace {
    Namespace::new(text).unwrap()
}

pub(crate) fn template(teams: &[&str]) -> TemplateSpec {
    TemplateSpec {
        image: "base".into(),
        image_pull_policy: ImagePullPolicy::Never,
        teams: teams.iter().map(|t| team(t)).collect(),
        ..TemplateSpec::default()
    }
}

pub(crate) fn options() -> Options {
    Options {
        filesystem_pause: true,
        domain: Some("sbx.test".into()),
        ..Options::new(name("base"))
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(options()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let clock = Arc::new(ManualClock::starting_at(1_800_000_000_000_000));
        let entropy = Arc::new(Entropy::seeded(1));
        let store = Arc::new(MemoryStore::new(clock.clone(), Arc::clone(&entropy)));
        for (template_name, teams) in [("base", &[][..]), ("private", &["b"][..])] {
            let meta = Metadata::new(None, name(template_name));
            let template = SandboxTemplate::new(meta, template(teams));
            store.create_object(&template).await.unwrap();
        }
        let runtime = Arc::new(FakeRuntime::new(Tasks::default()));
        Self::start(store, runtime, clock, entropy, options).await
    }

    /// Another server over what there is.
    pub(crate) async fn start(
        store: Arc<MemoryStore>,
        runtime: Arc<FakeRuntime>,
        clock: Arc<ManualClock>,
        entropy: Arc<Entropy>,
        options: Options,
    ) -> Self {
        let tasks = Tasks::default();
        let shared: Arc<dyn Store> = store.clone();
        let clock_port: Arc<dyn Clock> = clock.clone();
        let events = StoredEvents::start(shared.clone(), clock_port.clone(), &tasks);
        let control = Builder::new(
            shared.clone(),
            runtime.clone(),
            clock_port.clone(),
            Arc::clone(&entropy),
        )
        .events(Arc::new(events))
        .start(&tasks, in_seconds(10))
        .await
        .unwrap();
        let caches = Caches::start(&shared, &entropy, in_seconds(10), &tasks)
            .await
            .unwrap();
        let keys = Keys::start(shared.clone(), Arc::clone(&entropy), in_seconds(10), &tasks)
            .await
            .unwrap();
        let size = Size {
            cpu_millis: 1000,
            memory_mib: 512,
        };
        let ledger = Ledger::new(caches.sandboxes.clone(), caches.templates.clone(), size);
        let sampler = Arc::new(Sampler::default());
        let images = Arc::new(FakeImages::of(runtime.clone()));
        let unsaid = Arc::new(Answered::default());
        let vast = Arc::new(Vast::new(shared));
        let told = Arc::new(Told::default());
        let audit = tempfile::tempdir().unwrap();
        let ports = Ports {
            metrics: sampler.clone(),
            admins: Arc::new(OneToken),
            images: images.clone(),
            unsaid: unsaid.clone(),
            followers: told.clone(),
            desk: Some(Arc::clone(control.desk())),
            audit: Some(Audit::open(audit.path(), auth::audit::Options::default()).unwrap()),
            ..Ports::new(
                vast.clone(),
                caches,
                clock_port,
                Arc::clone(&entropy),
                Seal::new([7; 32]),
                keys.clone(),
                Arc::new(ledger),
            )
        };
        let api = E2b::start(ports, options, &tasks).await.unwrap();
        let router = e2b::router(Arc::clone(&api));
        Self {
            store,
            runtime,
            clock,
            entropy,
            keys,
            sampler,
            images,
            unsaid,
            vast,
            told,
            api,
            control: Some(control),
            tasks,
            router,
            _audit: audit,
        }
    }

    /// The server dies where it stands, and another starts.
    pub(crate) async fn restarted(mut self) -> Self {
        if let Some(control) = self.control.take() {
            control.drain(Duration::ZERO).await;
        }
        let _ = self.tasks.drain(Duration::ZERO).await;
        let Self {
            store,
            runtime,
            clock,
            entropy,
            ..
        } = self;
        Self::start(store, runtime, clock, entropy, options()).await
    }

    /// A client of a team, which is made if it is not there.
    pub(crate) async fn client(&self, of: &str) -> Client {
        self.limited_client(of, Quotas::default()).await
    }

    pub(crate) async fn limited_client(&self, of: &str, quotas: Quotas) -> Client {
        let spec = TeamSpec {
            quotas,
            ..TeamSpec::default()
        };
        let made = Object::new(Metadata::new(None, name(of)), spec);
        if self.keys.find_team(&team(of)).is_none() {
            self.keys.store().create_object(&made).await.unwrap();
        }
        let key = self.keys.create(&team(of), NewKey::named("test")).await;
        Client {
            router: self.router.clone(),
            key: key.unwrap().key.reveal().to_owned(),
        }
    }

    /// A pool of a team with idle members, once they are there.
    pub(crate) async fn pool(&self, of: &str, called: &str, idle: u32, recycle: RecyclePolicy) {
        let spec = PoolSpec {
            recycle_policy: recycle,
            ..PoolSpec::new(name("base"), idle, idle + 5, 100)
        };
        let meta = Metadata::new(Some(team(of)), name(called));
        let pool = SandboxPool::new(meta, spec);
        self.store.create_object(&pool).await.unwrap();
        self.settle().await;
    }

    /// Lets everything come to rest.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    /// Names of all sandbox records.
    pub(crate) async fn records(&self) -> Vec<model::Sandbox> {
        let query = store::Query::kind(model::KindName("Sandbox"));
        let (all, _) = self.store.list_objects(&query).await.unwrap();
        all
    }
}

impl Client {
    pub(crate) fn stranger(&self, key: &str) -> Self {
        Self {
            router: self.router.clone(),
            key: key.into(),
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let body: Value = match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap(),
        };
        let reply = Reply {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            text,
        };
        reply.has_the_shape_of_errors();
        reply
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Request<Body> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-api-key", &self.key);
        match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        }
        .unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(self.request("GET", path, None)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(self.request("POST", path, Some(&body))).await
    }

    pub(crate) async fn post_nothing(&self, path: &str) -> Reply {
        self.send(self.request("POST", path, None)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Reply {
        self.send(self.request("PUT", path, Some(&body))).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send(self.request("DELETE", path, None)).await
    }

    /// Creates a sandbox with the newest route, and answers its id.
    pub(crate) async fn create(&self, extra: Value) -> String {
        let mut body = json!({"templateID": "base"});
        for (field, value) in extra.as_object().unwrap() {
            body[field] = value.clone();
        }
        let reply = self.post("/v2/sandboxes", body).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        reply.id()
    }

    pub(crate) async fn detail(&self, id: &str) -> Value {
        let reply = self.get(&format!("/sandboxes/{id}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.body
    }

    pub(crate) async fn pause(&self, id: &str) {
        let reply = self.post_nothing(&format!("/sandboxes/{id}/pause")).await;
        assert_eq!(reply.status, 204, "{}", reply.text);
    }
}

impl Reply {
    pub(crate) fn id(&self) -> String {
        self.body["sandboxID"].as_str().unwrap().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    fn has_the_shape_of_errors(&self) {
        assert!(self.headers.contains_key("x-request-id"), "{self:?}");
        if StatusCode::from_u16(self.status).unwrap().is_success() {
            return;
        }
        assert_eq!(self.body["code"], self.status, "{}", self.text);
        assert!(!self.message().is_empty(), "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/json"));
    }
}
