//! Definitions, objects of theirs, watches and garbage, by `kube`'s own client. These pass on a real
//! cluster too.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
    runtime::{conditions, wait::await_condition, watcher},
};
use serde_json::json;
use standin_kube::testing::{self, TestCluster};

async fn define(cluster: &TestCluster) {
    for info in &model::kinds::ALL {
        let definition: CustomResourceDefinition =
            serde_json::from_value(model::schema::crd(info)).unwrap();
        let name = definition.metadata.name.clone().unwrap();
        let all = Api::<CustomResourceDefinition>::all(cluster.client());
        let apply = PatchParams::apply("dormouse").force();
        all.patch(&name, &apply, &Patch::Apply(&definition))
            .await
            .unwrap();
        let established = await_condition(all, &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(30), established)
            .await
            .unwrap()
            .unwrap();
    }
}

fn pools(cluster: &TestCluster) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("dormouse.dev", "v1alpha1", "SandboxPool");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "sandboxpools");
    Api::namespaced_with(cluster.client(), cluster.namespace(), &resource)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_kinds_are_served_once_their_definitions_are_applied() {
    let cluster = testing::cluster().await.unwrap();
    define(&cluster).await;
    let pools = pools(&cluster);
    let found = pools.list(&Default::default()).await.unwrap();
    assert!(found.items.is_empty());
    // Again: nothing changes, and nobody minds.
    define(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_leases_are_kept_and_raced_for() {
    let cluster = testing::cluster().await.unwrap();
    let secrets = Api::<Secret>::namespaced(cluster.client(), cluster.namespace());
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "seal"}, "stringData": {"key": "hush"},
    }))
    .unwrap();
    let made = secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
    assert_eq!(made.data.unwrap()["key"].0, b"hush");
    let taken = secrets.create(&PostParams::default(), &secret).await;
    assert!(matches!(taken, Err(kube::Error::Api(s)) if s.reason == "AlreadyExists"));

    let leases = Api::<Lease>::namespaced(cluster.client(), cluster.namespace());
    let lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": "lead"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
    }))
    .unwrap();
    let seen = leases.create(&PostParams::default(), &lease).await.unwrap();
    let mut mine = seen.clone();
    mine.spec.as_mut().unwrap().holder_identity = Some("b".into());
    leases
        .replace("lead", &PostParams::default(), &mine)
        .await
        .unwrap();
    let late = leases.replace("lead", &PostParams::default(), &mine).await;
    assert!(matches!(late, Err(kube::Error::Api(s)) if s.reason == "Conflict" && s.code == 409));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_every_change_and_a_reflector_follows() {
    let cluster = testing::cluster().await.unwrap();
    let secrets = Api::<Secret>::namespaced(cluster.client(), cluster.namespace());
    let start = secrets.list(&Default::default()).await.unwrap();
    let version = start.metadata.resource_version.unwrap();
    let mut secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "watched"}})).unwrap();
    secret = secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
    secret.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    secrets
        .replace("watched", &PostParams::default(), &secret)
        .await
        .unwrap();
    secrets
        .delete("watched", &DeleteParams::default())
        .await
        .unwrap();
    let only = WatchParams::default()
        .fields("metadata.name=watched")
        .timeout(10);
    let events = secrets.watch(&only, &version).await.unwrap();
    let events: Vec<WatchEvent<Secret>> = events.take(3).try_collect().await.unwrap();
    assert!(matches!(
        events.as_slice(),
        [
            WatchEvent::Added(_),
            WatchEvent::Modified(_),
            WatchEvent::Deleted(_)
        ]
    ));

    // As reflectors begin: by one stream that says when it has told all.
    let config = watcher::Config::default().streaming_lists();
    let mut stream = Box::pin(watcher(secrets.clone(), config));
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            if let watcher::Event::InitDone = stream.next().await.unwrap().unwrap() {
                break;
            }
        }
    });
    waited.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_whose_metadata_is_no_object_is_refused() {
    let cluster = testing::cluster().await.unwrap();
    for metadata in [json!("x"), json!([])] {
        let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata});
        let path = format!("/api/v1/namespaces/{}/secrets/s", cluster.namespace());
        let request = http::Request::builder()
            .method(http::Method::PATCH)
            .uri(format!("{path}?fieldManager=test"))
            .header("content-type", "application/apply-patch+yaml")
            .body(body.to_string().into_bytes())
            .unwrap();
        match cluster.client().request_text(request).await {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, 400, "{metadata}: {status:?}"),
            other => panic!("{metadata}: {other:?}"),
        }
    }
}
