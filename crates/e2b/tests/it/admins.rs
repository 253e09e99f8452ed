//! Administrators, who act for a team without a key of it, and the audit of what was done.

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

async fn as_admin(client: &Client, team: Option<&str>, path: &str) -> Reply {
    with_token(client, "Bearer the-token", team, path).await
}

async fn with_token(client: &Client, token: &str, team: Option<&str>, path: &str) -> Reply {
    let mut request = Request::get(path).header("authorization", token);
    if let Some(team) = team {
        request = request.header("x-dormouse-team", team);
    }
    client.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn an_administrator_acts_for_the_team_they_name() {
    let world = World::new().await;
    let (a, default) = (world.client("a").await, world.client("default").await);
    let mine = a.create(json!({})).await;
    let other = default.create(json!({})).await;
    let ids = |reply: &Reply| -> Vec<String> {
        let all = reply.body.as_array().unwrap().iter();
        all.map(|s| s["sandboxID"].as_str().unwrap().to_owned())
            .collect()
    };
    let path = "/v2/sandboxes";
    assert_eq!(ids(&as_admin(&a, Some("a"), path).await), [mine]);
    assert_eq!(ids(&as_admin(&a, None, path).await), [other]);

    let nobody = as_admin(&a, Some("nobody"), path).await;
    assert_eq!(nobody.status, 404);
    assert!(nobody.message().contains("--new-team"), "{}", nobody.text);
    assert_eq!(as_admin(&a, Some("No Team"), path).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn only_the_token_itself_makes_an_administrator() {
    let world = World::new().await;
    let client = world.client("a").await;
    let path = "/v2/sandboxes";
    for token in [
        "Bearer another",
        "Bearer ",
        "the-token",
        "Basic dGhlLXRva2Vu",
    ] {
        let reply = with_token(&client, token, Some("a"), path).await;
        assert_eq!(reply.status, 401, "{token}");
    }
    // As a key it is none, and beside a key the key counts.
    let as_key = client.stranger("the-token").get(path).await;
    assert_eq!(as_key.status, 401);
    let both = |key: &str| {
        Request::get(path)
            .header("authorization", "Bearer the-token")
            .header("x-api-key", key)
            .body(Body::empty())
            .unwrap()
    };
    assert_eq!(client.send(both("e2b_wrong")).await.status, 401);
    // Of two headers, somebody on the way may have looked at the other one.
    let twice = Request::get(path)
        .header("authorization", "Bearer the-token")
        .header("authorization", "Bearer the-token")
        .body(Body::empty())
        .unwrap();
    assert_eq!(client.send(twice).await.status, 401);
}

#[tokio::test]
async fn a_team_reads_what_its_own_did_and_administrators_read_all() {
    let world = World::new().await;
    let (a, b) = (world.client("a").await, world.client("b").await);
    let mine = a.create(json!({})).await;
    b.create(json!({})).await;
    a.delete(&format!("/sandboxes/{mine}")).await;
    a.delete("/sandboxes/i00000000000000000000").await;

    let lines = |body: &Value| -> Vec<String> {
        let all = body["entries"].as_array().unwrap().iter();
        all.map(|e| {
            let word = |name: &str| e[name].as_str().unwrap_or("-").to_owned();
            format!("{} {} {}", word("team"), word("action"), word("outcome"))
        })
        .collect()
    };
    let own = a.get("/dormouse/audit").await.body;
    assert_eq!(
        lines(&own),
        [
            "a sandbox.create done",
            "a sandbox.kill done",
            "a sandbox.kill refused"
        ]
    );
    assert_eq!(own["entries"][0]["sandboxID"], mine);
    assert_eq!(own["entries"][2]["reason"], "Not Found");
    assert!(lines(&a.get("/dormouse/audit?team=b").await.body).is_empty());
    let about = a.get(&format!("/dormouse/audit?sandbox={mine}")).await.body;
    assert_eq!(lines(&about).len(), 2);

    let all = as_admin(&a, None, "/dormouse/audit").await;
    // Who names no team still acts for `default`, which must be there.
    assert_eq!(all.status, 404);
    let all = as_admin(&a, Some("a"), "/dormouse/audit?limit=3")
        .await
        .body;
    assert_eq!(lines(&all).len(), 3);
    let next = all["next"].as_str().unwrap();
    let rest = as_admin(&a, Some("a"), &format!("/dormouse/audit?after={next}")).await;
    assert_eq!(lines(&rest.body), ["a sandbox.kill refused"]);
    let of_b = as_admin(&a, Some("a"), "/dormouse/audit?team=b").await.body;
    assert_eq!(lines(&of_b), ["b sandbox.create done"]);
    for bad in [
        "after=x",
        "limit=0",
        "from=yesterday",
        "sandbox=No",
        "what=1",
    ] {
        let reply = a.get(&format!("/dormouse/audit?{bad}")).await;
        assert_eq!(reply.status, 400, "{bad}");
    }
}
