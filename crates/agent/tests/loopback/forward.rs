//! The real program with a key, as it runs in a Pod: who is let in, and to what.

use std::net::SocketAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::StatusCode;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};
use wire::{
    connect::Codec,
    process::{ListRequest, ListResponse},
};

use crate::{
    client::{Program, Served},
    first_process::{run_as, start, start_apart, start_as},
};

const KEY: (&str, &str) = ("x-dormouse-init-key", "the init key");
const UPGRADE: [(&str, &str); 2] = [("connection", "upgrade"), ("upgrade", "tcp")];

fn key_hash() -> String {
    let hash = Sha256::digest(KEY.1);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn keyed(args: &[&str]) -> (Program, Served) {
    let hash = key_hash();
    let mut all = vec!["--init-key-hash", &hash];
    all.extend_from_slice(args);
    start(&all).await
}

async fn arm(agent: &Served, epoch: u64, operation: u64) -> http::StatusCode {
    let message = serde_json::json!({
        "accessToken": "secret",
        "doorKey": format!("door{epoch}"),
        "delivery": {"generation": 1, "operation": operation, "epoch": epoch},
    });
    let answer = agent.post("/init", &[KEY], message.to_string()).await;
    answer.status
}

/// Asks for a port by hand. Answers the status and the socket, with what follows the head unread.
async fn ask(at: SocketAddr, port: u16, door: &str, follow: &[u8]) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!(
        "GET /forward/{port} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: tcp\r\n\
         x-dormouse-door-key: {door}\r\n\r\n"
    );
    stream
        .write_all(&[head.as_bytes(), follow].concat())
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    (head[9..12].parse().unwrap(), stream)
}

#[tokio::test]
async fn nobody_but_who_has_the_key_is_served_before_a_delivery() {
    let (_program, agent) = keyed(&[]).await;
    for (headers, status) in [(&[][..], 401), (&[("x-dormouse-init-key", "guess")], 401)] {
        assert_eq!(agent.get("/init", headers).await.status, status);
        assert_eq!(agent.post("/init", headers, "{}").await.status, status);
        assert_eq!(agent.get("/envs", headers).await.status, 503);
    }
    let list: Result<ListResponse, _> = agent
        .call(
            Codec::Json,
            "/process.Process/List",
            &ListRequest {},
            &[KEY],
        )
        .await;
    assert_eq!(list.unwrap().processes.len(), 0);
    let fresh = agent.get("/init", &[KEY]).await.json();
    assert_eq!(fresh["epoch"], 0);
    assert_eq!(arm(&agent, 3, 2).await, StatusCode::NO_CONTENT);
    let armed = agent.get("/init", &[KEY]).await.json();
    let expected = serde_json::json!({"generation": 1, "operation": 2, "epoch": 3});
    assert_eq!(armed, expected);
    // The owner has a token, which is no key.
    let token = ("x-access-token", "secret");
    assert_eq!(agent.get("/envs", &[token]).await.status, 200);
    assert_eq!(agent.get("/init", &[token]).await.status, 401);
    assert_eq!(agent.post("/init", &[token], "{}").await.status, 401);
    let list = agent.post("/process.Process/List", &[], "{}").await;
    assert_eq!(list.status, 401);
}

#[tokio::test]
async fn a_port_is_open_to_the_delivery_that_is_meant_and_to_no_other() {
    let (_program, agent) = keyed(&[]).await;
    let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = echo.local_addr().unwrap().port();
    assert_eq!(ask(agent.address, port, "door1", b"").await.0, 401);
    arm(&agent, 1, 1).await;
    assert_eq!(ask(agent.address, port, "door2", b"").await.0, 401);
    assert_eq!(ask(agent.address, port, "", b"").await.0, 401);
    let served = async {
        let (mut stream, _) = echo.accept().await.unwrap();
        // It speaks first, and what was sent with the request is not lost.
        stream.write_all(b"hello").await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        stream.write_all(&heard).await.unwrap();
    };
    let asked = async {
        let (status, mut stream) = ask(agent.address, port, "door1", b"first ").await;
        assert_eq!(status, 101);
        stream.write_all(b"second").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        heard
    };
    let ((), heard) = tokio::join!(served, asked);
    assert_eq!(heard, "hellofirst second");
    // Another delivery, and what was good before is good no more.
    arm(&agent, 2, 2).await;
    assert_eq!(ask(agent.address, port, "door1", b"").await.0, 401);
    assert_eq!(ask(agent.address, port, "door2", b"").await.0, 101);
    // What an older operation says is not taken.
    let late = agent
        .post(
            "/init",
            &[KEY],
            r#"{"doorKey":"door1","delivery":{"generation":1,"operation":1,"epoch":1}}"#,
        )
        .await;
    assert_eq!(late.header("x-dormouse-init-stale"), "true");
    assert_eq!(ask(agent.address, port, "door1", b"").await.0, 401);
}

#[tokio::test]
async fn without_a_token_an_agent_is_reached_by_the_door_only() {
    let (_program, agent) = start_apart(&["--init-key-hash", &key_hash()]).await;
    let open = serde_json::json!({
        "accessToken": "",
        "doorKey": "door1",
        "delivery": {"generation": 1, "operation": 1, "epoch": 1},
    });
    let armed = agent.post("/init", &[KEY], open.to_string()).await;
    assert_eq!(armed.status, StatusCode::NO_CONTENT);
    // Anybody on the network.
    assert_eq!(agent.get("/envs", &[]).await.status, 401);
    assert_eq!(
        agent.get("/files?path=/etc/hostname", &[]).await.status,
        401
    );
    // What is signed with no token can be signed by anybody.
    let unsigned = STANDARD_NO_PAD.encode(Sha256::digest("/etc/hostname:read::"));
    let unsigned = unsigned.replace('+', "%2B").replace('/', "%2F");
    let guess = format!("/files?path=/etc/hostname&signature=v1_{unsigned}");
    assert_eq!(agent.get(&guess, &[]).await.status, 401);
    let list = agent.post("/process.Process/List", &[], "{}").await;
    assert_eq!(list.status, 401);
    assert_eq!(agent.get("/health", &[]).await.status, 204);
    // The gateway.
    let own = agent.address.port();
    let begun = b"GET /envs HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let (status, mut stream) = ask(agent.address, own, "door1", begun).await;
    assert_eq!(status, 101);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(ask(agent.address, own, "door2", begun).await.0, 401);
}

#[tokio::test]
async fn nobody_of_its_own_user_reads_the_memory_of_an_agent_with_a_key() {
    use std::os::unix::fs::MetadataExt as _;
    let owner = |program: &Program| {
        let memory = format!("/proc/{}/mem", program.0.id());
        std::fs::metadata(memory).unwrap().uid()
    };
    let nobody = 65_534;
    let hash = key_hash();
    let args = ["--init-key-hash", &hash];
    let (keyed, _agent) = start_as(nobody, &args).await;
    assert_eq!(owner(&keyed), 0, "the kernel gives it to root");
    let (keyless, _agent) = start_as(nobody, &[]).await;
    assert_eq!(owner(&keyless), nobody);
}

#[tokio::test]
async fn ports_that_cannot_be_reached_say_why() {
    let (_program, agent) = keyed(&[]).await;
    arm(&agent, 1, 1).await;
    // Taken, so that nobody else can listen there.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = closed.local_addr().unwrap().port();
    assert_eq!(ask(agent.address, port, "door1", b"").await.0, 502);
    let door = ("x-dormouse-door-key", "door1");
    for (path, headers, status) in [
        ("/forward/0", &[door, UPGRADE[0], UPGRADE[1]][..], 400),
        ("/forward/65536", &[door, UPGRADE[0], UPGRADE[1]], 400),
        ("/forward/", &[door, UPGRADE[0], UPGRADE[1]], 400),
        ("/forward/80", &[door], 426),
    ] {
        assert_eq!(agent.get(path, headers).await.status, status, "{path}");
    }
    // The agent's own port is reached like any other, and only one that knows no key has no way in.
    let (status, mut stream) = ask(agent.address, agent.address.port(), "door1", b"").await;
    assert_eq!(status, 101);
    stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let (_program, keyless) = start(&[]).await;
    assert_eq!(ask(keyless.address, port, "", b"").await.0, 401);
}

#[test]
fn the_program_puts_itself_where_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent");
    let other = directory.path().join("init");
    let own = env!("CARGO_BIN_EXE_dormouse-agent");
    for _ in 0..2 {
        let installed = std::process::Command::new(own)
            .arg("install")
            .args([&path, &other])
            .status();
        assert!(installed.unwrap().success());
    }
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(own).unwrap());
    let told = std::process::Command::new(&other).arg("--version").output();
    assert!(told.unwrap().status.success());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    let nowhere = std::process::Command::new(own).arg("install").output();
    assert!(!nowhere.unwrap().status.success());
}

#[tokio::test]
async fn programs_have_what_the_agent_was_given() {
    let (_program, agent) = keyed(&["--inherit"]).await;
    arm(&agent, 1, 1).await;
    let own = std::env::current_dir().unwrap();
    let token = ("x-access-token", "secret");
    let said = run_as(&agent, "pwd; id -un; echo $CARGO_PKG_NAME", Some(token)).await;
    // Whatever runs the tests has it, and it is not always the name of this crate.
    let package = std::env::var("CARGO_PKG_NAME").unwrap();
    let expected = format!("{}\nroot\n{package}\n", own.display());
    assert_eq!(said, expected);
}
