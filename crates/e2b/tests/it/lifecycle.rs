//! Sleeping, waking, deadlines, ending.

use std::time::Duration;

use model::sandbox::{DesiredState, SnapshotType};
use runtime::fake::{Call, CallFault};
use serde_json::{Value, json};

use crate::support::World;

#[tokio::test(start_paused = true)]
async fn a_killed_sandbox_is_gone_for_everybody_at_once() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let path = format!("/sandboxes/{id}");
    // An old client appends the id of a client.
    assert_eq!(client.get(&format!("{path}-dormouse")).await.status, 200);
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(client.get(&path).await.status, 404);
    assert_eq!(client.delete(&path).await.status, 404);
    assert_eq!(client.get("/v2/sandboxes").await.body, json!([]));
    world.settle().await;
    assert!(world.runtime.truth().is_empty());
}

#[tokio::test(start_paused = true)]
async fn connecting_to_one_that_runs_only_ever_extends() {
    let world = World::new().await;
    let client = world.client("a").await;
    let made = client.post("/v2/sandboxes", json!({"timeout": 100})).await;
    let id = made.id();
    let before = client.detail(&id).await["endAt"].clone();
    for (path, body) in [
        (
            format!("/v2/sandboxes/{id}/connect"),
            json!({"timeout": 50}),
        ),
        (
            format!("/sandboxes/{id}/connect"),
            json!({"timeout": 1, "memory": false}),
        ),
        (format!("/sandboxes/{id}/connect"), json!({"timeout": 0})),
    ] {
        let reply = client.post(&path, body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.text, made.text, "the same tokens and names");
        assert_eq!(client.detail(&id).await["endAt"], before);
    }
    // The newer version has a default, the older one wants to be told.
    let reply = client
        .post_nothing(&format!("/v2/sandboxes/{id}/connect"))
        .await;
    assert_eq!(reply.status, 200);
    let after = client.detail(&id).await["endAt"].clone();
    assert!(after.as_str() > before.as_str(), "{after} {before}");
    let reply = client
        .post(&format!("/sandboxes/{id}/connect"), json!({}))
        .await;
    assert_eq!(reply.status, 400);
    assert!(reply.message().contains("timeout"));
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_wakes_with_the_same_id_and_token() {
    let world = World::new().await;
    let client = world.client("a").await;
    let made = client.post("/v2/sandboxes", json!({"timeout": 100})).await;
    let id = made.id();
    let pause = format!("/sandboxes/{id}/pause");
    assert_eq!(client.post(&pause, json!({})).await.status, 204);
    let asleep = client.detail(&id).await;
    assert_eq!(asleep["state"], "paused");
    assert_eq!(asleep["pauseMode"], "full");
    assert_eq!(asleep["domain"], Value::Null);
    let again = client.post(&pause, json!({"memory": true})).await;
    assert_eq!((again.status, &again.body["code"]), (409, &json!(409)));
    let timeout = format!("/sandboxes/{id}/timeout");
    assert_eq!(
        client.post(&timeout, json!({"timeout": 5})).await.status,
        404
    );
    // Longer than its timeout: the clock stands.
    tokio::time::sleep(Duration::from_secs(1000)).await;
    let woken = client
        .post(
            &format!("/v2/sandboxes/{id}/connect"),
            json!({"timeout": 200}),
        )
        .await;
    assert_eq!((woken.status, &woken.text), (201, &made.text));
    let awake = client.detail(&id).await;
    assert_eq!(awake["state"], "running");
    assert_eq!(awake["startedAt"], asleep["startedAt"]);
    assert!(awake["endAt"].as_str() > asleep["endAt"].as_str());
    let resume = format!("/sandboxes/{id}/resume");
    assert_eq!(client.post(&resume, json!({})).await.status, 409);
    client.pause(&id).await;
    let woken = client
        .post(&resume, json!({"timeout": 30, "autoPause": true}))
        .await;
    assert_eq!((woken.status, &woken.text), (201, &made.text));
    assert_eq!(client.detail(&id).await["lifecycle"]["onTimeout"], "pause");
    client.pause(&id).await;
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_pause_without_memory_is_that_pauses_alone() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let pause = format!("/sandboxes/{id}/pause");
    let connect = format!("/v2/sandboxes/{id}/connect");
    client.pause(&id).await;
    let cold = client.post(&connect, json!({"memory": false})).await;
    assert_eq!(cold.status, 400, "{}", cold.text);
    assert!(cold.message().contains("memory"));
    assert_eq!(
        client.detail(&id).await["state"],
        "paused",
        "and it sleeps on"
    );
    assert_eq!(client.post(&connect, json!({})).await.status, 201);
    assert_eq!(
        client.post(&pause, json!({"memory": false})).await.status,
        204
    );
    assert_eq!(client.detail(&id).await["pauseMode"], "filesystem");
    let woken = client.post(&connect, json!({"memory": false})).await;
    assert_eq!(woken.status, 201, "{}", woken.text);
    assert_eq!(world.records().await[0].spec.pause_policy, None);
    // The other way round: by itself it keeps files only, and once its memory too.
    let id = client
        .create(json!({"autoPause": true, "autoPauseMemory": false}))
        .await;
    let kind = async || {
        let all = world.records().await;
        let record = all
            .iter()
            .find(|s| s.spec.sandbox_id.as_ref().unwrap().as_str() == id);
        record
            .unwrap()
            .spec
            .pause_policy
            .as_ref()
            .map(|p| p.snapshot_type)
    };
    assert_eq!(kind().await, Some(SnapshotType::Rootfs));
    client.pause(&id).await;
    assert_eq!(client.detail(&id).await["pauseMode"], "full");
    assert_eq!(kind().await, None);
    let reply = client
        .post(&format!("/v2/sandboxes/{id}/connect"), json!({}))
        .await;
    assert_eq!(reply.status, 201);
    assert_eq!(kind().await, Some(SnapshotType::Rootfs));
    let strict = json!({"requireHealthyGuest": true});
    let reply = client.post(&format!("/sandboxes/{id}/pause"), strict).await;
    assert_eq!(reply.status, 400);
    assert!(reply.message().contains("requireHealthyGuest"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_or_a_resume_that_cannot_be_says_why_and_changes_nothing() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    world.runtime.on_call(|call, _| match call {
        Call::Freeze => CallFault::FailBefore,
        _ => CallFault::None,
    });
    let reply = client.post_nothing(&format!("/sandboxes/{id}/pause")).await;
    assert_eq!(reply.status, 500, "{}", reply.text);
    assert!(reply.message().contains("Freeze"), "{}", reply.text);
    assert_eq!(client.detail(&id).await["state"], "running");
    world.runtime.clear_faults();
    client.pause(&id).await;
    world.runtime.on_call(|call, _| match call {
        Call::Thaw => CallFault::FailBefore,
        _ => CallFault::None,
    });
    let connect = format!("/v2/sandboxes/{id}/connect");
    let reply = client.post(&connect, json!({})).await;
    assert_eq!(reply.status, 500, "{}", reply.text);
    assert!(reply.message().contains("Thaw"), "{}", reply.text);
    assert_eq!(client.detail(&id).await["state"], "paused");
    world.runtime.clear_faults();
    assert_eq!(client.post(&connect, json!({})).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_moves_both_ways_and_zero_is_now() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({"timeout": 100})).await;
    let (timeout, refresh) = (
        format!("/sandboxes/{id}/timeout"),
        format!("/sandboxes/{id}/refreshes"),
    );
    let end = async || {
        client.detail(&id).await["endAt"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let at_first = end().await;
    assert_eq!(
        client.post(&timeout, json!({"timeout": 20})).await.status,
        204
    );
    let sooner = end().await;
    assert!(sooner < at_first);
    assert_eq!(
        client.post(&refresh, json!({"duration": 10})).await.status,
        204
    );
    assert_eq!(end().await, sooner, "a refresh never shortens");
    assert_eq!(
        client
            .post(&refresh, json!({"duration": 3600}))
            .await
            .status,
        204
    );
    assert!(end().await > at_first);
    assert_eq!(client.post_nothing(&refresh).await.status, 204);
    for bad in [json!({"timeout": -1}), json!({}), json!({"timeout": null})] {
        assert_eq!(client.post(&timeout, bad).await.status, 400);
    }
    for bad in [json!({"duration": 3601}), json!({"duration": -1})] {
        assert_eq!(client.post(&refresh, bad).await.status, 400);
    }
    assert_eq!(
        client.post(&timeout, json!({"timeout": 0})).await.status,
        204
    );
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.status, 404);
    // One that sleeps at its timeout sleeps now.
    let id = client.create(json!({"autoPause": true})).await;
    let timeout = format!("/sandboxes/{id}/timeout");
    assert_eq!(
        client.post(&timeout, json!({"timeout": 0})).await.status,
        204
    );
    assert_eq!(client.detail(&id).await["state"], "paused");
}

#[tokio::test(start_paused = true)]
async fn at_its_timeout_a_sandbox_ends_or_sleeps_or_neither() {
    let world = World::new().await;
    let client = world.client("a").await;
    let ends = client.create(json!({"timeout": 60})).await;
    let sleeps = client
        .create(json!({"timeout": 60, "autoPause": true}))
        .await;
    let stays = client
        .create(json!({"timeout": 60, "metadata": {"dormouse.dev/never-timeout": "true"}}))
        .await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(client.get(&format!("/sandboxes/{ends}")).await.status, 404);
    assert_eq!(client.detail(&sleeps).await["state"], "paused");
    let detail = client.detail(&stays).await;
    assert_eq!(detail["state"], "running");
    // Connecting does not give it a deadline either.
    let connect = format!("/v2/sandboxes/{stays}/connect");
    assert_eq!(
        client.post(&connect, json!({"timeout": 5})).await.status,
        200
    );
    assert_eq!(client.detail(&stays).await["endAt"], detail["endAt"]);
}

#[tokio::test(start_paused = true)]
async fn what_sleeps_is_kept_for_as_long_as_its_owner_said() {
    let world = World::new().await;
    let client = world.client("a").await;
    let kept = client.create(json!({"autoPause": true})).await;
    let mut ended = Vec::new();
    for memory in [true, false] {
        let retention = json!({"dormouse.dev/paused-retention": "3600"});
        let id = client.create(json!({"metadata": retention})).await;
        let pause = format!("/sandboxes/{id}/pause");
        let reply = client.post(&pause, json!({"memory": memory})).await;
        assert_eq!(reply.status, 204, "{}", reply.text);
        ended.push(id);
    }
    client.pause(&kept).await;
    tokio::time::sleep(Duration::from_secs(3500)).await;
    for id in &ended {
        assert_eq!(client.detail(id).await["state"], "paused");
    }
    // Waking starts the count anew.
    let woken = &ended[0];
    let connect = format!("/v2/sandboxes/{woken}/connect");
    assert_eq!(client.post_nothing(&connect).await.status, 201);
    client.pause(woken).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(client.detail(woken).await["state"], "paused");
    let path = |id: &str| format!("/sandboxes/{id}");
    assert_eq!(client.get(&path(&ended[1])).await.status, 404);
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert_eq!(client.get(&path(woken)).await.status, 404);
    assert_eq!(client.detail(&kept).await["state"], "paused");
    assert_eq!(world.records().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn network_rules_are_replaced_as_a_whole_and_in_force_when_answered() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client
        .create(json!({"network": {"allowPublicTraffic": false, "denyOut": ["1.1.1.1"]}}))
        .await;
    let path = format!("/sandboxes/{id}/network");
    let inside = || {
        let all = world.runtime.truth();
        all.values().next().unwrap().facts.network.clone()
    };
    let rules = json!({"allowOut": ["*.example.com"], "allow_internet_access": false});
    let reply = client.put(&path, rules).await;
    assert_eq!(reply.status, 204, "{}", reply.text);
    let now = inside().unwrap();
    assert_eq!(&*now.allow_out[0], "*.example.com");
    assert!(now.deny_out.is_empty(), "what is left out is cleared");
    assert_eq!(
        now.allow_public_traffic,
        Some(false),
        "what is not in it stays"
    );
    assert_eq!(client.put(&path, json!({})).await.status, 204);
    assert_eq!(inside().unwrap().internet_access, None);
    for bad in [
        json!({"rules": {"a.com": []}}),
        json!({"dnsServers": ["1.1.1.1"]}),
        json!({"egressProxy": {"address": "x"}}),
        json!({"allowOut": ["example.com"]}),
        json!({"denyOut": ["example.com"]}),
        json!({"allowPublicTraffic": true}),
    ] {
        let reply = client.put(&path, bad.clone()).await;
        assert_eq!(reply.status, 400, "{bad}");
    }
    client.pause(&id).await;
    assert_eq!(client.put(&path, json!({})).await.status, 409);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_crashed_is_not_there_any_more() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let record = world.records().await.remove(0);
    assert_eq!(record.spec.desired_state, DesiredState::Running);
    world.runtime.exit(record.uid(), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.status, 404);
    let connect = format!("/v2/sandboxes/{id}/connect");
    assert_eq!(client.post(&connect, json!({})).await.status, 404);
    assert_eq!(client.get("/v2/sandboxes").await.body, json!([]));
}
