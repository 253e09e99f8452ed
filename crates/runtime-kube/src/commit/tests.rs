//! Workers on a stand-in, whose Jobs end as the test says.

use std::{sync::Arc, time::Duration};

use ::runtime::node::Report;
use k8s_openapi::api::core::v1::PodStatus;
use model::{Digest, Generation, Name, OperationId};
use parking_lot::Mutex;
use serde_json::{Value, json};
use standin_kube::{
    Ending,
    testing::{TestCluster, standin},
};

use super::*;

/// A cluster, a Pod in it, and how workers end.
struct World {
    test: TestCluster,
    commits: Commits,
    subject: Subject,
    /// The words of the workers that were started.
    started: Arc<Mutex<Vec<String>>>,
}

fn fence(operation: u64) -> Fence {
    Fence {
        uid: Uid::from_random(7),
        generation: Generation(1),
        operation: OperationId(operation),
    }
}

fn layer() -> Digest {
    Digest::new(format!("sha256:{:064x}", 1)).unwrap()
}

fn captured() -> Report {
    Report::Captured {
        layer: layer(),
        size: 7,
        parent: None,
        image: "r.example/x@sha256:1".into(),
    }
}

fn says(report: &Report) -> Ending {
    let failed = matches!(report, Report::Failed { .. });
    Ending {
        code: i32::from(failed),
        message: serde_json::to_string(report).unwrap(),
        after: Duration::ZERO,
    }
}

fn killed() -> Ending {
    Ending {
        code: 137,
        message: String::new(),
        after: Duration::ZERO,
    }
}

/// The first word of a worker's Pod that says what it is for.
fn errand(pod: &Value) -> Option<&'static str> {
    let args = pod["spec"]["containers"][0]["args"].as_array()?;
    let has = |word: &str| args.iter().any(|arg| arg == word);
    has("commit").then(|| if has("--thaw") { "thaw" } else { "capture" })
}

impl World {
    /// `end` says how the workers of an errand end, by how many there were.
    async fn start(end: impl Fn(&str, usize) -> Ending + Send + Sync + 'static) -> Self {
        let test = standin().await.unwrap();
        let started = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&started);
        test.as_standin()
            .unwrap()
            .kubelet()
            .unwrap()
            .on_run(move |pod| {
                let errand = errand(pod)?;
                let mut log = log.lock();
                log.push(errand.to_owned());
                Some(end(
                    errand,
                    log.iter().filter(|word| *word == errand).count(),
                ))
            });
        let cluster = Cluster::of(test.config().clone())
            .unwrap()
            .within(test.namespace());
        let pods: Api<Pod> = Api::namespaced(test.client(), test.namespace());
        let pod = json!({
            "metadata": {"name": "box"},
            "spec": {"containers": [{"name": "sandbox", "image": "app:1"}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        let subject = Subject {
            fence: fence(1),
            namespace: test.namespace().into(),
            pod: "box".into(),
            pod_uid: pod.uid().unwrap(),
            node: standin_kube::kubelet::NODE.into(),
            container_id: "containerd://0123456789".into(),
        };
        let options = Options {
            registry: Some("r.example".into()),
            ..Options::new("dormouse:1")
        };
        Self {
            test,
            commits: Commits::new(
                cluster,
                options,
                Pods::new(Arc::new(auth::Seal::new([7; 32]))),
            ),
            subject,
            started,
        }
    }

    async fn is_marked(&self) -> bool {
        let pods: Api<Pod> = Api::namespaced(self.test.client(), self.test.namespace());
        let pod = pods.get("box").await.unwrap();
        Held::on(&pod).is_some_and(|held| *held.container_id == *self.subject.container_id)
    }

    async fn jobs(&self) -> usize {
        let listed = self.commits.jobs().list(&Default::default()).await.unwrap();
        let going = |job: &&Job| job.metadata.deletion_timestamp.is_none();
        listed.items.iter().filter(going).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_is_durable_frozen_and_asked_for_once() {
    let world = World::start(|_, _| says(&captured())).await;
    for _ in 0..2 {
        let done = world.commits.capture(&world.subject, None).await.unwrap();
        assert_eq!(done.digest, layer());
        assert_eq!(done.published.as_deref(), Some("r.example/x@sha256:1"));
        assert!(world.is_marked().await);
    }
    assert_eq!(
        *world.started.lock(),
        ["capture"],
        "who asks again hears what was said"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_failed_and_thawed_leaves_no_mark_and_is_sent_again() {
    let failed = Report::failed("the registry is away", true, None, false);
    let world = World::start(move |_, nth| match nth {
        1 => says(&failed),
        _ => says(&captured()),
    })
    .await;
    let error = world
        .commits
        .capture(&world.subject, None)
        .await
        .unwrap_err();
    assert!(matches!(&error, RuntimeError::Failed(why) if &**why == "the registry is away"));
    assert!(!world.is_marked().await);
    world.commits.capture(&world.subject, None).await.unwrap();
    assert_eq!(*world.started.lock(), ["capture", "capture"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_worker_left_stays_marked_until_it_is_thawed() {
    let world = World::start(|errand, _| match errand {
        "thaw" => says(&Report::Thawed),
        _ => killed(),
    })
    .await;
    let error = world
        .commits
        .capture(&world.subject, None)
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(world.is_marked().await, "nobody knows whether it is frozen");
    world.commits.thaw(&world.subject).await.unwrap();
    assert!(!world.is_marked().await);
    assert_eq!(*world.started.lock(), ["capture", "thaw"]);
    assert_eq!(world.jobs().await, 0, "nothing of it is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thaw_that_is_killed_is_tried_again_and_the_mark_stays() {
    let world = World::start(|errand, nth| match (errand, nth) {
        ("thaw", 2) => says(&Report::Thawed),
        _ => killed(),
    })
    .await;
    world
        .commits
        .capture(&world.subject, None)
        .await
        .unwrap_err();
    world.commits.thaw(&world.subject).await.unwrap_err();
    assert!(world.is_marked().await);
    world.commits.thaw(&world.subject).await.unwrap();
    assert!(!world.is_marked().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thaw_ends_the_capture_that_is_under_way_before_it_thaws() {
    let world = World::start(|errand, _| match errand {
        "thaw" => says(&Report::Thawed),
        _ => Ending {
            after: Duration::from_secs(3600),
            ..says(&captured())
        },
    })
    .await;
    let capture = world.commits.capture(&world.subject, None);
    let thaw = async {
        while world.started.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        world.commits.thaw(&world.subject).await
    };
    let (captured, thawed) = tokio::join!(capture, thaw);
    thawed.unwrap();
    assert!(captured.unwrap_err().is_retryable());
    assert_eq!(*world.started.lock(), ["capture", "thaw"]);
    assert!(!world.is_marked().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn this_process_joins_what_it_sent_itself_and_another_ends_it() {
    let world = World::start(|_, nth| Ending {
        after: Duration::from_secs(if nth == 1 { 3600 } else { 0 }),
        ..says(&captured())
    })
    .await;
    // Who waited has left; the worker goes on.
    let sent = async {
        while world.started.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        ended = world.commits.capture(&world.subject, None) => panic!("it goes on: {ended:?}"),
        () = sent => {}
    }
    let mut later = world.subject.clone();
    later.fence = fence(2);
    let left = tokio::time::timeout(Duration::from_secs(2), world.commits.capture(&later, None));
    assert!(left.await.is_err());
    assert_eq!(*world.started.lock(), ["capture"]);
    // What follows another process knows nothing of it.
    let heir = Commits::new(
        world.commits.cluster.clone(),
        world.commits.options.clone(),
        Pods::new(Arc::new(auth::Seal::new([7; 32]))),
    );
    later.fence = fence(3);
    heir.capture(&later, None).await.unwrap();
    assert_eq!(*world.started.lock(), ["capture", "capture"]);
    // And what the one before still has on its way ends nothing of it.
    let late = world.commits.thaw(&world.subject).await.unwrap_err();
    assert!(matches!(late, RuntimeError::Stale(_)), "{late}");
    let late = world.commits.mark(&world.subject, false).await;
    assert!(matches!(late, Err(RuntimeError::Stale(_))), "{late:?}");
    assert_eq!(world.jobs().await, 1);
    assert!(world.is_marked().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_captured_to_another_registry_is_another_capture() {
    let world = World::start(|_, nth| {
        let mut report = captured();
        if let Report::Captured { image, .. } = &mut report {
            *image = format!("r{nth}.example/x@sha256:1").into();
        }
        says(&report)
    })
    .await;
    let first = world.commits.capture(&world.subject, None).await.unwrap();
    let to = Publication {
        registry: "r2.example".into(),
        secret: None,
        parent: None,
    };
    let second = world.commits.capture(&world.subject, Some(&to)).await;
    let images = [first, second.unwrap()].map(|captured| captured.published);
    assert_eq!(
        images.map(Option::unwrap_or_default).map(String::from),
        ["r1.example/x@sha256:1", "r2.example/x@sha256:1"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_names_the_field_and_starts_nothing() {
    let mut world = World::start(|_, _| killed()).await;
    let to = Publication {
        registry: "r.example".into(),
        secret: Some(Name::new("missing").unwrap()),
        parent: None,
    };
    let refused = world
        .commits
        .capture(&world.subject, Some(&to))
        .await
        .unwrap_err();
    let names = |error: &RuntimeError, name| matches!(error, RuntimeError::Impossible { field, .. } if *field == name);
    assert!(names(&refused, "snapshotPushSecretName"), "{refused}");
    world.commits.options.registry = None;
    let refused = world
        .commits
        .capture(&world.subject, None)
        .await
        .unwrap_err();
    assert!(names(&refused, "snapshotRegistry"), "{refused}");
    assert!(world.started.lock().is_empty());
    assert!(!world.is_marked().await);
}

#[test]
fn a_report_is_read_only_from_the_worker_itself() {
    let words = serde_json::to_string(&captured()).unwrap();
    let pod = |container: &str, message: &str| Pod {
        status: serde_json::from_value::<PodStatus>(json!({"containerStatuses": [{
            "name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "message": message}},
        }]}))
        .ok(),
        ..Pod::default()
    };
    assert_eq!(watch::last_words(&pod("commit", &words)), Some(captured()));
    assert_eq!(watch::last_words(&pod("other", &words)), None);
    assert_eq!(watch::last_words(&pod("commit", "panicked")), None);
}
