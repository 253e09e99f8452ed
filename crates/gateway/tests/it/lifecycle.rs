//! Start and stop.

use std::{net::Ipv4Addr, time::Duration};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    client::{Client, get, once, request},
    sandbox::program,
    tls::tls,
    world::{Setup, World, eventually},
};

#[tokio::test]
async fn a_drain_lets_requests_finish_and_nothing_begin() {
    let mut setup = Setup::default();
    setup.options.threads = 2;
    let world = World::with(setup);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let address = world.address();
    let host = format!("{}-box.sbx.test", program.port);
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(Client::connect(address).await);
    }
    let mut busy = Client::connect(address).await;
    busy.send(request(
        "POST",
        "/echo",
        &[("Host", &host), ("Content-Length", "2")],
        "",
    ))
    .await;
    busy.head().await;
    let metrics = world.gateway.metrics();
    eventually(|| metrics.snapshot().open == 9).await;
    let drained = tokio::spawn(world.gateway.drain(Duration::from_secs(600)));
    for client in &mut idle {
        assert_eq!(client.read_to_end().await, b"");
    }
    // Each thread lets go of its own listener; the last of them may be a moment behind.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    busy.send("ok").await;
    assert_eq!(busy.read_to_end().await, b"ok");
    assert_eq!(drained.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn who_asks_while_it_says_goodbye_is_answered_and_told_to_go_elsewhere() {
    let world = World::with(Setup {
        fallback: Some(axum::Router::new().fallback(async || "the API")),
        ..Setup::default()
    });
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let nobody = format!("{}-nobody.sbx.test", program.port);
    // By the short way, by the library, and refused.
    let asked = [(host.as_str(), 200), ("api.sbx.test", 200), (&nobody, 502)];
    let asked = asked.map(|(host, status)| (get("/mirror", &[("Host", host)]), status));
    let mut clients = Vec::new();
    for (text, status) in &asked {
        let mut client = Client::connect(world.address()).await;
        let before = client.ask(text).await;
        assert_eq!(
            (before.status, before.header("connection")),
            (*status, None)
        );
        clients.push(client);
    }
    world.gateway.say_goodbye();
    for (mut client, (text, status)) in clients.into_iter().zip(&asked) {
        let last = client.ask(text).await;
        assert_eq!(
            (last.status, last.header("connection")),
            (*status, Some("close"))
        );
        assert_eq!(client.read_to_end().await, b"");
        // Who comes new is answered too.
        let mut other = Client::connect(world.address()).await;
        assert_eq!(other.ask(text).await.status, *status);
    }
}

#[tokio::test]
async fn a_drain_does_not_wait_for_ever() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let mut busy = Client::connect(world.address()).await;
    busy.send(request(
        "POST",
        "/echo",
        &[("Host", &host), ("Content-Length", "2")],
        "",
    ))
    .await;
    busy.head().await;
    assert_eq!(world.gateway.drain(Duration::from_millis(50)).await, Err(1));
    let _ = busy.read_to_any_end().await;
}

#[tokio::test]
async fn a_websocket_whose_time_is_over_is_told_so_between_two_frames() {
    // The program's first words read as the head of a frame with 101 bytes, six of them.
    for (more, told) in [(95, &[0x88, 2, 3, 0xe9][..]), (94, &[])] {
        let world = World::new();
        let program = program(world.ip, 0).await;
        world.apply(world.route("box"));
        let host = format!("{}-box.sbx.test", program.port);
        let headers = [
            ("Host", host.as_str()),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
        ];
        let mut client = Client::connect(world.address()).await;
        client.send(get("/upgrade", &headers)).await;
        client.read_until(b"welcome ").await;
        client.send("x".repeat(more)).await;
        client.read_exact(more).await;
        assert_eq!(world.gateway.drain(Duration::from_millis(50)).await, Err(1));
        assert_eq!(client.read_to_any_end().await.0, told, "{more}");
    }
}

#[tokio::test]
async fn a_first_request_that_arrives_as_a_gateway_leaves_is_answered() {
    let mut setup = Setup::default();
    setup.options.limits.arrival_timeout = Duration::from_secs(60);
    let world = World::with(setup);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let headers = [
        ("Host", host.as_str()),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
    ];
    let text = get("/upgrade", &headers);
    let (begins, rest) = text.split_at(text.len() / 2);
    let mut client = Client::connect(world.address()).await;
    client.send(begins).await;
    let metrics = world.gateway.metrics();
    eventually(|| metrics.snapshot().open == 1).await;
    let asks = async {
        // Nobody is let in any more.
        while tokio::net::TcpStream::connect(world.address())
            .await
            .is_ok()
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.send(rest).await;
        client.read_until(b"welcome ").await;
    };
    tokio::join!(world.gateway.leave(), asks);
}

/// What another gateway over the same world needs.
fn ports(world: &World) -> gateway::Ports {
    gateway::Ports {
        routes: world.table.clone(),
        inside: world.inside.clone(),
        pods: std::sync::Arc::new(runtime::Trusting),
        wake: std::sync::Arc::new(gateway::NoWake),
        progress: std::sync::Arc::new(gateway::Timeless),
        seal: None,
        clock: std::sync::Arc::new(kit::SystemClock::default()),
        entropy: std::sync::Arc::new(kit::Entropy::seeded(1)),
    }
}

async fn http2_by_knowledge(
    address: std::net::SocketAddr,
) -> hyper::client::conn::http2::SendRequest<http_body_util::Full<bytes::Bytes>> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (io, executor) = (
        hyper_util::rt::TokioIo::new(stream),
        hyper_util::rt::TokioExecutor::new(),
    );
    let (sender, connection) = hyper::client::conn::http2::handshake(executor, io)
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn who_comes_before_anything_is_served_is_told_to_come_again() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let tls = tls();
    let listens = [None, Some(tls.server.clone())].map(|tls| gateway::Listen {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        tls,
    });
    let doors = gateway::Doors::bind(listens.into(), 2).unwrap();
    let [plain, secure] = doors.addresses() else {
        panic!("{doors:?}")
    };
    let (plain, secure) = (*plain, *secure);
    let attendant = doors.attend().unwrap();
    let host = format!("{}-box.sbx.test", program.port);
    let text = request("POST", "/echo", &[("Host", &host)], "body");
    for _ in 0..8 {
        let answer = once(plain, &text).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.json()["code"], 503);
    }
    let mut client = tls.connect_to(secure, &host, "http/1.1").await;
    client.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let mut http2 = tls.http2_to(secure, &host).await;
    let asked =
        http::Request::get(format!("https://{host}/")).body(http_body_util::Full::default());
    let answer = http2.send_request(asked.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 503);
    // Who was told is to come on a new connection, which somebody else may serve.
    eventually(|| http2.is_closed()).await;
    let mut http2 = http2_by_knowledge(plain).await;
    let asked = http::Request::get(format!("http://{host}/")).body(http_body_util::Full::default());
    let answer = http2.send_request(asked.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 503);
    eventually(|| http2.is_closed()).await;
    let http2 = tls.http2_to(secure, &host).await;
    // Who is on the way meanwhile is served by whoever comes to serve.
    drop(attendant);
    eventually(|| http2.is_closed()).await;
    let options = gateway::Options {
        domain: Some("sbx.test".into()),
        ..gateway::Options::default()
    };
    let (ports, clock) = (ports(&world), kit::SystemClock::default());
    let activity = gateway::Activity::new(std::sync::Arc::new(clock));
    let gateway = gateway::Gateway::behind(doors, activity, ports, options, None).unwrap();
    assert_eq!(gateway.addresses(), [plain, secure]);
    for _ in 0..8 {
        let answer = once(plain, &text).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "body"));
    }
}

#[test]
fn of_who_closes_and_who_comes_in_one_sees_the_other() {
    let world = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { World::new() });
    let activity = world.gateway.activity();
    for round in 0..2_000 {
        let id = format!("box{round}");
        let open = world.apply(world.route(&id));
        let (start, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let (is_in, is_seen) = std::thread::scope(|scope| {
            let coming = scope.spawn(|| {
                start.wait();
                // What goes in, and what would wait where it is closed.
                let held =
                    match round % 2 {
                        0 => activity.let_in(&world.table, &open, 10, true).ok(),
                        _ => activity.let_wait(&world.table, &open, 10).ok().and_then(
                            |(held, now)| (now.state == routes::State::Running).then_some(held),
                        ),
                    };
                done.wait();
                held.is_some()
            });
            start.wait();
            let mut closed = open.clone();
            closed.state = routes::State::Pausing;
            world.apply(closed);
            let is_seen = activity.of(open.uid).is_some_and(|used| used.open > 0);
            done.wait();
            (coming.join().unwrap(), is_seen)
        });
        assert!(!is_in || is_seen, "round {round}: it was let in unseen");
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_that_names_it() {
    let world = World::new();
    let taken = gateway::Listen {
        address: world.address(),
        tls: None,
    };
    let options = gateway::Options::default();
    let refusal = gateway::Gateway::start(ports(&world), options, vec![taken], None).unwrap_err();
    assert!(
        refusal.to_string().contains(&world.address().to_string()),
        "{refusal}"
    );
    assert_eq!(world.address().ip(), Ipv4Addr::LOCALHOST);
}

#[tokio::test]
async fn use_is_known_while_it_lasts_and_when_it_was_afterwards() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let activity = world.gateway.activity();
    assert_eq!(activity.of(route.uid), None);
    let host = format!("{}-box.sbx.test", program.port);
    let mut client = Client::connect(world.address()).await;
    client
        .send(request(
            "POST",
            "/echo",
            &[("Host", &host), ("Content-Length", "2")],
            "",
        ))
        .await;
    client.head().await;
    let seen = activity.of(route.uid).unwrap();
    assert_eq!((seen.epoch, seen.open), (route.epoch, 1));
    assert!(seen.last <= activity.watched());
    client.send("ok").await;
    client.read_exact(2).await;
    eventually(|| activity.of(route.uid).unwrap().open == 0).await;
    // What was refused was no use.
    let other = world.apply(world.secured("other"));
    // The answer that came before the whole request was the last on its connection.
    let mut client = Client::connect(world.address()).await;
    client.ask(get("/", &[("Host", "80-other.sbx.test")])).await;
    assert_eq!(activity.of(other.uid), None);
}
