//! Those who do not belong, or do not behave: refused, counted, told once, the table unchanged.

use std::{net::SocketAddr, sync::Arc};

use mesh::{
    ALPN, Mesh, Role, Why,
    frame::{Ack, FORMAT, Frame, Hello, LONGEST, MAGIC, Numbered, Push},
};
use parking_lot::Mutex;
use peer::Identity;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tracing_subscriber::fmt::MakeWriter;

use crate::world::{KEY, Node, OTHER_KEY, eventually, identity, upsert, v};

type Raw = TlsStream<TcpStream>;

fn asking_for(identity: &Identity, alpn: &[u8]) -> ClientConfig {
    let mut config = ClientConfig::clone(&identity.client_config());
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

async fn connect(to: SocketAddr, config: ClientConfig) -> std::io::Result<Raw> {
    let stream = TcpStream::connect(to).await.unwrap();
    let name = ServerName::try_from(peer::NAME).unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await
}

/// One who holds the key.
async fn insider(to: &Node) -> Raw {
    connect(to.address, asking_for(&identity(KEY), ALPN))
        .await
        .unwrap()
}

fn hello() -> Hello {
    Hello {
        magic: MAGIC.into(),
        format: FORMAT,
        cluster: "one".into(),
        process: 99,
        role: Role::Gateway,
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        listens: true,
        keeps: false,
        watched: v(1),
    }
}

fn bytes(number: u64, frame: Frame) -> Vec<u8> {
    Numbered { number, frame }.encode().unwrap().to_vec()
}

fn push(number: u64, name: &str, version: u64) -> Vec<u8> {
    let messages = vec![upsert(name, version)];
    let push = Push {
        first: version,
        messages,
    };
    bytes(number, Frame::Push(push))
}

fn ended(mesh: &Mesh, why: Why) -> u64 {
    mesh.stats().counts.ended.get(&why).copied().unwrap_or(0)
}

/// Says some bytes twice, on two links, and waits until both were refused for that.
async fn refused(node: &Node, said: &[Vec<u8>], why: Why) {
    for turn in 1..=2 {
        let mut raw = insider(node).await;
        for part in said {
            raw.write_all(part).await.unwrap();
        }
        raw.flush().await.unwrap();
        if why == Why::Truncated {
            raw.shutdown().await.unwrap();
        }
        let mut rest = Vec::new();
        let _ = raw.read_to_end(&mut rest).await;
        eventually("it is counted", || ended(&node.mesh, why) == turn).await;
    }
    assert_eq!(node.content().len(), 0, "the table is as it was");
}

/// What is logged by this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    fn times(&self, why: Why) -> usize {
        let log = String::from_utf8(self.0.lock().clone()).unwrap();
        log.matches(&why.to_string()).count()
    }
}

/// Runs with a log of its own; everything is on this thread.
fn listening() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    (log, guard)
}

async fn is_refused_and_told_once(said: &[Vec<u8>], why: Why) {
    let node = Node::start(|_| {}).await;
    let (log, _guard) = listening();
    refused(&node, said, why).await;
    assert_eq!(log.times(why), 1, "told once");
}

#[tokio::test]
async fn one_of_another_installation_is_refused() {
    let mut other = hello();
    other.cluster = "two".into();
    let said = [bytes(0, Frame::Hello(other)), push(1, "box", 5)];
    is_refused_and_told_once(&said, Why::Cluster).await;
}

#[tokio::test]
async fn one_of_another_format_is_refused() {
    let mut other = hello();
    other.format = FORMAT + 1;
    is_refused_and_told_once(&[bytes(0, Frame::Hello(other))], Why::Format).await;
    // Of which nothing else need be as it is here.
    let body = format!(
        r#"{{"magic":"{MAGIC}","format":{},"who":{{}}}}"#,
        FORMAT + 1
    );
    let length = u32::try_from(body.len() + 9).unwrap().to_be_bytes();
    let said = [&length[..], b"\x01\0\0\0\0\0\0\0\0", body.as_bytes()].concat();
    is_refused_and_told_once(&[said], Why::Format).await;
}

#[tokio::test]
async fn one_that_speaks_something_else_is_refused() {
    let mut other = hello();
    other.magic = "gossip".into();
    is_refused_and_told_once(&[bytes(0, Frame::Hello(other))], Why::Protocol).await;
}

#[tokio::test]
async fn garbage_is_refused() {
    let garbage = |body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[..], body].concat()
    };
    for body in [
        &b""[..],
        b"short",
        b"\x01\0\0\0\0\0\0\0\0not json",
        b"\xff\0\0\0\0\0\0\0\0{}",
        b"\x07\0\0\0\0\0\0\0\0",
    ] {
        let why = if body.starts_with(b"\x07") {
            // It can be read, but comes before a hello.
            Why::Unexpected
        } else {
            Why::Garbage
        };
        is_refused_and_told_once(&[garbage(body)], why).await;
    }
    let datagram = Frame::Datagram(vec![0xff; 40].into());
    let said = [bytes(0, Frame::Hello(hello())), bytes(1, datagram)];
    is_refused_and_told_once(&said, Why::Garbage).await;
}

#[tokio::test]
async fn what_is_too_long_is_refused_before_it_is_read() {
    let length = u32::try_from(LONGEST + 1).unwrap().to_be_bytes();
    is_refused_and_told_once(&[length.to_vec()], Why::TooLong).await;
    let most = u32::MAX.to_be_bytes();
    is_refused_and_told_once(&[most.to_vec()], Why::TooLong).await;
}

#[tokio::test]
async fn what_is_cut_off_is_refused() {
    let mut half = push(1, "box", 5);
    half.truncate(half.len() / 2);
    let said = [bytes(0, Frame::Hello(hello())), half];
    is_refused_and_told_once(&said, Why::Truncated).await;
}

#[tokio::test]
async fn what_is_replayed_is_refused() {
    let node = Node::start(|_| {}).await;
    let (log, _guard) = listening();
    let mut raw = insider(&node).await;
    let said = push(1, "box", 5);
    raw.write_all(&bytes(0, Frame::Hello(hello())))
        .await
        .unwrap();
    raw.write_all(&said).await.unwrap();
    raw.flush().await.unwrap();
    eventually("the first is taken", || {
        node.version_of("box") == Some(v(5))
    })
    .await;
    raw.write_all(&said).await.unwrap();
    raw.write_all(&push(2, "other", 6)).await.unwrap();
    let _ = raw.flush().await;
    eventually("the second is not", || {
        ended(&node.mesh, Why::Sequence) == 1
    })
    .await;
    assert_eq!(node.version_of("other"), None, "nor what followed it");
    assert_eq!(node.table.stats().counts.applied, 1);
    assert_eq!(log.times(Why::Sequence), 1);
    // One that skips a frame is no better.
    let skipped = [bytes(0, Frame::Hello(hello())), push(2, "other", 6)];
    let mut raw = insider(&node).await;
    raw.write_all(&skipped.concat()).await.unwrap();
    raw.flush().await.unwrap();
    eventually("nor is this", || ended(&node.mesh, Why::Sequence) == 2).await;
    assert_eq!(log.times(Why::Sequence), 1, "told once");
}

#[tokio::test]
async fn what_does_not_belong_there_is_refused() {
    let ack = Frame::Ack(Ack {
        next: 5,
        watched: v(9),
    });
    let said = [bytes(0, Frame::Hello(hello())), bytes(1, ack)];
    is_refused_and_told_once(&said, Why::Unexpected).await;
    is_refused_and_told_once(&[push(0, "box", 5)], Why::Unexpected).await;
    let twice = [
        bytes(0, Frame::Hello(hello())),
        bytes(1, Frame::Hello(hello())),
    ];
    is_refused_and_told_once(&twice, Why::Unexpected).await;
}

#[tokio::test]
async fn one_that_says_nothing_is_not_kept() {
    let node = Node::start(|_| {}).await;
    let mut raw = insider(&node).await;
    let mut rest = Vec::new();
    let _ = raw.read_to_end(&mut rest).await;
    assert_eq!(ended(&node.mesh, Why::Silent), 1);
}

#[tokio::test]
async fn a_message_that_makes_no_sense_is_counted_and_changes_nothing() {
    let node = Node::start(|_| {}).await;
    let mut raw = insider(&node).await;
    let body = br#"{"first":0,"messages":[{"state":"Running"},{"version":"7"}]}"#;
    let mut odd = u32::try_from(body.len() + 9)
        .unwrap()
        .to_be_bytes()
        .to_vec();
    odd.extend_from_slice(b"\x02\0\0\0\0\0\0\0\x01");
    odd.extend_from_slice(body);
    raw.write_all(&bytes(0, Frame::Hello(hello())))
        .await
        .unwrap();
    raw.write_all(&odd).await.unwrap();
    raw.flush().await.unwrap();
    eventually("they are counted", || node.mesh.stats().counts.invalid == 2).await;
    assert_eq!(node.content().len(), 0);
    assert_eq!(
        node.mesh.stats().accepted,
        1,
        "its link stays: it may be a newer build"
    );
}

#[tokio::test]
async fn one_with_another_key_is_refused() {
    let node = Node::start(|_| {}).await;
    let (log, _guard) = listening();
    for turn in 1..=2 {
        let forged = connect(node.address, asking_for(&identity(OTHER_KEY), ALPN)).await;
        assert!(forged.is_err());
        eventually("it is counted", || {
            ended(&node.mesh, Why::Handshake) == turn
        })
        .await;
    }
    assert_eq!(log.times(Why::Handshake), 1, "told once");
}

#[tokio::test]
async fn one_that_dials_another_key_sees_through_it() {
    let forged = Node::start(|plan| plan.key = OTHER_KEY).await;
    let node = Node::start(|plan| plan.seeds = [forged.address].into()).await;
    eventually("it is counted", || ended(&node.mesh, Why::Handshake) > 1).await;
    assert_eq!(node.mesh.stats().dialled, 0);
}

/// Believes whoever is there, to show nothing itself.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[tokio::test]
async fn one_without_a_certificate_is_refused() {
    let node = Node::start(|_| {}).await;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    if let Ok(mut raw) = connect(node.address, config).await {
        // It believes to be in; what it says is not read.
        let _ = raw.write_all(&bytes(0, Frame::Hello(hello()))).await;
        let _ = raw.write_all(&push(1, "box", 5)).await;
    }
    eventually("it is counted", || ended(&node.mesh, Why::Handshake) == 1).await;
    assert_eq!(node.content().len(), 0);
}

#[tokio::test]
async fn one_that_speaks_no_tls_is_refused() {
    let node = Node::start(|_| {}).await;
    let mut raw = TcpStream::connect(node.address).await.unwrap();
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    eventually("it is counted", || ended(&node.mesh, Why::Handshake) == 1).await;
}

#[tokio::test]
async fn one_that_asks_for_another_protocol_is_refused() {
    let node = Node::start(|_| {}).await;
    let other = connect(node.address, asking_for(&identity(KEY), b"h2")).await;
    drop(other);
    eventually("it is counted", || ended(&node.mesh, Why::Protocol) == 1).await;
    assert_eq!(ended(&node.mesh, Why::Handshake), 0, "it holds the key");
}

#[tokio::test]
async fn many_who_say_nothing_are_counted_and_keep_nobody_out_who_comes_from_elsewhere() {
    let node = Node::start(|_| {}).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(node.address).await.unwrap());
    }
    eventually("most are sent away", || ended(&node.mesh, Why::Crowd) > 200).await;
    // While the rest stands in the doorway.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let stream = socket.connect(node.address).await.unwrap();
    let name = ServerName::try_from(peer::NAME).unwrap();
    let config = asking_for(&identity(KEY), ALPN);
    let connector = TlsConnector::from(Arc::new(config));
    let mut raw = connector.connect(name, stream).await.unwrap();
    raw.write_all(&bytes(0, Frame::Hello(hello())))
        .await
        .unwrap();
    raw.flush().await.unwrap();
    eventually("it is let in", || node.mesh.stats().accepted == 1).await;
    eventually("the rest is not waited for", || {
        let stalled = ended(&node.mesh, Why::Stalled);
        stalled > 0 && stalled + ended(&node.mesh, Why::Crowd) == 300
    })
    .await;
    assert_eq!(ended(&node.mesh, Why::Handshake), 0);
    drop(silent);
}
