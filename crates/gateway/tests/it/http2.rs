//! HTTP/2: without TLS, on to programs that speak it, gRPC, and WebSockets over it.

use std::{convert::Infallible, net::IpAddr};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::SendRequest,
    ext::Protocol,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::{Epoch, SandboxId};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};

use crate::{
    sandbox::{Program, program, raw},
    world::{World, eventually},
};

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

pub(crate) fn channel() -> (mpsc::Sender<Frame<Bytes>>, Body) {
    let (frames, mut rest) = mpsc::channel(8);
    let stream = futures_util::stream::poll_fn(move |context| {
        rest.poll_recv(context).map(|frame| frame.map(Ok))
    });
    (frames, StreamBody::new(stream).boxed())
}

pub(crate) fn full(text: &'static str) -> Body {
    Full::new(Bytes::from_static(text.as_bytes()))
        .map_err(|never| match never {})
        .boxed()
}

/// A client that knows beforehand that HTTP/2 is spoken.
pub(crate) async fn client(world: &World) -> SendRequest<Body> {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

/// A server of gRPC: echoes messages one by one, and ends with a status in its trailers. The path
/// `/die` ends the connection after the first message.
pub(crate) async fn grpc(ip: IpAddr, port: u16) -> Program {
    raw(ip, port, |stream, number| async move {
        let (kill, mut killed) = mpsc::channel::<()>(1);
        let service = service_fn(move |request: Request<Incoming>| {
            let kill = kill.clone();
            async move { Ok::<_, Infallible>(echo(request, kill, number)) }
        });
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            _ = serving => {}
            _ = killed.recv() => {}
        }
    })
    .await
}

fn echo(request: Request<Incoming>, kill: mpsc::Sender<()>, number: usize) -> Response<Body> {
    let (frames, body) = channel();
    let dies = request.uri().path() == "/die";
    let seen = format!(
        "{:?} {} {} te={:?} connection={number}",
        request.version(),
        request.uri().authority().unwrap(),
        request.uri().path(),
        request.headers().get("te"),
    );
    tokio::spawn(async move {
        let mut incoming = request.into_body();
        let mut came = HeaderMap::new();
        while let Some(Ok(frame)) = incoming.frame().await {
            match frame.into_data() {
                Ok(data) => {
                    if frames.send(Frame::data(data)).await.is_err() {
                        return;
                    }
                    if dies {
                        let _ = kill.send(()).await;
                        // Its answer must not end before its connection does.
                        std::future::pending::<()>().await;
                    }
                }
                Err(frame) => came = frame.into_trailers().unwrap(),
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        if let Some(sum) = came.get("x-sum") {
            trailers.insert("x-sum", sum.clone());
        }
        let _ = frames.send(Frame::trailers(trailers)).await;
    });
    let mut response = Response::new(body);
    let seen = HeaderValue::try_from(seen).unwrap();
    response.headers_mut().insert("x-seen", seen);
    response
}

pub(crate) fn call(port: u16, path: &str, body: Body) -> Request<Body> {
    Request::post(format!("http://{port}-box.sbx.test{path}"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

#[tokio::test]
async fn grpc_streams_both_ways_with_trailers_both_ways() {
    let world = World::new();
    let server = grpc(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = client(&world).await;
    for round in 0..2 {
        let (frames, body) = channel();
        let asked = client.send_request(call(server.port, "/box.Box/Talk", body));
        frames.send(Frame::data("one".into())).await.unwrap();
        let response = asked.await.unwrap();
        assert_eq!(
            (response.status(), response.version()),
            (StatusCode::OK, Version::HTTP_2)
        );
        let seen = response.headers()["x-seen"].to_str().unwrap();
        let expected = format!(
            "HTTP/2.0 {}-box.sbx.test /box.Box/Talk te=Some(\"trailers\") connection=0",
            server.port
        );
        assert_eq!(seen, expected, "round {round}");
        let mut body = response.into_body();
        let mut next = async || body.frame().await.unwrap().unwrap();
        assert_eq!(next().await.into_data().unwrap(), "one");
        // The answer to a message comes before the next one is sent.
        frames.send(Frame::data("two".into())).await.unwrap();
        assert_eq!(next().await.into_data().unwrap(), "two");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("42"));
        frames.send(Frame::trailers(trailers)).await.unwrap();
        let trailers = next().await.into_trailers().unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-sum"]),
            (
                &HeaderValue::from_static("0"),
                &HeaderValue::from_static("42")
            )
        );
    }
    // Calls of one port share a connection.
    assert_eq!(server.taken(), 1);
}

#[tokio::test]
async fn a_call_that_is_left_by_either_side_ends_on_the_other() {
    let world = World::new();
    let server = grpc(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let mut client = client(&world).await;
    let (frames, body) = channel();
    frames.send(Frame::data("one".into())).await.unwrap();
    let asked = client.send_request(call(server.port, "/die", body));
    // A reset that comes with the head may be heard before it, by the gateway or by its client.
    if let Ok(response) = asked.await
        && response.status() == StatusCode::OK
    {
        assert!(response.into_body().collect().await.is_err());
    }
    drop(frames);
    let (frames, body) = channel();
    frames.send(Frame::data("one".into())).await.unwrap();
    let response = client
        .send_request(call(server.port, "/talk", body))
        .await
        .unwrap();
    assert_eq!(world.gateway.activity().of(route.uid).unwrap().open, 1);
    drop(response);
    drop(frames);
    eventually(|| world.gateway.activity().of(route.uid).unwrap().open == 0).await;
}

#[tokio::test]
async fn another_delivery_never_gets_the_calls_of_the_last() {
    let world = World::new();
    let server = grpc(world.ip, 0).await;
    let mut route = world.apply(world.route("box"));
    let mut client = client(&world).await;
    let mut ask = async |id: &str| {
        let mut request = call(server.port, "/", full("x"));
        *request.uri_mut() = format!("http://{}-{id}.sbx.test/", server.port)
            .parse()
            .unwrap();
        client.send_request(request).await.unwrap()
    };
    let seen = |response: &Response<Incoming>| {
        let seen = response.headers()["x-seen"].to_str().unwrap();
        seen.rsplit_once('=').unwrap().1.to_owned()
    };
    assert_eq!(seen(&ask("box").await), "0");
    route.epoch = Epoch(2);
    route.id = Some(SandboxId::new("next").unwrap());
    world.apply(route);
    assert_eq!(seen(&ask("next").await), "1");
    assert_eq!(ask("box").await.status(), StatusCode::BAD_GATEWAY);
    // What the last owner left is let go.
    eventually(|| server.open() == 1).await;
}

#[tokio::test]
async fn what_is_not_grpc_goes_on_in_http1() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = client(&world).await;
    for kind in ["application/json", "application/grpc-web"] {
        let request = Request::post(format!("http://{}-box.sbx.test/mirror", program.port))
            .header("content-type", kind)
            .body(full("hello"))
            .unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.ends_with(b"\n\nhello"));
    }
}

fn socket(port: u16) -> Request<Body> {
    let mut request = Request::new(full(""));
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = format!("http://{port}-box.sbx.test/upgrade")
        .parse()
        .unwrap();
    let protocol = Protocol::from_static("websocket");
    request.extensions_mut().insert(protocol);
    request
}

#[tokio::test]
async fn a_websocket_passes_over_http2() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let mut client = client(&world).await;
    // The server's settings, which say that it may be asked, come before its first answer.
    let first = Request::get(format!("http://{}-box.sbx.test/number", program.port));
    let first = client.send_request(first.body(full("")).unwrap()).await;
    assert_eq!(first.unwrap().status(), StatusCode::OK);
    let response = client.send_request(socket(program.port)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    for gone in ["connection", "upgrade", "sec-websocket-accept"] {
        assert!(!response.headers().contains_key(gone), "{gone}");
    }
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let mut stream = TokioIo::new(upgraded);
    let mut welcome = [0; 8];
    stream.read_exact(&mut welcome).await.unwrap();
    assert_eq!(&welcome, b"welcome ");
    for word in [b"ping", b"pong"] {
        stream.write_all(word).await.unwrap();
        let mut back = [0; 4];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, word);
    }
    assert_eq!(world.gateway.activity().of(route.uid).unwrap().open, 1);
    // One side's end leaves the other.
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    eventually(|| world.gateway.activity().of(route.uid).unwrap().open == 0).await;
    // Nobody there: an answer like any other.
    let refused = client.send_request(socket(1)).await.unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_GATEWAY);
}
