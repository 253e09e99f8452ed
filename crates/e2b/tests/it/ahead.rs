//! What another server of the same API wrote, before this one's watches show it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use e2b::ports::Followers;
use http::HeaderValue;
use model::{Key, KindName, SandboxId, Version};
use parking_lot::Mutex;
use serde_json::json;
use store::{
    Change, Deletion, Draft, Listing, Precondition, Query, Record, Scope, Store, StoreError,
    StoreExt as _, Watch,
};
use tokio::time::Instant;

use crate::support::{Client, Reply, World, team};

const VERSION: &str = "dormouse-version";

/// A store of which most is none of ours, as a cluster: its lists are as new as all of it.
#[derive(Debug)]
pub(crate) struct Vast {
    store: Arc<dyn Store>,
    /// How much newer that is.
    ahead: AtomicU64,
}

impl Vast {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let ahead = AtomicU64::new(0);
        Self { store, ahead }
    }
}

#[async_trait]
impl Store for Vast {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        self.store.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        let mut listing = self.store.list(query).await?;
        let ahead = self.ahead.load(Ordering::Relaxed);
        listing.version = Version::from_u64(listing.version.to_u64() + ahead);
        Ok(listing)
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        self.store.create(draft).await
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        self.store.update(change).await
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        self.store.delete(key, only_if).await
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(scope, after).await
    }
}

/// What the others had heard of before somebody was answered.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Vec<Version>>);

#[async_trait]
impl Followers for Told {
    async fn have_seen(&self, _: &Key, version: Version) {
        self.0.lock().push(version);
    }
}

/// A sandbox that another server has removed; this one's watches do not show it.
async fn removed_elsewhere(world: &World, client: &Client) -> (String, Key, Version) {
    let id = client.create(json!({})).await;
    world.settle().await;
    let of_id = |s: &model::Sandbox| s.spec.sandbox_id.as_ref().unwrap().as_str() == id;
    let record = world.records().await.into_iter().find(of_id).unwrap();
    world.store.lag();
    let mut held = record.clone();
    held.metadata.finalizers.clear();
    let held = world.store.update_spec(&held).await.unwrap();
    let key = record.key();
    let gone = world.store.delete(&key, Precondition::default());
    let version = match gone.await.unwrap() {
        store::Deletion::Removed(record) | store::Deletion::Marked(record) => record.version(),
    };
    assert!(version > held.version());
    (id, key, version)
}

/// A kill of a sandbox that is there as this server looks, and gone as it removes; half a second later its
/// watches show that.
async fn killed_too_late(world: &World, client: &Client, path: &str) -> Reply {
    let mut behind = Some(1);
    let faults = world.store.faults();
    faults.on_read(move || behind.take().unwrap_or(0));
    let showing = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        world.store.catch_up();
    };
    let (killed, ()) = tokio::join!(client.delete(path), showing);
    assert_eq!(killed.status, 204, "{}", killed.text);
    killed
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_lost_to_another_removal_is_stamped_with_what_covers_that() {
    let world = World::new().await;
    let client = world.client("a").await;
    let (id, _, version) = removed_elsewhere(&world, &client).await;
    let path = format!("/sandboxes/{id}");
    let killed = killed_too_late(&world, &client, &path).await;
    let stamped: u64 = killed.header(VERSION).unwrap().parse().unwrap();
    assert!(stamped >= version.to_u64(), "{stamped} {version}");
    assert_eq!(client.get(&path).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_lost_to_another_removal_waits_for_that_and_not_for_all_of_the_store() {
    let world = World::new().await;
    let client = world.client("a").await;
    let (id, _, version) = removed_elsewhere(&world, &client).await;
    world.vast.ahead.store(1000, Ordering::Relaxed);
    let begun = Instant::now();
    let path = format!("/sandboxes/{id}");
    let killed = killed_too_late(&world, &client, &path).await;
    let stamped = version_of(&killed);
    assert!(stamped >= version, "{stamped} {version}");
    assert!(
        stamped <= world.store.version(),
        "nobody comes to {stamped}"
    );
    assert!(begun.elapsed().as_millis() < 10_000);
    assert_eq!(world.told.0.lock().last(), Some(&stamped));
}

async fn get_with(client: &Client, path: &str, version: &str) -> Reply {
    let mut request = client.request("GET", path, None);
    let value = HeaderValue::from_str(version).unwrap();
    request.headers_mut().insert(VERSION, value);
    client.send(request).await
}

#[tokio::test(start_paused = true)]
async fn a_read_of_what_was_heard_of_waits_until_it_is_seen() {
    let world = World::new().await;
    let client = world.client("a").await;
    let (id, key, version) = removed_elsewhere(&world, &client).await;
    let path = format!("/sandboxes/{id}");
    // Nobody has said so: what is seen is what is answered.
    assert_eq!(client.get(&path).await.status, 200);
    world.api.heard(key, None, version);
    assert_eq!(world.api.unseen_changes(), 1);
    let reading = async { tokio::join!(client.get(&path), client.get("/v2/sandboxes")) };
    let showing = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        world.store.catch_up();
    };
    let ((one, all), ()) = tokio::join!(reading, showing);
    assert_eq!(one.status, 404);
    assert_eq!(all.body, json!([]));
    assert_eq!(world.api.unseen_changes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_heard_of_by_its_id_is_not_said_to_be_missing() {
    let world = World::new().await;
    let client = world.client("a").await;
    client.create(json!({})).await;
    world.settle().await;
    world.store.lag();
    let id = SandboxId::from_random(77);
    let key = Key::namespaced(
        KindName("Sandbox"),
        team("a"),
        model::Name::new("new").unwrap(),
    );
    let next = world.store.version().next();
    world.api.heard(key, Some(id.clone()), next);
    let begun = Instant::now();
    let reply = client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(
        (reply.status, reply.header("retry-after")),
        (503, Some("1"))
    );
    assert!(begun.elapsed().as_millis() >= 1000);
    // Of others nothing was heard, and another team has heard of nothing.
    let begun = Instant::now();
    assert_eq!(client.get("/sandboxes/iother").await.status, 404);
    let other = world.client("b");
    world.store.catch_up();
    let other = other.await;
    assert_eq!(other.get(&format!("/sandboxes/{id}")).await.status, 404);
    assert_eq!(begun.elapsed().as_millis(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_heard_of_before_the_delivery_was_seen_is_waited_for() {
    let world = World::new().await;
    let client = world.client("a").await;
    client.create(json!({})).await;
    world.settle().await;
    let id = SandboxId::from_random(77);
    let name = model::Name::new("new").unwrap();
    let key = Key::namespaced(KindName("Sandbox"), team("a"), name);
    world.store.lag();
    let made = world.store.version().next();
    world.api.heard(key.clone(), Some(id.clone()), made);
    let ended = Version::from_u64(made.to_u64() + 1000);
    world.api.heard(key, None, ended);
    // What is as new as the delivery is seen; its end is not.
    world
        .pool("b", "other", 0, model::pool::RecyclePolicy::Recycle)
        .await;
    world.store.catch_up();
    let reply = client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(reply.status, 503, "{}", reply.text);
}

#[tokio::test(start_paused = true)]
async fn every_answer_that_wrote_says_at_which_version_and_later_ones_are_not_older() {
    let world = World::new().await;
    let client = world.client("a").await;
    let made = client
        .post("/v2/sandboxes", json!({"templateID": "base"}))
        .await;
    let path = format!("/sandboxes/{}", made.id());
    let mut last = version_of(&made);
    for (method, path, body) in [
        ("POST", format!("{path}/timeout"), json!({"timeout": 900})),
        (
            "POST",
            format!("{path}/refreshes"),
            json!({"duration": 3600}),
        ),
        ("POST", format!("{path}/pause"), json!({})),
        ("POST", format!("{path}/connect"), json!({"timeout": 900})),
        (
            "PUT",
            format!("{path}/network"),
            json!({"allowOut": ["1.1.1.1"]}),
        ),
        ("DELETE", path.clone(), serde_json::Value::Null),
    ] {
        let body = Some(&body).filter(|body| !body.is_null());
        let reply = client.send(client.request(method, &path, body)).await;
        assert!(reply.status < 300, "{path}: {}", reply.text);
        let version = version_of(&reply);
        assert!(version >= last, "{path}: {version:?} after {last:?}");
        let told = world.told.0.lock().last().copied();
        assert_eq!(told, Some(version), "{path}: the others have heard of it");
        last = version;
    }
    let reply = get_with(&client, &path, &last.to_string()).await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.header(VERSION), None);
}

fn version_of(reply: &Reply) -> Version {
    reply.header(VERSION).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_says_how_far_they_have_come_is_not_answered_by_less() {
    let world = World::new().await;
    let client = world.client("a").await;
    let (id, _, version) = removed_elsewhere(&world, &client).await;
    let path = format!("/sandboxes/{id}");
    let behind = get_with(&client, &path, &version.to_string()).await;
    assert_eq!(
        (behind.status, behind.header("retry-after")),
        (503, Some("1"))
    );
    let showing = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        world.store.catch_up();
    };
    let version = version.to_string();
    let (seen, ()) = tokio::join!(get_with(&client, &path, &version), showing);
    assert_eq!(seen.status, 404);
    for bad in ["soon", "-1", "18446744073709551616", ""] {
        let reply = get_with(&client, &path, bad).await;
        assert_eq!(reply.status, 400, "{bad}");
        assert!(
            reply.message().contains("Dormouse-Version"),
            "{}",
            reply.text
        );
    }
}
