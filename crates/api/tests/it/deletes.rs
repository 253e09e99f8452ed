//! Deleting.

use http::Method;
use serde_json::{Value, json};

use crate::support::{SANDBOXES, Server, sandbox};

async fn delete(server: &Server, name: &str, options: Value) -> crate::support::Answer {
    server
        .send(
            Method::DELETE,
            &format!("{SANDBOXES}/{name}"),
            &[("content-type", "application/json")],
            options.to_string(),
        )
        .await
}

#[tokio::test(start_paused = true)]
async fn a_deletion_has_three_outcomes() {
    let server = Server::new();
    let a = server.sandbox("a", json!({})).await;
    let status = server
        .delete(&format!("{SANDBOXES}/a"))
        .await
        .expect(200)
        .json();
    assert_eq!(status["status"], "Success");
    assert_eq!(
        status["details"],
        json!({"name": "a", "group": "dormouse.dev", "kind": "sandboxes", "uid": a["metadata"]["uid"]})
    );
    let absent = server
        .delete(&format!("{SANDBOXES}/a"))
        .await
        .refused(404, "NotFound");
    assert_eq!(
        absent.json()["message"],
        "sandboxes.dormouse.dev \"a\" not found"
    );

    let mut held = sandbox("b", json!({}), json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/mine"]);
    server.post(SANDBOXES, &held).await.expect(201);
    let marked = server
        .delete(&format!("{SANDBOXES}/b"))
        .await
        .expect(200)
        .json();
    assert_eq!(marked["kind"], "Sandbox");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    server
        .merge(
            &format!("{SANDBOXES}/b"),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await
        .expect(200);
    server
        .get(&format!("{SANDBOXES}/b"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn preconditions_and_options_are_checked_before_anything_goes() {
    let server = Server::new();
    let a = server.sandbox("a", json!({})).await;
    let table = [
        (
            json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}}),
            409,
        ),
        (json!({"preconditions": {"uid": "nonsense"}}), 409),
        (json!({"preconditions": {"resourceVersion": "999"}}), 409),
        (json!({"preconditions": {"resourceVersion": "x"}}), 400),
        (json!({"propagationPolicy": "Orphan"}), 422),
        (json!({"propagationPolicy": "Sideways"}), 422),
        (json!({"gracePeriodSeconds": -1}), 422),
        (json!({"gracePeriodSeconds": "soon"}), 400),
        (json!({"dryRun": ["Some"]}), 400),
        (json!({"precondition": {"uid": "nonsense"}}), 400),
        (json!({"preconditions": {"UID": "nonsense"}}), 400),
        (json!({"preconditions": ["nonsense"]}), 400),
        (json!({"kind": "Sandbox"}), 400),
        (json!([]), 400),
        (json!(null), 400),
    ];
    let before = server.store.version();
    for (options, code) in table {
        let answer = delete(&server, "a", options.clone()).await.expect(code);
        assert_eq!(answer.json()["kind"], "Status", "{options}");
    }
    assert_eq!(server.store.version(), before);
    let options = json!({
        "kind": "DeleteOptions",
        "apiVersion": "dormouse.dev/v1alpha1",
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": a["metadata"]["uid"], "resourceVersion": a["metadata"]["resourceVersion"]},
    });
    delete(&server, "a", options).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_collection_goes_by_selector() {
    let server = Server::new();
    for i in 0..300 {
        server
            .sandbox(
                &format!("s{i}"),
                json!({"old": if i % 3 == 0 { "yes" } else { "no" }}),
            )
            .await;
    }
    let gone = server
        .delete(&format!("{SANDBOXES}?labelSelector=old%3Dyes"))
        .await
        .expect(200)
        .json();
    assert_eq!(gone["items"].as_array().map(Vec::len), Some(100));
    let left = server.get(SANDBOXES).await.json();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(200));
    server.delete(SANDBOXES).await.expect(200);
    assert_eq!(server.get(SANDBOXES).await.json()["items"], json!([]));
}
