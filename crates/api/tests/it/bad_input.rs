//! Whatever is wrong with a request, it is refused with the right code, names the field, and
//! writes nothing.

use http::Method;
use serde_json::{Value, json};

use crate::support::{SANDBOXES, Server, TEMPLATES, object, sandbox};

#[tokio::test(start_paused = true)]
async fn every_bad_object_is_refused_by_field_and_nothing_is_written() {
    let server = Server::new();
    server.sandbox("there", json!({"a": "b"})).await;
    let before = server.store.version();
    let ok = |spec: Value| sandbox("it", json!({}), spec);
    let with = |path: &str, value: Value| {
        let mut body = ok(json!({}));
        *body.pointer_mut(path.rsplit_once('/').unwrap().0).unwrap() = {
            let mut parent = body
                .pointer(path.rsplit_once('/').unwrap().0)
                .unwrap()
                .clone();
            parent[path.rsplit_once('/').unwrap().1] = value;
            parent
        };
        body
    };
    let long = "x".repeat(300 << 10);
    let table: Vec<(&str, Value, u16, &str, &str)> = vec![
        // a list where an object belongs
        (
            SANDBOXES,
            with("/spec/timeouts", json!([])),
            400,
            "BadRequest",
            "spec.timeouts",
        ),
        (
            SANDBOXES,
            with("/spec/owner", json!(["team"])),
            400,
            "BadRequest",
            "spec.owner",
        ),
        (
            SANDBOXES,
            with(
                "/metadata/ownerReferences",
                json!([["v1", "K", "n", "00000000-0000-4000-8000-000000000000"]]),
            ),
            400,
            "BadRequest",
            "metadata.ownerReferences[0]",
        ),
        // unknown
        (
            SANDBOXES,
            with("/spec/colour", json!(1)),
            400,
            "BadRequest",
            "spec.colour",
        ),
        (
            SANDBOXES,
            with("/metadata/colour", json!(1)),
            400,
            "BadRequest",
            "metadata.colour",
        ),
        (
            SANDBOXES,
            with(
                "/metadata/ownerReferences",
                json!([{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "00000000-0000-4000-8000-000000000000", "colour": 1}]),
            ),
            400,
            "BadRequest",
            "metadata.ownerReferences[0].colour",
        ),
        (
            SANDBOXES,
            with("/colour", json!(1)),
            400,
            "BadRequest",
            "colour",
        ),
        // types
        (
            SANDBOXES,
            with("/spec/env", json!({"A": 1})),
            400,
            "BadRequest",
            "spec.env.A",
        ),
        (
            SANDBOXES,
            with("/spec/env", json!({"A": null})),
            400,
            "BadRequest",
            "spec.env.A",
        ),
        (
            SANDBOXES,
            with("/spec/timeouts", json!({"idleSeconds": "soon"})),
            400,
            "BadRequest",
            "spec.timeouts.idleSeconds",
        ),
        (
            SANDBOXES,
            with("/spec/timeouts", json!({"endAt": "tomorrow"})),
            400,
            "BadRequest",
            "spec.timeouts.endAt",
        ),
        (
            SANDBOXES,
            with("/spec/desiredState", json!("Asleep")),
            400,
            "BadRequest",
            "spec.desiredState",
        ),
        (
            SANDBOXES,
            with("/spec/pool", json!("No Pool")),
            400,
            "BadRequest",
            "spec.pool",
        ),
        (
            SANDBOXES,
            with("/spec", json!([])),
            400,
            "BadRequest",
            "spec",
        ),
        (
            SANDBOXES,
            with("/spec", Value::Null),
            422,
            "Invalid",
            "spec",
        ),
        (
            SANDBOXES,
            with("/metadata", json!("x")),
            400,
            "BadRequest",
            "metadata",
        ),
        (
            SANDBOXES,
            with("/metadata/name", json!(7)),
            400,
            "BadRequest",
            "metadata.name",
        ),
        (
            SANDBOXES,
            with("/metadata/labels", json!({"a": 7})),
            400,
            "BadRequest",
            "metadata.labels.a",
        ),
        (
            SANDBOXES,
            with("/metadata/finalizers", json!("x")),
            400,
            "BadRequest",
            "metadata.finalizers",
        ),
        (SANDBOXES, json!([]), 400, "BadRequest", "."),
        (
            TEMPLATES,
            object("SandboxTemplate", "t", json!({})),
            422,
            "Invalid",
            "spec.image",
        ),
        // identity
        (
            SANDBOXES,
            with("/kind", json!("SandboxPool")),
            400,
            "BadRequest",
            "kind",
        ),
        (
            SANDBOXES,
            with("/apiVersion", json!("v1")),
            400,
            "BadRequest",
            "apiVersion",
        ),
        (
            SANDBOXES,
            with("/metadata/namespace", json!("other")),
            400,
            "BadRequest",
            "metadata.namespace",
        ),
        (
            TEMPLATES,
            {
                let mut t = object("SandboxTemplate", "t", json!({"image": "a"}));
                t["metadata"]["namespace"] = json!("x");
                t
            },
            400,
            "BadRequest",
            "metadata.namespace",
        ),
        (
            SANDBOXES,
            with("/metadata/resourceVersion", json!("7")),
            400,
            "BadRequest",
            "metadata.resourceVersion",
        ),
        (
            SANDBOXES,
            with("/metadata/resourceVersion", json!("new")),
            400,
            "BadRequest",
            "metadata.resourceVersion",
        ),
        // names
        (
            SANDBOXES,
            with("/metadata/name", json!("Not_A_Label")),
            422,
            "Invalid",
            "metadata.name",
        ),
        (
            SANDBOXES,
            with("/metadata/name", json!("x".repeat(64))),
            422,
            "Invalid",
            "metadata.name",
        ),
        (
            SANDBOXES,
            with("/metadata/name", Value::Null),
            422,
            "Invalid",
            "metadata.name",
        ),
        (
            SANDBOXES,
            with("/metadata", json!({"generateName": "Bad_"})),
            422,
            "Invalid",
            "metadata.name",
        ),
        // rules
        (
            SANDBOXES,
            with("/metadata/labels", json!({"a b": "c"})),
            422,
            "Invalid",
            "metadata.labels.a b",
        ),
        (
            SANDBOXES,
            with("/metadata/labels", json!({"dormouse.dev/pool": "c"})),
            422,
            "Invalid",
            "metadata.labels.dormouse.dev/pool",
        ),
        (
            SANDBOXES,
            with("/metadata/finalizers", json!(["x"])),
            422,
            "Invalid",
            "metadata.finalizers[0]",
        ),
        (
            SANDBOXES,
            with("/spec/owner", json!({"team": "other"})),
            422,
            "Invalid",
            "spec.owner.team",
        ),
        (
            SANDBOXES,
            with("/spec/wakeOnTraffic", json!(true)),
            422,
            "Invalid",
            "spec.wakeOnTraffic",
        ),
        (
            SANDBOXES,
            with("/spec/env", json!({"A": long})),
            422,
            "Invalid",
            "spec.env.A",
        ),
        (
            SANDBOXES,
            with("/metadata/annotations", json!({"a": long})),
            422,
            "Invalid",
            "metadata.annotations",
        ),
    ];
    for (path, body, code, reason, field) in table {
        let answer = server.post(path, &body).await.refused(code, reason);
        assert!(
            answer.blames().iter().any(|f| f == field),
            "{field}: {}",
            answer.text
        );
    }
    server
        .post(SANDBOXES, &sandbox("there", json!({}), json!({})))
        .await
        .refused(409, "AlreadyExists");
    assert_eq!(server.store.version(), before);
}

#[tokio::test(start_paused = true)]
async fn every_unknown_and_duplicate_field_is_named_at_once() {
    let server = Server::new();
    let text = r#"{"apiVersion":"dormouse.dev/v1alpha1","kind":"Sandbox","metadata":{"name":"a"},
        "spec":{"colour":1,"env":{"A":"1","A":"2"},"timeouts":{"soon":1}},"extra":1}"#;
    let json = [("content-type", "application/json")];
    let send = |validation: &'static str| {
        let path = format!("{SANDBOXES}?{validation}");
        let server = &server;
        async move { server.send(Method::POST, &path, &json, text).await }
    };
    for strict in ["", "fieldValidation=Strict"] {
        let answer = send(strict).await.refused(400, "BadRequest");
        assert_eq!(
            answer.blames(),
            ["extra", "spec.colour", "spec.timeouts.soon", "spec.env.A"]
        );
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(
            message,
            "strict decoding error: unknown field \"extra\", unknown field \"spec.colour\", unknown field \"spec.timeouts.soon\", duplicate field \"spec.env.A\""
        );
    }
    assert_eq!(
        send("fieldValidation=Loose")
            .await
            .refused(422, "Invalid")
            .blames(),
        ["fieldValidation"]
    );
    assert_eq!(server.store.version().sequence(), 0);
    let warned = send("fieldValidation=Warn").await.expect(201);
    let warnings: Vec<_> = warned
        .headers
        .get_all("warning")
        .iter()
        .map(|w| w.to_str().unwrap())
        .collect();
    assert_eq!(warnings.len(), 4);
    assert_eq!(warnings[1], r#"299 - "unknown field \"spec.colour\"""#);
    // They are dropped, as Kubernetes prunes them; of duplicates the last counts.
    let stored = warned.json();
    assert_eq!(stored["spec"]["env"], json!({"A": "2"}));
    assert_eq!(stored["spec"].get("colour"), None);
    server.delete(&format!("{SANDBOXES}/a")).await.expect(200);
    let ignored = send("fieldValidation=Ignore").await.expect(201);
    assert!(!ignored.headers.contains_key("warning"));
}

#[tokio::test(start_paused = true)]
async fn bodies_that_cannot_be_read_are_refused() {
    let server = Server::new();
    let table = [
        ("application/json", "", 400, "BadRequest"),
        ("application/json", "{", 400, "BadRequest"),
        ("application/json", "{} {}", 400, "BadRequest"),
        ("application/json", "\"text\"", 400, "BadRequest"),
        ("application/yaml", "a: [", 400, "BadRequest"),
        ("application/yaml", "a: 1\n---\nb: 1", 400, "BadRequest"),
        ("text/plain", "{}", 415, "UnsupportedMediaType"),
        (
            "application/vnd.kubernetes.protobuf",
            "k8s",
            415,
            "UnsupportedMediaType",
        ),
    ];
    for (media, body, code, reason) in table {
        server
            .send(Method::POST, SANDBOXES, &[("content-type", media)], body)
            .await
            .refused(code, reason);
    }
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    server
        .send(Method::POST, SANDBOXES, &[], deep)
        .await
        .refused(400, "BadRequest");
    let huge = format!("\"{}\"", "x".repeat(2 << 20));
    server
        .send(Method::POST, SANDBOXES, &[], huge)
        .await
        .refused(413, "RequestEntityTooLarge");
    server
        .send(
            Method::POST,
            SANDBOXES,
            &[("content-length", "99999999")],
            "{}",
        )
        .await
        .refused(413, "RequestEntityTooLarge");
    let long = format!("{SANDBOXES}?labelSelector={}", "x".repeat(20_000));
    server.get(&long).await.refused(414, "RequestURITooLong");
    assert_eq!(server.store.version().sequence(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_object_within_all_rules_but_too_large_for_the_store_is_413() {
    let server = Server::new();
    // Many items, each within its own limits, are more than a record may take in all.
    let conditions: Vec<Value> = (0..20)
        .map(|i| json!({"type": format!("T{i}"), "status": "True", "reason": "R", "message": "x".repeat(60 << 10), "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    server.sandbox("a", json!({})).await;
    let before = server.store.version();
    let answer = server
        .merge(
            &format!("{SANDBOXES}/a/status"),
            &json!({"status": {"conditions": conditions}}),
        )
        .await
        .refused(413, "RequestEntityTooLarge");
    assert_eq!(answer.json()["details"]["name"], "a");
    assert_eq!(server.store.version(), before);
}

#[tokio::test(start_paused = true)]
async fn bad_parameters_are_refused_by_name() {
    let server = Server::new();
    let table = [
        ("limit=many", 400, "limit"),
        ("limit=-1", 400, "limit"),
        ("watch=perhaps", 400, "watch"),
        ("watch=true&timeoutSeconds=x", 400, "timeoutSeconds"),
        ("resourceVersion=abc", 400, "resourceVersion"),
        ("labelSelector=a%20in%20b", 400, "labelSelector"),
        ("fieldSelector=spec.env", 400, "fieldSelector"),
        ("fieldSelector=spec.env%3Db", 400, "fieldSelector"),
        ("includeObject=All", 400, "includeObject"),
        ("resourceVersionMatch=Exact", 422, "resourceVersionMatch"),
        (
            "resourceVersionMatch=Roughly&resourceVersion=1",
            422,
            "resourceVersionMatch",
        ),
        (
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            422,
            "sendInitialEvents",
        ),
        ("sendInitialEvents=true", 422, "sendInitialEvents"),
    ];
    for (query, code, field) in table {
        let answer = server
            .get(&format!("{SANDBOXES}?{query}"))
            .await
            .expect(code);
        assert_eq!(answer.blames(), [field], "{}", answer.text);
    }
    let answer = server
        .post(
            &format!("{SANDBOXES}?dryRun=Some"),
            &sandbox("a", json!({}), json!({})),
        )
        .await;
    assert_eq!(answer.refused(400, "BadRequest").blames(), ["dryRun"]);
    server
        .get("/apis/dormouse.dev/v1alpha1/namespaces/Not_A_Team/sandboxes")
        .await
        .refused(422, "Invalid");
    server
        .get(&format!("{SANDBOXES}/Not_A_Name"))
        .await
        .refused(404, "NotFound");
}
