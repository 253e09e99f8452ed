//! Importing what other programs wrote.

use std::{fs, path::Path, process::Command};

use images::{ImageError, Store};

use crate::{
    archives::Tar,
    layout::{ARCH, Layout, OTHER_ARCH, Pack, simple, three_layers},
    pull::{look, options},
    servers::skopeo,
};

fn store() -> (tempfile::TempDir, Store) {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    (data, store)
}

/// A plain archive of a directory, by a program that is not ours.
fn tar(directory: &Path, to: &Path) {
    let mut command = Command::new("tar");
    command.arg("-C").arg(directory).arg("-cf").arg(to).arg(".");
    assert!(command.status().unwrap().success());
}

#[test]
fn an_oci_layout_is_imported_as_a_directory_and_as_an_archive() {
    let layout = Layout::new();
    let ours = layout.image(ARCH, &three_layers());
    let index = layout.index(&[layout.image(OTHER_ARCH, &simple(b"")), ours.clone()]);
    let layout = layout.add(index, Some("example.com/team/app:2"));
    let archive = tempfile::NamedTempFile::new().unwrap();
    tar(layout.path(), archive.path());
    for source in [layout.path(), archive.path()] {
        let (data, store) = store();
        let imported = store.import(source, None).unwrap();
        assert_eq!(&*imported[0].names[0], "example.com/team/app:2");
        assert_eq!(
            imported[0].image.digest().as_str(),
            ours["digest"].as_str().unwrap()
        );
        let found = store.find("example.com/team/app:2").unwrap().unwrap();
        assert_eq!(look(&found, "etc/name").unwrap(), b"middle");
        assert_eq!(
            fs::read_dir(data.path().join("layers/partial"))
                .unwrap()
                .count(),
            0
        );
    }
}

#[test]
fn what_docker_save_writes_is_imported() {
    let layout = Layout::new();
    // Docker's own format has no zstd.
    let layers: Vec<_> = three_layers()
        .into_iter()
        .map(|(layer, _)| (layer, Pack::Gzip))
        .collect();
    let image = layout.image(ARCH, &layers);
    let layout = layout.add(image, None);
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("saved.tar");
    let from = format!("oci:{}", layout.path().display());
    let to = format!("docker-archive:{}:app:3", archive.display());
    skopeo(&["copy", &from, &to]);
    let (_data, store) = store();
    let imported = store.import(&archive, None).unwrap();
    assert_eq!(&*imported[0].names[0], "docker.io/library/app:3");
    assert_eq!(imported[0].image.config().working_dir, "/work");
    assert_eq!(look(&imported[0].image, "etc/name").unwrap(), b"middle");
    // The same image again is the same image, under another name too.
    let again = store.import(&archive, Some("mine:1")).unwrap();
    assert_eq!(again[0].image.digest(), imported[0].image.digest());
    assert!(store.find("mine:1").unwrap().is_some());
}

#[test]
fn a_file_that_is_no_image_is_refused_with_the_reason() {
    let (_data, store) = store();
    let scratch = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = scratch.path().join(name);
        crate::layout::write(&path, bytes);
        path
    };
    let nothing = file(
        "nothing.tar",
        &Tar::default().file("readme", b"hello").end(),
    );
    let error = store.import(&nothing, None).unwrap_err();
    assert!(matches!(error, ImageError::Unsupported { .. }), "{error}");
    let text = file(
        "text",
        b"not an archive at all, but longer than a block"
            .repeat(20)
            .as_slice(),
    );
    assert!(store.import(&text, None).is_err());
    let out = Tar::default()
        .file(
            "manifest.json",
            br#"[{"Config": "../../etc/passwd", "RepoTags": [], "Layers": []}]"#,
        )
        .end();
    assert!(store.import(&file("out.tar", &out), None).is_err());
    let through = Tar::default()
        .file(
            "manifest.json",
            br#"[{"Config": "link", "RepoTags": ["a:1"], "Layers": []}]"#,
        )
        .symlink("link", "/etc/hostname")
        .end();
    assert!(store.import(&file("through.tar", &through), None).is_err());
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b""));
    let unnamed = layout.add(image, None);
    let error = store.import(unnamed.path(), None).unwrap_err();
    assert!(matches!(error, ImageError::Name { .. }), "{error}");
    assert!(store.list().is_empty());
    store.import(unnamed.path(), Some("named:1")).unwrap();
}

#[test]
fn a_blob_that_is_not_its_digest_is_refused() {
    let layout = Layout::new();
    let image = layout.image(ARCH, &three_layers());
    let layout = layout.add(image, Some("a.example/b:1"));
    for blob in fs::read_dir(layout.path().join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        crate::layout::write(&path, &bad);
        let (_data, store) = store();
        let error = store.import(layout.path(), None).unwrap_err();
        assert!(matches!(error, ImageError::Mismatch { .. }), "{error}");
        assert!(store.list().is_empty());
        crate::layout::write(&path, &good);
    }
}
