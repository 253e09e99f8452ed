//! Creating: defaults of both versions, what is asked for, what fails, and doing it once.

use std::time::Duration;

use http::Request;
use model::{Sandbox, lifecycle::Phase, sandbox::OnTimeout, team::Quotas};
use runtime::fake::{Call, CallFault};
use serde_json::{Value, json};
use store::{StoreExt as _, memory::WriteFault};

use crate::support::{Reply, World, options};

fn seconds_until_end(detail: &Value) -> i64 {
    let micros = |field: &str| -> i64 {
        let time: model::Timestamp = detail[field].as_str().unwrap().parse().unwrap();
        time.as_micros()
    };
    (micros("endAt") - micros("startedAt")) / 1_000_000
}

#[tokio::test(start_paused = true)]
async fn each_version_has_its_defaults() {
    let world = World::new().await;
    let client = world.client("a").await;
    let first = client
        .post("/sandboxes", json!({"templateID": "base"}))
        .await;
    assert_eq!(first.status, 201, "{}", first.text);
    assert_eq!(first.body["envdAccessToken"], Value::Null);
    assert_eq!(seconds_until_end(&client.detail(&first.id()).await), 15);
    let secured = client
        .post("/sandboxes", json!({"templateID": "base", "secure": true}))
        .await;
    assert!(secured.body["envdAccessToken"].is_string());
    let second = client.post("/v2/sandboxes", json!({})).await;
    assert_eq!(second.status, 201, "{}", second.text);
    let id = second.id();
    assert!(id.len() == 21 && id.starts_with('i'), "{id}");
    assert!(
        id.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    );
    assert_eq!(second.body["templateID"], "base");
    assert_eq!(second.body["domain"], "sbx.test");
    assert_eq!(second.body["trafficAccessToken"], Value::Null);
    let detail = client.detail(&id).await;
    assert_eq!(detail["envdAccessToken"], second.body["envdAccessToken"]);
    assert!(detail["envdAccessToken"].is_string());
    assert_eq!(seconds_until_end(&detail), 300);
    assert_eq!(detail["state"], "running");
    assert_eq!(
        detail["lifecycle"],
        json!({"onTimeout": "kill", "autoResume": false})
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_is_in_the_record_and_in_the_answer() {
    let world = World::new().await;
    let client = world.client("a").await;
    let body = json!({
        "templateID": "a/base:default",
        "timeout": 60,
        "autoPause": true,
        "autoResume": {"enabled": true},
        "allow_internet_access": false,
        "network": {
            "allowPublicTraffic": false,
            "allowOut": ["example.com", "1.1.1.1"],
            "denyOut": ["10.0.0.0/8"],
            "maskRequestHost": "localhost:${PORT}",
            "rules": {}, "httpsPorts": [], "dnsServers": null, "egressProxy": null,
        },
        "metadata": {"user": "me", "dormouse.dev/idle-timeout": "30"},
        "envVars": {"A": "1"},
        "mcp": null,
        "iam": {"tokens": {}},
        "volumeMounts": [],
    });
    let made = client.post("/v2/sandboxes", body).await;
    assert_eq!(made.status, 201, "{}", made.text);
    assert!(made.body["trafficAccessToken"].is_string());
    assert_ne!(
        made.body["trafficAccessToken"],
        made.body["envdAccessToken"]
    );
    let detail = client.detail(&made.id()).await;
    assert_eq!(detail["metadata"]["user"], "me");
    assert_eq!(detail["allowInternetAccess"], false);
    assert_eq!(
        detail["network"]["allowOut"],
        json!(["example.com", "1.1.1.1"])
    );
    assert_eq!(detail["network"]["allowPublicTraffic"], false);
    assert_eq!(
        detail["lifecycle"],
        json!({"onTimeout": "pause", "autoResume": true})
    );
    let record = &world.records().await[0];
    assert_eq!(record.spec.env.get("A"), Some("1"));
    assert_eq!(record.spec.timeouts.idle_seconds, Some(30));
    assert!(record.spec.wake_on_traffic);
    let access = record.spec.access.as_ref().unwrap();
    let text = format!("{record:?}");
    assert!(access.agent_token.is_some() && access.traffic_token.is_some());
    assert!(!text.contains(made.body["envdAccessToken"].as_str().unwrap()));
    assert!(record.spec.owner.as_ref().unwrap().key.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused_by_name() {
    let world = World::new().await;
    let client = world.client("a").await;
    for (body, field) in [
        (json!({"timeout": 0}), "timeout"),
        (json!({"timeout": -5}), "timeout"),
        (json!({"timeout": 99_999_999}), "timeout"),
        (json!({"timeout": "60"}), "timeout"),
        (json!({"timeout": 1.5}), "timeout"),
        (json!({"autoResume": {"enabled": true}}), "autoResume"),
        (json!({"autoPauseMemory": false}), "autoPauseMemory"),
        (
            json!({"autoPauseMemory": false, "autoPause": true, "autoResume": {"enabled": true}}),
            "autoPauseMemory",
        ),
        (json!({"secure": false}), "secure"),
        (
            json!({"volumeMounts": [{"name": "a", "path": "/a"}]}),
            "volumeMounts",
        ),
        (
            json!({"iam": {"tokens": {"a": {"audience": "b", "tokenType": "c"}}}}),
            "iam",
        ),
        (json!({"surprise": 1}), "surprise"),
        (json!({"network": {"surprise": 1}}), "surprise"),
        (
            json!({"network": {"rules": {"a.com": []}}}),
            "network.rules",
        ),
        (
            json!({"network": {"egressProxy": {"address": "x"}}}),
            "network.egressProxy",
        ),
        (
            json!({"network": {"dnsServers": ["1.1.1.1"]}}),
            "network.dnsServers",
        ),
        (
            json!({"network": {"httpsPorts": [443]}}),
            "network.httpsPorts",
        ),
        (
            json!({"network": {"allowOut": ["example.com"]}}),
            "network.allowOut[0]",
        ),
        (
            json!({"network": {"allowOut": ["::1"]}}),
            "network.allowOut[0]",
        ),
        (
            json!({"network": {"allowOut": ["not a host"], "denyOut": ["0.0.0.0/0"]}}),
            "network.allowOut[0]",
        ),
        (
            json!({"network": {"denyOut": ["example.com"]}}),
            "network.denyOut[0]",
        ),
        (
            json!({"network": {"maskRequestHost": "a/b"}}),
            "network.maskRequestHost",
        ),
        (json!({"envVars": {"A=B": "1"}}), "envVars"),
        (json!({"envVars": {"A": 1}}), "envVars.A"),
        (
            json!({"metadata": {"dormouse.dev/other": "1"}}),
            "dormouse.dev/other",
        ),
    ] {
        let reply = client.post("/v2/sandboxes", body.clone()).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text);
        assert!(reply.message().contains(field), "{body}: {}", reply.text);
    }
    for unknown in ["nothing", "private", "b/base", "base:v2", "Base", ""] {
        let reply = client
            .post("/v2/sandboxes", json!({"templateID": unknown}))
            .await;
        assert_eq!(reply.status, 404, "{unknown}: {}", reply.text);
    }
    assert!(world.records().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_create_that_fails_leaves_nothing() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.runtime.on_call(|call, _| match call {
        Call::Arm => CallFault::FailBefore,
        _ => CallFault::None,
    });
    let reply = client.post("/v2/sandboxes", json!({})).await;
    assert_eq!(reply.status, 500, "{}", reply.text);
    assert_eq!(reply.body["error_code"], "sandbox_create_failed");
    assert!(
        reply.message().contains("injected failure of Arm"),
        "{}",
        reply.text
    );
    world.settle().await;
    assert!(world.records().await.is_empty());
    assert!(world.runtime.truth().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_is_given_up_and_leaves_nothing() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(70)),
        _ => CallFault::None,
    });
    let reply = client.post("/v2/sandboxes", json!({})).await;
    assert_eq!(reply.status, 504, "{}", reply.text);
    assert_eq!(reply.body["error_code"], "sandbox_placement_timeout");
    assert_eq!(reply.header("should-retry"), Some("false"));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(world.records().await.is_empty());
    assert!(world.runtime.truth().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_start_does_not_count_against_the_timeout() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(20)),
        _ => CallFault::None,
    });
    let id = client.create(json!({"timeout": 10})).await;
    assert_eq!(seconds_until_end(&client.detail(&id).await), 10);
    let id = client.create(json!({"timeout": 100})).await;
    assert_eq!(seconds_until_end(&client.detail(&id).await), 100);
}

#[tokio::test(start_paused = true)]
async fn one_write_creates_a_sandbox() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.settle().await;
    let ours = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = ours.clone();
    world.store.audit(move |event| {
        if let store::WatchEvent::Put { record, previous } = event
            && record.kind.0 == "Sandbox"
        {
            let same = previous.as_ref().is_some_and(|p| p.spec == record.spec);
            count.fetch_add(u64::from(!same), std::sync::atomic::Ordering::Relaxed);
        }
    });
    client.create(json!({})).await;
    assert_eq!(ours.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_a_503_that_is_not_repeated_by_itself() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.settle().await;
    let faults = world.store.faults();
    faults.on_write(|_| WriteFault::FailBefore);
    let reply = client.post("/v2/sandboxes", json!({})).await;
    let retry = reply.header("should-retry");
    assert_eq!(
        (reply.status, retry),
        (503, Some("false")),
        "{}",
        reply.text
    );
    faults.clear();
    // One that happened all the same is found and delivered; one that did not is made again.
    for fault in [WriteFault::FailAfter, WriteFault::FailBefore] {
        faults.fail_nth_write(1, fault);
        let reply = client.post("/v2/sandboxes", json!({})).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    assert_eq!(world.records().await.len(), 2);
}

async fn keyed(client: &crate::support::Client, key: &str, body: &Value) -> Reply {
    let (parts, sent) = client
        .request("POST", "/v2/sandboxes", Some(body))
        .into_parts();
    let mut request = Request::from_parts(parts, sent);
    request
        .headers_mut()
        .insert("idempotency-key", key.parse().unwrap());
    client.send(request).await
}

#[tokio::test(start_paused = true)]
async fn a_repeated_create_is_the_same_sandbox_also_after_a_restart() {
    let world = World::new().await;
    let client = world.client("a").await;
    let body = json!({"metadata": {"n": "1"}});
    let (one, two) = tokio::join!(keyed(&client, "k-1", &body), keyed(&client, "k-1", &body));
    assert_eq!((one.status, two.status), (201, 201), "{one:?} {two:?}");
    assert_eq!(one.text, two.text);
    let end = client.detail(&one.id()).await["endAt"].clone();
    let world = world.restarted().await;
    let client = world.client("a").await;
    let again = keyed(&client, "k-1", &body).await;
    assert_eq!((again.status, &again.text), (201, &one.text));
    assert_eq!(client.detail(&one.id()).await["endAt"], end);
    assert_eq!(world.records().await.len(), 1);
    let other = keyed(&client, "k-1", &json!({})).await;
    assert_eq!(other.status, 422, "{}", other.text);
    // Another team's key is another key.
    let stranger = world.client("b").await;
    let theirs = keyed(&stranger, "k-1", &json!({})).await;
    assert_eq!(theirs.status, 201);
    assert_ne!(theirs.id(), one.id());
    for bad in ["", "UPPER", "a_b", &"x".repeat(256)] {
        assert_eq!(keyed(&client, bad, &body).await.status, 400, "{bad}");
    }
    // It goes with its sandbox.
    assert_eq!(
        client
            .delete(&format!("/sandboxes/{}", one.id()))
            .await
            .status,
        204
    );
    let anew = keyed(&client, "k-1", &json!({})).await;
    assert_eq!(anew.status, 201, "{}", anew.text);
    assert_ne!(anew.id(), one.id());
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_nobody_has_heard_of_ends_though_it_has_no_timeout() {
    let world = World::new().await;
    let client = world.client("a").await;
    let never = json!({"dormouse.dev/never-timeout": "true"});
    let body = json!({"templateID": "base", "autoPause": true, "metadata": never});
    let heard = client.create(body.clone()).await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    let begun = |s: &Sandbox| {
        s.spec
            .sandbox_id
            .as_ref()
            .is_some_and(|id| id.as_str() != heard)
    };
    let (asked, unheard) = tokio::join!(client.post("/v2/sandboxes", body), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.records().await.into_iter().find(begun).unwrap()
    });
    assert_eq!(asked.status, 201);
    tokio::time::sleep(Duration::from_secs(300)).await;
    let all = world.records().await;
    assert_eq!(all.len(), 2);
    for timeouts in all.iter().map(|s| s.spec.timeouts) {
        let kept = (timeouts.end_at, timeouts.on_timeout);
        assert_eq!(kept, (None, OnTimeout::Pause));
    }
    // The same where its server died before its client heard: nobody goes on with it.
    let world = World::new().await;
    world.store.create_object(&unheard).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.records().await[0].status.phase, Phase::Running);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(world.records().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_leaves_nothing() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    for after in [0, 1, 100, 3_000, 4_999] {
        let create = client.post("/v2/sandboxes", json!({}));
        let left = tokio::time::timeout(Duration::from_millis(after), create).await;
        assert!(left.is_err());
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(world.records().await.is_empty(), "after {after} ms");
        assert!(world.runtime.truth().is_empty(), "after {after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_lets_exactly_so_many_through() {
    let world = World::new().await;
    let quotas = Quotas {
        running_sandboxes: Some(3),
        ..Quotas::default()
    };
    let client = world.limited_client("a", quotas).await;
    let creates = (0..10).map(|_| client.post("/v2/sandboxes", json!({})));
    let replies = futures_util::future::join_all(creates).await;
    let made: Vec<_> = replies.iter().filter(|r| r.status == 201).collect();
    assert_eq!(made.len(), 3);
    let refused = replies.iter().find(|r| r.status == 429).unwrap();
    assert_eq!(refused.header("should-retry"), Some("false"));
    // One asleep makes room, and cannot be woken while the room is taken.
    client.pause(&made[0].id()).await;
    assert_eq!(client.post("/v2/sandboxes", json!({})).await.status, 201);
    let connect = format!("/v2/sandboxes/{}/connect", made[0].id());
    assert_eq!(client.post(&connect, json!({})).await.status, 429);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_ended_while_it_is_made_is_a_conflict() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.runtime.on_call(|call, _| match call {
        Call::Create => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    let kill = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let made = world.records().await;
        assert_eq!(made[0].status.phase, Phase::Starting);
        let id = made[0].spec.sandbox_id.clone().unwrap();
        // Its owner has not heard of it, but can end it.
        assert_eq!(client.get(&format!("/sandboxes/{id}")).await.status, 404);
        client.delete(&format!("/sandboxes/{id}")).await
    };
    let (made, killed) = tokio::join!(client.post("/v2/sandboxes", json!({})), kill);
    assert_eq!((made.status, killed.status), (409, 204), "{}", made.text);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(world.records().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_filesystem_sleep_says_so() {
    let world = World::with(e2b::Options {
        filesystem_pause: false,
        ..options()
    })
    .await;
    let client = world.client("a").await;
    let reply = client
        .post(
            "/v2/sandboxes",
            json!({"autoPause": true, "autoPauseMemory": false}),
        )
        .await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        reply.body["error_code"],
        "snapshot_filesystem_only_disabled"
    );
    let id = client.create(json!({})).await;
    let pause = format!("/sandboxes/{id}/pause");
    let reply = client.post(&pause, json!({"memory": false})).await;
    assert_eq!(reply.status, 400);
    assert!(reply.message().contains("memory"));
}
