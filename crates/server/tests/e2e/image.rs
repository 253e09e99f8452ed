//! `dormouse image` on a data directory that no server has open, and one that a server has.

use std::{fs, path::Path, process::Output};

use tempfile::TempDir;

use crate::{
    run::agent,
    server::{FIVE, Server, dormouse},
};

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
fn a_data_directory_that_a_server_has_is_worked_on_through_the_server() {
    let server = Server::start();
    let home = server.home.path();
    saved(home);
    let imported = out(&image(home, &["import", "saved"]));
    assert!(
        imported.starts_with("docker.io/library/small:1 sha256:"),
        "{imported}"
    );
    let digest = imported.trim().rsplit(' ').next().unwrap();
    let listed = out(&image(home, &["ls"]));
    assert!(
        listed.contains(digest) && listed.starts_with("NAME"),
        "{listed}"
    );
    for format in ["oci-archive", "oci", "docker-archive"] {
        let path = format!("exported-{format}");
        let export = ["export", "small:1", &path, "--format", format];
        out(&image(home, &export));
        let twice = image(home, &export);
        assert!(!twice.status.success(), "nothing is overwritten");
        let name = format!("again:{format}");
        let imported = out(&image(home, &["import", &path, "--name", &name]));
        assert!(imported.contains(digest), "{format}: {imported}");
    }
    for (words, told) in [
        (&["pull", "Not A Name"][..], "does not name an image"),
        (&["pull", "127.0.0.1:1/app:1"], "did not deliver"),
        (
            &["push", "small:1", "127.0.0.1:1/small:1"],
            "did not deliver",
        ),
        (&["push", "none:1"], "is not on this host"),
        (&["export", "none:1", "nowhere"], "is not on this host"),
        (&["rm", "none:1"], "there is no image none:1"),
        (&["import", "log"], "is cut off"),
        (
            &["pull", "a.example/b", "--insecure", "a.example"],
            "registry.insecure",
        ),
    ] {
        let refused = image(home, words);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{words:?}");
        assert!(said.contains(told), "{words:?}: {said}");
    }
    out(&image(home, &["rm", "small:1", "again:oci"]));
    let left = out(&image(home, &["ls", "--json"]));
    let left: serde_json::Value = serde_json::from_str(&left).unwrap();
    assert_eq!(left.as_array().map(Vec::len), Some(2), "{left}");
    // The same commands, once nobody has it.
    let home = server.stop();
    let same = out(&image(home.path(), &["ls", "--json"]));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&same).unwrap(),
        left
    );
    let spooled = fs::read_dir(home.path().join("data/run/images")).unwrap();
    assert_eq!(spooled.count(), 0, "nothing is left of what was sent");
}

#[test]
fn whoever_has_no_token_hears_nothing_of_images() {
    let server = Server::start();
    let curl = |method: &str, path: &str| {
        let url = format!("https://127.0.0.1:{}/dormouse/images{path}", server.port());
        let mut command = crate::server::command("curl", server.home.path());
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method]);
        command.args(["--cacert", "data/pki/ca.crt", &url]);
        out(&command.output().unwrap())
    };
    for (method, path) in [
        ("GET", ""),
        ("DELETE", "?name=a"),
        ("POST", "/pull?name=a"),
        ("POST", "/import"),
        ("GET", "/export?name=a&format=oci-archive"),
    ] {
        assert_eq!(curl(method, path), "401", "{method} {path}");
    }
    server.stop();
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

#[test]
fn an_image_is_written_to_files_and_read_again() {
    let home = TempDir::new().unwrap();
    saved(home.path());
    out(&image(home.path(), &["import", "saved"]));
    let listed = out(&image(home.path(), &["ls", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let digest = listed[0]["digest"].as_str().unwrap();
    assert_eq!(listed[0]["name"], "docker.io/library/small:1");
    for format in ["oci-archive", "oci", "docker-archive"] {
        let path = format!("exported-{format}");
        let export = ["export", "small:1", &path, "--format", format];
        out(&image(home.path(), &export));
        let twice = image(home.path(), &export);
        assert!(!twice.status.success(), "nothing is overwritten");
        let imported = out(&image(home.path(), &["import", &path]));
        assert!(
            imported.starts_with("docker.io/library/small:1 sha256:"),
            "{imported}"
        );
        // What docker save writes has no manifest, and gets the same one each time.
        assert!(imported.contains(digest), "{format}: {imported}");
    }
    let nowhere = image(home.path(), &["push", "small:1", "127.0.0.1:1/small:1"]);
    let said = String::from_utf8_lossy(&nowhere.stderr);
    assert!(said.contains("did not deliver"), "{said}");
}

#[test]
fn an_image_that_a_record_asks_for_is_not_removed_and_the_record_is_named() {
    let server = Server::start();
    let template = FIVE.split("---").next().unwrap();
    server.kubectl_with("apply -f -", template).ok();
    let asked = template
        .lines()
        .find_map(|line| line.split_once("image:"))
        .map(|(_, name)| name.trim().trim_matches('"').to_owned())
        .unwrap();
    let home = server.stop();
    saved(home.path());
    out(&image(home.path(), &["import", "saved", "--name", &asked]));
    let refused = image(home.path(), &["rm", &asked]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(said.contains("used by SandboxTemplate "), "{said}");
    out(&image(home.path(), &["import", "saved"]));
    out(&image(home.path(), &["rm", "small:1"]));
}

#[test]
fn a_server_says_what_would_go_and_why_the_rest_stays() {
    agent();
    let home = TempDir::new().unwrap();
    saved(home.path());
    out(&image(
        home.path(),
        &["import", "saved", "--name", "kept:1"],
    ));
    let lost =
        r#"{"architecture": "", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}"#;
    let config = home.path().join("saved/config.json");
    kit::durable::write_file(&config, lost.as_bytes(), 0o600).unwrap();
    let imported = out(&image(
        home.path(),
        &["import", "saved", "--name", "lost:1"],
    ));
    let digest = imported.trim().rsplit(' ').next().unwrap();
    out(&image(home.path(), &["rm", "lost:1"]));

    let server = Server::start_with(home, &["--runtime", "local", "--gc-grace", "1h"]);
    let told = server.run("gc --dry-run").ok();
    let line = |digest: &str| told.lines().find(|line| line.contains(digest)).unwrap();
    assert!(line(digest).contains("stays"), "{told}");
    assert!(line(digest).contains("it goes in 3600 s"), "{told}");
    assert!(
        told.contains("it is called docker.io/library/kept:1"),
        "{told}"
    );

    let server = Server::start_with(server.stop(), &["--runtime", "local", "--gc-grace", "0s"]);
    let told = server.run("gc --dry-run").ok();
    let line = |digest: &str| told.lines().find(|line| line.contains(digest)).unwrap();
    assert!(line(digest).starts_with("goes"), "{told}");
    server.run("gc").ok();
    let told = server.run("gc --dry-run --json").ok();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["images"].as_array().map(Vec::len), Some(0), "{told}");
    assert_eq!(told["kept"].as_object().map(serde_json::Map::len), Some(1));
}
