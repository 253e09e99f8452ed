//! What a start makes, what it keeps, and how it fails.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use crate::server::{Ran, Server, dormouse, run};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A start that is expected to fail: one line that says why, and no success.
fn refused(home: &Path, flags: &[&str]) -> String {
    let mut command = dormouse(home);
    command.arg("serve").envs([
        ("DORMOUSE_DATA_DIR", "data"),
        ("DORMOUSE_LISTEN", "127.0.0.1:0"),
    ]);
    let Ran {
        code,
        stdout,
        stderr,
    } = run(command.args(flags), "");
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert_eq!(stdout, "", "it announced what is not so");
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    errors[0].to_owned()
}

#[test]
fn the_first_start_makes_private_files_and_never_shows_the_token() {
    let server = Server::start();
    let data = server.data();
    assert_eq!(mode(&data), 0o700);
    for secret in ["token", "kubeconfig", "pki/ca.key"] {
        assert_eq!(mode(&data.join(secret)), 0o600, "{secret}");
    }
    let token = fs::read_to_string(data.join("token")).unwrap();
    let token = token.trim();
    assert!(token.len() >= 43, "32 random bytes");
    assert!(
        fs::read_to_string(data.join("kubeconfig"))
            .unwrap()
            .contains(token)
    );
    assert!(
        server.announced.contains("export KUBECONFIG="),
        "{}",
        server.announced
    );
    assert!(!server.announced.contains(token));
    assert!(!server.log().contains(token));
    server.stop();
}

#[test]
fn a_second_start_keeps_token_authority_and_objects() {
    let server = Server::start();
    let read = |server: &Server, name: &str| fs::read(server.data().join(name)).unwrap();
    let before = ["token", "pki/ca.crt", "pki/ca.key"].map(|name| read(&server, name));
    server
        .run_with("apply -f -", &crate::server::sandbox("one"))
        .ok();
    let home = server.stop();

    let server = Server::start_with(home, &[]);
    let after = ["token", "pki/ca.crt", "pki/ca.key"].map(|name| read(&server, name));
    assert!(before == after);
    assert_eq!(
        server.run("get sandboxes -o name").ok(),
        "sandbox.dormouse.dev/one\n"
    );
    server.stop();
}

#[test]
fn a_second_server_on_the_same_directory_is_told_who_has_it() {
    let server = Server::start();
    let error = refused(server.home.path(), &[]);
    let holder = format!("in use by process {}", server.child.id());
    assert!(
        error.contains(&holder) && error.contains("--data-dir"),
        "{error}"
    );
    server.run("get sandboxes").ok();
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_made() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = dormouse(home.path());
    command.args(["serve", "--data-dir", "data", "--listen", &address]);
    run(&mut command, "").failed_saying(&["another process listens on", &address, "--listen"]);
    let left: Vec<_> = fs::read_dir(home.path().join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["lock"], "no keys, no store");
}

#[test]
fn secrets_that_others_could_read_refuse_the_start() {
    let home = Server::start().stop();
    let token = home.path().join("data/token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(home.path(), &[]);
    assert!(
        error.contains("0644") && error.contains("chmod 600"),
        "{error}"
    );
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();

    // The directory itself is mended: closing it is what anybody would do.
    let data = home.path().join("data");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_with(home, &[]);
    assert_eq!(mode(&server.data()), 0o700);
    assert!(server.log().contains("is now 0700"), "{}", server.log());
}

#[test]
fn damaged_certificates_and_records_are_named_and_left_alone() {
    let home = Server::start().stop();
    let certificate = home.path().join("data/pki/ca.crt");
    let good = fs::read(&certificate).unwrap();
    fs::remove_file(&certificate).unwrap();
    fs::File::create(&certificate)
        .unwrap()
        .write_all(b"nonsense")
        .unwrap();
    let error = refused(home.path(), &[]);
    assert!(error.contains("pki/ca.crt"), "{error}");
    assert_eq!(fs::read(&certificate).unwrap(), b"nonsense");
    fs::File::create(&certificate)
        .unwrap()
        .write_all(&good)
        .unwrap();

    let format = home.path().join("data/FORMAT");
    fs::File::create(&format)
        .unwrap()
        .write_all(b"99\n")
        .unwrap();
    let error = refused(home.path(), &[]);
    assert!(error.contains("format 99"), "{error}");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    let home = tempfile::tempdir().unwrap();
    fs::File::create(home.path().join("data")).unwrap();
    let error = refused(home.path(), &[]);
    assert!(error.contains("is not a directory"), "{error}");
    let error = refused(home.path(), &["--data-dir", "/proc/nowhere"]);
    assert!(error.contains("/proc/nowhere"), "{error}");
}

#[test]
fn plain_http_is_told_to_use_https() {
    let server = Server::start();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("https://"), "{answer}");
}

#[test]
fn a_wrong_token_and_a_foreign_server_are_refused() {
    let server = Server::start();
    server
        .kubectl("get sandboxes --token=wrong")
        .failed_saying(&["You must be logged in to the server"]);

    let kubeconfig = fs::read_to_string(server.data().join("kubeconfig")).unwrap();
    let token = fs::read_to_string(server.data().join("token")).unwrap();
    server.write("wrong-token", &kubeconfig.replace(token.trim(), "wrong"));
    server
        .run("get sandboxes --kubeconfig wrong-token")
        .failed_saying(&["the token in wrong-token is not one this server knows"]);

    let other = Server::start();
    let elsewhere = kubeconfig.replace(&server.port().to_string(), &other.port().to_string());
    server.write("elsewhere", &elsewhere);
    server
        .run("get sandboxes --kubeconfig elsewhere")
        .failed_saying(&["is not the server that elsewhere describes"]);
}

#[test]
fn commands_say_what_to_do_without_a_server() {
    let home = tempfile::tempdir().unwrap();
    let mut command = dormouse(home.path());
    run(
        command.args(["get", "sandboxes", "--data-dir", "nowhere"]),
        "",
    )
    .failed_saying(&[
        "there is no nowhere/kubeconfig",
        "dormouse serve --data-dir nowhere",
    ]);
    let home = Server::start().stop();
    let mut command = dormouse(home.path());
    run(command.args(["get", "sandboxes", "--data-dir", "data"]), "")
        .failed_saying(&["no server answers at https://127.0.0.1:", "dormouse serve"]);
}
