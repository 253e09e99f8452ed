//! TLS: names, HTTP/2 in, and the same answers.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    sandbox::{program, script},
    world::{Setup, World},
};

pub(crate) struct Tls {
    pub(crate) server: Arc<ServerConfig>,
    roots: RootCertStore,
}

pub(crate) fn tls() -> Tls {
    let names = ["*.sbx.test", "api.sbx.test", "sandbox.sbx.test"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names.to_vec()).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Tls {
        server: Arc::new(server),
        roots,
    }
}

impl Tls {
    pub(crate) async fn connect(
        &self,
        world: &World,
        name: &str,
        protocol: &str,
    ) -> TlsStream<TcpStream> {
        self.connect_to(world.address(), name, protocol).await
    }

    pub(crate) async fn connect_to(
        &self,
        to: SocketAddr,
        name: &str,
        protocol: &str,
    ) -> TlsStream<TcpStream> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(to).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap()
    }

    async fn http2(
        &self,
        world: &World,
        name: &str,
    ) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        self.http2_to(world.address(), name).await
    }

    pub(crate) async fn http2_to(
        &self,
        to: SocketAddr,
        name: &str,
    ) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = self.connect_to(to, name, "h2").await;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        sender
    }
}

fn world(tls: &Tls) -> World {
    World::with(Setup {
        tls: Some(tls.server.clone()),
        ..Setup::default()
    })
}

#[tokio::test]
async fn http2_comes_in_and_http1_goes_out() {
    let tls = tls();
    let world = world(&tls);
    let agent = program(world.ip, 49983).await;
    world.apply(world.secured("box"));
    let token = world.agent_token("box");
    let mut sender = tls.http2(&world, "sandbox.sbx.test").await;
    let ask = |body: &'static str| {
        Request::post("https://sandbox.sbx.test/mirror?q=1")
            .header("E2b-Sandbox-Id", "box")
            .header("E2b-Sandbox-Port", "49983")
            .header("X-Access-Token", &token)
            .header("Cookie", "a=1")
            .header("Cookie", "b=2")
            .body(Full::new(Bytes::from_static(body.as_bytes())))
            .unwrap()
    };
    // Many at once on one connection.
    let mut asked = Vec::new();
    for _ in 0..50 {
        sender.ready().await.unwrap();
        asked.push(tokio::spawn(sender.send_request(ask("hello"))));
    }
    for asked in asked {
        let answer = asked.await.unwrap().unwrap();
        assert_eq!(
            (answer.status(), answer.version()),
            (StatusCode::OK, Version::HTTP_2)
        );
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.starts_with("POST /mirror?q=1\n"), "{text}");
        for there in [
            "\nhost: sandbox.sbx.test\n",
            "\ncookie: a=1; b=2\n",
            "x-forwarded-proto: https\n",
            "\n\nhello",
        ] {
            assert!(text.contains(there), "{there:?} not in {text}");
        }
    }
    assert!(agent.taken() <= 50);
    let wrong = Request::get("https://49983-box.sbx.test/")
        .body(Full::default())
        .unwrap();
    let answer = sender.send_request(wrong).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn over_http2_a_death_resets_the_stream_and_not_its_neighbours() {
    let tls = tls();
    let world = world(&tls);
    let dying = script(
        world.ip,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    )
    .await;
    let living = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut sender = tls.http2(&world, "x.sbx.test").await;
    let get = |port: u16, path: &str| {
        let uri = format!("https://{port}-box.sbx.test{path}");
        Request::get(uri).body(Full::default()).unwrap()
    };
    // A reset that comes with the head may be heard before it.
    if let Ok(answer) = sender.send_request(get(dying.port, "/")).await {
        assert!(answer.into_body().collect().await.is_err());
    }
    let answer = sender
        .send_request(get(living.port, "/number"))
        .await
        .unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "0");
}

#[tokio::test]
async fn http1_over_tls_serves_upgrades_and_is_reset_like_the_plain_one() {
    let tls = tls();
    let world = world(&tls);
    let living = program(world.ip, 0).await;
    let dying = script(
        world.ip,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    )
    .await;
    world.apply(world.route("box"));
    let name = format!("{}-box.sbx.test", living.port);
    let mut stream = tls.connect(&world, &name, "http/1.1").await;
    let text = crate::client::get(
        "/upgrade",
        &[
            ("Host", &name),
            ("Connection", "upgrade"),
            ("Upgrade", "websocket"),
        ],
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"welcome ") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    assert!(seen.starts_with(b"HTTP/1.1 101"));
    stream.write_all(b"ping").await.unwrap();
    let mut pong = [0; 4];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"ping");

    let name = format!("{}-box.sbx.test", dying.port);
    let mut stream = tls.connect(&world, &name, "http/1.1").await;
    stream
        .write_all(crate::client::get("/", &[("Host", &name)]).as_bytes())
        .await
        .unwrap();
    let mut seen = Vec::new();
    let error = loop {
        match stream.read_buf(&mut seen).await {
            Ok(0) => panic!("a goodbye"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn who_speaks_plain_http_to_a_tls_port_is_told() {
    let tls = tls();
    let world = world(&tls);
    let answer = crate::client::once(world.address(), crate::client::get("/", &[])).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("https"), "{}", answer.body);
}
