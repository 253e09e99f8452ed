//! What only the stand-in can be asked for: refusals, failures, restarts. Written for it alone.

use std::time::Duration;

use futures_util::StreamExt as _;
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use standin_kube::{Fault, testing};

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_fail_as_asked_and_no_more_of_them() {
    let cluster = testing::standin().await.unwrap();
    let standin = cluster.as_standin().unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.client(), cluster.namespace());
    let faults = standin.faults();
    let make = async |name: &str| match maps.create(&PostParams::default(), &map(name)).await {
        Ok(_) => 201,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    };
    faults.next(1, &Method::POST, "configmaps", Fault::Conflict);
    assert_eq!(make("a").await, 409);
    faults.next(1, &Method::POST, "configmaps", Fault::Internal);
    assert_eq!(make("a").await, 500);
    faults.next(1, &Method::POST, "configmaps", Fault::InternalAfter);
    assert_eq!(make("a").await, 500);
    // It had happened.
    assert_eq!(make("a").await, 409);
    faults.next(1, &Method::DELETE, "configmaps", Fault::Internal);
    assert_eq!(make("b").await, 201);
    let seen = faults.take_seen();
    let writes = seen
        .iter()
        .filter(|s| s.method == Method::POST && s.path.ends_with("configmaps"));
    assert_eq!(writes.count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_went_away_comes_back_with_what_it_had() {
    let cluster = testing::standin().await.unwrap();
    let standin = cluster.as_standin().unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.client(), cluster.namespace());
    maps.create(&PostParams::default(), &map("kept"))
        .await
        .unwrap();
    standin.stop().await;
    assert!(maps.get("kept").await.is_err());
    standin.resume().await.unwrap();
    assert!(maps.get("kept").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_cut_held_back_and_expire() {
    let cluster = testing::standin().await.unwrap();
    let standin = cluster.as_standin().unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.client(), cluster.namespace());
    let version = maps
        .list(&Default::default())
        .await
        .unwrap()
        .metadata
        .resource_version;
    let version = version.unwrap();
    let params = WatchParams::default();
    let mut cut = maps.watch(&params, &version).await.unwrap().boxed();
    standin.faults().cut_watches();
    assert!(cut.next().await.is_none());

    let mut held = maps.watch(&params, &version).await.unwrap().boxed();
    standin.hold_watches();
    maps.create(&PostParams::default(), &map("late"))
        .await
        .unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(300), held.next())
            .await
            .is_err()
    );
    standin.release_watches();
    assert!(matches!(held.next().await, Some(Ok(WatchEvent::Added(_)))));

    standin.expire_history();
    // A watch that is open for a while is told how far it has come.
    let told = loop {
        match held.next().await.unwrap().unwrap() {
            WatchEvent::Bookmark(_) => {}
            told => break told,
        }
    };
    assert!(matches!(told, WatchEvent::Error(status) if status.code == 410));
    let mut old = maps.watch(&params, &version).await.unwrap().boxed();
    let told = old.next().await.unwrap().unwrap();
    assert!(matches!(told, WatchEvent::Error(status) if status.code == 410));
}
