//! Getting and listing: selectors, pages, versions, tables.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use crate::support::{SANDBOXES, Server, TABLE, sandbox};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn selectors_narrow_a_list() {
    let server = Server::new();
    for (name, labels, spec) in [
        (
            "a",
            json!({"env": "dev", "n": "1"}),
            json!({"template": "base"}),
        ),
        (
            "b",
            json!({"env": "prod", "n": "5"}),
            json!({"template": "base"}),
        ),
        ("c", json!({"n": "9"}), json!({"pool": "p"})),
    ] {
        server
            .post(SANDBOXES, &sandbox(name, labels, spec))
            .await
            .expect(201);
    }
    server
        .merge(
            &format!("{SANDBOXES}/b/status"),
            &json!({"status": {"phase": "Running"}}),
        )
        .await
        .expect(200);
    let table: &[(&str, &[&str])] = &[
        ("", &["a", "b", "c"]),
        ("labelSelector=env%3Ddev", &["a"]),
        ("labelSelector=env!%3Ddev", &["b", "c"]),
        ("labelSelector=env%20in%20(dev,prod)", &["a", "b"]),
        ("labelSelector=env%20notin%20(dev)", &["b", "c"]),
        ("labelSelector=env", &["a", "b"]),
        ("labelSelector=!env", &["c"]),
        ("labelSelector=n%3E4,n%3C9", &["b"]),
        ("fieldSelector=metadata.name%3Db", &["b"]),
        ("fieldSelector=metadata.name!%3Db", &["a", "c"]),
        ("fieldSelector=metadata.namespace%3Dteam", &["a", "b", "c"]),
        ("fieldSelector=metadata.namespace%3Dother", &[]),
        (
            "fieldSelector=spec.template%3Dbase,status.phase!%3DRunning",
            &["a"],
        ),
        ("fieldSelector=status.phase%3D%3DRunning", &["b"]),
        ("fieldSelector=spec.pool%3D", &["a", "b"]),
        ("fieldSelector=spec.pool!%3D", &["c"]),
        ("fieldSelector=metadata.name%3DNo_Name", &[]),
        (
            "fieldSelector=metadata.name%3Da&labelSelector=env%3Dprod",
            &[],
        ),
    ];
    for (query, expected) in table {
        for path in [SANDBOXES, "/apis/dormouse.dev/v1alpha1/sandboxes"] {
            let list = server
                .get(&format!("{path}?{query}"))
                .await
                .expect(200)
                .json();
            assert_eq!(list["kind"], "SandboxList");
            assert_eq!(names(&list), *expected, "{path} {query}");
            // The same in pages of one.
            let mut paged = Vec::new();
            let mut next = String::new();
            loop {
                let page = server
                    .get(&format!("{path}?{query}&limit=1{next}"))
                    .await
                    .expect(200)
                    .json();
                paged.extend(names(&page));
                match page["metadata"]["continue"].as_str() {
                    Some(token) => next = format!("&continue={token}"),
                    None => break,
                }
            }
            assert_eq!(paged, *expected, "{path} {query} in pages");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pages_never_skip_or_repeat_while_objects_come_and_go() {
    let server = Server::new();
    let stay: BTreeSet<String> = (0..40).map(|i| format!("stay-{:02}", i * 2)).collect();
    for name in &stay {
        server.sandbox(name, json!({})).await;
    }
    let first = server
        .get(&format!("{SANDBOXES}?limit=7"))
        .await
        .expect(200)
        .json();
    let version = first["metadata"]["resourceVersion"].clone();
    let mut seen = names(&first);
    let mut page = first;
    let mut churn = 0;
    while let Some(token) = page["metadata"]["continue"].as_str().map(str::to_owned) {
        // Behind, ahead and at the very place where the page was cut.
        for name in [
            format!("a-{churn}"),
            format!("stay-{:02}", 79 - churn),
            format!("{}-x", seen.last().unwrap()),
        ] {
            server.sandbox(&name, json!({})).await;
        }
        server
            .delete(&format!("{SANDBOXES}/a-{churn}"))
            .await
            .expect(200);
        churn += 2;
        page = server
            .get(&format!("{SANDBOXES}?limit=7&continue={token}"))
            .await
            .expect(200)
            .json();
        assert_eq!(
            page["metadata"]["resourceVersion"], version,
            "a watch from it must miss nothing"
        );
        seen.extend(names(&page));
    }
    let unique: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(unique.len(), seen.len(), "repeated");
    assert!(stay.is_subset(&unique), "skipped");
}

#[tokio::test(start_paused = true)]
async fn a_broken_or_foreign_continue_token_is_410() {
    let server = Server::new();
    for name in ["a", "b"] {
        server.sandbox(name, json!({})).await;
    }
    let page = server
        .get(&format!("{SANDBOXES}?limit=1"))
        .await
        .expect(200)
        .json();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let pools = SANDBOXES.replace("sandboxes", "sandboxpools");
    for path in [
        format!("{SANDBOXES}?continue=nonsense"),
        format!("{SANDBOXES}?continue={}", &token[..token.len() - 4]),
        format!("{SANDBOXES}?continue={token}&labelSelector=a"),
        format!("{}?continue={token}", SANDBOXES.replace("team", "other")),
        format!("{pools}?continue={token}"),
    ] {
        server.get(&path).await.refused(410, "Expired");
    }
    server
        .get(&format!("{SANDBOXES}?continue={token}&resourceVersion=1"))
        .await
        .refused(400, "BadRequest");
    server
        .get(&format!("{SANDBOXES}?continue={token}"))
        .await
        .expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_as_fresh_as_the_client_demands() {
    let server = Server::new();
    server.sandbox("a", json!({})).await;
    let now = server.store.version();
    for query in [
        "resourceVersion=0".to_owned(),
        format!("resourceVersion={now}"),
        format!("resourceVersion={now}&resourceVersionMatch=Exact"),
        "resourceVersion=1&resourceVersionMatch=NotOlderThan".to_owned(),
    ] {
        let list = server
            .get(&format!("{SANDBOXES}?{query}"))
            .await
            .expect(200)
            .json();
        assert_eq!(
            list["metadata"]["resourceVersion"],
            now.to_string(),
            "{query}"
        );
    }
    let future = now.next();
    let answer = server
        .get(&format!("{SANDBOXES}?resourceVersion={future}"))
        .await
        .refused(504, "Timeout");
    assert_eq!(
        answer.json()["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    server
        .get(&format!("{SANDBOXES}/a?resourceVersion={future}"))
        .await
        .refused(504, "Timeout");
    server.sandbox("b", json!({})).await;
    server
        .get(&format!(
            "{SANDBOXES}?resourceVersion={now}&resourceVersionMatch=Exact"
        ))
        .await
        .refused(410, "Expired");
}

#[tokio::test(start_paused = true)]
async fn tables_have_columns_ages_and_as_much_of_the_object_as_asked() {
    let server = Server::new();
    server.sandbox("a", json!({})).await;
    tokio::time::advance(std::time::Duration::from_secs(300)).await;
    let accept = [("accept", TABLE)];
    for path in [SANDBOXES.to_owned(), format!("{SANDBOXES}/a")] {
        let table = server
            .send(Method::GET, &path, &accept, "")
            .await
            .expect(200)
            .json();
        assert_eq!(table["kind"], "Table");
        let columns: Vec<_> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(columns[..3], ["Name", "Phase", "Template"]);
        assert_eq!(columns.last(), Some(&"Age"));
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(cells.len(), columns.len());
        assert_eq!(cells[..3], [json!("a"), json!("Pending"), Value::Null]);
        assert_eq!(cells.last(), Some(&json!("5m")));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["object"]["metadata"]["namespace"], "team");
    }
    let whole = server
        .send(
            Method::GET,
            &format!("{SANDBOXES}?includeObject=Object"),
            &accept,
            "",
        )
        .await
        .json();
    assert_eq!(whole["rows"][0]["object"]["kind"], "Sandbox");
    let none = server
        .send(
            Method::GET,
            &format!("{SANDBOXES}?includeObject=None"),
            &accept,
            "",
        )
        .await
        .json();
    assert_eq!(none["rows"][0]["object"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn the_answer_has_the_form_the_client_accepts() {
    let server = Server::new();
    server.sandbox("a", json!({})).await;
    let get = |accept: &'static str| {
        let server = &server;
        async move {
            server
                .send(Method::GET, SANDBOXES, &[("accept", accept)], "")
                .await
        }
    };
    assert_eq!(
        get("application/vnd.kubernetes.protobuf,application/json")
            .await
            .expect(200)
            .json()["kind"],
        "SandboxList"
    );
    get("application/vnd.kubernetes.protobuf")
        .await
        .refused(406, "NotAcceptable");
    let partial = get("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
        .await
        .expect(200)
        .json();
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert_eq!(partial["items"][0].get("spec"), None);
    assert!(
        get("application/yaml")
            .await
            .expect(200)
            .text
            .contains("kind: SandboxList")
    );
    let pretty = server
        .get(&format!("{SANDBOXES}?pretty=true"))
        .await
        .expect(200);
    assert!(
        pretty.text.contains("\n  \"kind\": \"SandboxList\""),
        "{}",
        pretty.text
    );
    let head = server
        .send(Method::HEAD, SANDBOXES, &[], "")
        .await
        .expect(200);
    assert_eq!(head.text, "");
}
