//! Two who want different things of one sandbox at once.

use std::time::Duration;

use runtime::fake::{Call, CallFault};
use serde_json::json;

use crate::support::World;

#[tokio::test(start_paused = true)]
async fn a_connect_waits_a_pause_out_and_then_wakes() {
    let world = World::new().await;
    let client = world.client("a").await;
    for kind in [json!({}), json!({"memory": false})] {
        let id = client.create(json!({})).await;
        world.runtime.on_call(|call, _| match call {
            Call::Freeze | Call::Capture => CallFault::Slow(Duration::from_secs(2)),
            _ => CallFault::None,
        });
        let path = format!("/sandboxes/{id}/pause");
        let pause = client.post(&path, kind.clone());
        let connect = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(
                client.detail(&id).await["state"],
                "paused",
                "pausing says paused"
            );
            client
                .post(&format!("/v2/sandboxes/{id}/connect"), json!({}))
                .await
        };
        let (paused, connected) = tokio::join!(pause, connect);
        assert_eq!((paused.status, connected.status), (204, 201), "{kind}");
        assert_eq!(client.detail(&id).await["state"], "running");
        world.runtime.clear_faults();
    }
}

#[tokio::test(start_paused = true)]
async fn of_many_who_pause_and_connect_each_is_answered_and_the_last_state_holds() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    for round in 0..5 {
        let pause = format!("/sandboxes/{id}/pause");
        let connect = format!("/v2/sandboxes/{id}/connect");
        let pauses = (0..4).map(|_| client.post_nothing(&pause));
        let connects = (0..4).map(|_| client.post(&connect, json!({})));
        let (paused, connected) = tokio::join!(
            futures_util::future::join_all(pauses),
            futures_util::future::join_all(connects)
        );
        for reply in &paused {
            assert!(
                [204, 409].contains(&reply.status),
                "round {round}: {}",
                reply.text
            );
        }
        for reply in &connected {
            assert!(
                [200, 201, 409].contains(&reply.status),
                "round {round}: {}",
                reply.text
            );
        }
        let settled = client.post(&connect, json!({})).await;
        assert!(settled.status < 300, "{}", settled.text);
    }
}

#[tokio::test(start_paused = true)]
async fn of_many_who_kill_one_is_told() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let path = format!("/sandboxes/{id}");
    let kills = (0..8).map(|_| client.delete(&path));
    let replies = futures_util::future::join_all(kills).await;
    let told = replies.iter().filter(|r| r.status == 204).count();
    assert_eq!(told, 1);
    assert!(replies.iter().all(|r| [204, 404].contains(&r.status)));
}

#[tokio::test(start_paused = true)]
async fn what_was_killed_is_gone_to_who_connects_while_its_end_takes_time() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    world.runtime.on_call(|call, _| match call {
        Call::Delete => CallFault::Slow(Duration::from_secs(10)),
        _ => CallFault::None,
    });
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let connect = format!("/v2/sandboxes/{id}/connect");
    assert_eq!(client.post(&connect, json!({})).await.status, 404);
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.status, 404);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(client.post(&connect, json!({})).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_at_the_last_moment_wins_or_finds_it_gone() {
    let world = World::new().await;
    let client = world.client("a").await;
    for early in [-2_000_i64, -1, 0, 1, 2_000] {
        let id = client.create(json!({"timeout": 60})).await;
        let wait = Duration::from_micros(u64::try_from(60_000_000 + early * 1000).unwrap());
        tokio::time::sleep(wait).await;
        let timeout = format!("/sandboxes/{id}/timeout");
        let renewed = client.post(&timeout, json!({"timeout": 60})).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let there = client.get(&format!("/sandboxes/{id}")).await;
        match renewed.status {
            204 => assert_eq!(there.status, 200, "{early}: it was told that it lives"),
            404 => assert_eq!(there.status, 404, "{early}"),
            other => panic!("{early}: {other} {}", renewed.text),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_a_pause_has_paused_it() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    world.runtime.on_call(|call, _| match call {
        Call::Freeze => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    let path = format!("/sandboxes/{id}/pause");
    let left = tokio::time::timeout(Duration::from_millis(1), client.post_nothing(&path)).await;
    assert!(left.is_err());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(client.detail(&id).await["state"], "paused");
    let stats = world.api.stats();
    let route = stats.iter().find(|r| r.path.ends_with("/pause")).unwrap();
    assert_eq!(route.endings[e2b::Ending::Abandoned as usize], 1);
}
