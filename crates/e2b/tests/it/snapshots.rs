//! Taking snapshots, naming, listing and deleting them, and creating from them.

use std::time::Duration;

use model::{SandboxSnapshot, pool::RecyclePolicy, snapshot::SnapshotSpec};
use runtime::fake::{Call, CallFault};
use serde_json::{Value, json};
use store::{Query, StoreExt as _};

use crate::support::{Client, Reply, World, name, team};

impl World {
    pub(crate) async fn snapshots(&self) -> Vec<SandboxSnapshot> {
        let query = Query::kind(model::KindName("SandboxSnapshot"));
        self.store.list_objects(&query).await.unwrap().0
    }
}

impl Client {
    async fn snapshot(&self, id: &str, body: Value) -> Reply {
        self.post(&format!("/sandboxes/{id}/snapshots"), body).await
    }

    async fn taken(&self, id: &str, body: Value) -> String {
        let reply = self.snapshot(id, body).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        reply.body["snapshotID"].as_str().unwrap().to_owned()
    }

    async fn listed(&self, query: &str) -> Vec<String> {
        let reply = self.get(&format!("/snapshots{query}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let all = reply.body.as_array().unwrap().iter();
        all.map(|info| info["snapshotID"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn encoded(id: &str) -> String {
    id.replace('/', "%2F").replace(':', "%3A")
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_starts_from_a_snapshot_after_the_one_it_was_taken_of_is_gone() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let snapshot = client.taken(&id, json!({})).await;
    assert!(snapshot.ends_with(":default"), "{snapshot}");
    assert_eq!(client.detail(&id).await["state"], "running");
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    world.settle().await;
    let layer = world.snapshots().await[0].status.containers[0]
        .digest
        .clone();
    for template in [&*snapshot, snapshot.trim_end_matches(":default")] {
        let child = client.create(json!({"templateID": template})).await;
        let records = world.records().await;
        let record = records
            .iter()
            .find(|s| s.spec.sandbox_id.as_ref().unwrap().as_str() == child)
            .unwrap();
        let inside = &world.runtime.truth()[&record.uid()];
        assert_eq!(inside.facts.layer.as_ref(), Some(&layer));
        assert_eq!(client.detail(&child).await["templateID"], "base");
    }
    // What has started needs the snapshot no more.
    let path = format!("/templates/{}", encoded(&snapshot));
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(client.delete(&path).await.status, 404);
    assert_eq!(client.listed("").await, [""; 0]);
    let gone = client
        .post("/v2/sandboxes", json!({"templateID": snapshot}))
        .await;
    assert_eq!(gone.status, 404, "{}", gone.text);
    let (running, _) = (client.get("/v2/sandboxes").await, ());
    assert_eq!(running.body.as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_name_means_the_newest_snapshot_of_that_name_and_tag() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let first = client.taken(&id, json!({"name": "app"})).await;
    assert_eq!(first, "a/app:default");
    let tagged = client.taken(&id, json!({"name": "a/app:v2"})).await;
    assert_eq!(tagged, "a/app:v2");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = client.snapshot(&id, json!({"name": "app:default"})).await;
    assert_eq!(second.body["snapshotID"], "a/app:default");
    assert_eq!(second.body["names"], json!(["a/app:default"]));
    let all = client.listed("").await;
    assert_eq!(all.len(), 3, "{all:?}");
    let named = all.iter().filter(|id| id.starts_with("a/app")).count();
    assert_eq!(
        named, 2,
        "the one that lost its name has its own id: {all:?}"
    );
    assert_eq!(client.listed("?name=app").await.len(), 2);
    assert_eq!(client.listed("?name=app:v2").await, ["a/app:v2"]);
    assert_eq!(
        client.listed("?name=a/app:default").await,
        ["a/app:default"]
    );
    assert_eq!(client.listed("?name=b/app").await, [""; 0]);
    let newest = world
        .snapshots()
        .await
        .into_iter()
        .filter(|s| s.spec.alias() == Some(("app", "default")))
        .max_by_key(|s| s.status.captured_at)
        .unwrap();
    for template in ["app", "a/app", "app:default", "a/app:default"] {
        let child = client.create(json!({"templateID": template})).await;
        let detail = client.detail(&child).await;
        assert_eq!(detail["alias"], newest.metadata.name.as_str());
    }
    // Deleting a name takes all that ever had it.
    assert_eq!(client.delete("/templates/app").await.status, 204);
    assert_eq!(client.listed("").await, ["a/app:v2"]);
    assert_eq!(client.delete("/templates/app").await.status, 404);
    assert_eq!(client.delete("/templates/a%2Fapp%3Av2").await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_a_snapshot_is_refused_by_name() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 1, RecyclePolicy::Destroy).await;
    let id = client.create(json!({})).await;
    for (body, status, part) in [
        (json!({"memory": true}), 400, "memory"),
        (json!({"name": "Bad Name"}), 400, "name"),
        (json!({"name": "app:"}), 400, "name"),
        (json!({"name": "b/app"}), 400, "name"),
        (json!({"name": "base"}), 409, "base"),
        (json!({"name": "base:v1"}), 409, "base"),
        (json!({"name": "warm"}), 409, "warm"),
        (json!({"nam": "x"}), 400, "nam"),
        (json!([]), 400, "object"),
    ] {
        let reply = client.snapshot(&id, body.clone()).await;
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
        assert!(reply.message().contains(part), "{body}: {}", reply.text);
    }
    assert_eq!(world.snapshots().await, []);
    assert_eq!(client.snapshot("i0", json!({})).await.status, 404);
    let named = client
        .taken(&id, json!({"memory": false, "name": ""}))
        .await;
    assert!(named.ends_with(":default"));
    let template = client.delete("/templates/base").await;
    assert_eq!(template.status, 403, "{}", template.text);
    assert_eq!(client.delete("/templates/nothing").await.status, 404);
    for query in ["?limit=0", "?limit=101", "?nextToken=x", "?sandboxId=x"] {
        let reply = client.get(&format!("/snapshots{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_sleeps_is_captured_without_waking_it() {
    let world = World::new().await;
    let client = world.client("a").await;
    let frozen = client.create(json!({})).await;
    client.pause(&frozen).await;
    let before = world.runtime.truth();
    let snapshot = client.taken(&frozen, json!({})).await;
    world.settle().await;
    for (uid, inside) in world.runtime.truth() {
        assert_eq!(inside.thaws, before[&uid].thaws, "it was woken");
    }
    assert_eq!(client.detail(&frozen).await["state"], "paused");
    client.create(json!({"templateID": snapshot})).await;
    let filed = client.create(json!({})).await;
    let body = json!({"memory": false});
    let pause = format!("/sandboxes/{filed}/pause");
    assert_eq!(client.post(&pause, body).await.status, 204);
    let snapshot = client.taken(&filed, json!({})).await;
    assert_eq!(client.detail(&filed).await["pauseMode"], "filesystem");
    client.create(json!({"templateID": snapshot})).await;
}

#[tokio::test(start_paused = true)]
async fn another_teams_snapshots_are_not_there() {
    let world = World::new().await;
    let (client, other) = (world.client("a").await, world.client("b").await);
    let id = client.create(json!({})).await;
    let named = client.taken(&id, json!({"name": "app"})).await;
    let plain = client.taken(&id, json!({})).await;
    let unknown = other.snapshot("i000", json!({})).await;
    let foreign = other.snapshot(&id, json!({})).await;
    assert_eq!(foreign.status, unknown.status);
    assert_eq!(foreign.message(), unknown.message().replace("i000", &id));
    assert_eq!(other.listed("").await, [""; 0]);
    assert_eq!(other.listed(&format!("?sandboxID={id}")).await, [""; 0]);
    for text in [&*named, &plain, "app"] {
        let create = other.post("/v2/sandboxes", json!({"templateID": text}));
        assert_eq!(create.await.status, 404, "{text}");
        let path = format!("/templates/{}", encoded(text));
        assert_eq!(other.delete(&path).await.status, 404, "{text}");
    }
    assert_eq!(client.listed("").await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pages_neither_skip_nor_repeat_while_snapshots_come_and_go() {
    let world = World::new().await;
    let client = world.client("a").await;
    let (one, two) = (
        client.create(json!({})).await,
        client.create(json!({})).await,
    );
    let mut kept = Vec::new();
    for n in 0..7 {
        // Some at the same moment.
        tokio::time::sleep(Duration::from_millis(n / 3)).await;
        kept.push(client.taken(&one, json!({})).await);
    }
    client.taken(&two, json!({})).await;
    let mut seen = Vec::new();
    let mut token = None::<String>;
    loop {
        let next = token.map(|t| format!("&nextToken={t}")).unwrap_or_default();
        let page = client
            .get(&format!("/snapshots?sandboxID={one}&limit=2{next}"))
            .await;
        let ids = page.body.as_array().unwrap().iter();
        seen.extend(ids.map(|info| info["snapshotID"].as_str().unwrap().to_owned()));
        token = page.header("x-next-token").map(str::to_owned);
        if token.is_none() {
            break;
        }
        // The last one shown goes, and a new one comes: neither moves the others.
        let last = encoded(seen.last().unwrap());
        assert_eq!(
            client.delete(&format!("/templates/{last}")).await.status,
            204
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.taken(&one, json!({})).await;
    }
    let (mut seen, mut kept) = (seen, kept);
    seen.sort_unstable();
    kept.sort_unstable();
    assert_eq!(seen, kept);
}

#[tokio::test(start_paused = true)]
async fn a_capture_that_fails_says_why_and_leaves_nothing_and_its_sandbox_running() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    world.runtime.on_call(|call, _| match call {
        Call::Capture => CallFault::FailBefore,
        _ => CallFault::None,
    });
    let reply = client.snapshot(&id, json!({"name": "app"})).await;
    assert_eq!(reply.status, 500, "{}", reply.text);
    assert!(reply.message().contains("injected"), "{}", reply.text);
    world.runtime.clear_faults();
    assert_eq!(world.snapshots().await, []);
    assert_eq!(client.detail(&id).await["state"], "running");
    world.settle().await;
    let states: Vec<_> = world.runtime.truth().into_values().collect();
    assert_eq!(states[0].facts.state, runtime::WorkloadState::Running);
    client.taken(&id, json!({"name": "app"})).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_client_left_is_removed() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    world.runtime.on_call(|call, _| match call {
        Call::Capture => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    let asked = client.snapshot(&id, json!({}));
    let left = tokio::time::timeout(Duration::from_secs(1), asked).await;
    assert!(left.is_err());
    world.settle().await;
    assert_eq!(world.snapshots().await, []);
    world.settle().await;
    world.settle().await;
    assert_eq!(client.detail(&id).await["state"], "running");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_waits_never_captures_the_next_owner() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 1, RecyclePolicy::Recycle).await;
    let first = client.create(json!({"templateID": "warm"})).await;
    let record = world
        .records()
        .await
        .into_iter()
        .find(|s| s.spec.sandbox_id.is_some())
        .unwrap();
    // It is asked for while its sandbox cannot be captured, and its owner goes.
    world.runtime.on_call(|call, _| match call {
        Call::Freeze => CallFault::FailBefore,
        _ => CallFault::None,
    });
    let spec = SnapshotSpec {
        sandbox_id: record.spec.sandbox_id.clone(),
        ..SnapshotSpec::of(record.metadata.name.clone())
    };
    let meta = model::Metadata::new(Some(team("a")), name("mine"));
    let wanted = SandboxSnapshot::new(meta, spec);
    world.store.create_object(&wanted).await.unwrap();
    let gone = client.delete(&format!("/sandboxes/{first}")).await;
    assert_eq!(gone.status, 204);
    let next = client.create(json!({"templateID": "warm"})).await;
    assert_ne!(next, first);
    world.runtime.clear_faults();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let snapshot = &world.snapshots().await[0];
    assert_eq!(snapshot.status.phase.as_str(), "Failed");
    assert_eq!(snapshot.status.containers, []);
    assert!(!snapshot.status.reason.is_empty());
    assert_eq!(client.detail(&next).await["state"], "running");
}
