//! Metrics, logs, templates, teams, keys, what is not built, and what is counted.

use auth::key::NewKey;
use e2b::{Ending, ports::Sample};
use model::{
    Metadata, SandboxId, SandboxTemplate, Timestamp, Uid,
    team::Quotas,
    template::{BuildTag, Built},
};
use serde_json::{Value, json};
use store::StoreExt as _;

use crate::support::{World, name, team, template};

#[tokio::test(start_paused = true)]
async fn metrics_are_those_that_were_sampled() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    let path = format!("/sandboxes/{id}/metrics");
    assert_eq!(client.get(&path).await.body, json!([]));
    for second in 1..=3 {
        let sample = Sample {
            at: Timestamp::from_micros(second * 1_000_000 + 5),
            cpu_count: 2,
            cpu_used_percent: 12.5,
            memory_used: 10,
            memory_total: 20,
            memory_cache: 5,
            disk_used: 1,
            disk_total: 2,
        };
        world.sampler.record(&SandboxId::new(&id).unwrap(), sample);
    }
    let all = client.get(&path).await.body;
    assert_eq!(all.as_array().unwrap().len(), 3);
    assert_eq!(
        all[0],
        json!({
            "timestamp": "1970-01-01T00:00:01.000005Z", "timestampUnix": 1, "cpuCount": 2,
            "cpuUsedPct": 12.5, "memUsed": 10, "memTotal": 20, "memCache": 5, "diskUsed": 1,
            "diskTotal": 2,
        })
    );
    let some = client.get(&format!("{path}?start=2&end=2")).await.body;
    assert_eq!(some.as_array().unwrap().len(), 1);
    assert_eq!(
        client.get(&format!("{path}?start=3&end=2")).await.status,
        400
    );
    let many = client
        .get(&format!("/sandboxes/metrics?sandbox_ids={id},other"))
        .await;
    assert_eq!(many.body["sandboxes"][&id]["timestampUnix"], 3);
    let too_many = vec!["x"; 101].join(",");
    let reply = client
        .get(&format!("/sandboxes/metrics?sandbox_ids={too_many}"))
        .await;
    assert_eq!(reply.status, 400);
    assert_eq!(client.get("/sandboxes/metrics").await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn logs_tell_the_life_of_a_sandbox() {
    let world = World::new().await;
    let client = world.client("a").await;
    let id = client.create(json!({})).await;
    world.settle().await;
    client.pause(&id).await;
    world.settle().await;
    let first = client.get(&format!("/sandboxes/{id}/logs")).await.body;
    let line: Value = serde_json::from_str(first["logs"][0]["line"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&line["level"], &line["logger"]),
        (&json!("info"), &json!("lifecycle"))
    );
    assert_eq!(first["logs"].as_array().unwrap().len(), 2);
    assert_eq!(first["logEntries"][1]["fields"]["reason"], "Paused");
    let second = format!("/v2/sandboxes/{id}/logs");
    let list = async |query: &str| {
        let reply = client.get(&format!("{second}{query}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let logs = reply.body["logs"].as_array().unwrap().clone();
        let reasons = logs
            .iter()
            .map(|l| l["fields"]["reason"].as_str().unwrap().to_owned());
        reasons.collect::<Vec<_>>()
    };
    assert_eq!(list("").await, ["Running", "Paused"]);
    assert_eq!(list("?direction=backward&limit=1").await, ["Paused"]);
    assert_eq!(list("?search=asleep").await, ["Paused"]);
    assert!(list("?level=error").await.is_empty());
    for bad in ["?limit=1001", "?direction=up", "?level=loud", "?cursor=-1"] {
        assert_eq!(
            client.get(&format!("{second}{bad}")).await.status,
            400,
            "{bad}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn templates_are_those_a_team_may_use() {
    let world = World::new().await;
    let (a, b) = (world.client("a").await, world.client("b").await);
    let names = |body: &Value| -> Vec<String> {
        let all = body.as_array().unwrap().iter();
        all.map(|t| t["templateID"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&a.get("/templates?teamID=a").await.body), ["base"]);
    assert_eq!(names(&a.get("/templates?teamID=b").await.body), [""; 0]);
    assert_eq!(names(&b.get("/templates").await.body), ["base", "private"]);
    let page = b.get("/v2/templates?limit=1").await;
    assert_eq!(names(&page.body), ["base"]);
    let next = page.header("x-next-token").unwrap();
    let page = b
        .get(&format!("/v2/templates?limit=1&nextToken={next}"))
        .await;
    assert_eq!(names(&page.body), ["private"]);
    assert!(page.header("x-next-token").is_none());
    let base = a.get("/templates/base").await.body;
    assert_eq!(base["public"], true);
    assert_eq!(base["builds"][0]["status"], "ready");
    assert!(
        base["buildID"]
            .as_str()
            .unwrap()
            .parse::<model::Uid>()
            .is_ok()
    );
    assert_eq!(a.get("/templates/private").await.status, 404);
    assert_eq!(
        a.get("/templates/aliases/base").await.body,
        json!({"templateID": "base", "public": true})
    );
    assert_eq!(
        a.get("/templates/aliases/a%2Fbase%3Adefault").await.status,
        200
    );
    assert_eq!(a.get("/templates/aliases/private").await.status, 404);
    let defaults = a.get("/default-templates").await.body;
    assert_eq!(names(&defaults), ["base"]);
    assert_eq!(defaults[0]["isDefault"], true);
}

#[tokio::test(start_paused = true)]
async fn a_template_answers_to_its_aliases_and_their_tags() {
    let world = World::new().await;
    let (a, b) = (world.client("a").await, world.client("b").await);
    for (called, teams, aliases) in [
        ("node-22", &[][..], &["node", "node:22", "js_runtime"][..]),
        ("secret-node", &["b"][..], &["node", "hidden"][..]),
    ] {
        let mut spec = template(teams);
        spec.aliases = aliases.iter().map(|alias| (*alias).into()).collect();
        let object = SandboxTemplate::new(Metadata::new(None, name(called)), spec);
        world.store.create_object(&object).await.unwrap();
    }
    world.settle().await;
    for known in ["node", "node:22", "js_runtime", "a/node:default", "node-22"] {
        let known = known.replace('/', "%2F").replace(':', "%3A");
        let reply = a.get(&format!("/templates/aliases/{known}")).await;
        let expected = json!({"templateID": "node-22", "public": true});
        assert_eq!(reply.body, expected, "{known}");
        let whole = a.get(&format!("/templates/{known}")).await.body;
        assert_eq!(whole["aliases"], json!(["node-22", "node", "js_runtime"]));
    }
    for unknown in [
        "hidden",
        "node:18",
        "node-22:22",
        "b/node",
        "js_runtime:22",
        "Node",
        "",
    ] {
        let path = unknown.replace('/', "%2F").replace(':', "%3A");
        let reply = a.get(&format!("/templates/aliases/{path}")).await;
        assert_eq!(reply.status, 404, "{unknown}");
    }
    // Another's alias of the same name changes nothing for those who may not use it.
    assert_eq!(b.get("/templates/aliases/hidden").await.status, 200);
    let tags = a.get("/templates/node/tags").await.body;
    let tags: Vec<_> = tags.as_array().unwrap().iter().map(|t| &t["tag"]).collect();
    assert_eq!(tags, ["22", "default"]);
    let id = a.create(json!({"templateID": "node:22"})).await;
    assert_eq!(a.detail(&id).await["templateID"], "node-22");
    for (filter, count) in [("node", 1), ("node-22", 1), ("js_runtime", 1), ("base", 0)] {
        let listed = a
            .get(&format!("/v2/sandboxes?template={filter}"))
            .await
            .body;
        assert_eq!(listed.as_array().unwrap().len(), count, "{filter}");
    }
    assert_eq!(a.get("/v2/sandboxes?template=node:22").await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn keys_are_made_listed_renamed_and_revoked() {
    let world = World::new().await;
    let client = world.client("a").await;
    let teams = client.get("/teams").await.body;
    assert_eq!(teams[0]["teamID"], "a");
    assert_eq!(teams[0]["apiKey"], client.key);
    let bearer = http::Request::get("/teams")
        .header("authorization", format!("Bearer {}", client.key))
        .body(axum::body::Body::empty())
        .unwrap();
    assert_eq!(client.send(bearer).await.status, 200);
    let made = client.post("/api-keys", json!({"name": "second"})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let key = made.body["key"].as_str().unwrap();
    assert!(key.starts_with("e2b_") && key.len() == 44, "{key}");
    let second = client.stranger(key);
    assert_eq!(second.get("/v2/sandboxes").await.status, 200);
    let id = made.body["id"].as_str().unwrap();
    let path = format!("/api-keys/{id}");
    let renamed = json!({"name": "other"});
    let reply = client
        .send(client.request("PATCH", &path, Some(&renamed)))
        .await;
    assert_eq!((reply.status, &reply.body["name"]), (200, &json!("other")));
    let listed = client.get("/api-keys").await;
    assert!(listed.text.contains("\"other\"") && !listed.text.contains(key));
    let stranger = world.client("b").await;
    assert_eq!(stranger.delete(&path).await.status, 404);
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(second.get("/v2/sandboxes").await.status, 401);
    assert_eq!(client.delete(&path).await.status, 404);
    assert_eq!(
        client.post("/api-keys", json!({"name": ""})).await.status,
        400
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_with_limits_of_its_own_manages_no_keys() {
    let world = World::new().await;
    let free = world.client("a").await;
    let made = free.post("/api-keys", json!({"name": "second"})).await;
    let path = format!("/api-keys/{}", made.body["id"].as_str().unwrap());
    let quotas = Quotas {
        running_sandboxes: Some(1),
        ..Quotas::default()
    };
    let mut wish = NewKey::named("limited");
    wish.quotas = quotas;
    let limited = world.keys.create(&team("a"), wish).await.unwrap();
    let limited = free.stranger(limited.key.reveal());
    let name = json!({"name": "mine"});
    let rename = limited.request("PATCH", &path, Some(&name));
    for reply in [
        limited.post("/api-keys", name.clone()).await,
        limited.send(rename).await,
        limited.delete(&path).await,
    ] {
        assert_eq!((reply.status, &reply.body["code"]), (403, &json!(403)));
    }
    assert_eq!(free.delete(&path).await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_built_says_so_and_is_counted() {
    let world = World::new().await;
    let client = world.client("a").await;
    for (path, what) in [
        ("/volumes", "volumes"),
        ("/secrets", "secrets"),
        ("/events/webhooks", "webhooks"),
        ("/templates/base/tags/groups", "tags"),
        ("/admin/anything/else", "admin"),
    ] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 501, "{path}");
        assert!(reply.message().contains(what), "{}", reply.text);
        assert_eq!(reply.header("should-retry"), Some("false"));
    }
    client.get("/volumes").await;
    let stats = world.api.stats();
    let volumes = stats.iter().find(|r| r.path == "/volumes").unwrap();
    assert_eq!(volumes.endings[Ending::NotBuilt as usize], 2);
    assert_eq!(client.get("/health").await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_see_its_records_says_so_and_nothing_else() {
    let world = World::new().await;
    let client = world.client("a").await;
    assert_eq!(client.get("/health").await.status, 204);
    // With their tasks, the caches and the keys come to an end.
    let _ = world.tasks.drain(std::time::Duration::ZERO).await;
    world.settle().await;
    for path in ["/health", "/v2/sandboxes", "/templates/base", "/snapshots"] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 503, "{path}: {}", reply.text);
        assert!(reply.message().contains("not ready"), "{}", reply.text);
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    let create = client.post("/v2/sandboxes", json!({})).await;
    assert_eq!(create.status, 503, "{}", create.text);
}

#[tokio::test(start_paused = true)]
async fn the_audit_goes_both_ways_in_pages() {
    let world = World::new().await;
    let client = world.client("a").await;
    for _ in 0..5 {
        client.create(json!({})).await;
    }
    let numbers = |body: &Value| -> Vec<u64> {
        let all = body["entries"].as_array().unwrap().iter();
        all.map(|entry| entry["seq"].as_u64().unwrap()).collect()
    };
    let all = numbers(&client.get("/dormouse/audit").await.body);
    let mut backwards = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/dormouse/audit?order=desc&limit=2{after}");
        let page = client.get(&path).await.body;
        backwards.extend(numbers(&page));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
    }
    backwards.reverse();
    assert_eq!((all.len(), &backwards), (5, &all));
    assert_eq!(client.get("/dormouse/audit?order=up").await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn a_name_means_a_teams_own_build_before_one_that_is_shared_with_it() {
    let world = World::new().await;
    let client = world.client("a").await;
    for (called, builder, teams, at) in [
        ("tone", "a", &["a"][..], 1_000_000_i64),
        // Tagged later.
        ("tother", "b", &["a", "b"][..], 2_000_000),
    ] {
        let mut spec = template(teams);
        spec.build = Some(Box::new(Built {
            template: name(called),
            name: "app".into(),
            team: Some(team(builder)),
            id: Uid::from_random(u128::from(at.unsigned_abs())),
            tags: vec![BuildTag {
                tag: "default".into(),
                assigned_at: Timestamp::from_micros(at),
            }],
        }));
        let meta = Metadata::new(None, name(&format!("{called}-1")));
        let made = SandboxTemplate::new(meta, spec);
        world.store.create_object(&made).await.unwrap();
    }
    world.settle().await;
    let id = client.create(json!({"templateID": "app"})).await;
    let used = world.records().await;
    let used = used.iter().find(|s| {
        s.spec
            .sandbox_id
            .as_ref()
            .is_some_and(|its| its.as_str() == id)
    });
    let used = used.and_then(|sandbox| sandbox.spec.template.clone());
    assert_eq!(used, Some(name("tone-1")));
}
