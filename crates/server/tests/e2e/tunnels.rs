//! Any protocol over TCP into sandboxes: `sandbox port-forward`, and ports that the server's own
//! configuration names. They need root; without it these tests fail and say so.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpStream},
    process::{Child, Stdio},
};

use crate::{
    run::agent,
    sandboxes::{start, until},
    server::Server,
};

/// Sends back what it reads, each time in full, and ends when its peer has.
const ECHO: &str = r#"
import socket, threading
def serve(c):
    while (d := c.recv(65536)):
        c.sendall(d)
    c.shutdown(socket.SHUT_WR)
    c.close()
s = socket.create_server(("127.0.0.1", 7000))
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

impl Server {
    /// Runs something inside, and answers what it printed.
    #[track_caller]
    pub(crate) fn inside(&self, id: &str, script: &str) -> String {
        let words = ["sandbox", "exec", id, "--", "sh", "-c", script];
        crate::server::run(&mut self.program(&words), "").ok()
    }

    /// A sandbox that wakes on traffic, in which port 7000 echoes.
    pub(crate) fn echoing(&self, how: &str) -> String {
        let id = self.run(&format!("sandbox create {how}")).ok();
        let id = id.trim().to_owned();
        self.echo_in(&id);
        id
    }

    /// Ends its sandboxes, which would outlive it, and then stops it.
    pub(crate) fn end(self) {
        for id in self.run("sandbox ls -q").ok().lines() {
            self.run(&format!("sandbox kill {id}")).ok();
        }
        // The record goes when the workload has.
        until("its sandboxes are gone", || {
            self.run("get sandboxes -A").ok().is_empty().then_some(())
        });
        self.stop();
    }

    /// Has port 7000 echo.
    pub(crate) fn echo_in(&self, id: &str) {
        let script = format!("cat >echo.py <<'E'{ECHO}E\nsetsid python3 echo.py >echo.log 2>&1 &");
        self.inside(id, &script);
        until("the echo listens", || {
            let seen = self.inside(id, "grep -c ':1B58 .* 0A ' /proc/net/tcp || true");
            (seen.trim() == "1").then_some(())
        });
    }
}

/// A `port-forward` that runs, and the ports it listens on.
pub(crate) struct Forwarding {
    child: Child,
    pub(crate) ports: Vec<u16>,
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn forwarding(server: &Server, id: &str, pairs: &[&str]) -> Forwarding {
    let words = [&["sandbox", "port-forward", id][..], pairs].concat();
    let mut command = server.program(&words);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ports = pairs.iter().map(|_| {
        let line = lines.next().unwrap().unwrap();
        let address = line.split(' ').next().unwrap();
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    });
    let ports = ports.collect();
    Forwarding { child, ports }
}

/// Sends all of it at once, says that this is the end, and answers what came back up to its end.
fn echoed(port: u16, sent: &[u8]) -> std::io::Result<Vec<u8>> {
    echoed_at((Ipv4Addr::LOCALHOST, port), sent)
}

/// The same where somebody else listens.
pub(crate) fn echoed_at(at: (Ipv4Addr, u16), sent: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at)?;
    let mut writing = stream.try_clone()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // One that is cut hears of it where it reads.
            let _ = writing.write_all(sent);
            let _ = writing.shutdown(Shutdown::Write);
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back)?;
        Ok(back)
    })
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

#[test]
fn bytes_for_a_sleeping_sandbox_wait_and_come_back_once() {
    let server = start();
    let sent = pattern(1 << 20);
    // One that wakes on traffic, and one that only its owner wakes: whoever forwards is that.
    for how in ["--auto-resume", "--auto-pause"] {
        let id = server.echoing(how);
        let forward = forwarding(&server, &id, &[":7000"]);
        let port = forward.ports[0];
        assert!(echoed(port, &sent).unwrap() == sent, "awake");
        for _ in 0..2 {
            server.run(&format!("sandbox pause {id}")).ok();
            assert!(echoed(port, &sent).unwrap() == sent, "asleep");
        }
        server.run(&format!("sandbox kill {id}")).ok();
    }
    server.end();
}

#[test]
fn a_port_that_is_shut_or_a_sandbox_that_ends_cuts_the_connection_and_says_why() {
    let server = start();
    let id = server.echoing("--auto-resume");
    let mut forward = forwarding(&server, &id, &[":7000", ":7001"]);
    assert!(echoed(forward.ports[1], b"anybody?").is_err(), "a reset");
    let mut open = TcpStream::connect(("127.0.0.1", forward.ports[0])).unwrap();
    open.write_all(b"x").unwrap();
    let mut byte = [0];
    open.read_exact(&mut byte).unwrap();
    server.run(&format!("sandbox kill {id}")).ok();
    assert!(open.read_exact(&mut byte).is_err());
    assert!(echoed(forward.ports[0], b"still?").is_err());
    forward.child.kill().unwrap();
    let mut said = String::new();
    let mut stderr = forward.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("port is not open"), "{said}");
    assert!(said.contains("was not found"), "{said}");
    server.end();
}

#[test]
fn a_closed_sandbox_is_reached_with_the_tokens_of_its_team_over_tls_too() {
    agent();
    let flags = [
        "--runtime",
        "local",
        "--e2b-domain",
        "localhost",
        "--e2b-tls-listen",
        "127.0.0.1:0",
    ];
    let server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    let wish = r#"{"templateID": "base", "timeout": 300, "autoPause": true,
        "autoResume": {"enabled": true}, "network": {"allowPublicTraffic": false}}"#;
    let mut curl = crate::server::command("curl", server.home.path());
    curl.args(["-sS", "--json", "@-", "-H"])
        .arg(format!("X-API-KEY: {}", server.exported("E2B_API_KEY")))
        .arg(format!("{}/v2/sandboxes", server.exported("E2B_API_URL")));
    let made = crate::sandboxes::json(&crate::server::run(&mut curl, wish).ok());
    let id = made["sandboxID"].as_str().unwrap();
    server.echo_in(id);
    let line = server.announced.lines().find(|l| l.contains("with TLS on"));
    let port = line.unwrap().split(&[':', ','][..]).nth(1).unwrap();
    let url = format!("https://localhost:{port}");
    let mut child = server
        .program(&["sandbox", "port-forward", id, ":7000"])
        .env_remove("DORMOUSE_DATA_DIR")
        .env("E2B_API_KEY", server.exported("E2B_API_KEY"))
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("SSL_CERT_FILE", server.data().join("pki/ca.crt"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line.split(' ').next().unwrap();
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let sent = pattern(300_000);
    let awake = echoed(port, &sent);
    server.run(&format!("sandbox pause {id}")).ok();
    let asleep = echoed(port, &sent);
    let _ = child.kill();
    let _ = child.wait();
    assert!(awake.unwrap() == sent && asleep.unwrap() == sent);
    server.end();
}

#[test]
fn a_port_of_the_host_leads_into_a_sandbox_and_wakes_it() {
    let server = start();
    let id = server.echoing("--auto-resume --timeout 1h");
    let home = server.stop();
    let forward = format!("127.0.0.1:0={id}:7000,127.0.0.1:0={id}:7001");
    let flags = ["--runtime", "local", "--tcp-forwards", &forward];
    let server = Server::start_with(home, &flags);
    let to = format!(" leads to port 7000 of {id}");
    let line = server.announced.lines().find_map(|l| l.strip_suffix(&to));
    let port = line.unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    let sent = pattern(1 << 20);
    assert!(echoed(port, &sent).unwrap() == sent);
    server.run(&format!("sandbox pause {id}")).ok();
    assert!(echoed(port, &sent).unwrap() == sent, "asleep");
    server.run(&format!("sandbox kill {id}")).ok();
    assert!(echoed(port, b"gone").is_err());
    let home = server.stop();
    let bad = crate::server::run(
        crate::server::dormouse(home.path()).args(["serve", "--tcp-forwards", "nonsense"]),
        "",
    );
    assert_eq!(bad.code, Some(2));
    assert!(
        bad.stderr.contains("tcp-forwards") && bad.stderr.contains("nonsense"),
        "{}",
        bad.stderr
    );
}
