//! Creating and replacing.

use http::Method;
use model::kinds;
use serde_json::{Value, json};
use store::{Store as _, StoreExt as _, memory::WriteFault};

use crate::support::{SANDBOXES, Server, TEMPLATES, object, sandbox};

#[tokio::test(start_paused = true)]
async fn a_created_object_is_stored_as_it_is_answered() {
    let server = Server::new();
    let mut body = sandbox("a", json!({"x": "y"}), json!({"env": {"A": "1"}}));
    // What the server owns is ignored in a client's body.
    body["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000000");
    body["metadata"]["generation"] = json!(7);
    body["metadata"]["creationTimestamp"] = Value::Null;
    body["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    body["status"] = json!({"phase": "Running"});
    let made = server.post(SANDBOXES, &body).await.expect(201).json();
    assert_ne!(made["metadata"]["uid"], body["metadata"]["uid"]);
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["metadata"]["namespace"], "team");
    assert_eq!(made["metadata"].get("managedFields"), None);
    assert_eq!(made["status"], json!({"phase": "Pending"}));
    assert_eq!(made["spec"]["owner"], json!({"team": "team"}));
    assert_eq!(made["spec"]["epoch"], 1);
    assert_eq!(made["spec"]["sandboxId"].as_str().map(str::len), Some(20));
    assert_eq!(made["metadata"].get("finalizers"), None);
    assert_eq!(
        server
            .get(&format!("{SANDBOXES}/a"))
            .await
            .expect(200)
            .json(),
        made
    );
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_the_registry_can_be_created_read_and_deleted() {
    let server = Server::new();
    let specs = [
        ("Sandbox", json!({})),
        (
            "SandboxPool",
            json!({"template": "t", "minIdle": 0, "maxIdle": 1, "max": 2}),
        ),
        ("SandboxClaim", json!({"pool": "p"})),
        ("SandboxSnapshot", json!({"sandbox": "s"})),
        ("SandboxTemplate", json!({"image": "alpine"})),
        (
            "SandboxRecord",
            json!({
                "sandboxId": "i1", "sandbox": "s", "phase": "Stopped",
                "uid": "00000000-0000-4000-8000-000000000001", "owner": {"team": "team"},
            }),
        ),
        ("Team", json!({"quotas": {"sandboxes": 5}})),
        (
            "ApiKey",
            json!({"displayName": "ci", "hash": "0".repeat(64)}),
        ),
    ];
    assert_eq!(specs.len(), kinds::ALL.len());
    for (kind, spec) in specs {
        let info = kinds::find(kind).unwrap();
        let path = match info.scope {
            kinds::Scope::Namespaced => format!(
                "/apis/dormouse.dev/v1alpha1/namespaces/team/{}",
                info.plural
            ),
            kinds::Scope::Cluster => format!("/apis/dormouse.dev/v1alpha1/{}", info.plural),
        };
        let made = server
            .post(&path, &object(kind, "it", spec))
            .await
            .expect(201)
            .json();
        assert_eq!(
            server.get(&format!("{path}/it")).await.expect(200).json(),
            made
        );
        assert_eq!(
            server.get(&path).await.expect(200).json()["items"],
            json!([made])
        );
        server.delete(&format!("{path}/it")).await.expect(200);
        server
            .get(&format!("{path}/it"))
            .await
            .refused(404, "NotFound");
    }
}

#[tokio::test(start_paused = true)]
async fn yaml_is_taken_and_given() {
    let server = Server::new();
    let yaml = "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata:\n  name: a\nspec:\n  env:\n    A: \"1\"\n";
    let headers = [
        ("content-type", "application/yaml"),
        ("accept", "application/yaml"),
    ];
    let answer = server
        .send(Method::POST, SANDBOXES, &headers, yaml)
        .await
        .expect(201);
    assert_eq!(answer.headers["content-type"], "application/yaml");
    assert!(answer.text.contains("\nkind: Sandbox\n"), "{}", answer.text);
    let headers = [("content-type", "application/yaml")];
    let dup = yaml.replace("    A: \"1\"\n", "    A: \"1\"\n    A: \"2\"\n");
    let answer = server
        .send(Method::POST, SANDBOXES, &headers, dup)
        .await
        .refused(400, "BadRequest");
    assert_eq!(answer.blames(), ["spec.env.A"]);
}

#[tokio::test(start_paused = true)]
async fn generated_names_are_drawn_until_one_is_free() {
    let server = Server::new();
    let mut body = sandbox("x", json!({}), json!({}));
    body["metadata"] = json!({"generateName": "run-"});
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let made = server.post(SANDBOXES, &body).await.expect(201).json();
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name.starts_with("run-") && name.len() == 9, "{name}");
        names.insert(name);
    }
    assert_eq!(names.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_id_cannot_be_taken_from_another() {
    let server = Server::new();
    let made = server.sandbox("a", json!({})).await;
    let body = sandbox(
        "b",
        json!({}),
        json!({"sandboxId": made["spec"]["sandboxId"]}),
    );
    assert_eq!(
        server
            .post(SANDBOXES, &body)
            .await
            .refused(422, "Invalid")
            .blames(),
        ["spec.sandboxId"]
    );
    let elsewhere = SANDBOXES.replace("team", "other");
    assert_eq!(
        server
            .post(&elsewhere, &body)
            .await
            .refused(422, "Invalid")
            .blames(),
        ["spec.sandboxId"]
    );
}

#[tokio::test(start_paused = true)]
async fn replacing_follows_the_rules_of_custom_resources() {
    let server = Server::new();
    let made = server.sandbox("a", json!({"x": "y"})).await;
    let path = format!("{SANDBOXES}/a");
    let before = server.store.version();
    let without = |field: &str| {
        let mut body = made.clone();
        body["metadata"].as_object_mut().unwrap().remove(field);
        body
    };
    let with = |field: &str, value: Value| {
        let mut body = made.clone();
        body["metadata"][field] = value;
        body
    };
    assert_eq!(
        server
            .put(&path, &without("resourceVersion"))
            .await
            .refused(422, "Invalid")
            .blames(),
        ["metadata.resourceVersion"]
    );
    server
        .put(&path, &with("name", json!("b")))
        .await
        .refused(400, "BadRequest");
    server
        .put(&path, &without("name"))
        .await
        .refused(400, "BadRequest");
    server
        .put(
            &path,
            &with("uid", json!("00000000-0000-4000-8000-000000000000")),
        )
        .await
        .refused(409, "Conflict");
    server
        .put(&path, &with("uid", json!("nonsense")))
        .await
        .refused(409, "Conflict");
    server
        .put(&path, &with("resourceVersion", json!("999")))
        .await
        .refused(409, "Conflict");
    server
        .put(&format!("{SANDBOXES}/b"), &with("name", json!("b")))
        .await
        .refused(404, "NotFound");
    // What changes nothing writes nothing.
    server.put(&path, &made).await.expect(200);
    assert_eq!(server.store.version(), before);

    let mut next = made.clone();
    next["spec"]["env"] = json!({"A": "1"});
    next["status"] = json!({"phase": "Running"});
    let changed = server.put(&path, &next).await.expect(200).json();
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(
        changed["status"]["phase"], "Pending",
        "the main resource leaves the status alone"
    );
    assert_eq!(
        server
            .put(&path, &next)
            .await
            .refused(409, "Conflict")
            .blames(),
        ["metadata.resourceVersion"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_manifest_replaces_without_knowing_what_the_server_minted() {
    let server = Server::new();
    let made = server.sandbox("a", json!({})).await;
    let mut manifest = sandbox("a", json!({"x": "z"}), json!({"env": {"B": "2"}}));
    manifest["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let replaced = server
        .put(&format!("{SANDBOXES}/a"), &manifest)
        .await
        .expect(200)
        .json();
    assert_eq!(replaced["spec"]["sandboxId"], made["spec"]["sandboxId"]);
    assert_eq!(replaced["spec"]["env"], json!({"B": "2"}));
}

#[tokio::test(start_paused = true)]
async fn the_status_subresource_writes_status_and_nothing_else() {
    let server = Server::new();
    let made = server.sandbox("a", json!({})).await;
    let path = format!("{SANDBOXES}/a/status");
    let mut next = made.clone();
    next["spec"]["env"] = json!({"A": "1"});
    next["metadata"]["labels"] = json!({"x": "y"});
    next["status"] = json!({"phase": "Running"});
    let changed = server.put(&path, &next).await.expect(200).json();
    assert_eq!(changed["status"]["phase"], "Running");
    assert_eq!(changed["spec"], made["spec"]);
    assert_eq!(changed["metadata"].get("labels"), None);
    assert_eq!(changed["metadata"]["generation"], 1);
    assert_eq!(server.get(&path).await.expect(200).json(), changed);
    let mut bad = changed.clone();
    bad["status"]["phase"] = json!("Dancing");
    assert_eq!(
        server
            .put(&path, &bad)
            .await
            .refused(400, "BadRequest")
            .blames(),
        ["status.phase"]
    );
    let mut bad = changed;
    bad["status"]["mood"] = json!("good");
    assert_eq!(
        server
            .put(&path, &bad)
            .await
            .refused(400, "BadRequest")
            .blames(),
        ["status.mood"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_checks_everything_and_writes_nothing() {
    let server = Server::new();
    let made = server.sandbox("a", json!({})).await;
    let before = server.store.version();
    let path = format!("{SANDBOXES}/a?dryRun=All");
    let all = format!("{SANDBOXES}?dryRun=All");
    let dry = server
        .post(&all, &sandbox("b", json!({}), json!({})))
        .await
        .expect(201)
        .json();
    assert_eq!(dry["metadata"]["name"], "b");
    assert_eq!(dry["metadata"].get("resourceVersion"), None);
    server
        .post(&all, &sandbox("a", json!({}), json!({})))
        .await
        .refused(409, "AlreadyExists");
    server
        .post(&all, &sandbox("B_", json!({}), json!({})))
        .await
        .refused(422, "Invalid");
    let dry = server
        .merge(&path, &json!({"spec": {"env": {"A": "1"}}}))
        .await
        .expect(200)
        .json();
    assert_eq!(dry["spec"]["env"]["A"], "1");
    assert_eq!(dry["metadata"]["generation"], 2);
    let mut next = made.clone();
    next["metadata"]["labels"] = json!({"x": "y"});
    server.put(&path, &next).await.expect(200);
    server.delete(&path).await.expect(200);
    let body = json!({"dryRun": ["All"]}).to_string();
    server
        .send(Method::DELETE, &format!("{SANDBOXES}/a"), &[], body)
        .await
        .expect(200);
    server.delete(&all).await.expect(200);
    assert_eq!(server.store.version(), before);
    assert_eq!(
        server
            .get(&format!("{SANDBOXES}/a"))
            .await
            .expect(200)
            .json(),
        made
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_503_and_not_to_be_repeated_blindly() {
    let server = Server::new();
    let body = sandbox("a", json!({}), json!({}));
    server
        .store
        .faults()
        .fail_nth_write(1, WriteFault::FailAfter);
    let answer = server
        .post(SANDBOXES, &body)
        .await
        .refused(503, "ServiceUnavailable");
    assert!(!answer.headers.contains_key("retry-after"));
    server.get(&format!("{SANDBOXES}/a")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_stored_record_that_cannot_be_read_is_not_blamed_on_the_client() {
    let server = Server::new();
    let draft = store::Draft {
        kind: model::KindName("Sandbox"),
        meta: model::Metadata::new(
            Some(model::Namespace::new("team").unwrap()),
            model::Name::new("a").unwrap(),
        ),
        spec: r#"{"env":7}"#.into(),
        status: "{}".into(),
        fields: model::StringMap::new(),
    };
    server.store.create(draft).await.unwrap();
    let path = format!("{SANDBOXES}/a");
    let status = json!({"status": {"phase": "Running"}});
    server
        .merge(&format!("{path}/status"), &status)
        .await
        .refused(500, "InternalError");
    // It can still be looked at and removed.
    server.get(&path).await.expect(200);
    server.delete(&path).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_write_outlives_the_client_that_asked_for_it() {
    let server = Server::new();
    let request = http::Request::post(SANDBOXES)
        .header("authorization", format!("Bearer {}", crate::support::TOKEN))
        .body(axum::body::Body::from(
            sandbox("a", json!({}), json!({})).to_string(),
        ))
        .unwrap();
    let mut call = Box::pin(server.open(request));
    // The client leaves as soon as the write is under way.
    let left = tokio::select! {
        biased;
        _ = &mut call => false,
        () = std::future::ready(()) => true,
    };
    drop(call);
    server
        .tasks
        .drain(std::time::Duration::from_secs(1))
        .await
        .unwrap();
    let key = model::Key::namespaced(
        model::KindName("Sandbox"),
        model::Namespace::new("team").unwrap(),
        model::Name::new("a").unwrap(),
    );
    let stored = server
        .store
        .find::<model::sandbox::SandboxSpec>(&key)
        .await
        .unwrap();
    assert!(left && stored.is_some());
}

#[tokio::test(start_paused = true)]
async fn objects_are_written_only_where_they_belong() {
    let server = Server::new();
    let everywhere = "/apis/dormouse.dev/v1alpha1/sandboxes";
    server
        .post(everywhere, &sandbox("a", json!({}), json!({})))
        .await
        .refused(405, "MethodNotAllowed");
    server
        .delete(everywhere)
        .await
        .refused(405, "MethodNotAllowed");
    server
        .get(&format!("{everywhere}/a"))
        .await
        .refused(404, "NotFound");
    let template = object("SandboxTemplate", "t", json!({"image": "a"}));
    server
        .post(
            "/apis/dormouse.dev/v1alpha1/namespaces/team/sandboxtemplates",
            &template,
        )
        .await
        .refused(404, "NotFound");
    server.post(TEMPLATES, &template).await.expect(201);
    server
        .post("/api/v1/namespaces/team/events", &json!({}))
        .await
        .refused(405, "MethodNotAllowed");
}
