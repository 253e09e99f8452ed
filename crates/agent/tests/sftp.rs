//! Files over SFTP, driven by OpenSSH's own client, which this test needs.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and its files end with it"
)]

use std::{
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs lines of the client in a directory, until one fails.
fn sftp(directory: &Path, lines: &[&str]) -> Output {
    let mut child = Command::new("sftp")
        .arg("-D")
        .arg(format!("{} sftp", env!("CARGO_BIN_EXE_dormouse-agent")))
        .args(["-b", "-"])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs sftp of openssh-client");
    let mut input = child.stdin.take().unwrap();
    input
        .write_all((lines.join("\n") + "\n").as_bytes())
        .unwrap();
    drop(input);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn good(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn files_go_up_and_come_down_as_they_were() {
    let place = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..3_000_001u32).map(|n| (n % 251) as u8).collect();
    fs::write(place.path().join("large"), &large).unwrap();
    fs::write(place.path().join("empty"), b"").unwrap();
    fs::set_permissions(place.path().join("large"), Permissions::from_mode(0o751)).unwrap();
    let said = sftp(
        place.path(),
        &[
            "mkdir there",
            "put -p large there/up",
            "put empty there/with\\ space",
            "get -p there/up down",
            "ls -l there",
        ],
    );
    let said = good(&said);
    assert!(
        said.contains("-rwxr-x--x") && said.contains("with space"),
        "{said}"
    );
    for name in ["there/up", "down"] {
        let path = place.path().join(name);
        assert!(fs::read(&path).unwrap() == large, "{name}");
        let (seen, was) = (
            fs::metadata(&path),
            fs::metadata(place.path().join("large")),
        );
        let (seen, was) = (seen.unwrap(), was.unwrap());
        assert_eq!(
            (seen.mode(), seen.mtime()),
            (was.mode(), was.mtime()),
            "{name}"
        );
    }
    assert_eq!(
        fs::read(place.path().join("there/with space")).unwrap(),
        b""
    );
}

#[test]
fn a_broken_transfer_is_taken_up_where_it_broke() {
    let place = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..500_000u32).map(|n| (n % 239) as u8).collect();
    fs::write(place.path().join("whole"), &content).unwrap();
    fs::write(place.path().join("half"), &content[..123_456]).unwrap();
    good(&sftp(place.path(), &["reput whole half"]));
    assert!(fs::read(place.path().join("half")).unwrap() == content);
}

#[test]
fn directories_links_and_names_are_changed() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("a"), b"text").unwrap();
    fs::write(place.path().join("b"), b"other").unwrap();
    let said = good(&sftp(
        place.path(),
        &[
            "pwd",
            "ln -s a link",
            "ln a hard",
            "rename a c",
            "rename c b",
            "chmod 600 b",
            "mkdir d",
            "rmdir d",
            "rm hard",
            "df .",
            "ls -la",
        ],
    ));
    let real = place.path().canonicalize().unwrap();
    assert!(said.contains(real.to_str().unwrap()), "{said}");
    let read = |name: &str| fs::read(place.path().join(name));
    assert_eq!(
        read("b").unwrap(),
        b"text",
        "renaming replaces, as clients expect"
    );
    assert!(read("a").is_err() && read("hard").is_err() && read("d").is_err());
    assert_eq!(
        fs::read_link(place.path().join("link")).unwrap(),
        Path::new("a")
    );
    let mode = fs::metadata(place.path().join("b")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_is_not_there_is_said_so() {
    let place = tempfile::tempdir().unwrap();
    let output = sftp(place.path(), &["get nothing"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("not found"),
        "{said}"
    );
}

#[test]
fn a_directory_of_many_is_listed_whole() {
    let place = tempfile::tempdir().unwrap();
    for number in 0..1000 {
        fs::write(place.path().join(format!("file-{number}")), b"").unwrap();
    }
    let said = good(&sftp(place.path(), &["ls -1"]));
    assert_eq!(said.matches("file-").count(), 1000);
}
