//! Moving house: what one machine captured goes on in a cluster, and the other way round, through a
//! registry.

use std::{fs, path::Path};

use images::{
    Commit, Compression, Login, Origin, Store,
    layer::{Ids, capture, restore},
};
use model::Digest;

use crate::{
    capture::captured,
    node::{Node, Registry},
};

const REST: &str = "while :; do sleep 1; done";

async fn fetch(store: &Store, layer: &Digest, image: &str, to: &Path) {
    let flight = store.fetch(layer, image, Login::Configured).unwrap();
    flight.wait(|_| {}).await.unwrap();
    let archive = store
        .blobs()
        .join(layer.as_str().trim_start_matches("sha256:"));
    restore(&archive, layer, to, Ids::Same).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_goes_from_a_cluster_to_a_machine_and_back() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    let to = format!("{}/kept", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    pod.exec("echo cluster > /etc/new; rm /etc/removed");
    let first = captured(&node, &pod, &to, "s1").await;

    // A machine that has nothing but the registry in common.
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(&home.path().join("data"), images::Options::default()).unwrap();
    let upper = home.path().join("upper");
    fs::create_dir(&upper).unwrap();
    let layer = Digest::new(first.layer.as_str()).unwrap();
    fetch(&store, &layer, &first.image, &upper).await;
    assert_eq!(
        fs::read_to_string(upper.join("etc/new")).unwrap(),
        "cluster\n"
    );

    // It goes on there: the layer is its upper directory again.
    kit::durable::write_file(&upper.join("etc/new"), b"machine\n", 0o644).unwrap();
    let note = store.find_capture(&layer).unwrap().unwrap();
    let (again, _) = capture(
        &upper,
        Ids::Same,
        &store.blobs(),
        "new",
        u64::MAX,
        |digest| store.write_note(digest, Some(&note)),
    )
    .unwrap();
    let commit = Commit {
        layer: again.clone(),
        parent: Some(layer),
        compression: Compression::Zstd,
    };
    let flight = store.publish(commit, &to, Login::Configured).unwrap();
    let pushed = flight.wait(|_| {}).await.unwrap();

    // And back.
    node.pull(&pushed.reference);
    let pod = node.pod(&pushed.reference, "p2", REST);
    assert_eq!(
        pod.exec("cat /etc/new; ls /etc").replace('\n', " ").trim(),
        "machine kept new old"
    );
    pod.exec("echo cluster >> /etc/new");
    // To a repository that has nothing of it yet: what it lies on comes along.
    let other = format!("{}/other", registry.address);
    let third = captured(&node, &pod, &other, "s2").await;
    assert_eq!(third.parent, Some(again.to_string()));
    let store = Store::open(&home.path().join("other"), images::Options::default()).unwrap();
    let upper = home.path().join("other-upper");
    fs::create_dir(&upper).unwrap();
    let layer = Digest::new(third.layer.as_str()).unwrap();
    fetch(&store, &layer, &third.image, &upper).await;
    let new = fs::read_to_string(upper.join("etc/new")).unwrap();
    assert_eq!(new, "machine\ncluster\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_and_a_machine_make_the_same_image_of_the_same_layer() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    let (there, here) = (
        format!("{}/cluster", registry.address),
        format!("{}/machine", registry.address),
    );
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    pod.exec("echo same > /etc/new");
    let first = captured(&node, &pod, &there, "s1").await;

    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path(), images::Options::default()).unwrap();
    let flight = store.pull(&base).unwrap();
    let image = flight.wait(|_| {}).await.unwrap();
    let layer = Digest::new(first.layer.as_str()).unwrap();
    let from = node.scratch("s1").join("layers/sha256");
    let hex = first.layer.trim_start_matches("sha256:");
    fs::copy(from.join(hex), store.blobs().join(hex)).unwrap();
    let origin = Origin::Image {
        digest: image.digest().clone(),
    };
    store.note_capture(&layer, Some(&origin)).unwrap();
    let commit = Commit {
        layer,
        parent: None,
        compression: Compression::Zstd,
    };
    let flight = store.publish(commit, &here, Login::Configured).unwrap();
    let pushed = flight.wait(|_| {}).await.unwrap();
    let digest = |image: &str| image.split_once('@').unwrap().1.to_owned();
    assert_eq!(digest(&first.image), digest(&pushed.reference));
}
