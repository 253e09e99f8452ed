//! Partial changes.

use http::Method;
use model::{Metadata, Name, Namespace};
use serde_json::json;
use store::{Draft, Store as _, memory::WriteFault};

use crate::support::{SANDBOXES, Server};

#[tokio::test(start_paused = true)]
async fn merge_and_json_patches_change_what_they_name() {
    let server = Server::new();
    server.sandbox("a", json!({"x": "y"})).await;
    let path = format!("{SANDBOXES}/a");
    let patch = json!({"metadata": {"labels": {"x": null, "z": "1"}}, "spec": {"env": {"A": "1"}}});
    let patched = server.merge(&path, &patch).await.expect(200).json();
    assert_eq!(patched["metadata"]["labels"], json!({"z": "1"}));
    assert_eq!(patched["spec"]["env"], json!({"A": "1"}));
    assert_eq!(patched["metadata"]["generation"], 2);
    let patch = json!([
        {"op": "test", "path": "/spec/env/A", "value": "1"},
        {"op": "replace", "path": "/spec/env/A", "value": "2"},
        {"op": "add", "path": "/metadata/annotations", "value": {"note": "n"}},
    ]);
    let patched = server.json_patch(&path, &patch).await.expect(200).json();
    assert_eq!(patched["spec"]["env"], json!({"A": "2"}));
    // The status is out of reach from here, and the rest from there.
    let patch = json!({"status": {"phase": "Running"}, "spec": {"env": null}});
    let same = server
        .merge(&format!("{path}/status"), &patch)
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&same["status"]["phase"], &same["spec"]),
        (&json!("Running"), &patched["spec"])
    );
    let patch = json!({"status": {"phase": "Paused"}});
    assert_eq!(server.merge(&path, &patch).await.expect(200).json(), same);
    let patch = json!([{"op": "replace", "path": "/status/phase", "value": "Paused"}]);
    let json = server
        .json_patch(&format!("{path}/status"), &patch)
        .await
        .expect(200)
        .json();
    assert_eq!(json["status"]["phase"], "Paused");
}

#[tokio::test(start_paused = true)]
async fn bad_patches_are_refused_and_nothing_is_written() {
    let server = Server::new();
    server.sandbox("a", json!({})).await;
    let path = format!("{SANDBOXES}/a");
    let before = server.store.version();
    let merge = [
        (json!({"spec": {"colour": 1}}), 400, "spec.colour"),
        (json!({"spec": {"env": 1}}), 400, "spec.env"),
        (json!({"spec": null}), 422, "spec"),
        (json!({"spec": {"sandboxId": null}}), 422, "spec.sandboxId"),
        (json!({"spec": {"template": "x"}}), 422, "spec.template"),
        (json!({"spec": {"epoch": 0}}), 422, "spec.epoch"),
        (json!({"metadata": {"name": "b"}}), 400, "metadata.name"),
        (
            json!({"metadata": {"namespace": "b"}}),
            400,
            "metadata.namespace",
        ),
        (json!({"kind": "SandboxPool"}), 400, "kind"),
        (json!([]), 400, "."),
    ];
    for (patch, code, field) in merge {
        let answer = server.merge(&path, &patch).await.expect(code);
        assert_eq!(answer.blames(), [field], "{}", answer.text);
    }
    let uid = json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}});
    server.merge(&path, &uid).await.refused(409, "Conflict");
    let json_patches = [
        (json!({}), 400),
        (json!([{"op": "dance", "path": "/spec"}]), 400),
        (
            json!([{"op": "replace", "path": "/spec/nothing", "value": 1}]),
            422,
        ),
        (
            json!([{"op": "test", "path": "/spec/epoch", "value": 9}]),
            422,
        ),
        (
            json!([{"op": "add", "path": "/spec/colour", "value": 1}]),
            400,
        ),
        (
            json!(vec![
                json!({"op": "test", "path": "/kind", "value": "Sandbox"});
                1001
            ]),
            400,
        ),
    ];
    for (patch, code) in json_patches {
        server.json_patch(&path, &patch).await.expect(code);
    }
    server
        .merge(&format!("{SANDBOXES}/b"), &json!({}))
        .await
        .refused(404, "NotFound");
    assert_eq!(server.store.version(), before);
}

#[tokio::test(start_paused = true)]
async fn patches_of_other_types_are_415_and_say_what_to_use() {
    let server = Server::new();
    server.sandbox("a", json!({})).await;
    for media in [
        "application/apply-patch+yaml",
        "application/strategic-merge-patch+json",
        "application/json",
        "text/plain",
    ] {
        let answer = server
            .send(
                Method::PATCH,
                &format!("{SANDBOXES}/a"),
                &[("content-type", media)],
                "{}",
            )
            .await;
        let answer = answer.refused(415, "UnsupportedMediaType");
        assert!(
            answer.text.contains("application/merge-patch+json"),
            "{}",
            answer.text
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_loses_a_race_is_tried_again_unless_it_names_a_version() {
    let server = Server::new();
    let made = server.sandbox("a", json!({})).await;
    let path = format!("{SANDBOXES}/a");
    let patch = json!({"spec": {"env": {"A": "1"}}});
    server
        .store
        .faults()
        .fail_nth_write(1, WriteFault::Conflict);
    server.merge(&path, &patch).await.expect(200);
    // Not for ever.
    server.store.faults().on_write(|_| WriteFault::Conflict);
    let before = server.store.faults().writes();
    server
        .merge(&path, &json!({"spec": {"env": {"A": "2"}}}))
        .await
        .refused(409, "Conflict");
    assert_eq!(server.store.faults().writes() - before, 5);
    server.store.faults().clear();
    let stale = json!({"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"env": {"A": "3"}}});
    let before = server.store.faults().writes();
    server.merge(&path, &stale).await.refused(409, "Conflict");
    assert!(server.store.faults().writes() - before <= 1);
    let fresh = server.get(&path).await.json();
    let exact = json!({"metadata": {"resourceVersion": fresh["metadata"]["resourceVersion"]}, "spec": {"env": {"A": "3"}}});
    server.merge(&path, &exact).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn concurrent_patches_all_take_effect() {
    let server = std::sync::Arc::new(Server::new());
    server.sandbox("a", json!({})).await;
    let patches = (0..4).map(|i| {
        let server = std::sync::Arc::clone(&server);
        async move {
            let patch = json!({"spec": {"env": {format!("K{i}"): "v"}}});
            server
                .merge(&format!("{SANDBOXES}/a"), &patch)
                .await
                .expect(200);
        }
    });
    futures_util::future::join_all(patches).await;
    let env = server.get(&format!("{SANDBOXES}/a")).await.json()["spec"]["env"].clone();
    assert_eq!(env.as_object().map(serde_json::Map::len), Some(4));
}

/// A newer version of the product runs beside this one and has stored fields that this one does
/// not know. Nobody who changes something else may lose them.
#[tokio::test(start_paused = true)]
async fn fields_of_a_newer_version_survive_patches_and_replacements() {
    let server = Server::new();
    let meta = Metadata::new(
        Some(Namespace::new("team").unwrap()),
        Name::new("a").unwrap(),
    );
    let draft = Draft {
        kind: model::KindName("Sandbox"),
        meta,
        spec: r#"{"pool":"p","colour":"red","timeouts":{"soon":1}}"#.into(),
        status: r#"{"phase":"Idle","mood":"good"}"#.into(),
        fields: model::StringMap::new(),
    };
    server.store.create(draft).await.unwrap();
    let path = format!("{SANDBOXES}/a");
    for (query, value) in [
        ("", "1"),
        ("?fieldValidation=Ignore", "2"),
        ("?fieldValidation=Warn", "3"),
    ] {
        let patch = json!({"spec": {"env": {"A": value}}});
        let patched = server
            .merge(&format!("{path}{query}"), &patch)
            .await
            .expect(200);
        assert!(!patched.headers.contains_key("warning"));
        let patched = patched.json();
        assert_eq!(patched["spec"]["colour"], "red");
        assert_eq!(patched["spec"]["timeouts"]["soon"], 1);
        assert_eq!(patched["status"]["mood"], "good");
        // The whole object read and sent back is no stranger's invention either.
        server
            .put(&format!("{path}{query}"), &patched)
            .await
            .expect(200);
    }
    let patched = server
        .merge(
            &format!("{path}/status"),
            &json!({"status": {"phase": "Running"}}),
        )
        .await
        .expect(200)
        .json();
    assert_eq!(
        patched["status"],
        json!({"phase": "Running", "mood": "good"})
    );
    // What this client invents is refused, or dropped where it asked for that.
    server
        .merge(&path, &json!({"spec": {"taste": "sweet"}}))
        .await
        .refused(400, "BadRequest");
    let ignored = server
        .merge(
            &format!("{path}?fieldValidation=Ignore"),
            &json!({"spec": {"taste": "sweet"}}),
        )
        .await
        .expect(200)
        .json();
    assert_eq!(
        (ignored["spec"].get("taste"), &ignored["spec"]["colour"]),
        (None, &json!("red"))
    );
}
