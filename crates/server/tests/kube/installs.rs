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
    let kubeconfig = installation.cluster.kubeconfig();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.args([
        "install",
        "--base-image",
        "localhost/debian:1",
        "--kubeconfig",
    ]);
    command.arg(kubeconfig).env_remove("KUBECONFIG");
    command.output().unwrap()
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
