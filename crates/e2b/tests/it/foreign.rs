//! Another team's sandbox answers exactly like one that does not exist, on every route.

use serde_json::{Value, json};

use crate::support::{Client, World};

/// Every served route that names a sandbox, with a body that it takes.
fn routes() -> Vec<(String, String, Option<Value>)> {
    let document = e2b::openapi();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let takes = operation.get("requestBody").is_some();
            let body = match path.as_str() {
                path if path.ends_with("/timeout") || path.ends_with("/connect") => {
                    json!({"timeout": 10})
                }
                _ => json!({}),
            };
            all.push((method.to_uppercase(), path.clone(), takes.then_some(body)));
        }
    }
    all
}

async fn ask(client: &Client, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
    let reply = client.send(client.request(method, path, body)).await;
    (reply.status, reply.text)
}

#[tokio::test(start_paused = true)]
async fn a_foreign_sandbox_answers_like_an_unknown_one() {
    let world = World::new().await;
    let (owner, stranger) = (world.client("a").await, world.client("b").await);
    let awake = owner.create(json!({"metadata": {"secret": "x"}})).await;
    let asleep = owner.create(json!({})).await;
    owner.pause(&asleep).await;
    let unknown = "i00000000000000000000";
    let mut asked = 0;
    for (method, path, body) in routes() {
        if !path.contains("{sandboxID}") {
            continue;
        }
        let with = |id: &str| path.replace("{sandboxID}", id);
        let expected = ask(&stranger, &method, &with(unknown), body.as_ref()).await;
        for id in [&awake, &asleep] {
            let got = ask(&stranger, &method, &with(id), body.as_ref()).await;
            let expected = (expected.0, expected.1.replace(unknown, id));
            assert_eq!(got, expected, "{method} {path}");
        }
        assert!(
            [404, 501].contains(&expected.0),
            "{method} {path}: {}",
            expected.0
        );
        asked += 1;
    }
    assert!(asked >= 14, "{asked}");
    assert_eq!(stranger.get("/v2/sandboxes").await.body, json!([]));
    assert_eq!(stranger.get("/sandboxes").await.body, json!([]));
    let metrics = format!("/sandboxes/metrics?sandbox_ids={awake},{asleep}");
    assert_eq!(stranger.get(&metrics).await.body, json!({"sandboxes": {}}));
    // Nothing of it had any effect.
    assert_eq!(owner.detail(&awake).await["state"], "running");
    assert_eq!(owner.detail(&asleep).await["state"], "paused");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_served_without_a_key() {
    let world = World::new().await;
    let client = world.client("a").await;
    let made = client
        .post("/api-keys", json!({"name": "short-lived"}))
        .await;
    let revoked = client.stranger(made.body["key"].as_str().unwrap());
    let path = format!("/api-keys/{}", made.body["id"].as_str().unwrap());
    assert_eq!(client.delete(&path).await.status, 204);
    for stranger in [
        client.stranger(""),
        client.stranger("e2b_0000000000000000000000000000000000000000"),
        revoked,
    ] {
        for (method, path, body) in routes() {
            let path = path.replace("{rest}", "x").replace(['{', '}'], "x");
            let (status, _) = ask(&stranger, &method, &path, body.as_ref()).await;
            let expected = if path == "/health" { 204 } else { 401 };
            assert_eq!(status, expected, "{method} {path}");
        }
    }
}
