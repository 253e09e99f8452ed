//! Forks: children that share one capture, and what is left when something goes wrong.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use model::team::Quotas;
use runtime::fake::{Call, CallFault};
use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

impl Client {
    async fn fork(&self, id: &str, body: Value) -> Reply {
        self.post(&format!("/sandboxes/{id}/fork"), body).await
    }
}

#[tokio::test(start_paused = true)]
async fn children_are_sandboxes_of_their_own_from_one_capture() {
    let world = World::new().await;
    let client = world.client("a").await;
    let captures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&captures);
    world.runtime.on_call(move |call, _| {
        if call == Call::Capture {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        CallFault::None
    });
    let id = client
        .create(json!({"envVars": {"A": "1"}, "metadata": {"m": "n"}, "autoPause": true}))
        .await;
    let reply = client.fork(&id, json!({"count": 5, "timeout": 600})).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let children = reply.body.as_array().unwrap();
    assert_eq!(children.len(), 5);
    let (mut ids, mut tokens) = (BTreeSet::new(), BTreeSet::new());
    for child in children {
        let sandbox = &child["sandbox"];
        let child = sandbox["sandboxID"].as_str().unwrap().to_owned();
        let detail = client.detail(&child).await;
        assert_eq!(detail["state"], "running");
        assert_eq!(detail["metadata"], json!({"m": "n"}));
        assert_eq!(detail["lifecycle"]["onTimeout"], "pause");
        tokens.insert(sandbox["envdAccessToken"].as_str().unwrap().to_owned());
        ids.insert(child);
    }
    assert_eq!((ids.len(), tokens.len()), (5, 5));
    assert_eq!(captures.load(Ordering::Relaxed), 1, "stored once");
    assert_eq!(client.detail(&id).await["state"], "running");
    let layers: BTreeSet<_> = world
        .runtime
        .truth()
        .into_values()
        .filter_map(|inside| inside.facts.layer)
        .collect();
    assert_eq!(layers.len(), 1);
    for record in world.records().await {
        assert_eq!(record.spec.env.get("A"), Some("1"));
    }
    // The snapshot behind it was nobody's to see, and is gone.
    assert_eq!(client.get("/snapshots").await.body, json!([]));
    world.settle().await;
    assert_eq!(world.snapshots().await, []);
    // Children can be put to sleep without the snapshot, and wake again.
    for child in &ids {
        let pause = format!("/sandboxes/{child}/pause");
        let slept = client.post(&pause, json!({"memory": false})).await;
        assert_eq!(slept.status, 204, "{}", slept.text);
        let connect = format!("/sandboxes/{child}/connect");
        let woken = client.post(&connect, json!({"timeout": 100})).await;
        assert_eq!(woken.status, 201, "{}", woken.text);
    }
    let audit = client.get("/dormouse/audit").await;
    let entries = audit.body["entries"].as_array().unwrap();
    let count = |action: &str| entries.iter().filter(|e| e["action"] == action).count();
    assert_eq!((count("sandbox.fork"), count("sandbox.create")), (1, 6));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_forked_is_refused() {
    let world = World::new().await;
    let (client, other) = (world.client("a").await, world.client("b").await);
    let id = client.create(json!({})).await;
    for (body, part) in [
        (json!({"count": 0}), "count"),
        (json!({"count": 101}), "count"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"copies": 2}), "copies"),
    ] {
        let reply = client.fork(&id, body).await;
        assert_eq!(reply.status, 400);
        assert!(reply.message().contains(part), "{}", reply.text);
    }
    assert_eq!(client.fork("i0", json!({})).await.status, 404);
    let foreign = other.fork(&id, json!({})).await;
    let unknown = other.fork("i0", json!({})).await;
    assert_eq!(foreign.message(), unknown.message().replace("i0", &id));
    client.pause(&id).await;
    let paused = client.fork(&id, json!({})).await;
    assert_eq!(paused.status, 409, "{}", paused.text);
    assert_eq!(world.records().await.len(), 1);
    assert_eq!(world.snapshots().await, []);
}

#[tokio::test(start_paused = true)]
async fn quota_is_there_for_all_children_or_none_is_made() {
    let world = World::new().await;
    let quotas = Quotas {
        sandboxes: Some(4),
        ..Quotas::default()
    };
    let client = world.limited_client("a", quotas).await;
    let id = client.create(json!({})).await;
    let reply = client.fork(&id, json!({"count": 4})).await;
    assert_eq!(reply.status, 429, "{}", reply.text);
    assert_eq!(world.snapshots().await, []);
    assert_eq!(world.records().await.len(), 1);
    let reply = client.fork(&id, json!({"count": 3})).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let full = client.post("/v2/sandboxes", json!({})).await;
    assert_eq!(full.status, 429);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_fails_is_reported_and_the_others_are_there() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let unlucky = Arc::new(parking_lot::Mutex::new(None));
    world.runtime.on_call(move |call, uid| {
        let mut chosen = unlucky.lock();
        match call {
            Call::Create if *chosen.get_or_insert(uid) == uid => CallFault::FailBefore,
            _ => CallFault::None,
        }
    });
    let reply = client.fork(&id, json!({"count": 3, "timeout": 600})).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let children = reply.body.as_array().unwrap();
    let failed: Vec<_> = children.iter().filter(|c| c["error"].is_object()).collect();
    assert_eq!(failed.len(), 1, "{}", reply.text);
    assert_eq!(failed[0]["error"]["code"], 500);
    assert!(failed[0].get("sandbox").is_none());
    world.settle().await;
    assert_eq!(world.records().await.len(), 3);
    assert_eq!(world.snapshots().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_leaves_nothing() {
    for slow in [Call::Capture, Call::Create] {
        let world = World::new().await;
        let client = world.client("a").await;
        let id = client.create(json!({})).await;
        world.runtime.on_call(move |call, _| match call {
            call if call == slow => CallFault::Slow(Duration::from_secs(5)),
            _ => CallFault::None,
        });
        let asked = client.fork(&id, json!({"count": 3}));
        let left = tokio::time::timeout(Duration::from_secs(1), asked).await;
        assert!(left.is_err());
        world.runtime.clear_faults();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.records().await.len(), 1, "{slow:?}");
        assert_eq!(world.snapshots().await, []);
        assert_eq!(world.runtime.truth().len(), 1);
        assert_eq!(client.detail(&id).await["state"], "running");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_in_the_middle_leaves_nothing_for_long() {
    for slow in [Call::Freeze, Call::Capture, Call::Create, Call::Arm] {
        let world = World::new().await;
        let client = world.client("a").await;
        let id = client.create(json!({"timeout": 100_000})).await;
        world.runtime.on_call(move |call, _| match call {
            call if call == slow => CallFault::Slow(Duration::from_secs(20)),
            _ => CallFault::None,
        });
        let asked = client.fork(&id, json!({"count": 3, "timeout": 100_000}));
        let left = tokio::time::timeout(Duration::from_secs(3), asked);
        let key = client.key.clone();
        // Nobody cleans up: the process is gone.
        let world = tokio::select! {
            biased;
            _ = left => panic!("it took no time"),
            () = tokio::time::sleep(Duration::from_secs(2)) => world,
        };
        let world = world.restarted().await;
        world.runtime.clear_faults();
        let client = world.client("a").await.stranger(&key);
        assert_eq!(client.detail(&id).await["state"], "running", "{slow:?}");
        tokio::time::sleep(Duration::from_secs(1200)).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(world.snapshots().await, [], "{slow:?}");
        assert_eq!(world.records().await.len(), 1, "{slow:?}");
        assert_eq!(client.detail(&id).await["state"], "running", "{slow:?}");
    }
}
