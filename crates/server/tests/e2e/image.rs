//! `dormouse image` on a data directory that no server has open, and one that a server has.

use std::{fs, path::Path, process::Output};

use tempfile::TempDir;

use crate::server::{Server, dormouse};

fn image(home: &Path, arguments: &[&str]) -> Output {
    dormouse(home)
        .arg("image")
        .args(arguments)
        .args(["--data-dir", "data"])
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// An image without layers, as `docker save` would write it.
fn saved(home: &Path) {
    let directory = home.join("saved");
    fs::create_dir(&directory).unwrap();
    let config = r#"{"architecture": "", "os": "", "rootfs": {"type": "layers", "diff_ids": []}}"#;
    let list = r#"[{"Config": "config.json", "RepoTags": ["small:1"], "Layers": []}]"#;
    for (name, text) in [("config.json", config), ("manifest.json", list)] {
        kit::durable::write_file(&directory.join(name), text.as_bytes(), 0o600).unwrap();
    }
}

#[test]
fn images_are_imported_listed_removed_and_swept() {
    let home = TempDir::new().unwrap();
    saved(home.path());
    let imported = out(&image(home.path(), &["import", "saved"]));
    assert!(
        imported.starts_with("docker.io/library/small:1 sha256:"),
        "{imported}"
    );
    let digest = imported.trim().rsplit(' ').next().unwrap();
    let listed = out(&image(home.path(), &["ls"]));
    assert!(
        listed.contains(digest) && listed.starts_with("NAME"),
        "{listed}"
    );
    out(&image(home.path(), &["rm", "small:1"]));
    let twice = image(home.path(), &["rm", "small:1"]);
    assert!(!twice.status.success());
    let dry = out(&image(home.path(), &["gc", "--dry-run"]));
    assert!(dry.contains(digest) && dry.contains("would free"), "{dry}");
    assert_eq!(out(&image(home.path(), &["gc"])).matches(digest).count(), 2);
    assert!(!out(&image(home.path(), &["gc"])).contains(digest));
}

#[test]
fn a_data_directory_that_a_server_has_is_left_alone() {
    let server = Server::start();
    let refused = image(server.home.path(), &["ls"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(said.contains("in use by process"), "{said}");
}

#[test]
fn a_pull_that_fails_says_what_to_do() {
    let home = TempDir::new().unwrap();
    let refused = image(home.path(), &["pull", "Not A Name"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("does not name an image"), "{said}");
    let refused = image(home.path(), &["pull", "127.0.0.1:1/app:1"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("did not deliver"), "{said}");
}
