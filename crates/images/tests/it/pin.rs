//! From a tag to the one image that it leads to.

use images::{ImageError, Store};
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
