//! An API server that is busy, broken, forgetful or away. Only the stand-in can be made so.

use std::{sync::Arc, time::Duration};

use cache::SandboxCache;
use cluster_kube::Call;
use http::{Method, Request};
use kit::{Entropy, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Sandbox, Spec as _, lifecycle::Phase, meta::API_VERSION,
    pool::PoolSpec, sandbox::SandboxSpec,
};
use serde_json::{Value, json};
use standin_kube::Fault;
use store::{Outcome, Query, Scope, Store, StoreError, StoreExt as _, Watch, WatchEvent};
use tokio::time::{Instant, timeout};

use crate::cluster::{GROUP, Lab, store_of};

pub(crate) fn sandbox(name: &str) -> Sandbox {
    let namespace = Namespace::new("team").unwrap();
    let metadata = Metadata::new(Some(namespace), Name::new(name).unwrap());
    Object::new(metadata, SandboxSpec::default())
}

pub(crate) async fn next_change(watch: &mut dyn Watch) -> Result<WatchEvent, StoreError> {
    loop {
        let next = timeout(Duration::from_secs(30), watch.next()).await;
        match next.expect("nothing was seen")? {
            WatchEvent::Bookmark(_) => {}
            change @ (WatchEvent::Put { .. } | WatchEvent::Removed { .. }) => return Ok(change),
        }
    }
}

pub(crate) async fn watch_from_now(store: &dyn Store) -> Box<dyn Watch> {
    let query = Query::kind(SandboxSpec::KIND);
    let version = store.list(&query).await.unwrap().version;
    store
        .watch(Scope::kind(SandboxSpec::KIND), version)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_server_with_too_many_requests_is_waited_for() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let mut made = store.create_object(&sandbox("box")).await.unwrap();
    let faults = lab.api_server().faults();
    faults.next(2, &Method::PUT, "sandboxes", Fault::TooManyRequests(0));
    made.spec.env.insert("A", "1");
    let written = store.update_spec(&made).await.unwrap();
    assert_eq!(written.spec.env.get("A"), Some("1"));
}

#[tokio::test]
async fn a_write_whose_answer_says_failure_is_in_doubt_and_not_repeated() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let mut made = store.create_object(&sandbox("box")).await.unwrap();
    let faults = lab.api_server().faults();
    for (fault, happens) in [(Fault::InternalAfter, true), (Fault::Internal, false)] {
        faults.next(1, &Method::PUT, "sandboxes", fault);
        made.spec.env.insert("A", format!("{fault:?}"));
        let failed = store.update_spec(&made).await;
        let Err(StoreError::Unavailable { outcome, .. }) = failed else {
            panic!("{failed:?}");
        };
        assert_eq!(outcome, Outcome::Unknown);
        let now: Sandbox = store.find(&made.key()).await.unwrap().unwrap();
        assert_eq!(now.spec.env == made.spec.env, happens, "{fault:?}");
        made = now;
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_said_and_nothing_was_done() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let faults = lab.api_server().faults();
    faults.next(1, &Method::POST, "sandboxes", Fault::Forbidden);
    match store.create_object(&sandbox("box")).await {
        Err(StoreError::Unavailable { outcome, .. }) => assert_eq!(outcome, Outcome::NotApplied),
        other => panic!("{other:?}"),
    }
    store.create_object(&sandbox("box")).await.unwrap();
}

#[tokio::test]
async fn a_namespace_that_may_not_be_made_is_named_with_what_makes_it() {
    let lab = Lab::standin().await;
    let faults = lab.api_server().faults();
    faults.next(1, &Method::POST, "/api/v1/namespaces", Fault::Forbidden);
    match lab.store().create_object(&sandbox("box")).await {
        Err(StoreError::Unavailable { outcome, reason }) => {
            assert_eq!(outcome, Outcome::NotApplied);
            assert!(
                reason.contains("`kubectl create namespace team`"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_that_is_cut_off_goes_on_without_a_gap() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let mut watch = watch_from_now(&store).await;
    for round in 0..5 {
        let made = store
            .create_object(&sandbox(&format!("a-{round}")))
            .await
            .unwrap();
        assert_eq!(
            next_change(&mut *watch).await.unwrap().version(),
            made.version()
        );
        lab.api_server().faults().cut_watches();
        let made = store
            .create_object(&sandbox(&format!("b-{round}")))
            .await
            .unwrap();
        assert_eq!(
            next_change(&mut *watch).await.unwrap().version(),
            made.version()
        );
    }
}

#[tokio::test]
async fn a_watch_whose_past_is_forgotten_is_told_to_list_again() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let made = store.create_object(&sandbox("box")).await.unwrap();
    let mut watch = watch_from_now(&store).await;
    store.create_object(&sandbox("unseen")).await.unwrap();
    lab.api_server().expire_history();
    store.create_object(&sandbox("seen")).await.unwrap();
    loop {
        match next_change(&mut *watch).await {
            Ok(_) => {}
            Err(StoreError::Expired { .. }) => break,
            Err(other) => panic!("{other:?}"),
        }
    }
    let scope = Scope::kind(SandboxSpec::KIND);
    match store.watch(scope, made.version()).await {
        Err(StoreError::Expired { after }) => assert_eq!(after, made.version()),
        other => panic!("{other:?}"),
    }
    let mut watch = watch_from_now(&store).await;
    let last = store.create_object(&sandbox("last")).await.unwrap();
    assert_eq!(
        next_change(&mut *watch).await.unwrap().version(),
        last.version()
    );
}

#[tokio::test]
async fn a_cache_outlives_a_server_that_is_away() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let made = store.create_object(&sandbox("box")).await.unwrap();
    let tasks = Tasks::default();
    let soon = || Instant::now() + Duration::from_secs(30);
    let options = cache::Options::new(Arc::new(Entropy::from_os()));
    let cache = SandboxCache::start(Arc::new(store.clone()), options, soon(), &tasks)
        .await
        .unwrap();
    lab.api_server().stop().await;
    match store.update_status(&made).await {
        Err(StoreError::Unavailable { outcome, .. }) => assert_eq!(outcome, Outcome::NotApplied),
        other => panic!("{other:?}"),
    }
    assert!(
        cache.find(&made.key()).is_some(),
        "what is known stays known"
    );
    lab.api_server().resume().await.unwrap();
    let mut next = made.clone();
    next.status.phase = Phase::Running;
    let written = loop {
        // A connection that the old server had may still be found dead.
        match store.update_status(&next).await {
            Ok(written) => break written,
            Err(StoreError::Unavailable { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    };
    cache
        .wait_for_version(written.version(), soon())
        .await
        .unwrap();
    let found = cache.find(&made.key()).unwrap();
    assert_eq!(found.status.phase, Phase::Running);
    tasks.drain(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_kind_that_is_not_installed_is_no_empty_store() {
    let lab = Lab::standin().await;
    let elsewhere = store_kube::KubeStore::of_group(lab.connect(), "nowhere.dormouse.dev");
    let query = Query::kind(SandboxSpec::KIND);
    assert!(matches!(
        elsewhere.list(&query).await,
        Err(StoreError::Unavailable { .. })
    ));
    let made = elsewhere.create_object(&sandbox("box")).await;
    assert!(
        matches!(made, Err(StoreError::Unavailable { .. })),
        "{made:?}"
    );
}

#[tokio::test]
async fn who_waits_is_not_held_back_behind_work_that_nobody_waits_for() {
    const AT_ONCE: u64 = 32;
    let lab = Lab::standin().await;
    let cluster = lab.connect();
    let store = store_of(&cluster);
    let faults = lab.api_server().faults();
    let for_ever = Fault::Delay(Duration::from_secs(600));
    faults.next(100, &Method::GET, "sandboxpools", for_ever);
    let tasks = Tasks::default();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let behind = store.background();
            tasks.spawn(async move { behind.list(&Query::kind(PoolSpec::KIND)).await })
        })
        .collect();
    let sent = || {
        let list = Call {
            verb: "list",
            resource: "sandboxpools".into(),
        };
        cluster.tally().0.get(&list).copied().unwrap_or(0)
    };
    while sent() < AT_ONCE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for n in 0..10 {
        let made = store.create_object(&sandbox(&format!("box-{n}"))).await;
        made.unwrap();
    }
    assert_eq!(sent(), AT_ONCE);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn patch(lab: &Lab, name: &str, patch: Value) {
    let uri = format!("/apis/{GROUP}/{API_VERSION}/namespaces/team/sandboxes/{name}");
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(uri)
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .unwrap();
    lab.connect().client().request_text(request).await.unwrap();
}

#[tokio::test]
async fn metadata_that_cannot_be_read_hides_no_change_and_no_removal() {
    let lab = Lab::standin().await;
    let store = lab.store();
    let made = store.create_object(&sandbox("box")).await.unwrap();
    let mut watch = watch_from_now(&store).await;
    let bad = json!({"annotations": {"dormouse.dev/metadata": "{"}});
    let change = json!({"metadata": bad, "spec": {"env": {"A": "1"}}});
    patch(&lab, "box", change).await;
    match next_change(&mut *watch).await.unwrap() {
        WatchEvent::Put { record, .. } => {
            let now: Sandbox = record.decode().unwrap();
            assert_eq!(now.spec.env.get("A"), Some("1"));
            assert_eq!(now.uid(), made.uid());
        }
        other => panic!("{other:?}"),
    }
    let found: Sandbox = store.find(&made.key()).await.unwrap().unwrap();
    assert_eq!(found.spec.env.get("A"), Some("1"));
    store.delete_object(&found).await.unwrap();
    match next_change(&mut *watch).await.unwrap() {
        WatchEvent::Removed { record } => assert_eq!(record.key(), made.key()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_that_hears_nothing_finds_out_that_the_cluster_went_back() {
    let mut lab = Lab::standin().await;
    let store = lab.store();
    for n in 0..50 {
        let name = format!("box-{n}");
        store.create_object(&sandbox(&name)).await.unwrap();
    }
    let mut watch = watch_from_now(&store).await;
    lab.restore().await;
    let expired = async {
        loop {
            match watch.next().await {
                // While it is away.
                Err(StoreError::Unavailable { .. }) | Ok(_) => {}
                Err(StoreError::Expired { .. }) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        store.went_back().await;
    };
    let patience = Duration::from_secs(60);
    timeout(patience, expired)
        .await
        .expect("nothing was noticed");
    // Who begins anew goes by what there is.
    let store = lab.store();
    let mut watch = watch_from_now(&store).await;
    let made = store.create_object(&sandbox("box")).await.unwrap();
    let seen = next_change(&mut *watch).await.unwrap();
    assert_eq!(seen.version(), made.version());
    let began = timeout(Duration::from_millis(10), store.went_back()).await;
    assert!(began.is_err());
}
