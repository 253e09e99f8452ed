//! The worker: what it captures, what others see of it, and that it never leaves what it could not
//! capture frozen.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command},
};

use node::{
    Sandbox,
    commit::{Order, capture, thaw},
    containerd::State,
};
use runtime::node::{Rank, Report};
use tokio_util::sync::CancellationToken;

use crate::node::{Node, Pod, Registry, run};

pub(crate) const fn rank(operation: u64) -> Rank {
    Rank {
        generation: 1,
        operation,
    }
}

pub(crate) fn order(node: &Node, pod: &Pod<'_>, registry: &str, scratch: &str) -> Order {
    Order {
        container: pod.container_id(),
        pod: pod.uid.as_str().into(),
        rank: rank(1),
        registry: registry.into(),
        scratch: node.scratch(scratch),
        max_layer_bytes: 1 << 30,
        images: images::Options::default(),
    }
}

pub(crate) async fn captured(node: &Node, pod: &Pod<'_>, to: &str, scratch: &str) -> Captured {
    let order = order(node, pod, to, scratch);
    match capture(&node.containerd(), &order, &CancellationToken::new()).await {
        Report::Captured {
            layer,
            parent,
            image,
            ..
        } => Captured {
            layer: layer.to_string(),
            parent: parent.map(|parent| parent.to_string()),
            image: image.into(),
        },
        other => panic!("{other:?}"),
    }
}

pub(crate) struct Captured {
    pub(crate) layer: String,
    pub(crate) parent: Option<String>,
    pub(crate) image: String,
}

/// How many layers an image has, as another program sees it.
fn layers(image: &str) -> usize {
    let image = format!("docker://{image}");
    let words = ["--insecure-policy", "inspect", "--tls-verify=false", &image];
    let said: serde_json::Value = serde_json::from_str(&run("skopeo", &words)).unwrap();
    said["Layers"].as_array().unwrap().len()
}

const REST: &str = "touch /up; while :; do sleep 1; done";

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_runs_again_from_the_registry_and_the_chain_stays_short() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    let to = format!("{}/kept", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    pod.exec(
        "echo one > /etc/new; rm /etc/removed; rm -r /etc/old; mkdir /etc/old; touch /etc/old/x",
    );
    let first = captured(&node, &pod, &to, "s1").await;
    assert_eq!(
        pod.state().await,
        State::Frozen,
        "it is never thawed once it is captured"
    );
    assert_eq!(first.parent, None);
    assert_eq!(layers(&first.image), 3);

    // Asked again, it is the same.
    let again = captured(&node, &pod, &to, "s1").await;
    assert_eq!((&again.layer, &again.image), (&first.layer, &first.image));

    node.pull(&first.image);
    let pod = node.pod(&first.image, "p2", REST);
    assert_eq!(
        pod.exec("cat /etc/new; ls /etc /etc/old")
            .replace('\n', " ")
            .trim(),
        "one /etc: kept new old  /etc/old: x"
    );
    pod.exec("echo two >> /etc/new; rm /etc/old/x; touch /etc/removed; rm /etc/kept");
    let second = captured(&node, &pod, &to, "s2").await;
    assert_eq!(second.parent.as_ref(), Some(&first.layer));
    assert_eq!(
        layers(&second.image),
        3,
        "image and one layer, however often it sleeps"
    );

    node.pull(&second.image);
    let pod = node.pod(&second.image, "p3", REST);
    assert_eq!(
        pod.exec("cat /etc/new; ls /etc /etc/old")
            .replace('\n', " ")
            .trim(),
        "one two /etc: new old removed  /etc/old:"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_fails_leaves_the_sandbox_as_it_was() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    // Nobody listens there.
    let away = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut order = order(&node, &pod, &away.to_string(), "s1");
    order.images.registry.retries = 0;
    let report = capture(&node.containerd(), &order, &CancellationToken::new()).await;
    let is_passing = |report: &Report, still: bool| matches!(report, Report::Failed { retry: true, frozen, .. } if *frozen == still);
    assert!(is_passing(&report, false), "{report:?}");
    assert_eq!(pod.state().await, State::Running);
    // What was frozen before stays so: whoever froze it thaws it.
    node.containerd().pause(&pod.id).await.unwrap();
    let report = capture(&node.containerd(), &order, &CancellationToken::new()).await;
    assert!(is_passing(&report, true), "{report:?}");
    assert_eq!(pod.state().await, State::Frozen);
    let report = thaw(&node.containerd(), &pod.container_id(), &pod.uid, rank(1)).await;
    assert_eq!(report, Report::Thawed);
    assert_eq!(pod.state().await, State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_thaws_and_one_that_is_killed_can_be_followed_by_a_thaw() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    // It takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let order = order(&node, &pod, &silent.local_addr().unwrap().to_string(), "s1");
    let containerd = node.containerd();
    let stopping = CancellationToken::new();
    let work = capture(&containerd, &order, &stopping);
    let signal = async {
        // By then it has asked the registry, so it has captured.
        let silent = silent.try_clone().unwrap();
        tokio::task::spawn_blocking(move || silent.accept().map(drop))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(pod.state().await, State::Frozen);
        stopping.cancel();
    };
    let (report, ()) = tokio::join!(work, signal);
    assert!(
        matches!(report, Report::Failed { frozen: false, .. }),
        "{report:?}"
    );
    assert_eq!(pod.state().await, State::Running);

    let forever = CancellationToken::new();
    tokio::select! {
        report = capture(&containerd, &order, &forever) => panic!("{report:?}"),
        () = async {
            while pod.state().await != State::Frozen {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    assert_eq!(
        pod.state().await,
        State::Frozen,
        "a worker that is killed undoes nothing"
    );
    let report = thaw(&containerd, &pod.container_id(), &pod.uid, rank(1)).await;
    assert_eq!(report, Report::Thawed);
    assert_eq!(pod.state().await, State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_after_its_pause_was_called_off_freezes_nothing() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    let report = thaw(&node.containerd(), &pod.container_id(), &pod.uid, rank(2)).await;
    assert_eq!(report, Report::Thawed);
    let late = order(&node, &pod, &registry.address, "s1");
    let report = capture(&node.containerd(), &late, &CancellationToken::new()).await;
    assert!(
        matches!(
            report,
            Report::Failed {
                retry: false,
                frozen: false,
                ..
            }
        ),
        "{report:?}"
    );
    assert_eq!(pod.state().await, State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_overtaken_reports_no_capture_and_undoes_nothing_newer() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    let to = format!("{}/kept", registry.address);
    let containerd = node.containerd();
    let sandbox = Sandbox::find(&containerd, &pod.container_id(), None)
        .await
        .unwrap();
    let order = order(&node, &pod, &to, "s1");
    let forever = CancellationToken::new();
    let work = capture(&containerd, &order, &forever);
    // Thawed by who came next, and frozen again: what the worker reads is not what is there.
    let overtake = async {
        while pod.state().await != State::Frozen {
            tokio::task::yield_now().await;
        }
        sandbox.thaw(rank(2)).await.unwrap();
        sandbox.freeze(rank(3)).await.unwrap();
    };
    let (report, ()) = tokio::join!(work, overtake);
    assert!(
        matches!(report, Report::Failed { frozen: true, .. }),
        "{report:?}"
    );
    assert_eq!(pod.state().await, State::Frozen, "as the newest wants it");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_touches_what_is_not_the_sandbox_of_a_pod_of_ours() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    node.holder(&base, "theirs", &["app=other"]);
    let theirs = node.container(&base, "theirs", "sandbox", REST);
    node.holder(
        &base,
        "ours",
        &[
            "app.kubernetes.io/managed-by=dormouse",
            "dormouse.dev/uid=u",
        ],
    );
    let helper = node.container(&base, "ours", "helper", REST);
    for pod in [&theirs, &helper] {
        let order = order(&node, pod, &registry.address, "s1");
        let report = capture(&node.containerd(), &order, &CancellationToken::new()).await;
        assert!(
            matches!(report, Report::Failed { retry: false, .. }),
            "{report:?}"
        );
        let report = thaw(&node.containerd(), &pod.container_id(), &pod.uid, rank(1)).await;
        assert!(
            matches!(report, Report::Failed { retry: false, .. }),
            "{report:?}"
        );
        assert_eq!(pod.state().await, State::Running);
    }
    let ours = node.container(&base, "ours", "sandbox", REST);
    let report = thaw(&node.containerd(), &ours.container_id(), "theirs", rank(1)).await;
    assert!(matches!(report, Report::Failed { .. }), "{report:?}");
}

/// The worker as a process.
fn worker(node: &Node, pod: &Pod<'_>, registry: &str, report: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_dormouse-node-worker"))
        .arg("commit")
        .args([
            "--container-id",
            &pod.id,
            "--pod-uid",
            &pod.uid,
            "--registry",
            registry,
        ])
        .arg("--containerd-socket")
        .arg(node.socket())
        .args(["--containerd-namespace", node.namespace()])
        .arg("--scratch")
        .arg(node.scratch("process"))
        .arg("--report")
        .arg(report)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gets_a_signal_thaws_and_reports_and_a_killed_one_says_nothing() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    // It takes connections, and never says a word: by then the worker has captured.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let home = tempfile::tempdir().unwrap();
    let report = home.path().join("report");

    let mut process = worker(&node, &pod, &address, &report);
    let asked = silent.accept().unwrap();
    assert_eq!(pod.state().await, State::Frozen);
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!process.wait().unwrap().success());
    drop(asked);
    assert_eq!(pod.state().await, State::Running);
    let said: Report = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(
        matches!(
            said,
            Report::Failed {
                frozen: false,
                retry: true,
                ..
            }
        ),
        "{said:?}"
    );

    std::fs::remove_file(&report).unwrap();
    let mut process = worker(&node, &pod, &address, &report);
    let _asked = silent.accept().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(!report.exists());
    assert_eq!(pod.state().await, State::Frozen);

    // Sent again, it finds it frozen and captures what the first one would have.
    let to = format!("{}/kept", registry.address);
    let mut process = worker(&node, &pod, &to, &report);
    assert!(process.wait().unwrap().success());
    let said: Report = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(matches!(said, Report::Captured { .. }), "{said:?}");
    assert_eq!(pod.state().await, State::Frozen);
}
