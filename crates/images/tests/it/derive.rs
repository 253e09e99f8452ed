//! Images made of others.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use images::{ImageError, Store};

use crate::pull::options;

#[test]
fn an_image_is_made_of_another_and_what_is_put_on_top() {
    let data = tempfile::tempdir().unwrap();
    let saved = data.path().join("saved");
    fs::create_dir(&saved).unwrap();
    let config = r#"{"architecture": "", "os": "", "rootfs": {"type": "layers", "diff_ids": []}}"#;
    let list = r#"[{"Config": "config.json", "RepoTags": ["small:1"], "Layers": []}]"#;
    let write = |path: PathBuf, text: &str| kit::durable::write_file(&path, text.as_bytes(), 0o644);
    write(saved.join("config.json"), config).unwrap();
    write(saved.join("manifest.json"), list).unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    store.import(&saved, None).unwrap();
    let make = |from: &str| {
        store.derive(from, "larger", |root, base| {
            assert!(base.directories().len() < 2);
            fs::create_dir(root.join("opt")).unwrap();
            write(root.join("opt/file"), from).unwrap();
            symlink("file", root.join("opt/link")).unwrap();
            Ok(())
        })
    };
    let made = make("small:1").unwrap();
    assert_eq!(made.image.directories().len(), 1);
    let root = made.image.directories().remove(0);
    assert_eq!(
        fs::read_to_string(root.join("opt/link")).unwrap(),
        "small:1"
    );
    let again = make("larger").unwrap();
    assert_eq!(again.image.directories().len(), 2);
    let digest = store.find("larger").unwrap().unwrap().digest().clone();
    assert_eq!(digest, *again.image.digest());
    let missing = make("nowhere:1").unwrap_err();
    assert!(matches!(missing, ImageError::NotPresent(_)), "{missing}");
    let failed = store.derive("larger", "none", |_, _| {
        Err(ImageError::Tool {
            tool: "fill",
            why: "no".into(),
            remedy: "",
        })
    });
    assert!(matches!(failed, Err(ImageError::Tool { .. })));
    assert!(store.find("none").unwrap().is_none());
}
