//! What another server of the same API wrote, before this one's watches show it.

use http::HeaderValue;
use model::{Key, KindName, SandboxId, Version};
use serde_json::json;
use store::{Precondition, Store as _, StoreExt as _};
use tokio::time::Instant;

use crate::support::{Client, Reply, World, team};

const VERSION: &str = "dormouse-version";

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

#[tokio::test(start_paused = true)]
async fn a_kill_that_lost_to_another_removal_is_stamped_with_what_covers_that() {
    let world = World::new().await;
    let client = world.client("a").await;
    let (id, _, version) = removed_elsewhere(&world, &client).await;
    // It is there as this one looks, and gone as it removes.
    let mut behind = Some(1);
    let faults = world.store.faults();
    faults.on_read(move || behind.take().unwrap_or(0));
    let showing = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        world.store.catch_up();
    };
    let path = format!("/sandboxes/{id}");
    let (killed, ()) = tokio::join!(client.delete(&path), showing);
    assert_eq!(killed.status, 204, "{}", killed.text);
    let stamped: u64 = killed.header(VERSION).unwrap().parse().unwrap();
    assert!(stamped >= version.to_u64(), "{stamped} {version}");
    assert_eq!(client.get(&path).await.status, 404);
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
