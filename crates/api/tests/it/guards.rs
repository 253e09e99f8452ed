//! Tokens, health, request ids, methods.

use std::sync::Arc;

use api::{Authenticator, Limits, ResourceApi};
use axum::body::Body;
use http::{Method, Request};
use kit::{Entropy, ManualClock};
use serde_json::json;
use store::memory::MemoryStore;
use tower::ServiceExt as _;

use crate::support::{SANDBOXES, Server, TOKEN, answer};

const GUARDED: [&str; 18] = [
    "/",
    "/api",
    "/api/v1",
    "/api/v1/events",
    "/api/v1/namespaces",
    "/api/v1/namespaces/team",
    "/api/v1/namespaces/team/events",
    "/api/v1/namespaces/team/events/e",
    "/apis",
    "/apis/dormouse.dev",
    "/apis/dormouse.dev/v1alpha1",
    "/apis/dormouse.dev/v1alpha1/sandboxes",
    "/apis/dormouse.dev/v1alpha1/namespaces/team/sandboxes",
    "/apis/dormouse.dev/v1alpha1/namespaces/team/sandboxes/a",
    "/apis/dormouse.dev/v1alpha1/namespaces/team/sandboxes/a/status",
    "/apis/dormouse.dev/v1alpha1/sandboxtemplates",
    "/openapi/v3",
    "/no/such/path",
];

#[tokio::test(start_paused = true)]
async fn without_a_known_token_nothing_is_served_and_nothing_is_written() {
    let server = Server::new();
    for path in GUARDED {
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::OPTIONS,
        ] {
            for header in [
                None,
                Some("Bearer wrong"),
                Some("Bearer"),
                Some(TOKEN),
                Some("Basic b3BlbiBzZXNhbWU="),
            ] {
                let mut request = Request::builder().method(method.clone()).uri(path);
                if let Some(header) = header {
                    request = request.header("authorization", header);
                }
                let response = server.open(request.body(Body::from("{}")).unwrap()).await;
                let refused = answer(response).await.refused(401, "Unauthorized");
                assert_eq!(
                    refused.headers["www-authenticate"], "Bearer",
                    "{method} {path}"
                );
            }
        }
    }
    // Two tokens are none: whoever stands before this server may have judged by the other one.
    let two = Request::get("/apis")
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("authorization", "Bearer other");
    let response = server.open(two.body(Body::empty()).unwrap()).await;
    answer(response).await.refused(401, "Unauthorized");
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        let response = server
            .open(Request::get(path).body(Body::empty()).unwrap())
            .await;
        answer(response).await.expect(200);
    }
    assert_eq!(server.store.version().sequence(), 0);
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_what_the_server_says() {
    let clock = Arc::new(ManualClock::starting_at(0));
    let entropy = Arc::new(Entropy::seeded(1));
    let store = Arc::new(MemoryStore::new(clock.clone(), entropy.clone()));
    let (tell, readiness) = tokio::sync::watch::channel(Err("the cache is not synced".to_owned()));
    let api = ResourceApi::new(
        store,
        clock,
        entropy,
        Authenticator::from_token_hashes(vec![]),
        Limits::default(),
    );
    let router = api::router(Arc::new(api.with_readiness(readiness)));
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        answer(router.clone().oneshot(request).await.unwrap()).await
    };
    assert_eq!(
        get("/readyz").await.expect(503).text,
        "not ready: the cache is not synced\n"
    );
    assert_eq!(get("/livez").await.expect(200).text, "ok");
    tell.send(Ok(())).unwrap();
    assert_eq!(get("/readyz").await.expect(200).text, "ok");
}

#[tokio::test(start_paused = true)]
async fn a_sane_request_id_is_echoed_and_another_replaced() {
    let server = Server::new();
    let id = async |id: &str| {
        let answer = server
            .send(Method::GET, "/apis", &[("x-request-id", id)], "")
            .await;
        answer.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id("abc-123").await, "abc-123");
    assert_eq!(id("a b\tc").await.len(), 32);
    assert_eq!(id(&"x".repeat(200)).await.len(), 32);
    let none = server.get("/no/such").await.refused(404, "NotFound");
    assert!(none.headers.contains_key("x-request-id"));
}

#[tokio::test(start_paused = true)]
async fn a_method_that_is_not_there_is_405_and_says_which_are() {
    let server = Server::new();
    let refused = server
        .post(&format!("{SANDBOXES}/a"), &json!({}))
        .await
        .refused(405, "MethodNotAllowed");
    assert_eq!(refused.headers["allow"], "GET,HEAD,PUT,PATCH,DELETE");
    let refused = server
        .send(Method::OPTIONS, "/apis", &[], "")
        .await
        .refused(405, "MethodNotAllowed");
    assert_eq!(refused.headers["allow"], "GET,HEAD");
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_no_text_is_404_like_any_that_is_not_there() {
    let server = Server::new();
    for path in [
        "/api/v1/namespaces/%ff",
        &format!("{SANDBOXES}/%ff"),
        "/%ff",
    ] {
        server.get(path).await.refused(404, "NotFound");
    }
}
