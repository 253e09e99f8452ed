//! What plugins refuse, as clients see it, and what a request for one object says of its troubles.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ::plugins::{Admission, Creation, Hold, Plugin, Plugins, Purpose, Refusal};
use async_trait::async_trait;
use model::{
    Sandbox, SandboxPool, Timestamp, Version,
    event::{ABOUT_LABEL, About, Event, EventSpec, Severity},
    validate::{Cause, Problem},
};
use serde_json::{Value, json};
use store::StoreExt as _;

use crate::support::{SANDBOXES, Server, object, sandbox};

const POOLS: &str = "/apis/dormouse.dev/v1alpha1/namespaces/team/sandboxpools";

/// Refuses by the name of what it is asked about.
#[derive(Debug)]
struct ByName;

#[async_trait]
impl Plugin for ByName {
    fn name(&self) -> &'static str {
        "by-name"
    }

    async fn before_pool_create(&self, pool: &SandboxPool) -> Result<(), Refusal> {
        match pool.metadata.name.as_str() {
            "wrong" => Err(Refusal::Invalid(Problem {
                field: "spec.max".into(),
                cause: Cause::Invalid,
                reason: "too many".into(),
                remedy: "use fewer".into(),
            })),
            "banned" => Err(Refusal::Forbidden("ask the owner first".into())),
            "early" => Err(Refusal::NotNow {
                why: "at night".into(),
                retry_after: Duration::from_secs(90),
            }),
            _ => Ok(()),
        }
    }

    async fn before_pool_update(
        &self,
        old: &SandboxPool,
        new: &SandboxPool,
    ) -> Result<(), Refusal> {
        if new.spec.max > old.spec.max {
            return Err(Refusal::Forbidden("it may only shrink".into()));
        }
        Ok(())
    }

    async fn before_pool_delete(&self, pool: &SandboxPool) -> Result<(), Refusal> {
        match pool.metadata.labels.get("keep") {
            Some(_) => Err(Refusal::Forbidden("it is to be kept".into())),
            None => Ok(()),
        }
    }

    async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
        if wanted.spec.metadata.contains_key("greedy") {
            return Admission::some(0, "greedy", Duration::from_secs(7));
        }
        Admission::all(wanted)
    }
}

fn pool(name: &str, labels: Value, max: u32) -> Value {
    let spec = json!({"template": "t", "minIdle": 0, "maxIdle": 1, "max": max});
    let mut pool = object("SandboxPool", name, spec);
    pool["metadata"]["labels"] = labels;
    pool
}

#[tokio::test(start_paused = true)]
async fn a_plugin_refuses_pools_and_sandboxes_by_name_and_reason() {
    let server = Server::with_plugins(Plugins::new(vec![Arc::new(ByName)]));
    let create = async |name: &str| server.post(POOLS, &pool(name, json!({}), 2)).await;
    let wrong = create("wrong").await.refused(422, "Invalid");
    assert_eq!(wrong.blames(), ["spec.max"]);
    assert!(wrong.text.contains("by-name"), "{}", wrong.text);
    let banned = create("banned").await.refused(403, "Forbidden");
    assert!(banned.text.contains("by-name: ask the owner first"));
    let early = create("early").await.refused(429, "TooManyRequests");
    assert_eq!(early.headers["retry-after"], "90");
    let kept = pool("kept", json!({"keep": "yes"}), 2);
    server.post(POOLS, &kept).await.expect(201);
    let path = format!("{POOLS}/kept");
    let grow = json!({"spec": {"max": 3}});
    server.merge(&path, &grow).await.refused(403, "Forbidden");
    let shrink = json!({"spec": {"max": 1}});
    server.merge(&path, &shrink).await.expect(200);
    server.delete(&path).await.refused(403, "Forbidden");
    server.get(&path).await.expect(200);
    let greedy = sandbox("a", json!({}), json!({"metadata": {"greedy": "1"}}));
    let refused = server.post(SANDBOXES, &greedy).await;
    let refused = refused.refused(429, "TooManyRequests");
    assert_eq!(refused.headers["retry-after"], "7");
    let modest = sandbox("a", json!({}), json!({}));
    server.post(SANDBOXES, &modest).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_one_object_brings_its_latest_warnings_and_a_list_brings_none() {
    let server = Server::new();
    let body = sandbox("a", json!({}), json!({}));
    let made = server.post(SANDBOXES, &body).await.expect(201).json();
    let uid = made["metadata"]["uid"].as_str().unwrap();
    for n in 0..7u8 {
        let severity = match n {
            6 => Severity::Normal,
            _ => Severity::Warning,
        };
        let namespace = Some(model::Namespace::new("team").unwrap());
        let name = model::Name::new(format!("e{n}")).unwrap();
        let mut meta = model::Metadata::new(namespace.clone(), name);
        meta.labels.insert(ABOUT_LABEL, uid);
        let spec = EventSpec {
            about: About {
                kind: "Sandbox".into(),
                namespace,
                name: model::Name::new("a").unwrap(),
                uid: uid.parse().unwrap(),
            },
            severity,
            reason: format!("R{n}").into(),
            message: "it failed".into(),
            count: 2,
            first_seen: Timestamp::from_micros(0),
            last_seen: Timestamp::from_micros(n.into()),
        };
        server
            .store
            .create_object(&Event::new(meta, spec))
            .await
            .unwrap();
    }
    let path = format!("{SANDBOXES}/a");
    let got = server.get(&path).await.expect(200).json();
    let warnings = got["status"]["recentWarnings"].as_array().unwrap();
    let reasons: Vec<_> = warnings.iter().map(|w| w["reason"].as_str()).collect();
    assert_eq!(
        reasons,
        [Some("R5"), Some("R4"), Some("R3"), Some("R2"), Some("R1")]
    );
    assert_eq!(warnings[0]["count"], 2);
    let listed = server.get(SANDBOXES).await.expect(200).json();
    assert!(listed["items"][0]["status"]["recentWarnings"].is_null());
    // What was read can be sent back as it is, and is not kept.
    let status = format!("{path}/status");
    let got = server.put(&status, &got).await.expect(200).json();
    assert!(got["status"]["recentWarnings"].is_null());
    let got = server.get(&path).await.expect(200).json();
    server.put(&path, &got).await.expect(200);
    let key = model::Key::namespaced(
        model::KindName("Sandbox"),
        model::Namespace::new("team").unwrap(),
        model::Name::new("a").unwrap(),
    );
    let found: Option<Sandbox> = server.store.find(&key).await.unwrap();
    assert!(found.unwrap().status.recent_warnings.is_empty());
}

/// Sets something aside for each sandbox, and writes down what became of it.
#[derive(Debug, Default)]
struct Shelf(Arc<Mutex<Vec<String>>>);

#[derive(Debug)]
struct Set {
    log: Arc<Mutex<Vec<String>>>,
    end: String,
}

impl Hold for Set {
    fn written(mut self: Box<Self>, version: Version) {
        self.end = format!("written at {version}");
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(std::mem::take(&mut self.end));
    }
}

#[async_trait]
impl Plugin for Shelf {
    fn name(&self) -> &'static str {
        "shelf"
    }

    async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
        assert_eq!(wanted.ids.len(), 1);
        if wanted.purpose == Purpose::Changed {
            self.0.lock().unwrap().push("changed".into());
        }
        let mut answer = Admission::all(wanted);
        answer.holds.push(Box::new(Set {
            log: Arc::clone(&self.0),
            end: "given back".into(),
        }));
        answer
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_set_aside_is_kept_until_the_sandbox_is_written() {
    let shelf = Arc::new(Shelf::default());
    let log = || std::mem::take(&mut *shelf.0.lock().unwrap());
    let server = Server::with_plugins(Plugins::new(vec![Arc::clone(&shelf) as Arc<dyn Plugin>]));
    let body = sandbox("a", json!({}), json!({}));
    let dry = format!("{SANDBOXES}?dryRun=All");
    server.post(&dry, &body).await.expect(201);
    assert_eq!(log(), ["given back"]);
    let made = server.post(SANDBOXES, &body).await.expect(201).json();
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(log(), [format!("written at {version}")]);
    let taken = server.post(SANDBOXES, &body).await;
    taken.refused(409, "AlreadyExists");
    assert_eq!(log(), ["given back"]);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_made_larger_or_woken_is_asked_for_and_no_other_change_is() {
    let shelf = Arc::new(Shelf::default());
    let log = || std::mem::take(&mut *shelf.0.lock().unwrap());
    let server = Server::with_plugins(Plugins::new(vec![Arc::clone(&shelf) as Arc<dyn Plugin>]));
    let body = sandbox("a", json!({}), json!({}));
    server.post(SANDBOXES, &body).await.expect(201);
    log();
    let path = format!("{SANDBOXES}/a");
    let change = async |spec: Value| server.merge(&path, &json!({"spec": spec})).await;
    for (spec, asks) in [
        (json!({"env": {"A": "1"}}), false),
        (json!({"resources": {"memoryMiB": 2048}}), true),
        (json!({"desiredState": "Paused"}), false),
        (json!({"resources": {"memoryMiB": 4096}}), false),
        (json!({"desiredState": "Running"}), true),
    ] {
        let written = change(spec.clone()).await.expect(200).json();
        let version = written["metadata"]["resourceVersion"].as_str().unwrap();
        let expected = match asks {
            true => vec!["changed".to_owned(), format!("written at {version}")],
            false => Vec::new(),
        };
        assert_eq!(log(), expected, "{spec}");
    }
}
