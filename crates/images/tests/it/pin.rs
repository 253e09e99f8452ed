//! From a tag to the one image that it leads to.

use images::{ImageError, Reach, Store};
use model::template::ImagePullPolicy::{Always, IfNotPresent, Never};

use crate::{
    layout::{ARCH, Layout, OTHER_ARCH, simple},
    pull::options,
    servers::Registry,
};

#[tokio::test]
async fn a_tag_is_pinned_to_the_image_for_this_platform_and_nothing_is_downloaded() {
    let registry = Registry::start();
    let layout = Layout::new();
    let ours = layout.image(ARCH, &simple(b"ours"));
    let other = layout.image(OTHER_ARCH, &simple(b"another platform"));
    let index = layout.index(&[other, ours.clone()]);
    registry.push(layout.add(index.clone(), None).path(), "app:1");
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let address = registry.address.clone();
    let name = format!("{address}/app:1");
    let digest = |of: &serde_json::Value| of["digest"].as_str().unwrap().to_owned();
    let expected = format!("{address}/app@{}", digest(&ours));

    let absent = store.pin(&name, Never).await.unwrap_err();
    assert!(matches!(absent, ImageError::NotPresent(_)), "{absent}");
    let missing = store.pin(&format!("{address}/none:1"), IfNotPresent).await;
    let missing = missing.unwrap_err();
    assert!(matches!(missing, ImageError::Unknown { .. }), "{missing}");
    assert!(missing.to_string().contains("none:1"), "{missing}");
    assert_eq!(*store.pin(&name, IfNotPresent).await.unwrap(), expected);
    let by_index = format!("{address}/app@{}", digest(&index));
    assert_eq!(*store.pin(&by_index, Always).await.unwrap(), expected);
    assert!(store.list().is_empty(), "nothing is here");

    // The tag is moved: what was heard counts for a while, and by name it is what is here.
    let layout = Layout::new();
    let moved = layout.image(ARCH, &simple(b"moved"));
    registry.push(layout.add(moved.clone(), None).path(), "app:1");
    assert_eq!(*store.pin(&name, Always).await.unwrap(), expected);
    store.ensure(&expected, IfNotPresent).await.unwrap();
    let pulled = store.ensure(&name, IfNotPresent).await.unwrap();
    assert_eq!(pulled.digest().as_str(), digest(&moved));
    let here = store.pin(&name, IfNotPresent).await.unwrap();
    assert_eq!(*here, format!("{address}/app@{}", digest(&moved)));
    drop(registry);
    for policy in [Never, IfNotPresent] {
        assert_eq!(store.pin(&name, policy).await.unwrap(), here);
    }
}

#[tokio::test]
async fn who_knows_a_digest_does_not_have_the_image_for_that() {
    let registry = Registry::start();
    let layout = Layout::new();
    let secret = layout.image(ARCH, &simple(b"secret"));
    registry.push(layout.add(secret.clone(), None).path(), "secret:1");
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let address = registry.address.clone();
    let name = format!("{address}/secret:1");
    store.ensure(&name, IfNotPresent).await.unwrap();
    let digest = secret["digest"].as_str().unwrap();
    let other = format!("{address}/open@{digest}");
    for policy in [IfNotPresent, Always] {
        let refused = store.pin(&other, policy).await.unwrap_err();
        assert!(matches!(refused, ImageError::Unknown { .. }), "{refused}");
    }
    let refused = store.pin(&other, Never).await.unwrap_err();
    assert!(matches!(refused, ImageError::NotPresent(_)), "{refused}");
    let refused = store.ensure_chosen(&other).await.unwrap_err();
    assert!(matches!(refused, ImageError::Unknown { .. }), "{refused}");
    // Of its own repository it is here, by tag or by digest.
    drop(registry);
    let own = format!("{address}/secret@{digest}");
    assert_eq!(*store.pin(&own, Always).await.unwrap(), own);
    let here = store.ensure_chosen(&own).await.unwrap();
    assert_eq!(here.digest().as_str(), digest);
}

#[tokio::test]
async fn what_anybody_names_is_not_asked_for_on_this_host() {
    let registry = Registry::start();
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b"app"));
    registry.push(layout.add(image, None).path(), "app:1");
    let name = format!("{}/app:1", registry.address);
    let pull = async |options: images::Options, reach| {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path(), options).unwrap();
        let pull = store.pull_as(&name, None, reach).unwrap();
        pull.wait(|_| {}).await.map(|_| ())
    };
    let refused = pull(options(), Reach::Public).await.unwrap_err();
    assert!(
        matches!(refused, ImageError::OutOfReach { .. }),
        "{refused}"
    );
    pull(options(), Reach::Anywhere).await.unwrap();
    let mut listed = options();
    listed.registry.insecure.insert(registry.address.clone());
    pull(listed, Reach::Public).await.unwrap();
}
