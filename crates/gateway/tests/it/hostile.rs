//! Clients that mean harm.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::{
    client::{Client, get, once, request},
    sandbox::program,
    world::{Setup, World, eventually},
};

/// An id is a key of the table and nothing else: no spelling of an address, and no name, makes the
/// gateway connect to what the table does not lead to.
#[tokio::test]
async fn an_id_that_is_an_address_leads_nowhere() {
    let world = World::new();
    let program = program("127.0.0.1".parse().unwrap(), 0).await;
    world.apply(world.route("box"));
    let port = program.port.to_string();
    let addresses = [
        "127.0.0.1",
        "127.1",
        "0",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "::1",
        "[::1]",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "2852039166",
        "fe80::1",
        "localhost",
        "metadata",
        "box@127.0.0.1",
        "box.127.0.0.1",
        "127.0.0.1#box",
        "box%00",
    ];
    for address in addresses {
        let headers = [("E2b-Sandbox-Id", address), ("E2b-Sandbox-Port", &*port)];
        let by_header = get("/number", &headers);
        let by_path = get(&format!("/-/{address}/{port}/number"), &[]);
        let host = format!("{port}-{address}.sbx.test");
        let by_host = get("/number", &[("Host", &host)]);
        let absolute = format!("GET http://{address}:{port}/number HTTP/1.1\r\nHost: x\r\n\r\n");
        for text in [by_header, by_path, by_host, absolute] {
            let answer = once(world.address(), &text).await;
            assert!(
                [400, 502].contains(&answer.status),
                "{text}\n{}",
                answer.status
            );
        }
    }
    assert_eq!(program.taken(), 0);
}

#[tokio::test]
async fn a_conflict_of_lengths_is_framed_anew_and_ends_the_connection() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    for headers in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
    ] {
        let mut client = Client::connect(world.address()).await;
        client
            .send(format!(
                "POST /mirror HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            ))
            .await;
        let answer = client.answer().await;
        assert!(answer.body.ends_with("\n\nhello"), "{}", answer.body);
        assert!(!answer.body.contains("content-length"), "{}", answer.body);
        assert_eq!(client.read_to_end().await, b"");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_each_by_itself() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let mut client = Client::connect(world.address()).await;
    let one = request("POST", "/echo", &[("Host", &host)], "one");
    let two = request("POST", "/echo", &[("Host", "1-other.sbx.test")], "two");
    client.send(format!("{one}{two}{one}")).await;
    assert_eq!(client.answer().await.body, "one");
    assert_eq!(client.answer().await.status, 502);
    assert_eq!(client.answer().await.body, "one");
}

#[tokio::test]
async fn heads_that_are_too_long_are_refused() {
    let world = World::new();
    let mut client = Client::connect(world.address()).await;
    let long = "x".repeat(1 << 20);
    let text = get("/", &[("Host", "80-box.sbx.test"), ("X", &long)]);
    let _ = client.stream.write_all(text.as_bytes()).await;
    let (seen, _) = client.read_to_any_end().await;
    let seen = String::from_utf8_lossy(&seen);
    assert!(
        seen.is_empty() || seen.starts_with("HTTP/1.1 431"),
        "{seen}"
    );
    world.quiet().await;
    let many: Vec<(String, String)> = (0..500)
        .map(|n| (format!("x-{n}"), String::new()))
        .collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(once(world.address(), get("/", &many)).await.status, 431);
}

#[tokio::test]
async fn who_dawdles_over_a_head_is_sent_away_and_who_waits_for_an_answer_is_not() {
    let mut setup = Setup::default();
    setup.options.limits.head_timeout = Duration::ZERO;
    let world = World::with(setup);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let mut patient = Client::connect(world.address()).await;
    patient
        .send(request(
            "POST",
            "/echo",
            &[("Host", &host), ("Content-Length", "2")],
            "",
        ))
        .await;
    patient.head().await;
    let mut idle = Client::connect(world.address()).await;
    let mut loris = Client::connect(world.address()).await;
    loris.send("GET / HTTP/1.1\r\nX: ").await;
    let drip = async {
        loop {
            if loris.stream.write_all(b"x").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    drip.await;
    // The others were there longer.
    patient.send("ok").await;
    assert_eq!(patient.read_exact(2).await, b"ok");
    assert_eq!(
        idle.ask(get("/number", &[("Host", &host)])).await.status,
        200
    );
}

#[tokio::test]
async fn idle_connections_end_and_make_room() {
    let mut setup = Setup::default();
    setup.options.limits.connections = 2;
    setup.options.limits.idle_timeout_when_full = Duration::ZERO;
    let world = World::with(setup);
    let mut first = Client::connect(world.address()).await;
    assert_eq!(
        first
            .ask(get("/", &[("Host", "80-box.sbx.test")]))
            .await
            .status,
        502
    );
    let mut second = Client::connect(world.address()).await;
    assert_eq!(
        second
            .ask(get("/", &[("Host", "80-box.sbx.test")]))
            .await
            .status,
        502
    );
    let third = once(world.address(), get("/", &[("Host", "80-box.sbx.test")])).await;
    assert_eq!(third.status, 502);
    assert_eq!(first.read_to_end().await, b"");
    assert_eq!(second.read_to_end().await, b"");
}

#[tokio::test]
async fn who_does_not_read_is_let_go() {
    let mut setup = Setup::default();
    setup.options.limits.stall_timeout = Duration::ZERO;
    let world = World::with(setup);
    let program = crate::sandbox::raw(world.ip, 0, |mut stream, _| async move {
        crate::sandbox::read_head(&mut stream).await;
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
            .await;
        let chunk = vec![0u8; 1 << 20];
        while stream.write_all(&chunk).await.is_ok() {}
    })
    .await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(get(
            "/",
            &[("Host", &format!("{}-box.sbx.test", program.port))],
        ))
        .await;
    client.head().await;
    eventually(|| program.open() == 0).await;
    world.quiet().await;
}

#[tokio::test]
async fn an_answer_that_falls_silent_does_not_end_as_if_it_were_whole() {
    let mut setup = Setup::default();
    setup.options.limits.silence_timeout = Duration::ZERO;
    let world = World::with(setup);
    let program = crate::sandbox::raw(world.ip, 0, |mut stream, _| async move {
        crate::sandbox::read_head(&mut stream).await;
        let half = b"HTTP/1.1 200 OK\r\n\r\nhalf";
        stream.write_all(half).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    // The short way, and the library's.
    for more in [("X", "y"), ("Connection", "keep-alive, x")] {
        let mut client = Client::connect(world.address()).await;
        client.send(get("/", &[("Host", &host), more])).await;
        let (_, end) = client.read_to_any_end().await;
        let error = end.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn heads_that_come_byte_by_byte_are_read_both_ways() {
    let world = World::new();
    let program = crate::sandbox::raw(world.ip, 0, |mut stream, _| async move {
        stream.set_nodelay(true).unwrap();
        crate::sandbox::read_head(&mut stream).await;
        let answer = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for byte in answer {
            stream.write_all(&[*byte]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    for more in [("X", "y"), ("Connection", "keep-alive, x")] {
        let mut client = Client::connect(world.address()).await;
        let text = "\r\n\n".repeat(20) + &get("/", &[("Host", &host), more]);
        for byte in text.as_bytes() {
            client.send([*byte]).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(client.answer().await.body, "ok", "{more:?}");
    }
}

#[tokio::test]
async fn noise_is_answered_or_dropped_and_nothing_else() {
    use rand::{Rng as _, SeedableRng as _};
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut random = rand::rngs::SmallRng::seed_from_u64(7);
    let good = request(
        "POST",
        "/echo",
        &[("Host", &format!("{}-box.sbx.test", program.port))],
        "hello",
    );
    for round in 0..300 {
        let mut bytes = good.clone().into_bytes();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..bytes.len());
            match round % 3 {
                0 => bytes[at] = random.random(),
                1 => bytes.insert(at, random.random()),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        let mut client = Client::connect(world.address()).await;
        let _ = client.stream.write_all(&bytes).await;
        let _ = client.stream.shutdown().await;
        let _ = client.read_to_any_end().await;
    }
    assert_eq!(once(world.address(), &good).await.body, "hello");
    world.quiet().await;
}
