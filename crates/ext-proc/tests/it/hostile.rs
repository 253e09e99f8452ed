//! Envoys that say what they should not, by hand: nothing is let pass, and all of it is counted.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use ext_proc::{Fault, Options, Server, Upstream};
use http::Request;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    support::{serve, serve_with},
    world::{World, eventually},
};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const OK: &str = "0";
const DEADLINE_EXCEEDED: &str = "4";
const INVALID_ARGUMENT: &str = "3";
const FAILED_PRECONDITION: &str = "9";
const OUT_OF_RANGE: &str = "11";
const UNIMPLEMENTED: &str = "12";
const INTERNAL: &str = "13";

/// A field of a message that holds bytes.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![(tag << 3) | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(bytes);
    out
}

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// The head of a request, as Envoy says it.
fn head(lines: &[(&str, &str)]) -> Vec<u8> {
    let line = |(name, value): &(&str, &str)| {
        field(
            1,
            &[field(1, name.as_bytes()), field(3, value.as_bytes())].concat(),
        )
    };
    let map: Vec<u8> = lines.iter().flat_map(line).collect();
    field(2, &field(1, &map))
}

fn good(host: &str) -> Vec<u8> {
    head(&[(":method", "GET"), (":path", "/"), (":authority", host)])
}

/// What was answered: how many bytes, and the status at the end.
async fn ask(to: SocketAddr, path: &str, said: Vec<u8>) -> (usize, String) {
    let stream = tokio::net::TcpStream::connect(to).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://{to}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(said)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let early = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.unwrap();
    let late = body
        .trailers()
        .and_then(|all| all.get("grpc-status"))
        .cloned();
    let status = late.or(early).unwrap().to_str().unwrap().to_owned();
    drop(sender);
    connection.await.unwrap().unwrap();
    (body.to_bytes().len(), status)
}

struct Here {
    world: World,
    server: Server,
}

async fn here(upstream: Upstream) -> Here {
    let world = World::new();
    world.apply(world.route("runs"));
    let server = serve(&world, upstream).await;
    Here { world, server }
}

#[tokio::test]
async fn what_is_not_understood_before_the_verdict_ends_in_an_error_and_is_counted() {
    let here = here(Upstream::Relay).await;
    let body = field(4, &field(1, b"some"));
    let with = |more: &[u8]| [&good("80-runs.sbx.test")[..], more].concat();
    let observed = with(&[(10 << 3), 1]);
    let duplex = with(&field(11, &[(2 << 3), 4]));
    let mut compressed = framed(&good("80-runs.sbx.test"));
    compressed[0] = 1;
    let mut cut = framed(&good("80-runs.sbx.test"));
    cut.pop();
    for (what, said, status, fault) in [
        (
            "a body first",
            framed(&body),
            INVALID_ARGUMENT,
            Fault::OutOfOrder,
        ),
        (
            "an answer first",
            framed(&field(3, &[])),
            INVALID_ARGUMENT,
            Fault::OutOfOrder,
        ),
        (
            "trailers first",
            framed(&field(7, &[])),
            INVALID_ARGUMENT,
            Fault::OutOfOrder,
        ),
        (
            "nothing at all",
            framed(&[]),
            INVALID_ARGUMENT,
            Fault::Unknown,
        ),
        (
            "a kind of the future",
            framed(&field(14, b"new")),
            INVALID_ARGUMENT,
            Fault::Unknown,
        ),
        (
            "no headers",
            framed(&field(2, &[])),
            INVALID_ARGUMENT,
            Fault::BadHead,
        ),
        (
            "no method",
            framed(&head(&[(":path", "/")])),
            INVALID_ARGUMENT,
            Fault::BadHead,
        ),
        (
            "no more than looking on",
            framed(&observed),
            FAILED_PRECONDITION,
            Fault::Unsupported,
        ),
        (
            "bodies both ways",
            framed(&duplex),
            FAILED_PRECONDITION,
            Fault::Unsupported,
        ),
        (
            "far too much",
            framed(&field(2, &vec![0; 2 << 20])),
            OUT_OF_RANGE,
            Fault::Oversized,
        ),
        ("no message", framed(&[0xff; 40]), INTERNAL, Fault::Broken),
        ("compressed, unasked", compressed, INTERNAL, Fault::Broken),
        ("half a message", cut, INTERNAL, Fault::Broken),
    ] {
        let before = here.server.metrics().faults(fault);
        let (bytes, ended) = ask(here.server.address(), PROCESS, said).await;
        assert_eq!((bytes, ended.as_str()), (0, status), "{what}");
        assert_eq!(here.server.metrics().faults(fault), before + 1, "{what}");
    }
    let other = "/grpc.health.v1.Health/Check";
    let (_, ended) = ask(here.server.address(), other, framed(&[])).await;
    assert_eq!(ended, UNIMPLEMENTED);
    assert_eq!(here.server.metrics().faults(Fault::OtherCall), 1);
    assert_eq!(here.server.metrics().passed(), 0);
    // Who leaves without a word has done nothing.
    assert_eq!(
        ask(here.server.address(), PROCESS, Vec::new()).await,
        (0, OK.into())
    );
    let (bytes, ended) = ask(
        here.server.address(),
        PROCESS,
        framed(&good("80-runs.sbx.test")),
    )
    .await;
    assert!(bytes > 0 && ended == OK, "{ended}");
    assert_eq!(here.server.metrics().passed(), 1);
    eventually(|| here.server.metrics().open() == 0).await;
    drop(here.world);
}

#[tokio::test]
async fn after_the_verdict_the_request_goes_on_whatever_is_said_of_it() {
    let here = here(Upstream::Direct).await;
    let begin = framed(&good("80-runs.sbx.test"));
    let answered = framed(&field(3, &[]));
    let say = |more: &[&[u8]]| [&begin[..], &more.concat()].concat();
    let body = framed(&field(5, &field(1, b"some")));
    let trailers = framed(&field(7, &[]));
    for (what, said, status, fault) in [
        (
            "all in order",
            say(&[&answered, &body, &trailers]),
            OK,
            None,
        ),
        ("an answer twice", say(&[&answered, &answered]), OK, None),
        (
            "a kind of the future",
            say(&[&framed(&field(14, b"new"))]),
            OK,
            Some(Fault::Unknown),
        ),
        (
            "the head twice",
            say(&[&begin]),
            INVALID_ARGUMENT,
            Some(Fault::OutOfOrder),
        ),
        (
            "no message",
            say(&[&framed(&[0xff; 40])]),
            INTERNAL,
            Some(Fault::Broken),
        ),
    ] {
        let before = fault.map(|fault| here.server.metrics().faults(fault));
        let (bytes, ended) = ask(here.server.address(), PROCESS, said).await;
        assert!(bytes > 0, "{what}");
        assert_eq!(ended, status, "{what}");
        let after = fault.map(|fault| here.server.metrics().faults(fault));
        assert_eq!(after, before.map(|count| count + 1), "{what}");
    }
    let uid = here.world.route("runs").uid;
    eventually(|| {
        here.world
            .gateway
            .activity()
            .of(uid)
            .is_some_and(|used| used.open == 0)
    })
    .await;
}

#[tokio::test]
async fn a_request_is_inside_for_as_long_as_its_stream_whatever_kind_of_message_comes() {
    let here = here(Upstream::Direct).await;
    let to = here.server.address();
    let stream = tokio::net::TcpStream::connect(to).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let (say, said) = tokio::sync::mpsc::channel::<Vec<u8>>(1);
    let said = futures_util::stream::unfold(said, |mut said| async {
        let bytes = said.recv().await?;
        Some((
            Ok::<_, Infallible>(hyper::body::Frame::data(Bytes::from(bytes))),
            said,
        ))
    });
    let request = Request::post(format!("http://{to}{PROCESS}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(Box::pin(said)))
        .unwrap();
    let mut answer = sender.send_request(request).await.unwrap().into_body();
    say.send(framed(&good("80-runs.sbx.test"))).await.unwrap();
    assert!(answer.frame().await.unwrap().unwrap().is_data());
    let uid = here.world.route("runs").uid;
    let open = || here.world.gateway.activity().of(uid).unwrap().open;
    assert_eq!(open(), 1);
    say.send(framed(&field(14, b"new"))).await.unwrap();
    eventually(|| here.server.metrics().faults(Fault::Unknown) == 1).await;
    // And what is known is answered after that.
    say.send(framed(&field(3, &[]))).await.unwrap();
    assert!(answer.frame().await.unwrap().unwrap().is_data());
    assert_eq!(open(), 1);
    drop(say);
    assert!(answer.frame().await.unwrap().unwrap().is_trailers());
    eventually(|| open() == 0).await;
    drop(sender);
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn noise_in_place_of_messages_stops_nothing() {
    let here = here(Upstream::Relay).await;
    let entropy = kit::Entropy::seeded(11);
    for _ in 0..200 {
        let mut said = framed(&good("80-runs.sbx.test"));
        for _ in 0..=entropy.u64() % 8 {
            let at = usize::try_from(entropy.u64()).unwrap() % said.len();
            said[at] = u8::try_from(entropy.u64() & 0xff).unwrap();
        }
        ask(here.server.address(), PROCESS, said).await;
    }
    let (bytes, ended) = ask(
        here.server.address(),
        PROCESS,
        framed(&good("80-runs.sbx.test")),
    )
    .await;
    assert!(bytes > 0 && ended == OK);
    eventually(|| here.server.metrics().open() == 0).await;
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for_and_who_comes_too_often_is_sent_away() {
    let world = World::new();
    let serving = async |silence| {
        let options = Options {
            connections: 2,
            silence,
            ..Options::default()
        };
        serve_with(&world, options).await
    };
    let connect = async |server: &Server| {
        let stream = tokio::net::TcpStream::connect(server.address()).await;
        stream.unwrap()
    };
    let hasty = serving(Duration::from_millis(200)).await;
    let metrics = hasty.metrics();
    // Without a word, or with a greeting and no request: closed, and its place is free again.
    for greeting in [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ] {
        let before = metrics.faults(Fault::Silent);
        let mut idle = connect(&hasty).await;
        idle.write_all(greeting).await.unwrap();
        // What it is greeted with, and then the end.
        let _ = idle.read_to_end(&mut Vec::new()).await;
        assert_eq!(metrics.faults(Fault::Silent), before + 1);
    }

    // A stream without a head, on a connection that stays.
    let server = serving(Duration::from_secs(2)).await;
    let stream = TokioIo::new(connect(&server).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let silence = futures_util::stream::pending::<Result<hyper::body::Frame<Bytes>, Infallible>>();
    let request = Request::post(format!("http://{}{PROCESS}", server.address()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(silence))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let early = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.unwrap();
    let late = body.trailers().and_then(|all| all.get("grpc-status"));
    assert_eq!(late.or(early.as_ref()).unwrap(), DEADLINE_EXCEEDED);
    assert_eq!(server.metrics().faults(Fault::Silent), 1);
    assert!(!sender.is_closed());
    drop(sender);
    connection.await.unwrap().unwrap();

    // Two are there; the third is sent away.
    let server = serving(Options::default().silence).await;
    let (mut first, mut second) = (connect(&server).await, connect(&server).await);
    for stream in [&mut first, &mut second] {
        stream.write_all(b"PRI").await.unwrap();
    }
    let mut third = connect(&server).await;
    assert_eq!(third.read(&mut [0]).await.unwrap_or(0), 0);
    assert_eq!(server.metrics().faults(Fault::Crowded), 1);
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_any_more_is_closed() {
    let world = World::new();
    world.apply(world.route("runs"));
    let options = Options {
        idle: Duration::from_millis(100),
        ..Options::default()
    };
    let server = serve_with(&world, options).await;
    let stream = tokio::net::TcpStream::connect(server.address()).await;
    let stream = TokioIo::new(stream.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://{}{PROCESS}", server.address()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(framed(&good("80-runs.sbx.test")))))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    response.into_body().collect().await.unwrap();
    // By the server: the client would stay.
    connection.await.unwrap().unwrap();
    assert!(sender.is_closed());
    assert_eq!(server.metrics().faults(Fault::Silent), 0);
}
