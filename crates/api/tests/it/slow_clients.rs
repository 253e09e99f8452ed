//! Clients that send slowly, read slowly, or send what would come back many times as long.

use std::{convert::Infallible, time::Duration};

use api::Limits;
use axum::body::Body;
use futures_util::stream;
use http::{Method, Request};
use serde_json::json;
use tokio::time::sleep;

use crate::support::{SANDBOXES, Server, TOKEN, answer, object};

/// A body of which one byte comes each second.
fn trickle(bytes: usize) -> Body {
    Body::from_stream(stream::unfold(bytes, |left| async move {
        let left = left.checked_sub(1)?;
        sleep(Duration::from_secs(1)).await;
        Some((Ok::<_, Infallible>(" "), left))
    }))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_refused_in_time() {
    let server = Server::new();
    for (method, path) in [
        (Method::POST, SANDBOXES.to_owned()),
        (Method::PATCH, format!("{SANDBOXES}/a")),
        (Method::DELETE, format!("{SANDBOXES}/a")),
    ] {
        let json = [("content-type", "application/merge-patch+json")];
        let refused = server.send(method, &path, &json, trickle(100_000)).await;
        refused.refused(408, "Timeout");
    }
    // One that is merely slow is read.
    server
        .send(Method::POST, SANDBOXES, &[], trickle(20))
        .await
        .refused(400, "BadRequest");
    assert_eq!(server.store.version().sequence(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_is_read_on_so_that_its_client_hears_why() {
    let server = Server::new();
    let chunks = stream::iter((0..4).map(|_| Ok::<_, Infallible>(vec![b' '; 1 << 20])));
    let refused = server
        .send(Method::POST, SANDBOXES, &[], Body::from_stream(chunks))
        .await;
    refused.refused(413, "RequestEntityTooLarge");
    // But not without end.
    let endless = stream::repeat_with(|| Ok::<_, Infallible>(vec![b' '; 1 << 20]));
    let refused = server
        .send(Method::POST, SANDBOXES, &[], Body::from_stream(endless))
        .await;
    refused.refused(413, "RequestEntityTooLarge");
    let refused = server
        .send(
            Method::POST,
            SANDBOXES,
            &[("content-length", "99999999")],
            trickle(100_000),
        )
        .await;
    refused.refused(413, "RequestEntityTooLarge");
}

#[tokio::test(start_paused = true)]
async fn a_short_body_never_has_a_long_answer() {
    let server = Server::new();
    let whole = |fields: String| {
        format!(
            r#"{{"apiVersion":"dormouse.dev/v1alpha1","kind":"Sandbox","metadata":{{"name":"a"}},"spec":{{}},{fields}}}"#
        )
    };
    let many = |each: &dyn Fn(usize) -> String| (0..40_000).map(each).collect::<Vec<_>>().join(",");
    let long_path = format!(
        r#""{}":{{{}}}"#,
        "k".repeat(100_000),
        many(&|_| r#""a":1"#.to_owned())
    );
    let unknown = many(&|i| format!(r#""u{i}":1"#));
    for fields in [long_path, unknown.clone()] {
        let refused = server
            .send(Method::POST, SANDBOXES, &[], whole(fields))
            .await
            .refused(400, "BadRequest");
        assert!(refused.text.len() < 64 << 10, "{}", refused.text.len());
        assert!(refused.blames().len() <= 100);
    }
    let mut labels = json!({});
    for i in 0..10_000 {
        labels[format!("-{i}")] = "-".repeat(100).into();
    }
    for metadata in [
        json!({"name": "a", "labels": labels}),
        json!({"name": "A".repeat(1 << 20)}),
        json!({"name": "a", "labels": "x".repeat(1 << 20)}),
    ] {
        let mut body = object("Sandbox", "a", json!({}));
        body["metadata"] = metadata;
        let refused = server.post(SANDBOXES, &body).await;
        assert!(refused.code.is_client_error(), "{}", refused.code);
        assert!(refused.text.len() < 128 << 10, "{}", refused.text.len());
    }
    assert_eq!(server.store.version().sequence(), 0);
    // Warnings are headers, which have even less room.
    let warned = server
        .send(
            Method::POST,
            &format!("{SANDBOXES}?fieldValidation=Warn"),
            &[],
            whole(unknown),
        )
        .await
        .expect(201);
    let warnings: Vec<&str> = warned
        .headers
        .get_all("warning")
        .iter()
        .map(|w| w.to_str().unwrap())
        .collect();
    assert!(warnings.iter().map(|w| w.len()).sum::<usize>() < 8 << 10);
    assert_eq!(warnings[0], r#"299 - "unknown field \"u0\"""#);
    assert!(warnings.last().unwrap().contains("more fields"));
}

#[tokio::test(start_paused = true)]
async fn what_clients_do_not_read_is_bounded_in_all() {
    let server = Server::with_limits(Limits {
        unread_bytes: 300 << 10,
        ..Limits::default()
    });
    for i in 0..4 {
        let mut sandbox = object("Sandbox", &format!("s{i}"), json!({}));
        sandbox["metadata"]["annotations"] = json!({"x": "y".repeat(50 << 10)});
        server.post(SANDBOXES, &sandbox).await.expect(201);
    }
    let list = || {
        Request::get(SANDBOXES)
            .header("authorization", format!("Bearer {TOKEN}"))
            .body(Body::empty())
            .unwrap()
    };
    let unread = server.open(list()).await;
    assert_eq!(unread.status(), 200);
    let refused = answer(server.open(list()).await).await;
    let refused = refused.refused(429, "TooManyRequests");
    assert_eq!(refused.headers["retry-after"], "1");
    // Short answers and writes go on.
    server.get("/apis").await.expect(200);
    server
        .get(&format!("{SANDBOXES}?limit=1"))
        .await
        .expect(200);
    server.delete(&format!("{SANDBOXES}/s3")).await.expect(200);
    assert!(answer(unread).await.text.len() > 200 << 10);
    answer(server.open(list()).await).await.expect(200);
}
