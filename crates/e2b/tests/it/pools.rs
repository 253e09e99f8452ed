//! Sandboxes from pools.

use std::time::Duration;

use model::{
    Epoch, Sandbox, SandboxPool, SandboxTemplate, Spec as _,
    lifecycle::Phase,
    pool::{PoolSpec, RecyclePolicy, WhenEmpty},
    record::RecordSpec,
    sandbox::{BUILD_ANNOTATION, StopCause, StopReason},
};
use serde_json::json;
use store::StoreExt as _;

use crate::support::{World, name, options, team};

/// Changes a pool.
async fn change(world: &World, called: &str, change: impl FnOnce(&mut PoolSpec)) {
    let key = model::Key::namespaced(PoolSpec::KIND, team("a"), name(called));
    let mut pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    change(&mut pool.spec);
    world.store.update_spec(&pool).await.unwrap();
    world.settle().await;
}

async fn records(world: &World) -> Vec<RecordSpec> {
    let query = store::Query::kind(RecordSpec::KIND);
    let (all, _) = world
        .store
        .list_objects::<RecordSpec>(&query)
        .await
        .unwrap();
    all.into_iter().map(|record| record.spec).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_in_line_where_the_pool_says_so_and_the_pool_grows_for_it() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 0, RecyclePolicy::Destroy).await;
    change(&world, "warm", |spec| {
        spec.when_empty = WhenEmpty::Queue;
        spec.max = 2;
    })
    .await;
    let ask = || client.post("/v2/sandboxes", json!({"templateID": "warm"}));
    let (one, two) = tokio::join!(ask(), ask());
    assert_eq!(
        (one.status, two.status),
        (201, 201),
        "{} {}",
        one.text,
        two.text
    );
    let owned = |s: &&Sandbox| s.spec.owner.is_some();
    let all = world.records().await;
    assert!(
        all.iter()
            .filter(owned)
            .all(|s| s.spec.pool == Some(name("warm")))
    );
    // The pool is at its max: the third waits until one is given back.
    let (third, ended) = tokio::join!(ask(), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        client.delete(&format!("/sandboxes/{}", one.id())).await
    });
    assert_eq!((third.status, ended.status), (201, 204), "{}", third.text);
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_answers_with_its_counts_and_a_hint() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 0, RecyclePolicy::Destroy).await;
    change(&world, "warm", |spec| {
        spec.when_empty = WhenEmpty::Queue;
        spec.max = 0;
        spec.max_idle = 0;
        spec.queue.limit = 1;
    })
    .await;
    let ask = |seconds: &'static str| {
        let metadata = json!({"dormouse.dev/startup-timeout": seconds});
        client.post(
            "/v2/sandboxes",
            json!({"templateID": "warm", "metadata": metadata}),
        )
    };
    let (late, full) = tokio::join!(ask("9"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ask("9").await
    });
    assert_eq!(
        (late.status, full.status),
        (429, 429),
        "{} {}",
        late.text,
        full.text
    );
    assert_eq!(full.body["error_code"], "sandbox_pool_empty");
    assert!(full.text.contains("1 claims wait already"), "{}", full.text);
    assert!(full.text.contains("raise spec.max"), "{}", full.text);
    assert!(late.text.contains("within 9 s"), "{}", late.text);
    assert!(full.headers.contains_key("retry-after"));
    assert!(world.records().await.is_empty(), "nothing was made");
    // The pool goes on serving.
    change(&world, "warm", |spec| spec.max = 3).await;
    assert_eq!(ask("9").await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn what_a_sandbox_was_is_kept_before_its_member_is_idle_again() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 1, RecyclePolicy::Recycle).await;
    let body = json!({"templateID": "warm", "metadata": {"job": "7"}});
    let first = client.post("/v2/sandboxes", body).await;
    let live = client.get("/dormouse/history?state=live").await;
    assert_eq!(live.status, 200, "{}", live.text);
    assert_eq!(live.body["records"][0]["sandboxId"], first.id());
    assert_eq!(live.body["records"][0]["phase"], "Running");
    assert_eq!(
        client
            .delete(&format!("/sandboxes/{}", first.id()))
            .await
            .status,
        204
    );
    world.settle().await;
    let plain = client
        .create(json!({"templateID": "base", "timeout": 5}))
        .await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let all = records(&world).await;
    assert_eq!(all.len(), 2, "{all:?}");
    let of = |id: &str| all.iter().find(|r| r.sandbox_id.as_str() == id).unwrap();
    let recycled = of(&first.id());
    assert_eq!(recycled.pool, Some(name("warm")));
    assert_eq!(recycled.metadata.get("job"), Some("7"));
    assert!(recycled.recycled_at.is_some() && recycled.started_at.is_some());
    assert_eq!(recycled.images.get("main"), Some("base"));
    assert_eq!(
        recycled.ended.as_ref().unwrap().reason,
        StopReason::Completed
    );
    let timed_out = of(&plain).ended.clone().unwrap();
    assert_eq!(timed_out.cause, Some(StopCause::Timeout));
    // By team, pool and time, newest first, in pages.
    let newest = client.get("/dormouse/history?limit=1").await.body;
    assert_eq!(newest["records"][0]["sandboxId"], plain);
    let next = newest["next"].as_str().unwrap();
    let rest = client
        .get(&format!("/dormouse/history?after={next}"))
        .await
        .body;
    assert_eq!(rest["records"][0]["sandboxId"], first.id());
    for (pool, expected) in [("warm", 2), ("cold", 0)] {
        let path = format!("/dormouse/history?pool={pool}");
        let page = client.get(&path).await.body;
        assert_eq!(page["records"].as_array().unwrap().len(), expected);
    }
    let stranger = world.client("b").await;
    let theirs = stranger.get("/dormouse/history?team=a").await.body;
    assert_eq!(theirs["records"], json!([]));
    let none = stranger.get("/dormouse/history").await.body;
    assert_eq!(none["records"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn what_is_made_for_a_build_is_in_nobodys_history() {
    let world = World::new().await;
    let client = world.client("a").await;
    let mine = client.create(json!({})).await;
    let room = client.create(json!({})).await;
    let is_room = |s: &Sandbox| {
        s.spec
            .sandbox_id
            .as_ref()
            .is_some_and(|id| id.as_str() == room)
    };
    let mut record = world.records().await.into_iter().find(is_room).unwrap();
    record.metadata.annotations.insert(BUILD_ANNOTATION, "1");
    let record = world.store.update_spec(&record).await.unwrap();
    world.settle().await;
    let seen = async |path: &str| {
        let page = client.get(path).await.body;
        let ids = page["records"].as_array().unwrap().iter();
        let ids = ids.map(|record| record["sandboxId"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(
        seen("/dormouse/history?state=live").await,
        std::slice::from_ref(&mine)
    );
    world.store.delete_object(&record).await.unwrap();
    client.delete(&format!("/sandboxes/{mine}")).await;
    world.settle().await;
    assert_eq!(records(&world).await.len(), 2);
    assert_eq!(seen("/dormouse/history").await, [mine]);
}

#[tokio::test(start_paused = true)]
async fn pages_of_what_lives_go_on_after_one_that_has_ended_since() {
    let world = World::new().await;
    let client = world.client("a").await;
    let mut made = Vec::new();
    for _ in 0..4 {
        made.push(client.create(json!({})).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut seen = Vec::new();
    let mut path = "/dormouse/history?state=live&limit=1".to_owned();
    loop {
        let page = client.get(&path).await.body;
        let Some(id) = page["records"][0]["sandboxId"].as_str() else {
            break;
        };
        seen.push(id.to_owned());
        assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
        world.settle().await;
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/dormouse/history?state=live&limit=1&after={next}");
    }
    made.reverse();
    assert_eq!(seen, made);
    for bad in ["a", "a.x", "a.x.y", "a.1"] {
        let path = format!("/dormouse/history?state=live&after={bad}");
        assert_eq!(client.get(&path).await.status, 400, "{bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_deleted_leaves_claimed_members_to_their_owners() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 2, RecyclePolicy::Recycle).await;
    let mine = client.create(json!({"templateID": "warm"})).await;
    let key = model::Key::namespaced(PoolSpec::KIND, team("a"), name("warm"));
    let pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    world.store.delete_object(&pool).await.unwrap();
    world.settle().await;
    let left: Option<SandboxPool> = world.store.find(&key).await.unwrap();
    assert!(left.is_none(), "{:?}", left.map(|p| p.status.why));
    let path = format!("/sandboxes/{mine}");
    assert_eq!(client.get(&path).await.body["state"], "running");
    assert_eq!(world.records().await.len(), 1, "idle members are gone");
    // Another pool of that name does not take it back.
    world.pool("a", "warm", 1, RecyclePolicy::Recycle).await;
    assert_eq!(client.delete(&path).await.status, 204);
    world.settle().await;
    let all = world.records().await;
    assert!(all.iter().all(|s| s.spec.epoch == Epoch(0)), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn bad_pools_and_claims_are_said_to_be_and_the_pool_goes_on() {
    let world = World::with(options()).await;
    let client = world.client("a").await;
    world.pool("a", "warm", 1, RecyclePolicy::Destroy).await;
    let reply = client
        .post(
            "/v2/sandboxes",
            json!({"templateID": "warm", "metadata": {"dormouse.dev/startup-timeout": "soon"}}),
        )
        .await;
    assert_eq!(reply.status, 400);
    assert!(reply.text.contains("startup-timeout"), "{}", reply.text);
    let huge = "x".repeat(10 << 20);
    let reply = client
        .post(
            "/v2/sandboxes",
            json!({"templateID": "warm", "envVars": {"A": huge}}),
        )
        .await;
    assert!((400..=413).contains(&reply.status), "{}", reply.status);
    // A template that goes: the pool says what it lacks, and serves what it has.
    let key = model::Key {
        kind: model::template::TemplateSpec::KIND,
        namespace: None,
        name: name("base"),
    };
    let template: SandboxTemplate = world.store.find(&key).await.unwrap().unwrap();
    world.store.delete_object(&template).await.unwrap();
    change(&world, "warm", |spec| spec.min_idle = 2).await;
    let key = model::Key::namespaced(PoolSpec::KIND, team("a"), name("warm"));
    let pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    assert_eq!(&*pool.status.why, "template base does not exist");
    let all = world.records().await;
    assert!(all.iter().any(|s| s.status.phase == Phase::Idle));
}

#[tokio::test(start_paused = true)]
async fn a_pools_name_is_a_template_and_its_members_are_claimed() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 3, RecyclePolicy::Destroy).await;
    let before: Vec<_> = world.records().await.iter().map(|s| s.uid()).collect();
    assert_eq!(before.len(), 3);
    let made = client
        .post("/v2/sandboxes", json!({"templateID": "warm", "envVars": {"A": "1"}, "network": {"allowPublicTraffic": false}}))
        .await;
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.body["templateID"], "base");
    assert_eq!(made.body["alias"], "warm");
    assert!(made.body["envdAccessToken"].is_string());
    assert!(made.body["trafficAccessToken"].is_string());
    let all = world.records().await;
    let claimed = all.iter().find(|s| s.spec.owner.is_some()).unwrap();
    assert!(before.contains(&claimed.uid()), "it was there before");
    assert_eq!(claimed.spec.env.get("A"), Some("1"));
    assert!(claimed.spec.access.is_some());
    // The template's own name takes a member too, where the pool changes nothing of it.
    let plain = client.create(json!({})).await;
    let all = world.records().await;
    let id = model::SandboxId::new(&plain).unwrap();
    let claimed = all
        .iter()
        .find(|s| s.spec.sandbox_id.as_ref() == Some(&id))
        .unwrap();
    assert_eq!(claimed.spec.pool, Some(name("warm")));
    let found = client.get("/v2/sandboxes?template=warm").await;
    assert_eq!(found.body.as_array().unwrap().len(), 2);
    // Idle members are nobody's to see.
    assert_eq!(
        client
            .get("/v2/sandboxes")
            .await
            .body
            .as_array()
            .unwrap()
            .len(),
        2
    );
    // Another team's pool is not there.
    let stranger = world.client("b").await;
    let reply = stranger
        .post("/v2/sandboxes", json!({"templateID": "warm"}))
        .await;
    assert_eq!(reply.status, 404);
}

#[tokio::test(start_paused = true)]
async fn many_at_once_get_different_members_and_then_fresh_ones() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 4, RecyclePolicy::Destroy).await;
    let creates = (0..12).map(|_| client.post("/v2/sandboxes", json!({"templateID": "warm"})));
    let replies = futures_util::future::join_all(creates).await;
    let mut ids: Vec<_> = replies.iter().map(|r| r.id()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 12);
    let all = world.records().await;
    let owned: Vec<_> = all.iter().filter(|s| s.spec.owner.is_some()).collect();
    assert_eq!(owned.len(), 12);
    let from_pool = owned.iter().filter(|s| s.spec.pool.is_some()).count();
    assert!(from_pool >= 4, "{from_pool}");
}

#[tokio::test(start_paused = true)]
async fn a_killed_member_goes_back_to_a_pool_that_recycles_with_nothing_left() {
    let world = World::new().await;
    let client = world.client("a").await;
    world.pool("a", "warm", 1, RecyclePolicy::Recycle).await;
    let uid = world.records().await[0].uid();
    let request = |key: &'static str| {
        let body = json!({"templateID": "warm", "metadata": {"owner": "first"}});
        let mut request = client.request("POST", "/v2/sandboxes", Some(&body));
        request
            .headers_mut()
            .insert("idempotency-key", key.parse().unwrap());
        request
    };
    let first = client.send(request("one")).await;
    assert_eq!(first.status, 201, "{}", first.text);
    let again = client.send(request("one")).await;
    assert_eq!(again.text, first.text);
    let path = format!("/sandboxes/{}", first.id());
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(client.get(&path).await.status, 404);
    world.settle().await;
    let member = world
        .records()
        .await
        .into_iter()
        .find(|s| s.uid() == uid)
        .unwrap();
    assert!(member.spec.owner.is_none() && member.spec.metadata.is_empty());
    assert!(
        member.metadata.annotations.is_empty(),
        "{:?}",
        member.metadata.annotations
    );
    // The key went with its delivery: it means another one now.
    let second = client.send(request("one")).await;
    assert_eq!(second.status, 201, "{}", second.text);
    assert_ne!(second.id(), first.id());
    assert_ne!(
        second.body["envdAccessToken"],
        first.body["envdAccessToken"]
    );
    assert_eq!(client.get(&path).await.status, 404);
    // What happened to the member before is not the new owner's to read.
    let logs = client
        .get(&format!("/v2/sandboxes/{}/logs", second.id()))
        .await;
    assert!(!logs.text.contains("Recycled"), "{}", logs.text);
}
