//! What tools ask before they ask for objects, and the read-only core resources.

use http::Method;
use model::{
    Event, Metadata, Name, Namespace, Timestamp, Uid,
    event::{ABOUT_LABEL, About, EventSpec, Severity},
};
use serde_json::json;
use store::StoreExt as _;

use crate::support::{SANDBOXES, Server, TABLE};

#[tokio::test(start_paused = true)]
async fn discovery_lists_every_kind_with_its_verbs_and_names() {
    let server = Server::new();
    assert_eq!(
        server.get("/api").await.expect(200).json()["versions"],
        json!(["v1"])
    );
    let groups = server.get("/apis").await.expect(200).json();
    assert_eq!(
        groups["groups"][0]["preferredVersion"]["groupVersion"],
        "dormouse.dev/v1alpha1"
    );
    assert_eq!(
        server.get("/apis/dormouse.dev").await.expect(200).json()["kind"],
        "APIGroup"
    );
    let list = server
        .get("/apis/dormouse.dev/v1alpha1")
        .await
        .expect(200)
        .json();
    let resources = list["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 2 * model::kinds::ALL.len());
    for info in &model::kinds::ALL {
        let found = resources.iter().find(|r| r["name"] == info.plural).unwrap();
        assert_eq!(found["kind"], info.kind.0);
        assert_eq!(found["shortNames"], json!(info.short_names));
        assert!(
            resources
                .iter()
                .any(|r| r["name"] == format!("{}/status", info.plural))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn openapi_documents_are_found_by_the_index_and_tell_that_fields_are_validated() {
    let server = Server::new();
    let index = server.get("/openapi/v3").await.expect(200).json();
    for path in ["api/v1", "apis/dormouse.dev/v1alpha1"] {
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
        let document = server.get(url).await.expect(200);
        assert_eq!(document.json()["openapi"], "3.0.0");
        let tag = document.headers["etag"].to_str().unwrap().to_owned();
        server
            .send(Method::GET, url, &[("if-none-match", &tag)], "")
            .await
            .expect(304);
    }
    let document = server
        .get("/openapi/v3/apis/dormouse.dev/v1alpha1")
        .await
        .json();
    let item =
        &document["paths"]["/apis/dormouse.dev/v1alpha1/namespaces/{namespace}/sandboxes/{name}"];
    let patch = &item["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "dormouse.dev", "version": "v1alpha1", "kind": "Sandbox"})
    );
    assert!(
        patch["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .any(|p| p["name"] == "fieldValidation" && p["in"] == "query")
    );
    server.get("/openapi/v2").await.refused(404, "NotFound");
}

fn event(namespace: &str, name: &str, about: &str, uid: u128) -> Event {
    let mut metadata = Metadata::new(
        Some(Namespace::new(namespace).unwrap()),
        Name::new(name).unwrap(),
    );
    let uid = Uid::from_random(uid);
    metadata.labels.insert(ABOUT_LABEL, uid.to_string());
    let seen = Timestamp::from_micros(1_799_999_000_000_000);
    let spec = EventSpec {
        about: About {
            kind: "Sandbox".into(),
            namespace: Some(Namespace::new(namespace).unwrap()),
            name: Name::new(about).unwrap(),
            uid,
        },
        severity: Severity::Warning,
        reason: "Crashed".into(),
        message: "It fell over".into(),
        count: 3,
        first_seen: seen,
        last_seen: seen,
    };
    Event::new(metadata, spec)
}

#[tokio::test(start_paused = true)]
async fn events_read_as_those_of_core_v1() {
    let server = Server::new();
    for event in [
        event("team", "e1", "a", 1),
        event("team", "e2", "b", 2),
        event("other", "e3", "a", 3),
    ] {
        server.store.create_object(&event).await.unwrap();
    }
    let uid = Uid::from_random(1);
    // As `kubectl describe` asks.
    let selector = format!(
        "involvedObject.name%3Da,involvedObject.namespace%3Dteam,involvedObject.kind%3DSandbox,involvedObject.uid%3D{uid}"
    );
    let list = server
        .get(&format!(
            "/api/v1/namespaces/team/events?fieldSelector={selector}&limit=500"
        ))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("EventList"), &json!("v1"))
    );
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0]["metadata"]["name"], "e1");
    assert_eq!(items[0]["involvedObject"]["uid"], uid.to_string());
    assert_eq!(
        (&items[0]["type"], &items[0]["count"]),
        (&json!("Warning"), &json!(3))
    );
    let everywhere = server
        .get("/api/v1/events?fieldSelector=involvedObject.name%3Da")
        .await
        .expect(200)
        .json();
    assert_eq!(everywhere["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        server
            .get("/api/v1/namespaces/team/events/e2")
            .await
            .expect(200)
            .json()["involvedObject"]["name"],
        "b"
    );
    let table = server
        .send(Method::GET, "/api/v1/events", &[("accept", TABLE)], "")
        .await
        .expect(200)
        .json();
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..5],
        [
            json!("16m"),
            json!("Warning"),
            json!("Crashed"),
            json!("sandbox/a"),
            json!("It fell over")
        ]
    );
    server.get("/api/v1/pods").await.refused(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_those_with_objects_and_the_default() {
    let server = Server::new();
    for (team, names) in [("aa", 3), ("zz", 2)] {
        for i in 0..names {
            let path = SANDBOXES.replace("team", team);
            server
                .post(
                    &path,
                    &crate::support::sandbox(&format!("s{i}"), json!({}), json!({})),
                )
                .await
                .expect(201);
        }
    }
    server
        .store
        .create_object(&event("only-events", "e", "a", 1))
        .await
        .unwrap();
    let list = server.get("/api/v1/namespaces").await.expect(200).json();
    let names: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["aa", "default", "only-events", "zz"]);
    server.get("/api/v1/namespaces/zz").await.expect(200);
    server
        .get("/api/v1/namespaces/nobody")
        .await
        .refused(404, "NotFound");
    let table = server
        .send(Method::GET, "/api/v1/namespaces", &[("accept", TABLE)], "")
        .await
        .expect(200)
        .json();
    assert_eq!(table["rows"][0]["cells"], json!(["aa", "Active"]));
}
