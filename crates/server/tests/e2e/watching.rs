//! Following changes: through restarts, and past what the server remembers.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Stdio},
};

use serde_json::Value;

use crate::{
    loopback::Own,
    server::{Server, dormouse, sandbox},
};

struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn start(server: &Server, words: &str) -> Self {
        let mut child = dormouse(server.home.path())
            .args(words.split_whitespace())
            .args(["--data-dir", "data"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// The event and the name of a line of a table.
    fn row(&mut self) -> (String, String) {
        let line = self.line();
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    }

    fn event(&mut self) -> (String, String) {
        let line = self.line();
        let event: Value = serde_json::from_str(&line).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"]),
        )
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seen(what: &str, name: &str) -> (String, String) {
    (what.to_owned(), name.to_owned())
}

#[test]
fn changes_are_told_as_they_happen_in_tables_and_json() {
    let server = Server::start();
    server.run_with("apply -f -", &sandbox("one")).ok();
    let mut table = Watching::start(&server, "get sandboxes --watch");
    assert_eq!(table.row(), seen("EVENT", "NAME"));
    assert_eq!(table.row(), seen("ADDED", "one"));
    let mut one = Watching::start(&server, "watch sandbox one -o json");
    assert_eq!(one.event(), seen("ADDED", "one"));

    server.run_with("apply -f -", &sandbox("two")).ok();
    assert_eq!(table.row(), seen("ADDED", "two"));
    server.kubectl("label sbx one a=b").ok();
    assert_eq!(table.row(), seen("MODIFIED", "one"));
    assert_eq!(one.event(), seen("MODIFIED", "one"));
    server.run("delete sbx one").ok();
    assert_eq!(table.row(), seen("DELETED", "one"));
    assert_eq!(one.event(), seen("DELETED", "one"));
}

#[test]
fn a_watch_goes_on_after_the_server_was_killed_and_misses_nothing() {
    // Nobody else comes to have its ports meanwhile.
    let own = Own::new();
    let home = tempfile::tempdir().unwrap();
    let server = Server::start_with(home, &["--listen", &format!("{}:0", own.ip)]);
    for name in ["stays", "goes"] {
        server.run_with("apply -f -", &sandbox(name)).ok();
    }
    let port = format!("{}:{}", own.ip, server.port());
    let mut watching = Watching::start(&server, "watch sandboxes -o json");
    assert_eq!(watching.event(), seen("ADDED", "goes"));
    assert_eq!(watching.event(), seen("ADDED", "stays"));
    let home = server.kill();

    // What the watch missed happens at another address; then the server comes back where it was. Its
    // memory of changes is gone with the process, so the watch has to list again.
    let server = Server::start_with(home, &[]);
    server.run("delete sbx goes").ok();
    server.run_with("apply -f -", &sandbox("new")).ok();
    let home = server.stop();
    let server = Server::start_with(home, &["--listen", &port]);
    assert_eq!(watching.event(), seen("ADDED", "new"));
    assert_eq!(watching.event(), seen("DELETED", "goes"));
    server.run_with("apply -f -", &sandbox("newer")).ok();
    assert_eq!(watching.event(), seen("ADDED", "newer"));
}
