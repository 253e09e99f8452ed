//! Bodies of requests: how long they may be, and how long none of one may come.

use std::{sync::Arc, time::Duration};

use gateway::metrics::Outcome;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use routes::State;
use tokio::{io::AsyncReadExt as _, sync::mpsc, time::sleep};

use crate::{
    client::{Client, once, request},
    http2::{self, channel},
    sandbox::{program, raw, read_head},
    waking::{self, Script},
    world::{Setup, World, eventually},
};

/// A world that takes ten bytes.
fn narrow() -> World {
    let mut setup = Setup::default();
    setup.options.limits.body_bytes = 10;
    World::with(setup)
}

/// A world that waits so long for a body.
fn impatient(timeout: Duration) -> World {
    let mut setup = Setup::default();
    setup.options.limits.body_timeout = timeout;
    World::with(setup)
}

/// What is not to be late is not, on a busy machine either; what is to be is so by as much.
const A_WHILE: Duration = Duration::from_secs(5);
const LONGER: Duration = Duration::from_secs(8);

fn host(port: u16) -> String {
    format!("{port}-box.sbx.test")
}

fn post(path: &str, port: u16, framing: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\n{framing}\r\n\r\n{body}",
        host(port)
    )
}

const CHUNKED: &str = "Transfer-Encoding: chunked";

#[tokio::test]
async fn a_body_that_is_told_to_be_too_long_is_refused_before_anybody_is_asked() {
    let world = narrow();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let headers = [("Host", host.as_str())];
    let fits = once(
        world.address(),
        request("POST", "/echo", &headers, "0123456789"),
    )
    .await;
    assert_eq!((fits.status, fits.body.as_str()), (200, "0123456789"));
    let asked = program.taken();
    let answer = once(
        world.address(),
        request("POST", "/echo", &headers, "0123456789a"),
    )
    .await;
    assert_eq!(answer.status, 413);
    assert!(
        answer.body.contains("gateway.max_body_bytes"),
        "{}",
        answer.body
    );
    // Where none of it was sent yet, too.
    let mut client = Client::connect(world.address()).await;
    let answer = client
        .ask(post(
            "/echo",
            program.port,
            "Content-Length: 99999999999",
            "",
        ))
        .await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(program.taken(), asked);
    assert_eq!(world.ended(Outcome::TooLarge), 2);
}

#[tokio::test]
async fn who_has_no_token_is_told_of_that_and_not_of_lengths() {
    let world = narrow();
    let program = program(world.ip, 0).await;
    world.apply(world.secured("box"));
    let answer = once(
        world.address(),
        post("/echo", program.port, "Content-Length: 11", "0123456789a"),
    )
    .await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn nobody_is_woken_for_what_would_be_cut() {
    let script = Arc::new(Script::default());
    let mut setup = Setup {
        wake: script.clone(),
        ..Setup::default()
    };
    setup.options.limits.body_bytes = 10;
    let world = World::with(setup);
    world.apply(waking::asleep(&world, State::Paused));
    let answer = once(
        world.address(),
        post("/", 8000, "Content-Length: 11", "0123456789a"),
    )
    .await;
    assert_eq!(answer.status, 413);
    assert_eq!(script.calls.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_chunked_body_that_turns_out_too_long_is_refused_and_never_looks_whole() {
    let world = narrow();
    let (tell, mut told) = mpsc::channel(1);
    let program = raw(world.ip, 0, move |mut stream, _| {
        let tell = tell.clone();
        async move {
            read_head(&mut stream).await;
            let mut body = Vec::new();
            // It answers at the end, which never comes.
            while !body.ends_with(b"0\r\n\r\n") {
                match stream.read_buf(&mut body).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            let _ = tell.send(body).await;
        }
    })
    .await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(post("/", program.port, CHUNKED, "5\r\n01234\r\n"))
        .await;
    eventually(|| program.taken() == 1).await;
    client.send("6\r\n56789a\r\n0\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.header("connection"), Some("close"));
    let seen = told.recv().await.unwrap();
    assert_eq!(String::from_utf8(seen).unwrap(), "5\r\n01234\r\n");
}

#[tokio::test]
async fn a_chunked_body_that_turns_out_too_long_under_its_answer_cuts_it() {
    let world = narrow();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(post("/echo", program.port, CHUNKED, "5\r\n01234\r\n"))
        .await;
    assert_eq!(client.head().await.status, 200);
    client.read_until(b"01234").await;
    client.send("6\r\n56789a\r\n").await;
    let (rest, end) = client.read_to_any_end().await;
    assert!(end.is_err(), "{:?}", String::from_utf8_lossy(&rest));
    assert!(!rest.ends_with(b"0\r\n\r\n"));
    eventually(|| world.ended(Outcome::TooLarge) == 1).await;
}

#[tokio::test]
async fn bodies_of_http2_are_bounded_alike() {
    let world = narrow();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = http2::client(&world).await;
    let asked = |body| {
        Request::post(format!("http://{}/echo", host(program.port)))
            .body(body)
            .unwrap()
    };
    let told = client.send_request(asked(http2::full("0123456789a"))).await;
    assert_eq!(told.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    let (frames, body) = channel();
    let asked_open = client.send_request(asked(body));
    frames.send(Frame::data("01234".into())).await.unwrap();
    let answer = asked_open.await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    frames.send(Frame::data("56789a".into())).await.unwrap();
    assert!(answer.into_body().collect().await.is_err());
    // The connection has nothing to do with it.
    let fits = client.send_request(asked(http2::full("0123456789"))).await;
    assert_eq!(fits.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn without_a_bound_any_length_goes_through() {
    let mut setup = Setup::default();
    setup.options.limits.body_bytes = 0;
    let world = World::with(setup);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let body = "x".repeat(1 << 20);
    let host = host(program.port);
    let headers = [("Host", host.as_str())];
    let answer = once(world.address(), request("POST", "/echo", &headers, &body)).await;
    assert_eq!((answer.status, answer.body.len()), (200, 1 << 20));
}

#[tokio::test]
async fn who_owes_some_of_a_body_and_is_silent_loses_its_place() {
    let world = impatient(Duration::from_secs(1));
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    for (framing, begun) in [("Content-Length: 5", "01"), (CHUNKED, "2\r\n01\r\n")] {
        let mut client = Client::connect(world.address()).await;
        client
            .send(post("/mirror", program.port, framing, begun))
            .await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 408, "{framing}");
        assert!(
            answer.body.contains("gateway.body_timeout"),
            "{}",
            answer.body
        );
        client.read_to_end().await;
    }
    assert_eq!(world.ended(Outcome::BodyLate), 2);
    eventually(|| program.open() == 0).await;
    world.quiet().await;
    let mut client = http2::client(&world).await;
    let (frames, body) = channel();
    let asked = Request::post(format!("http://{}/mirror", host(program.port)))
        .body(body)
        .unwrap();
    frames.send(Frame::data("01".into())).await.unwrap();
    let answer = client.send_request(asked).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn a_body_of_a_told_length_is_owed_under_its_answer_too() {
    let world = impatient(A_WHILE);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(post("/echo", program.port, "Content-Length: 5", "01"))
        .await;
    assert_eq!(client.head().await.status, 200);
    let (_, end) = client.read_to_any_end().await;
    assert!(end.is_err());
    eventually(|| world.ended(Outcome::BodyLate) == 1).await;
}

#[tokio::test]
async fn a_conversation_that_has_begun_may_be_silent() {
    let world = impatient(A_WHILE);
    let program = program(world.ip, 0).await;
    let server = http2::grpc(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(post("/echo", program.port, CHUNKED, "2\r\n01\r\n"))
        .await;
    assert_eq!(client.head().await.status, 200);
    client.read_until(b"01").await;
    let mut calls = http2::client(&world).await;
    let (frames, body) = channel();
    let asked = calls.send_request(http2::call(server.port, "/talk", body));
    frames.send(Frame::data("one".into())).await.unwrap();
    let mut answer = asked.await.unwrap().into_body();
    sleep(LONGER).await;
    client.send("1\r\n2\r\n0\r\n\r\n").await;
    client.read_until(b"0\r\n\r\n").await;
    frames.send(Frame::data("two".into())).await.unwrap();
    let mut next = async || answer.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!((next().await, next().await), ("one".into(), "two".into()));
}

#[tokio::test]
async fn a_sandbox_that_does_not_read_is_not_its_clients_fault() {
    let world = impatient(A_WHILE);
    // More than the sockets on the way hold.
    const SIZE: usize = 32 << 20;
    let program = raw(world.ip, 0, |mut stream, _| async move {
        use tokio::io::AsyncWriteExt as _;
        read_head(&mut stream).await;
        sleep(LONGER).await;
        let mut left = SIZE;
        let mut room = vec![0; 1 << 20];
        while left > 0 {
            left -= stream.read(&mut room).await.unwrap();
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    })
    .await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    let framing = format!("Content-Length: {SIZE}");
    client.send(post("/", program.port, &framing, "")).await;
    client.send(vec![b'x'; SIZE]).await;
    assert_eq!(client.answer().await.status, 200);
}
