//! Sandboxes from pools.

use model::pool::RecyclePolicy;
use serde_json::json;

use crate::support::{World, name};

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
