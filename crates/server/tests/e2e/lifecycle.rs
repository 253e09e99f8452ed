//! Signals and power cuts.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{https::Https, sandboxes::until, server::Server};

const SANDBOXES: &str = "/apis/dormouse.dev/v1alpha1/namespaces/default/sandboxes";

fn body(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"dormouse.dev/v1alpha1","kind":"Sandbox","metadata":{{"name":"{name}"}},"spec":{{"template":"base"}}}}"#
    )
}

/// A server in the middle of a request whose body is not whole.
fn busy(flags: &[&str]) -> (Server, Https, String) {
    let server = Server::start_with(tempfile::tempdir().unwrap(), flags);
    let mut client = Https::connect(&server);
    let body = body("late");
    let (half, rest) = body.split_at(20);
    client.begin("POST", SANDBOXES, body.len());
    client.send_more(half);
    let rest = rest.to_owned();
    (server, client, rest)
}

#[test]
fn sigterm_lets_a_request_finish_ends_watches_and_refuses_new_clients() {
    let (mut server, mut client, rest) = busy(&["--drain-timeout", "1h"]);
    let mut watch = Https::watch(&server, &format!("{SANDBOXES}?watch=true"));
    server.signal(Signal::TERM);
    let last = watch.rest();
    assert!(last.ends_with("0\r\n\r\n"), "it was cut: {last:?}");
    assert!(
        server.child.try_wait().unwrap().is_none(),
        "it waits for the request"
    );
    // The listener ends beside the watches.
    let mut refused = server.run("get sandboxes");
    while refused.code == Some(0) {
        refused = server.run("get sandboxes");
    }
    refused.failed_saying(&["no server answers"]);
    client.send_more(&rest);
    let (status, answer) = client.answer().unwrap();
    assert_eq!(status, 201, "{answer}");
    let status = server.wait();
    assert!(status.success(), "{status}: {}", server.log());

    // What it answered for is there.
    let home = std::mem::replace(&mut server.home, tempfile::tempdir().unwrap());
    std::fs::File::create(server.home.path().join("log")).unwrap();
    let server = Server::start_with(home, &[]);
    assert_eq!(
        server.run("get sandboxes -o name").ok(),
        "sandbox.dormouse.dev/late\n"
    );
}

#[test]
fn a_request_that_never_ends_is_dropped_at_the_deadline_and_reported() {
    let (mut server, _client, _) = busy(&["--drain-timeout", "300ms"]);
    server.signal(Signal::INT);
    let status = server.wait();
    assert_eq!(status.code(), Some(1));
    assert!(
        server.log().contains("still running after 300ms"),
        "{}",
        server.log()
    );
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (mut server, _client, _) = busy(&["--drain-timeout", "1h"]);
    server.signal(Signal::TERM);
    server.has_said("stopping", 1);
    assert!(server.child.try_wait().unwrap().is_none());
    server.signal(Signal::TERM);
    let status = server.wait();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn kill_nine_loses_no_acknowledged_object() {
    let mut home = tempfile::tempdir().unwrap();
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    for (round, pause) in [0, 70, 140].into_iter().enumerate() {
        let server = Server::start_with(home, &[]);
        let before = acknowledged.lock().unwrap().len();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut client = Https::connect(&server);
                let acknowledged = acknowledged.clone();
                thread::spawn(move || {
                    for n in 0.. {
                        let name = format!("r{round}-w{writer}-n{n}");
                        match client.call("POST", SANDBOXES, &body(&name)) {
                            Some((201, _)) => acknowledged.lock().unwrap().insert(name),
                            Some((status, answer)) => panic!("{status}: {answer}"),
                            // The server is gone; whether this one was written nobody promised.
                            None => return,
                        };
                    }
                })
            })
            .collect();
        // In the middle of many writes, at another moment each time.
        until("many are written", || {
            let written = acknowledged.lock().unwrap().len();
            (written > before + 10).then_some(())
        });
        thread::sleep(Duration::from_millis(pause));
        home = server.kill();
        for writer in writers {
            writer.join().unwrap();
        }
    }
    let server = Server::start_with(home, &[]);
    let list: Value = serde_json::from_str(&server.run("get sandboxes -o json").ok()).unwrap();
    let found: BTreeSet<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    let acknowledged = acknowledged.lock().unwrap();
    assert!(
        acknowledged.len() > 20,
        "only {} writes",
        acknowledged.len()
    );
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|name| !found.contains(name.as_str()))
        .collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost: {lost:?}",
        lost.len(),
        acknowledged.len()
    );
    server.stop();
}
