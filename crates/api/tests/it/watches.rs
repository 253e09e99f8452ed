//! Following changes.

use std::time::Duration;

use api::Limits;
use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt as _;
use http::Request;
use serde_json::{Value, json};

use crate::support::{SANDBOXES, Server, TABLE, TOKEN, answer};

struct Stream(BodyDataStream);

impl Stream {
    async fn open(server: &Server, query: &str, accept: &str) -> Self {
        let response = server.open(request(query, accept)).await;
        assert_eq!(response.status(), 200);
        Self(response.into_body().into_data_stream())
    }

    /// The next event, or `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        let line = self.0.next().await?.unwrap();
        assert_eq!(line.last(), Some(&b'\n'));
        Some(serde_json::from_slice(&line).unwrap())
    }

    /// The next event, as its type and the object's name.
    async fn told(&mut self) -> (String, String) {
        let event = self.next().await.unwrap();
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        (
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"]),
        )
    }

    /// Whether nothing is told for a while.
    async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(Duration::from_secs(5), self.next())
            .await
            .is_err()
    }
}

fn request(query: &str, accept: &str) -> Request<Body> {
    Request::get(format!("{SANDBOXES}?watch=true&{query}"))
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("accept", accept)
        .body(Body::empty())
        .unwrap()
}

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_version_tells_what_there_is_and_then_what_happens() {
    for query in ["", "resourceVersion=0"] {
        let server = Server::new();
        server.sandbox("a", json!({})).await;
        let mut stream = Stream::open(&server, query, "application/json").await;
        assert_eq!(stream.told().await, event("ADDED", "a"));
        assert!(stream.is_quiet().await);
        server.sandbox("b", json!({})).await;
        server
            .merge(
                &format!("{SANDBOXES}/a"),
                &json!({"spec": {"env": {"A": "1"}}}),
            )
            .await
            .expect(200);
        server.delete(&format!("{SANDBOXES}/b")).await.expect(200);
        assert_eq!(stream.told().await, event("ADDED", "b"));
        let changed = stream.next().await.unwrap();
        assert_eq!(changed["type"], "MODIFIED");
        assert_eq!(changed["object"]["kind"], "Sandbox");
        assert_eq!(changed["object"]["spec"]["env"]["A"], "1");
        assert_eq!(stream.told().await, event("DELETED", "b"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_continues_without_a_gap() {
    let server = Server::new();
    let a = server.sandbox("a", json!({})).await;
    let seen = a["metadata"]["resourceVersion"].as_str().unwrap();
    server.sandbox("b", json!({})).await;
    let mut stream = Stream::open(
        &server,
        &format!("resourceVersion={seen}"),
        "application/json",
    )
    .await;
    assert_eq!(stream.told().await, event("ADDED", "b"));
    assert!(stream.is_quiet().await);
    let other = SANDBOXES.replace("team", "other");
    server
        .post(&other, &crate::support::sandbox("c", json!({}), json!({})))
        .await
        .expect(201);
    assert!(
        stream.is_quiet().await,
        "another namespace is none of its business"
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_that_begins_or_stops_matching_is_added_or_deleted() {
    let server = Server::new();
    server.sandbox("a", json!({"on": "no"})).await;
    let mut stream = Stream::open(&server, "labelSelector=on%3Dyes", "application/json").await;
    let label = async |value: &str| {
        let patch = json!({"metadata": {"labels": {"on": value}}});
        server
            .merge(&format!("{SANDBOXES}/a"), &patch)
            .await
            .expect(200)
            .json()
    };
    assert!(stream.is_quiet().await);
    label("yes").await;
    assert_eq!(stream.told().await, event("ADDED", "a"));
    server
        .merge(
            &format!("{SANDBOXES}/a"),
            &json!({"spec": {"env": {"A": "1"}}}),
        )
        .await
        .expect(200);
    assert_eq!(stream.told().await, event("MODIFIED", "a"));
    let left = label("no").await;
    let gone = stream.next().await.unwrap();
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(
        gone["object"]["metadata"]["labels"]["on"], "yes",
        "as it was when it still matched"
    );
    assert_eq!(
        gone["object"]["metadata"]["resourceVersion"],
        left["metadata"]["resourceVersion"]
    );
    server.delete(&format!("{SANDBOXES}/a")).await.expect(200);
    assert!(stream.is_quiet().await);

    let mut by_phase = Stream::open(
        &server,
        "fieldSelector=status.phase%3DRunning",
        "application/json",
    )
    .await;
    server.sandbox("b", json!({})).await;
    server
        .merge(
            &format!("{SANDBOXES}/b/status"),
            &json!({"status": {"phase": "Running"}}),
        )
        .await
        .expect(200);
    assert_eq!(by_phase.told().await, event("ADDED", "b"));
    let mut by_name = Stream::open(
        &server,
        "fieldSelector=metadata.name%3Db",
        "application/json",
    )
    .await;
    assert_eq!(by_name.told().await, event("ADDED", "b"));
    server.sandbox("c", json!({})).await;
    assert!(by_name.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_to_those_who_asked_and_carry_the_latest_version() {
    let server = Server::new();
    server.sandbox("a", json!({"x": "y"})).await;
    let mut stream = Stream::open(
        &server,
        "allowWatchBookmarks=true&labelSelector=x%3Dz",
        "application/json",
    )
    .await;
    let mut mute = Stream::open(&server, "labelSelector=x%3Dz", "application/json").await;
    // Nothing of this matches, and yet the watcher need not start from the beginning again.
    server.sandbox("b", json!({})).await;
    let mark = stream.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["kind"], "Sandbox");
    assert_eq!(
        mark["object"]["metadata"]["resourceVersion"],
        server.store.version().to_string()
    );
    assert!(
        tokio::time::timeout(Duration::from_secs(300), mute.next())
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_lasts_as_long_as_asked_and_ends_with_the_server() {
    let server = Server::new();
    let began = tokio::time::Instant::now();
    let mut stream = Stream::open(&server, "timeoutSeconds=7", "application/json").await;
    assert_eq!(stream.next().await, None);
    assert_eq!(began.elapsed(), Duration::from_secs(7));
    let mut marked = Stream::open(
        &server,
        "timeoutSeconds=7&allowWatchBookmarks=true",
        "application/json",
    )
    .await;
    assert_eq!(marked.next().await.unwrap()["type"], "BOOKMARK");
    assert_eq!(marked.next().await, None);

    let mut stream = Stream::open(&server, "", "application/json").await;
    server.tasks.drain(Duration::from_secs(1)).await.unwrap();
    assert_eq!(stream.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_forgotten_or_not_there_yet_is_told_apart() {
    let server = Server::new();
    let a = server.sandbox("a", json!({})).await;
    let seen = a["metadata"]["resourceVersion"].as_str().unwrap();
    let mut open = Stream::open(
        &server,
        &format!("resourceVersion={seen}"),
        "application/json",
    )
    .await;
    server.sandbox("b", json!({})).await;
    server.store.lose_watches();
    let error = open.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(error["object"]["kind"], "Status");
    assert_eq!(error["object"]["code"], 410);
    assert_eq!(error["object"]["reason"], "Expired");
    assert_eq!(open.next().await, None);

    let old = server
        .open(request(&format!("resourceVersion={seen}"), "*/*"))
        .await;
    answer(old).await.refused(410, "Expired");
    let future = server.store.version().next();
    let new = server
        .open(request(&format!("resourceVersion={future}"), "*/*"))
        .await;
    answer(new).await.refused(504, "Timeout");
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_a_table_sends_headings_once() {
    let server = Server::new();
    let mut stream = Stream::open(&server, "", TABLE).await;
    for (name, headings) in [("a", true), ("b", false)] {
        server.sandbox(name, json!({})).await;
        let event = stream.next().await.unwrap();
        assert_eq!(event["type"], "ADDED");
        assert_eq!(event["object"]["kind"], "Table");
        assert_eq!(event["object"]["rows"][0]["cells"][0], name);
        assert_eq!(
            !event["object"]["columnDefinitions"]
                .as_array()
                .unwrap()
                .is_empty(),
            headings
        );
    }
}

#[tokio::test(start_paused = true)]
async fn watches_are_bounded_and_a_place_is_free_when_a_client_leaves() {
    let server = Server::with_limits(Limits {
        watches: 2,
        ..Limits::default()
    });
    let first = Stream::open(&server, "", "*/*").await;
    let _second = Stream::open(&server, "", "*/*").await;
    assert_eq!(server.api.stats().watches_open, 2);
    let refused = answer(server.open(request("", "*/*")).await).await;
    assert_eq!(
        refused.refused(429, "TooManyRequests").headers["retry-after"],
        "5"
    );
    assert_eq!(server.api.stats().watches_refused, 1);
    drop(first);
    Stream::open(&server, "", "*/*").await;
}
