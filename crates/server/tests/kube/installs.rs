//! `dormouse install`, as an administrator runs it.

use std::process::{Command, Output};

use cluster_kube::{
    Cluster,
    install::{Keys, ensure_secret, read_secret},
};
use http::{Method, Request};
use model::{Name, Spec as _, template::TemplateSpec};
use serde_json::{Value, json};
use store::StoreExt as _;

use crate::installation::{Installation, User};

const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sandboxes.dormouse.dev";

/// Runs the command on the installation's cluster.
fn install(installation: &Installation) -> Output {
    install_with(installation, &[])
}

/// The same, with more flags.
fn install_with(installation: &Installation, flags: &[&str]) -> Output {
    let kubeconfig = installation.cluster.kubeconfig();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.args([
        "install",
        "--base-image",
        "localhost/debian:1",
        "--kubeconfig",
    ]);
    command.arg(kubeconfig).env_remove("KUBECONFIG");
    command.args(flags).output().unwrap()
}

fn succeeds(ran: &Output) -> String {
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    String::from_utf8(ran.stdout.clone()).unwrap()
}

/// What is at a path of the API server, after a change if there is one.
async fn at(installation: &Installation, path: &str, change: Option<Value>) -> Value {
    let kubeconfig = installation.cluster.kubeconfig();
    let cluster = Cluster::connect(Some(kubeconfig)).await.unwrap();
    let (method, body) = match change {
        Some(change) => (Method::PATCH, change.to_string()),
        None => (Method::GET, String::new()),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/merge-patch+json")
        .body(body.into_bytes())
        .unwrap();
    let text = cluster.client().request_text(request).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installing_twice_changes_nothing_and_never_goes_back_to_an_older_version() {
    let installation = Installation::bare().await;
    let first = succeeds(&install(&installation));
    assert!(first.starts_with("definitions applied\n"), "{first}");
    let control = "/apis/apps/v1/namespaces/dormouse/deployments/dormouse-control";
    let made = at(&installation, control, None).await;
    let defined = at(&installation, DEFINITION, None).await;
    assert_eq!(succeeds(&install(&installation)), first);
    for (path, before) in [(control, &made), (DEFINITION, &defined)] {
        let now = at(&installation, path, None).await;
        assert_eq!(
            now["metadata"]["generation"],
            before["metadata"]["generation"]
        );
        assert_eq!(now["spec"], before["spec"], "{path}");
    }

    let newer = json!({"metadata": {"annotations": {"dormouse.dev/version": "99.0.0"}}});
    at(&installation, DEFINITION, Some(newer)).await;
    let refused = install(&installation);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    for word in [
        "sandboxes.dormouse.dev",
        "99.0.0",
        env!("CARGO_PKG_VERSION"),
    ] {
        assert!(said.contains(word), "{said}");
    }
    let now = at(&installation, DEFINITION, None).await;
    assert_eq!(
        now["metadata"]["annotations"]["dormouse.dev/version"],
        "99.0.0"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_get_an_identity_that_is_made_of_the_peer_key_which_is_there_and_no_key() {
    let installation = Installation::bare().await;
    let (kubeconfig, namespace) = (installation.cluster.kubeconfig(), &installation.team);
    let cluster = Cluster::connect(Some(kubeconfig)).await.unwrap();
    // An installation of a version that gave nodes the peer key itself.
    let before = [("seal", "s".repeat(40)), ("peer-key", "k".repeat(40))];
    let held = ensure_secret(&cluster, namespace.as_str(), "dormouse-keys", before).await;
    assert_eq!(held.unwrap(), Keys::Made);
    let make = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(["install", "--make-keys", "--namespace", namespace.as_str()]);
        command.arg("--kubeconfig").arg(kubeconfig);
        succeeds(&command.env_remove("KUBECONFIG").output().unwrap())
    };
    let (shared, of_nodes) = ("secret/dormouse-keys", "secret/dormouse-node-identity");
    let there = "there already";
    assert_eq!(make(), format!("{shared} {there}\n{of_nodes} made\n"));
    assert_eq!(make(), format!("{shared} {there}\n{of_nodes} {there}\n"));
    let path = format!("/api/v1/namespaces/{namespace}/secrets/dormouse-node-identity");
    let secret = at(&installation, &path, None).await;
    let data = secret["data"].as_object().unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["node-identity"]);
    let name = ("dormouse-node-identity", "node-identity");
    let issued = read_secret(&cluster, namespace.as_str(), name.0, name.1).await;
    let node = peer::NodeIdentity::parse(&issued.unwrap().unwrap()).unwrap();
    let control = peer::Keys::parse(&"k".repeat(40)).unwrap();
    let control = peer::Identity::new(&control).unwrap();
    let (near, far) = tokio::io::duplex(1 << 14);
    let (asked, answered) = tokio::join!(control.connect_to_node(near), node.accept(far));
    asked.unwrap();
    answered.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_template_that_nobody_names_is_made_by_control_and_missed_until_then() {
    let installation = Installation::new().await;
    let key = model::Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: Name::new("base").unwrap(),
    };
    let find = async || installation.store.find::<TemplateSpec>(&key).await.unwrap();
    let base = find().await.unwrap();
    installation.store.delete_object(&base).await.unwrap();
    let alone = ("DORMOUSE_KUBERNETES_GATEWAYS", "");
    let api = installation.start("api", &[alone]);
    api.ready().await;
    let user = User {
        api: api.url().await,
        key: installation.key.clone(),
    };
    let refused = user.ask(Method::POST, "/sandboxes", json!({"templateID": "base"}));
    let said = refused.await.is(404).text();
    assert!(said.contains("SandboxTemplate"), "{said}");

    let image = ("DORMOUSE_KUBERNETES_BASE_IMAGE", "localhost/debian:7");
    let control = installation.start("control", &[alone, image]);
    control.ready().await;
    let made = find().await.unwrap();
    assert_eq!(&*made.spec.image, "localhost/debian:7");
    control.stop().await;
    // One that somebody has changed stays as it is.
    let control = installation.start("control", &[alone, (image.0, "localhost/debian:8")]);
    control.ready().await;
    assert_eq!(find().await, Some(made));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_out_and_was_there_is_removed_unless_it_is_somebody_elses() {
    let installation = Installation::bare().await;
    let list = "/apis/apps/v1/namespaces/dormouse/daemonsets";
    let names = async || {
        let all = at(&installation, list, None).await;
        let items = all["items"].as_array().unwrap().iter();
        let names = items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let without = ["--no-node-daemon", "--no-network-policies"];
    let first = succeeds(&install(&installation));
    assert!(!first.contains("removed"), "{first}");
    assert_eq!(names().await, ["dormouse-node"]);
    let said = succeeds(&install_with(&installation, &without));
    for gone in [
        "DaemonSet/dormouse-node",
        "ServiceAccount/dormouse-node",
        "NetworkPolicy/dormouse",
        "NetworkPolicy/dormouse-users",
    ] {
        assert!(said.contains(&format!("{gone} removed\n")), "{said}");
    }
    assert!(names().await.is_empty());
    let again = succeeds(&install_with(&installation, &without));
    assert!(!again.contains("removed"), "{again}");

    succeeds(&install(&installation));
    let path = format!("{list}/dormouse-node");
    let labels = json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "something-else"}}});
    at(&installation, &path, Some(labels)).await;
    let said = succeeds(&install_with(&installation, &without));
    let left = "DaemonSet/dormouse-node is not of this installation, and is left\n";
    assert!(said.contains(left), "{said}");
    assert_eq!(names().await, ["dormouse-node"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_come_in_is_checked_before_anything_is_done() {
    let installation = Installation::bare().await;
    for (flag, value) in [
        ("--users-cidr", "10.0.0.1/8"),
        ("--users-cidr", "everywhere"),
        ("--users-namespace", "app"),
    ] {
        let refused = install_with(&installation, &[flag, value]);
        assert!(!refused.status.success());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(flag) && said.contains(value), "{said}");
    }
    let flags = ["--users-cidr", "10.0.0.0/8", "--users-namespace", "app=web"];
    succeeds(&install_with(&installation, &flags));
    let path = "/apis/networking.k8s.io/v1/namespaces/dormouse/networkpolicies/dormouse-users";
    let policy = at(&installation, path, None).await;
    let from = json!([
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
        {"namespaceSelector": {"matchLabels": {"app": "web"}}},
    ]);
    assert_eq!(policy["spec"]["ingress"][0]["from"], from);
}
