//! Who pulls gets what the repository serves, whatever else is on this host.

use std::{fs, path::Path};

use images::{Credentials, ImageError, Reach, Store};
use model::template::ImagePullPolicy::IfNotPresent;
use serde_json::{Value, json};

use crate::{
    archives::sha256,
    layout::{ARCH, Layout, Pack, pack, simple},
    pull::{look, options, registry_of},
    servers::{Answer, Stub, ok},
};

const SECRET: &[u8] = b"somebody's secret";

/// A host that has pulled an image which others may not have.
async fn host_with_a_secret() -> (tempfile::TempDir, Store, Layout, Value) {
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(SECRET));
    let private = registry_of(&layout, &image, |_, answer| answer);
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let name = format!("{}/private:1", private.address);
    store.ensure(&name, IfNotPresent).await.unwrap();
    (data, store, layout, image)
}

fn refuses(what: &'static str) -> impl Fn(&str, Answer) -> Answer {
    move |path, answer| match path.contains(what) {
        true => Answer {
            status: 404,
            ..Answer::default()
        },
        false => answer,
    }
}

/// Pulls as the installation, as nobody and as somebody; all must fare alike.
async fn pull(store: &Store, stub: &Stub, repository: &str) -> Result<Vec<u8>, ImageError> {
    let name = format!("{}/{repository}:1", stub.address);
    let chosen = store.ensure_chosen(&name).await;
    let mut outcomes = vec![chosen.map(|image| look(&image, "file").unwrap())];
    for who in [None, Some(Credentials::new("anybody", "password"))] {
        let flight = store.pull_as(&name, who, Reach::Anywhere).unwrap();
        let image = flight.wait(|_| {}).await;
        outcomes.push(image.map(|image| look(&image, "file").unwrap()));
    }
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert!(failed == 0 || failed == outcomes.len(), "{outcomes:?}");
    outcomes.swap_remove(0)
}

fn layer_of(layout: &Layout, image: &Value) -> Value {
    let digest = image["digest"].as_str().unwrap();
    let name = digest.trim_start_matches("sha256:");
    let manifest = fs::read(layout.path().join("blobs/sha256").join(name)).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    manifest["layers"][0].clone()
}

#[tokio::test]
async fn a_manifest_is_no_proof_of_its_layers() {
    let (_data, store, layout, image) = host_with_a_secret().await;
    let mute = registry_of(&layout, &image, refuses("/blobs/"));
    let refused = pull(&store, &mute, "open").await.unwrap_err();
    assert!(matches!(refused, ImageError::Unknown { .. }), "{refused}");
}

#[tokio::test]
async fn the_digest_of_a_layer_is_no_proof_of_it() {
    let (_data, store, layout, image) = host_with_a_secret().await;
    // An image of somebody's own that lists a layer which its registry does not have.
    let own = Layout::new();
    let (archive, how) = simple(SECRET).remove(0);
    let config = json!({
        "architecture": ARCH, "os": "linux", "config": {"Env": ["MINE=1"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(&archive)]},
    });
    let listed = own.image_with(&config, ARCH, &[(archive, how)]);
    let layer = layer_of(&layout, &image);
    assert_eq!(layer_of(&own, &listed)["digest"], layer["digest"]);
    let hex = layer["digest"].as_str().unwrap().to_owned();
    let hex = hex.trim_start_matches("sha256:").to_owned();
    fs::remove_file(own.path().join("blobs/sha256").join(hex)).unwrap();
    let stub = registry_of(&own, &listed, |_, answer| answer);
    let refused = pull(&store, &stub, "open").await.unwrap_err();
    assert!(matches!(refused, ImageError::Unknown { .. }), "{refused}");
}

#[tokio::test]
async fn what_a_configuration_says_of_an_archive_is_no_proof_of_it() {
    let (_data, store, _, _) = host_with_a_secret().await;
    // An archive of somebody's own, which is said to be another that is unpacked here.
    let own = Layout::new();
    let (secret, _) = simple(SECRET).remove(0);
    let config = json!({
        "architecture": ARCH, "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [sha256(&secret)]},
    });
    let image = own.image_with(&config, ARCH, &simple(b"nothing"));
    let stub = registry_of(&own, &image, |_, answer| answer);
    let refused = pull(&store, &stub, "open").await.unwrap_err();
    assert!(matches!(refused, ImageError::Mismatch { .. }), "{refused}");
}

#[tokio::test]
async fn what_another_download_has_left_is_no_proof() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(SECRET));
    let digest = layer_of(&layout, &image)["digest"].clone();
    let hex = digest.as_str().unwrap().trim_start_matches("sha256:");
    let (archive, _) = simple(SECRET).remove(0);
    leave_download(data.path(), hex, &pack(&archive, Pack::Gzip));
    let hex = hex.to_owned();
    let mute = registry_of(&layout, &image, move |path, answer| {
        match path.contains(&hex) {
            true => ok(b""),
            false => answer,
        }
    });
    pull(&store, &mute, "open").await.unwrap_err();
}

fn leave_download(data: &Path, hex: &str, bytes: &[u8]) {
    crate::layout::write(&data.join("layers/partial").join(hex), bytes);
}

#[tokio::test]
async fn a_repository_that_has_served_a_layer_once_is_not_asked_for_it_again() {
    let (_data, store, layout, image) = host_with_a_secret().await;
    let open = registry_of(&layout, &image, |_, answer| answer);
    let blobs = || {
        let asked = open.asked.lock().unwrap();
        asked.iter().filter(|line| line.contains("/blobs/")).count()
    };
    // As three different people.
    assert_eq!(pull(&store, &open, "open").await.unwrap(), SECRET);
    assert_eq!(blobs(), 2, "its configuration and its layer");
    assert_eq!(pull(&store, &open, "open").await.unwrap(), SECRET);
    assert_eq!(blobs(), 2, "nothing new");
    assert_eq!(pull(&store, &open, "another").await.unwrap(), SECRET);
    assert_eq!(blobs(), 4, "another repository may have other readers");
}

#[tokio::test]
async fn what_a_repository_has_served_is_known_to_the_next_process_by_its_names() {
    let (data, store, layout, image) = host_with_a_secret().await;
    let open = registry_of(&layout, &image, |_, answer| answer);
    pull(&store, &open, "open").await.unwrap();
    drop(store);
    let store = Store::open(data.path(), options()).unwrap();
    open.asked.lock().unwrap().clear();
    assert_eq!(pull(&store, &open, "open").await.unwrap(), SECRET);
    let asked = open.asked.lock().unwrap();
    let blobs = asked.iter().filter(|line| line.contains("/blobs/")).count();
    assert_eq!(blobs, 0, "{asked:?}");
}

#[tokio::test]
async fn what_was_imported_under_a_name_of_a_repository_was_not_served_by_it() {
    let (_data, store, layout, image) = host_with_a_secret().await;
    let mute = registry_of(&layout, &image, refuses("/blobs/"));
    let name = format!("{}/open:imported", mute.address);
    let file = Layout::new();
    let imported = file.image(ARCH, &simple(SECRET));
    let file = file.add(imported, Some(&name));
    store.import(file.path(), None).unwrap();
    let refused = pull(&store, &mute, "open").await.unwrap_err();
    assert!(matches!(refused, ImageError::Unknown { .. }), "{refused}");
}

#[tokio::test]
async fn a_name_of_a_version_that_asked_for_no_proof_is_none() {
    let (data, store, layout, image) = host_with_a_secret().await;
    let open = registry_of(&layout, &image, |_, answer| answer);
    pull(&store, &open, "open").await.unwrap();
    drop(store);
    for file in fs::read_dir(data.path().join("images/names")).unwrap() {
        let path = file.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let served = record.as_object_mut().unwrap().remove("served");
        assert_eq!(served, Some(json!(true)));
        crate::layout::write(&path, record.to_string().as_bytes());
    }
    let store = Store::open(data.path(), options()).unwrap();
    open.asked.lock().unwrap().clear();
    let blobs = || {
        let asked = open.asked.lock().unwrap();
        asked.iter().filter(|line| line.contains("/blobs/")).count()
    };
    assert_eq!(pull(&store, &open, "open").await.unwrap(), SECRET);
    assert_eq!(blobs(), 2, "its configuration and its layer");
    // From then on it is one.
    drop(store);
    let store = Store::open(data.path(), options()).unwrap();
    assert_eq!(pull(&store, &open, "open").await.unwrap(), SECRET);
    assert_eq!(blobs(), 2, "nothing new");
}

#[tokio::test]
async fn a_pinned_image_that_is_here_from_elsewhere_is_served_before_it_is_used() {
    let (_data, store, layout, image) = host_with_a_secret().await;
    let mute = registry_of(&layout, &image, refuses("/blobs/"));
    let name = format!("{}/open:1", mute.address);
    let refused = store.pin(&name, IfNotPresent).await.unwrap_err();
    assert!(matches!(refused, ImageError::Unknown { .. }), "{refused}");
    let open = registry_of(&layout, &image, |_, answer| answer);
    let name = format!("{}/open:1", open.address);
    let exact = store.pin(&name, IfNotPresent).await.unwrap();
    assert!(store.find_chosen(&exact).unwrap().is_some());
}
