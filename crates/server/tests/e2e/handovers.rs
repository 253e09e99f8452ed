//! A sandbox is there for its owner the moment its owner hears of it.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    sandboxes::{json as parsed, start, until},
    swaps::clear,
};

/// A connection that is open before it is needed: what is asked arrives at once.
struct Line(BufReader<TcpStream>);

impl Line {
    fn open(url: &str) -> Self {
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut text = format!("{line} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            text.push_str("Content-Type: application/json\r\n");
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        let mut length = 0;
        let mut status = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end();
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some((name, value)) = line.split_once(": ") {
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.parse().unwrap();
                }
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}

#[test]
fn whoever_is_answered_reaches_the_sandbox_and_finds_it_at_once() {
    const MANY: usize = 20;
    let server = start();
    let pool = json!({
        "apiVersion": "dormouse.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": {"name": "warm"},
        "spec": {"template": "base", "minIdle": MANY, "maxIdle": MANY, "max": 2 * MANY},
    });
    server.run_with("apply -f -", &pool.to_string()).ok();
    until("the pool is filled", || {
        let pool = parsed(&server.run("get sandboxpool warm -o json").ok());
        (pool["status"]["idle"] == MANY).then_some(())
    });
    let url = server.exported("E2B_API_URL");
    let key = ("X-API-Key", server.exported("E2B_API_KEY"));
    let [mut api, mut inside, mut looks] = [(); 3].map(|()| Line::open(url));
    let body = json!({"templateID": "warm", "timeout": 300}).to_string();
    for number in 0..MANY {
        let (status, made) = api.ask("POST /v2/sandboxes", &[key], &body);
        assert_eq!(status, 201, "{made}");
        let made: Value = parsed(&made);
        let id = made["sandboxID"].as_str().unwrap();
        let token = made["envdAccessToken"].as_str().unwrap();
        let headers = [
            ("E2b-Sandbox-Id", id),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", token),
        ];
        // One of them is the first to ask; the other comes a moment later.
        let mut reaches = || inside.ask("GET /files?path=/etc/hostname", &headers, "");
        let mut finds = || looks.ask(&format!("GET /sandboxes/{id}"), &[key], "");
        let (reached, found) = if number % 2 == 0 {
            (reaches(), finds())
        } else {
            let found = finds();
            (reaches(), found)
        };
        assert_eq!(reached.0, 200, "{number}: {}", reached.1);
        assert_eq!(found.0, 200, "{number}: {}", found.1);
    }
    clear(&server);
    server.stop();
}
