//! Dialling into a sandbox: sockets of its network namespace.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    path::PathBuf,
    time::Duration,
};

use runtime::{Family, Inside as _, Runtime as _, RuntimeError};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::sockopt::socket_error,
};
use support::{Host, fence, spec};

const LISTEN: &str = r#"
import socket, sys, threading
def serve(family, address):
    s = socket.socket(family)
    s.bind((address, 4000)); s.listen()
    while True:
        c, _ = s.accept(); c.sendall(b"inside"); c.close()
threading.Thread(target=serve, args=(socket.AF_INET6, "::1")).start()
serve(socket.AF_INET, "127.0.0.1")
"#;

fn connect(socket: OwnedFd, address: &str) -> std::io::Result<TcpStream> {
    let address: SocketAddr = address.parse().unwrap();
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None)?;
    socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// What a port inside says, once something listens there.
fn ask(host: &Host, uid: model::Uid, family: Family, address: &str) -> String {
    for _ in 0..12_000 {
        let socket = host.runtime().socket(uid, family).unwrap();
        if let Ok(mut stream) = connect(socket, address) {
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            return said;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nothing listens at {address}");
}

fn own_namespace() -> PathBuf {
    fs::read_link("/proc/thread-self/ns/net").unwrap()
}

#[tokio::test]
async fn a_socket_made_inside_reaches_the_loopback_of_its_sandbox_only() {
    let host = Host::new();
    let (at, other) = (fence(1, 1), fence(2, 1));
    for at in [at, other] {
        host.runtime().create(at, &spec()).await.unwrap();
    }
    host.run(at.uid, 0, &["background", "/usr/bin/python3", "-c", LISTEN]);
    for (family, address) in [(Family::V4, "127.0.0.1:4000"), (Family::V6, "[::1]:4000")] {
        assert_eq!(ask(&host, at.uid, family, address), "inside");
        let socket = host.runtime().socket(other.uid, family).unwrap();
        let refused = connect(socket, address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    for at in [at, other] {
        host.runtime().delete(at).await.unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_that_has_ended_or_never_was_gives_no_socket() {
    let host = Host::new();
    let at = fence(1, 1);
    let absent = host.runtime().socket(at.uid, Family::V4);
    assert_eq!(absent.unwrap_err(), RuntimeError::Absent(at.uid));
    host.runtime().create(at, &spec()).await.unwrap();
    host.run(at.uid, 0, &["exit", "0"]);
    let ended = loop {
        match host.runtime().socket(at.uid, Family::V4) {
            // Its end is a matter of moments.
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert_eq!(ended, RuntimeError::Absent(at.uid));
    host.runtime().delete(at).await.unwrap();
    let absent = host.runtime().socket(at.uid, Family::V4);
    assert_eq!(absent.unwrap_err(), RuntimeError::Absent(at.uid));
}

#[tokio::test]
async fn threads_that_make_sockets_inside_stay_where_they_are() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let here = own_namespace();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    host.runtime().socket(at.uid, Family::V4).unwrap();
                }
                assert_eq!(own_namespace(), here);
                // What they make next is the host's again.
                let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let address = port.local_addr().unwrap();
                let mut to = TcpStream::connect(address).unwrap();
                to.write_all(b"x").unwrap();
            });
        }
    });
    host.runtime().delete(at).await.unwrap();
}
