//! Clients that vanish at any byte of a create, and other abuse that only a real connection shows.
//!
//! A request that was not sent to its end has made nothing. From there on a sandbox may be there,
//! and then it is its team's like any other: listed, killable, and gone at its timeout. Nothing
//! else is left of such a client, in particular no connection.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;

use crate::{
    sandboxes::{json, until},
    server::Server,
};

fn start() -> Server {
    Server::start_with(tempfile::tempdir().unwrap(), &["--runtime", "fake"])
}

impl Server {
    fn e2b(&self) -> SocketAddr {
        let url = self.exported("E2B_API_URL");
        url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    fn dial(&self) -> TcpStream {
        let stream = TcpStream::connect(self.e2b()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    /// The bytes of a request with the first key.
    fn request(&self, line: &str, body: &str) -> Vec<u8> {
        let key = self.exported("E2B_API_KEY");
        format!(
            "{line} HTTP/1.1\r\nhost: {}\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.e2b(),
            body.len(),
        )
        .into_bytes()
    }

    /// The whole answer to a request.
    fn answer(&self, request: &[u8]) -> String {
        let mut stream = self.dial();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// Sandboxes that its API knows of, whatever their state.
    fn listed(&self) -> Vec<String> {
        let answer = self.answer(&self.request("GET /v2/sandboxes", ""));
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let all = json(body);
        let all = all.as_array().unwrap().iter();
        all.map(|s| s["sandboxID"].as_str().unwrap().to_owned())
            .collect()
    }

    fn records(&self) -> usize {
        self.run("get sandboxes -A -o name").ok().lines().count()
    }

    fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).unwrap().count()
    }
}

/// Is gone at once, with a reset.
fn vanish(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

const SHORT: &str = r#"{"templateID":"base","timeout":1}"#;

#[test]
fn a_create_that_is_cut_at_any_byte_of_its_request_makes_nothing() {
    let server = start();
    let request = server.request("POST /v2/sandboxes", SHORT);
    let before = server.open_files();
    for cut in 0..request.len() {
        let mut stream = server.dial();
        stream.write_all(&request[..cut]).unwrap();
        if cut % 2 == 0 {
            vanish(stream);
        }
    }
    assert_eq!(server.listed(), [""; 0]);
    assert_eq!(server.records(), 0);
    until("its connections are closed", || {
        (server.open_files() <= before + 2).then_some(())
    });
    assert!(server.answer(&request).starts_with("HTTP/1.1 201"));
    server.stop();
}

#[test]
fn a_create_whose_answer_is_cut_at_any_byte_leaves_nothing_for_long() {
    let server = start();
    let request = server.request("POST /v2/sandboxes", SHORT);
    let whole = server.answer(&request).len();
    let before = server.open_files();
    for cut in 0..whole {
        let mut stream = server.dial();
        stream.write_all(&request).unwrap();
        let mut read = vec![0; cut];
        stream.read_exact(&mut read).unwrap();
        vanish(stream);
    }
    // Whatever is there is its team's, and ends by itself.
    assert!(server.listed().len() <= whole + 1);
    until("every sandbox ends at its timeout", || {
        (server.records() == 0).then_some(())
    });
    until("its connections are closed", || {
        (server.open_files() <= before + 2).then_some(())
    });
    server.stop();
}

#[test]
fn who_kills_while_it_is_made_leaves_nothing() {
    let server = start();
    let create = server.request("POST /v2/sandboxes", r#"{"templateID":"base"}"#);
    std::thread::scope(|scope| {
        let made = (0..4).map(|_| {
            scope.spawn(|| {
                for _ in 0..25 {
                    let answer = server.answer(&create);
                    let status = &answer[9..12];
                    assert!(["201", "409"].contains(&status), "{answer}");
                }
            })
        });
        let made: Vec<_> = made.collect();
        while !made.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            // As records, so that those are found too of which nobody was told yet.
            let names = server.run("get sandboxes -o name").ok();
            for name in names.lines() {
                let ran = server.run(&format!("delete {name}"));
                assert!(
                    ran.code == Some(0) || ran.stderr.contains("not found"),
                    "{ran:?}"
                );
            }
        }
    });
    for id in server.listed() {
        let kill = server.request(&format!("DELETE /sandboxes/{id}"), "");
        assert!(server.answer(&kill).starts_with("HTTP/1.1 204"));
    }
    until("nothing is left", || (server.records() == 0).then_some(()));
    server.stop();
}

#[test]
fn what_no_client_sends_is_refused_and_nothing_is_made() {
    let server = start();
    let refused = |line: &str, body: &str, status: &str| {
        let answer = server.answer(&server.request(line, body));
        assert_eq!(&answer[9..12], status, "{line} {body:.80}: {answer}");
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(json(text)["code"].to_string(), status, "{answer}");
    };
    let create = "POST /v2/sandboxes";
    for body in [
        "",
        "{",
        "[]",
        "[null]",
        "\"x\"",
        "7",
        "null",
        "{\"templateID\":}",
        "{\"a\":1,}",
        r#"{"templateID":"base"}{"#,
        r#"{"templateID":7}"#,
        r#"{"timeout":"60"}"#,
        r#"{"timeout":1e99}"#,
        r#"{"timeout":1.5}"#,
        r#"{"timeout":-1}"#,
        r#"{"timeout":0}"#,
        r#"{"timeout":9223372036854775807}"#,
        r#"{"timeout":99999999999999999999999}"#,
        r#"{"timeout":2592001}"#,
        r#"{"metadata":[]}"#,
        r#"{"metadata":{"a":1}}"#,
        r#"{"envVars":{"A=B":"c"}}"#,
        r#"{"envVars":{"A":null}}"#,
        r#"{"autoPause":"yes"}"#,
        r#"{"autoResume":[true]}"#,
        r#"{"network":[]}"#,
        r#"{"network":{"allowOut":"x"}}"#,
        r#"{"unknown":1}"#,
        "{\"templateID\":\"\u{0}\"}",
    ] {
        refused(create, body, "400");
    }
    let deep = format!("{{\"mcp\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    refused(create, &deep, "400");
    refused(
        create,
        &format!("{{\"templateID\":\"{}\"}}", "a".repeat(2 << 20)),
        "413",
    );
    refused(
        &format!("GET /v2/sandboxes?metadata={}", "a".repeat(20 << 10)),
        "",
        "414",
    );
    for id in [
        "..",
        "%2e%2e",
        "..%2f..%2fetc",
        "%00",
        "a%0ab",
        "%ff",
        "i%20",
    ] {
        refused(
            &format!("DELETE /sandboxes/{id}"),
            "",
            if id == "%ff" { "400" } else { "404" },
        );
    }
    assert_eq!(server.records(), 0);
    server.stop();
}
