//! What a create costs beside the store's own commit, and a page among few beside one among many:
//! `cargo run --profile bench -p dormouse-e2b --example latency`.
//!
//! The runtime is the fake one, so what is left is this API, the control loop and the store.

use std::{sync::Arc, time::Duration};

use auth::{Keys, Ledger, Seal, key::NewKey, quota::Size};
use axum::{Router, body::Body};
use control::Builder;
use e2b::{Caches, E2b, Options, Ports};
use http::Request;
use http_body_util::BodyExt as _;
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, SandboxTemplate, team::TeamSpec, template::TemplateSpec,
};
use runtime::fake::FakeRuntime;
use store::{Store, StoreExt as _};
use store_redb::RedbStore;
use tokio::time::Instant;
use tower::ServiceExt as _;

const CREATES: usize = 500;
const MANY: usize = 10_000;
const PAGES: usize = 200;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    let options = store_redb::Options::default();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(
        directory.path(),
        clock.clone(),
        entropy.clone(),
        options,
    )?);
    let tasks = Tasks::default();
    let deadline = Instant::now() + Duration::from_secs(60);
    let template: TemplateSpec = serde_json::from_str(r#"{"image": "base"}"#)?;
    let base = Name::new("base")?;
    let meta = Metadata::new(None, base.clone());
    store
        .create_object(&SandboxTemplate::new(meta, template))
        .await?;
    let runtime = Arc::new(FakeRuntime::new(tasks.child()));
    let control = Builder::new(store.clone(), runtime, clock.clone(), entropy.clone())
        .start(&tasks, deadline)
        .await?;
    let caches = Caches::start(&store, &entropy, deadline, &tasks).await?;
    let keys = Keys::start(store.clone(), entropy.clone(), deadline, &tasks).await?;
    let team = Namespace::new("team")?;
    let named = Metadata::new(None, Name::new("team")?);
    let record = Object::new(named, TeamSpec::default());
    keys.store().create_object(&record).await?;
    let key = keys.create(&team, NewKey::named("bench")).await?.key;
    let ledger = Ledger::new(
        caches.sandboxes.clone(),
        caches.templates.clone(),
        Size::default(),
    );
    let seal = Seal::new([1; 32]);
    let ports = Ports::new(
        store.clone(),
        caches,
        clock,
        entropy,
        seal,
        keys,
        Arc::new(ledger),
    );
    let router = e2b::router(E2b::start(ports, Options::new(base), &tasks).await?);
    let client = Client {
        router,
        key: key.reveal().to_owned(),
    };

    let mut commits = Samples::default();
    for at in 0..CREATES {
        let meta = Metadata::new(None, Name::new(format!("commit-{at}"))?);
        let draft = Object::new(meta, TeamSpec::default());
        let started = Instant::now();
        store.create_object(&draft).await?;
        commits.record(started.elapsed());
    }
    commits.print("one commit of the store");
    let mut creates = Samples::default();
    for _ in 0..CREATES {
        let started = Instant::now();
        client.call("POST", "/v2/sandboxes", "{}").await?;
        creates.record(started.elapsed());
    }
    creates.print("create, one at a time");
    let mut pages = Samples::default();
    for _ in 0..PAGES {
        let started = Instant::now();
        client.call("GET", "/v2/sandboxes?limit=10", "").await?;
        pages.record(started.elapsed());
    }
    pages.print("a page of 10 among 500");
    let started = Instant::now();
    for _ in (CREATES..MANY).step_by(50) {
        let creates = (0..50).map(|_| client.call("POST", "/v2/sandboxes", "{}"));
        for made in futures_util::future::join_all(creates).await {
            made?;
        }
    }
    let took = started.elapsed().as_secs_f64();
    let rate = (MANY - CREATES) as f64 / took;
    println!("create, 50 at a time: {rate:.0} a second");
    let mut pages = Samples::default();
    for _ in 0..PAGES {
        let started = Instant::now();
        client.call("GET", "/v2/sandboxes?limit=10", "").await?;
        pages.record(started.elapsed());
    }
    pages.print("a page of 10 among 10,000");
    control.drain(Duration::from_secs(5)).await;
    let _ = tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

/// Latencies of one measured thing.
#[derive(Default)]
struct Samples(Vec<Duration>);

impl Samples {
    fn record(&mut self, took: Duration) {
        self.0.push(took);
    }

    fn print(mut self, name: &str) {
        self.0.sort_unstable();
        let at = |share: usize| self.0[self.0.len() * share / 100];
        println!("{name:<32} p50 {:>10.1?}  p99 {:>10.1?}", at(50), at(99));
    }
}

struct Client {
    router: Router,
    key: String,
}

impl Client {
    async fn call(
        &self,
        method: &str,
        path: &str,
        body: &'static str,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-api-key", &self.key)
            .body(Body::from(body))?;
        let response = self.router.clone().oneshot(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into())
        }
    }
}
