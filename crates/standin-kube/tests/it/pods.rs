//! Pods and Jobs, and what goes wrong on a node. Written for the stand-in's kubelet.

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use standin_kube::{
    Ending,
    testing::{self, TestCluster},
};

fn pods(cluster: &TestCluster) -> Api<Pod> {
    Api::namespaced(cluster.client(), cluster.namespace())
}

async fn make(cluster: &TestCluster, name: &str, spec: Value) {
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    pods(cluster)
        .create(&PostParams::default(), &pod)
        .await
        .unwrap();
}

fn agent(image: &str) -> Value {
    json!({
        "terminationGracePeriodSeconds": 2,
        "initContainers": [{"name": "agent", "image": "registry.example/dormouse:1"}],
        "containers": [{"name": "sandbox", "image": image, "command": ["/dormouse/agent", "--pid1"]}],
    })
}

/// Waits until a Pod is as wanted, and answers it.
async fn until(cluster: &TestCluster, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let pod = pods(cluster).get(name).await.unwrap();
        let pod = serde_json::to_value(pod).unwrap();
        if wanted(&pod) {
            return pod;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!(
        "{name} did not become as wanted: {:?}",
        pods(cluster).get(name).await
    );
}

fn ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|c| c["type"] == "Ready" && c["status"] == "True")
}

async fn is_gone(cluster: &TestCluster, name: &str) -> bool {
    for _ in 0..400 {
        if pods(cluster).get_opt(name).await.unwrap().is_none() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    false
}

fn health(address: &str) -> String {
    use std::io::{Read as _, Write as _};
    let at: SocketAddr = format!("{address}:49983").parse().unwrap();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_the_agent_serves_it_on_its_own_address_until_it_is_deleted() {
    let cluster = testing::standin().await.unwrap();
    let kubelet = cluster.as_standin().unwrap().kubelet().unwrap();
    make(&cluster, "one", agent("registry.example/base:1")).await;
    let pod = until(&cluster, "one", ready).await;
    let address = pod["status"]["podIP"].as_str().unwrap();
    assert!(address.starts_with("127.64."));
    assert!(health(address).starts_with("HTTP/1.1 204"));
    let pid = kubelet.pid(cluster.namespace(), "one", "sandbox").unwrap();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert!(name.starts_with("dormouse-agent"), "{name}");

    // Another image: another container, of which another digest ran.
    let before = &pod["status"]["containerStatuses"][0];
    let image =
        json!({"spec": {"containers": [{"name": "sandbox", "image": "registry.example/base:2"}]}});
    pods(&cluster)
        .patch("one", &PatchParams::default(), &Patch::Strategic(image))
        .await
        .unwrap();
    let swapped = until(&cluster, "one", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        ready(pod) && status["containerID"] != before["containerID"]
    })
    .await;
    let after = &swapped["status"]["containerStatuses"][0];
    assert_eq!(after["restartCount"], 1);
    assert_ne!(after["imageID"], before["imageID"]);
    assert!(health(address).starts_with("HTTP/1.1 204"));

    let pid = kubelet.pid(cluster.namespace(), "one", "sandbox").unwrap();
    pods(&cluster)
        .delete("one", &DeleteParams::default())
        .await
        .unwrap();
    assert!(is_gone(&cluster, "one").await);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong_on_a_node_is_told_in_the_status() {
    let cluster = testing::standin().await.unwrap();
    let kubelet = cluster.as_standin().unwrap().kubelet().unwrap();
    let namespace = cluster.namespace();
    kubelet.break_pulls("missing");
    make(&cluster, "pull", agent("registry.example/missing:1")).await;
    until(&cluster, "pull", |pod| {
        let state = &pod["status"]["containerStatuses"][0]["state"];
        state["waiting"]["reason"] == "ImagePullBackOff"
    })
    .await;
    kubelet.mend_pulls();
    until(&cluster, "pull", ready).await;

    assert!(kubelet.run_out_of_memory(namespace, "pull", "sandbox"));
    let pod = until(&cluster, "pull", |pod| {
        ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    })
    .await;
    let ended = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(
        (&ended["reason"], &ended["exitCode"]),
        (&json!("OOMKilled"), &json!(137))
    );

    assert!(kubelet.evict(namespace, "pull"));
    let pod = until(&cluster, "pull", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(pod["status"]["reason"], "Evicted");
    pods(&cluster)
        .delete("pull", &DeleteParams::default())
        .await
        .unwrap();
    assert!(is_gone(&cluster, "pull").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_lost_node_are_not_ready_and_go_when_somebody_sees_to_it() {
    let cluster = testing::standin().await.unwrap();
    let kubelet = cluster.as_standin().unwrap().kubelet().unwrap();
    make(&cluster, "lost", agent("registry.example/base:1")).await;
    until(&cluster, "lost", ready).await;
    kubelet.lose_node().await;
    until(&cluster, "lost", |pod| !ready(pod)).await;
    // Nobody confirms that it ended.
    pods(&cluster)
        .delete("lost", &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(pods(&cluster).get_opt("lost").await.unwrap().is_some());
    kubelet.collect_pods_of_lost_node();
    assert!(is_gone(&cluster, "lost").await);
    kubelet.return_node().await;
    make(&cluster, "next", agent("registry.example/base:1")).await;
    until(&cluster, "next", ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_ends_as_its_pods_do_and_takes_them_with_it() {
    let cluster = testing::standin().await.unwrap();
    let kubelet = cluster.as_standin().unwrap().kubelet().unwrap();
    kubelet.on_run(|pod| {
        let fails = pod["metadata"]["labels"]["job-name"] == "failing";
        Some(Ending {
            code: i32::from(fails),
            message: "{\"digest\":\"sha256:0\"}".to_owned(),
            after: Duration::from_millis(50),
        })
    });
    let jobs = Api::<Job>::namespaced(cluster.client(), cluster.namespace());
    for name in ["fine", "failing"] {
        let job = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"backoffLimit": 1, "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "commit", "image": "registry.example/dormouse:1", "command": ["dormouse", "commit"]}],
            }}},
        }));
        jobs.create(&PostParams::default(), &job.unwrap())
            .await
            .unwrap();
    }
    let mut ends = Vec::new();
    for name in ["fine", "failing"] {
        for _ in 0..400 {
            let job = jobs.get(name).await.unwrap().status.unwrap_or_default();
            let conditions = job.conditions.unwrap_or_default();
            if let Some(end) = conditions
                .iter()
                .find(|c| c.type_ == "Complete" || c.type_ == "Failed")
            {
                ends.push((end.type_.clone(), job.failed.unwrap_or(0)));
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
    assert_eq!(ends, [("Complete".to_owned(), 0), ("Failed".to_owned(), 2)]);
    let all = pods(&cluster)
        .list(&Default::default())
        .await
        .unwrap()
        .items;
    assert_eq!(all.len(), 3);
    let fine = all
        .iter()
        .find(|p| p.metadata.labels.as_ref().unwrap()["job-name"] == "fine");
    let fine = serde_json::to_value(fine.unwrap()).unwrap();
    let ended = &fine["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["message"], "{\"digest\":\"sha256:0\"}");
    for name in ["fine", "failing"] {
        jobs.delete(name, &DeleteParams::background())
            .await
            .unwrap();
    }
    for pod in all {
        assert!(is_gone(&cluster, &pod.metadata.name.unwrap()).await);
    }
}
