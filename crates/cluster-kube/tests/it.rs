//! Leases, endpoints and Events of a cluster: the stand-in, or with `DORMOUSE_TEST_KUBECONFIG` a
//! real one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{sync::Arc, time::Duration};

use cluster_kube::{
    Cluster,
    events::{Happening, Recorder},
    lease::{Election, Standing, candidate::Rules},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event},
    discovery::v1::EndpointSlice,
};
use kit::{Clock, SystemClock, Tasks};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use serde_json::json;
use standin_kube::testing::{TestCluster, cluster};

/// Enough for whoever is slow.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connected() -> (TestCluster, Cluster) {
    let test = cluster().await.unwrap();
    let cluster = Cluster::connect(Some(test.kubeconfig())).await.unwrap();
    let cluster = cluster.within(test.namespace());
    (test, cluster)
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn candidate(cluster: &Cluster, me: &str) -> Election {
    let rules = Rules {
        duration: Duration::from_secs(12),
        renew_within: Duration::from_secs(10),
        every: Duration::from_millis(200),
    };
    Election::new(cluster, "leader", me, rules, clock())
}

async fn holder(cluster: &Cluster) -> String {
    let leases = Api::<Lease>::namespaced(cluster.client(), cluster.namespace());
    let spec = leases.get("leader").await.unwrap().spec.unwrap();
    spec.holder_identity.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_leads_and_the_next_one_follows_whether_it_gives_up_or_dies() {
    let ((_test, cluster), tasks) = (connected().await, Tasks::default());
    let first = candidate(&cluster, "first").win(&tasks, |_| {}).await;
    assert_eq!(holder(&cluster).await, "first");
    let (told, mut waits) = tokio::sync::mpsc::unbounded_channel();
    let waiting = tasks.spawn({
        let (second, tasks) = (candidate(&cluster, "second"), tasks.clone());
        async move {
            let tell = |standing: Standing<'_>| {
                if let Standing::Waiting { holder } = standing {
                    let _ = told.send(holder.map(str::to_owned));
                }
            };
            second.win(&tasks, tell).await
        }
    });
    // It is renewed while the other one waits, for longer than it lasts.
    for _ in 0..75 {
        assert_eq!(waits.recv().await.unwrap().as_deref(), Some("first"));
    }
    first.release().await;
    let second = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(holder(&cluster).await, "second");
    drop(second);
    let third = candidate(&cluster, "third").win(&tasks, |_| {});
    let third = tokio::time::timeout(PATIENCE, third).await.unwrap();
    assert_eq!(holder(&cluster).await, "third");
    third.release().await;
    assert_eq!(holder(&cluster).await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_endpoints_of_a_service_are_followed() {
    let ((_test, cluster), tasks) = (connected().await, Tasks::default());
    let slices = Api::<EndpointSlice>::namespaced(cluster.client(), cluster.namespace());
    let mut members = cluster.follow_endpoints("gateways", "peer", &tasks);
    let known = |members: &Option<_>| members.is_some();
    let first = tokio::time::timeout(PATIENCE, members.wait_for(known)).await;
    assert!(first.unwrap().unwrap().as_ref().unwrap().is_empty());
    let slice: EndpointSlice = serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "gateways"}},
        "addressType": "IPv4",
        "ports": [{"name": "peer", "port": 7945, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": false}}],
    }))
    .unwrap();
    slices.create(&PostParams::default(), &slice).await.unwrap();
    let there = "10.1.2.3:7945".parse().unwrap();
    let listed = members.wait_for(|all| all.as_ref().is_some_and(|all| all.contains(&there)));
    tokio::time::timeout(PATIENCE, listed)
        .await
        .unwrap()
        .unwrap();
    slices.delete("a", &DeleteParams::default()).await.unwrap();
    let gone = members.wait_for(|all| all.as_ref().is_some_and(|all| all.is_empty()));
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_again_is_counted_on_one_event_also_by_the_next_process() {
    let ((_test, cluster), tasks) = (connected().await, Tasks::default());
    let maps = Api::<ConfigMap>::namespaced(cluster.client(), cluster.namespace());
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some("it".to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    let map = maps.create(&PostParams::default(), &map).await.unwrap();
    let happening = Happening {
        kind: "ConfigMap".to_owned(),
        api_version: "v1".to_owned(),
        namespace: Some(cluster.namespace().to_owned()),
        name: "it".to_owned(),
        uid: map.metadata.uid.unwrap(),
        is_warning: true,
        reason: "Limited".to_owned(),
        message: "there is no room".to_owned(),
        fingerprint: 7,
    };
    let recorder = Recorder::start(&cluster, "test", clock(), &tasks);
    recorder.record(happening.clone());
    recorder.record(happening.clone());
    until_counted(&cluster, 2).await;
    let next = Recorder::start(&cluster, "test", clock(), &tasks);
    next.record(happening);
    until_counted(&cluster, 3).await;
}

/// Waits until the one Event that there is was counted so often.
async fn until_counted(cluster: &Cluster, times: i32) {
    let events = Api::<Event>::namespaced(cluster.client(), cluster.namespace());
    let counted = async {
        loop {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            assert!(all.len() < 2, "{all:#?}");
            if let Some(event) = all.first().filter(|event| event.count >= Some(times)) {
                assert_eq!(event.count, Some(times));
                assert_eq!(event.type_.as_deref(), Some("Warning"));
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.unwrap();
}
