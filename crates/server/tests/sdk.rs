//! The official clients, unmodified, against a whole server with real sandboxes.
//!
//! Each test runs a program of `conformance/`, which installs its client once, exactly as locked,
//! and drives a server of its own: on a network of its own, in plain HTTP or with TLS and names
//! under a wildcard. They need root, Python, Node and curl, those of the code interpreter mmdebstrap
//! and pip, and those of templates mmdebstrap and docker-registry; without them they fail and say so.
//! Beside them, requests made from the API's own documents.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Runs a program to its end. What it says on the way names the call that failed.
#[track_caller]
fn drive(client: &str, arguments: &[&str]) {
    let dormouse = Path::new(env!("CARGO_BIN_EXE_dormouse"));
    if !dormouse.with_file_name("dormouse-agent").exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "dormouse-agent"])
            .status()
            .expect("run cargo");
        assert!(built.success(), "the agent does not build");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join("conformance").join(client).join("run");
    let outcome = Command::new(&program)
        .args(arguments)
        .env("DORMOUSE", dormouse)
        .env(
            "SDK_CACHE",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance"),
        )
        .stdin(Stdio::null())
        .output();
    let output = outcome.unwrap_or_else(|why| panic!("run {}: {why}", program.display()));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{}\n{said}", output.status);
    assert!(said.contains(" passed"), "{said}");
}

/// In plain HTTP, then with TLS.
#[track_caller]
fn drive_both_ways(client: &str, version: &str) {
    drive(client, &["plain", version]);
    drive(client, &["tls", version]);
}

#[test]
fn what_the_documents_allow_and_forbid_is_answered_as_they_say() {
    drive("fuzz", &["1"]);
}

#[test]
fn the_newest_python_sdk_works() {
    drive_both_ways("e2b-python", "2.63.0");
}

#[test]
fn an_older_python_sdk_works() {
    drive_both_ways("e2b-python", "2.55.1");
}

#[test]
fn the_oldest_python_sdk_of_ours_works() {
    drive_both_ways("e2b-python", "2.45.1");
}

#[test]
fn the_newest_javascript_sdk_works() {
    drive_both_ways("e2b-js", "2.51.0");
}

#[test]
fn an_older_javascript_sdk_works() {
    drive_both_ways("e2b-js", "2.49.1");
}

#[test]
fn the_oldest_javascript_sdk_of_ours_works() {
    drive_both_ways("e2b-js", "2.45.0");
}

#[test]
fn our_own_command_line_works_with_a_key_alone_also_with_tls() {
    drive("dormouse-cli", &["plain"]);
    drive("dormouse-cli", &["tls"]);
}

#[test]
fn the_cli_works_with_a_key_alone() {
    drive("e2b-cli", &["plain"]);
    drive("e2b-cli", &["tls"]);
}

#[test]
fn the_newest_python_code_interpreter_works() {
    drive_both_ways("interpreter-python", "2.11.5");
}

#[test]
fn an_older_python_code_interpreter_works() {
    drive("interpreter-python", &["plain", "2.10.5"]);
}

#[test]
fn the_newest_javascript_code_interpreter_works() {
    drive_both_ways("interpreter-js", "2.8.0");
}

#[test]
fn an_older_javascript_code_interpreter_works() {
    drive("interpreter-js", &["plain", "2.7.2"]);
}

#[test]
fn the_newest_python_sdk_builds_templates() {
    drive_both_ways("template-python", "2.63.0");
}

#[test]
fn an_older_python_sdk_builds_templates() {
    drive("template-python", &["plain", "2.55.1"]);
}

#[test]
fn the_oldest_python_sdk_of_ours_builds_templates() {
    drive("template-python", &["plain", "2.45.1"]);
}

#[test]
fn the_newest_javascript_sdk_builds_templates() {
    drive_both_ways("template-js", "2.51.0");
}

#[test]
fn an_older_javascript_sdk_builds_templates() {
    drive("template-js", &["plain", "2.49.1"]);
}

#[test]
fn the_oldest_javascript_sdk_of_ours_builds_templates() {
    drive("template-js", &["plain", "2.45.0"]);
}

#[test]
fn the_cli_builds_templates() {
    drive("template-cli", &["plain"]);
    drive("template-cli", &["tls"]);
}
