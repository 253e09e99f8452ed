//! A stock Envoy before a server with real sandboxes. It needs root; without it this fails and says so.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use crate::{envoy::Envoy, loopback::Own, run::agent, sandboxes::until, server::Server};

/// What a file of a sandbox is, by way of this.
fn ask(to: SocketAddr, id: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    write!(
        stream,
        "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\n\
         E2b-Sandbox-Port: 8000\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn through_envoy_a_sandbox_answers_and_one_that_sleeps_wakes() {
    agent();
    let own = Own::new();
    let processor = SocketAddr::from((own.ip, 3001));
    let server = Server::start_with(
        tempfile::tempdir().unwrap(),
        &[
            "--runtime",
            "local",
            "--gateway-trust-forwarded",
            "on",
            "--ext-proc-listen",
            &processor.to_string(),
        ],
    );
    let url = server.exported("E2B_API_URL");
    let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let envoy = Envoy::start("envoy.yaml", gateway, processor);
    let id = server.run("sandbox create --auto-resume --timeout 1h").ok();
    let id = id.trim();
    server.inside(
        id,
        "echo hello >hello.txt; setsid python3 -m http.server 8000 --bind 127.0.0.1 >log 2>&1 &",
    );
    until("it answers", || {
        let answer = ask(envoy.address, id);
        answer.ends_with("\r\n\r\nhello\n").then_some(())
    });
    server.run(&format!("sandbox pause {id}")).ok();
    let answer = ask(envoy.address, id);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
    server.run(&format!("sandbox kill {id}")).ok();
    let (own, theirs) = (ask(gateway, id), ask(envoy.address, id));
    assert!(own.starts_with("HTTP/1.1 502"), "{own}");
    assert!(theirs.starts_with("HTTP/1.1 502"), "{theirs}");
    let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(body(&own), body(&theirs));
    drop(envoy);
    server.end();
}
