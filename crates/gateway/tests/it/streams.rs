//! Bytes on their way: both directions, any length, any end.

use std::time::Duration;

use gateway::metrics::Outcome;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::{
    client::{Client, get, once, request},
    sandbox::{program, raw, read_head, script},
    world::{World, eventually},
};

fn host(port: u16) -> String {
    format!("{port}-box.sbx.test")
}

#[tokio::test]
async fn heads_lose_what_is_between_neighbours_and_gain_who_asked() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let headers = [
        ("Host", host.as_str()),
        ("Connection", "keep-alive, X-Drop-Me"),
        ("X-Drop-Me", "secret"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authorization", "Basic eA=="),
        ("TE", "trailers, deflate"),
        ("X-Forwarded-For", "6.6.6.6"),
        ("X-Forwarded-Host", "evil.test"),
        ("Forwarded", "for=6.6.6.6"),
        ("X-Stays", "yes"),
        ("X-Request-Id", "r1"),
    ];
    let answer = once(world.address(), get("/mirror?a=%20b&c", &headers)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-request-id"), Some("r1"));
    for gone in [
        "x-drop-me",
        "keep-alive",
        "proxy-authorization",
        "deflate",
        "6.6.6.6",
        "evil.test",
        "connection",
    ] {
        assert!(!answer.body.contains(gone), "{gone} in {}", answer.body);
    }
    for there in [
        "GET /mirror?a=%20b&c\n",
        "te: trailers\n",
        "x-stays: yes\n",
        "x-request-id: r1\n",
        "x-forwarded-for: 127.0.0.1\n",
        "x-forwarded-proto: http\n",
        &format!("x-forwarded-host: {host}\n"),
        &format!("host: {host}\n"),
    ] {
        assert!(
            answer.body.contains(there),
            "{there} not in {}",
            answer.body
        );
    }
}

#[tokio::test]
async fn a_path_prefix_is_taken_off_and_the_query_stays() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let prefix = format!("/-/box/{}", program.port);
    let answer = once(
        world.address(),
        get(&format!("{prefix}/mirror?q=/-/x"), &[]),
    )
    .await;
    assert!(
        answer.body.starts_with("GET /mirror?q=/-/x\n"),
        "{}",
        answer.body
    );
    assert!(
        answer
            .body
            .contains(&format!("x-forwarded-prefix: {prefix}\n"))
    );
    for (path, seen) in [("", 404), ("?q", 404), ("/", 404)] {
        let answer = once(world.address(), get(&format!("{prefix}{path}"), &[])).await;
        assert_eq!(answer.status, seen);
        assert_eq!(answer.body, "no such path");
    }
    let absolute = format!(
        "GET http://{}/mirror HTTP/1.1\r\nHost: other\r\n\r\n",
        host(program.port)
    );
    let answer = once(world.address(), absolute).await;
    assert!(answer.body.starts_with("GET /mirror\n"), "{}", answer.body);
    assert!(
        answer
            .body
            .contains(&format!("\nhost: {}\n", host(program.port))),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_masked_host_is_what_the_program_sees() {
    let world = World::new();
    let web = program(world.ip, 0).await;
    let _agent = program(world.ip, 49983).await;
    let mut route = world.route("box");
    route.mask_host = Some("localhost:${PORT}".into());
    world.apply(route);
    let answer = once(
        world.address(),
        get("/mirror", &[("Host", &host(web.port))]),
    )
    .await;
    assert!(
        answer
            .body
            .contains(&format!("\nhost: localhost:{}\n", web.port)),
        "{}",
        answer.body
    );
    assert!(
        answer
            .body
            .contains(&format!("x-forwarded-host: {}\n", host(web.port)))
    );
    let answer = once(world.address(), get("/mirror", &[("Host", &host(49983))])).await;
    assert!(
        answer.body.contains(&format!("\nhost: {}\n", host(49983))),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn bodies_and_trailers_pass_both_ways() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let answer = once(
        world.address(),
        request("POST", "/mirror", &[("Host", &host)], "some text"),
    )
    .await;
    assert!(answer.body.ends_with("\n\nsome text"), "{}", answer.body);
    assert!(answer.body.contains("content-length: 9\n"));

    let chunked = format!(
        "POST /mirror HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nTrailer: x-end\r\nTE: trailers\r\n\r\n\
         4\r\nsome\r\n5;ext=1\r\n text\r\n0\r\nx-end: 1\r\n\r\n"
    );
    let answer = once(world.address(), chunked).await;
    assert!(
        answer.body.contains("trailer x-end: 1\n"),
        "{}",
        answer.body
    );
    assert!(answer.body.ends_with("\n\nsome text"), "{}", answer.body);

    let answer = once(
        world.address(),
        get("/trailers", &[("Host", &host), ("TE", "trailers")]),
    )
    .await;
    assert_eq!(answer.body, "hello\ntrailer x-sum: 42");

    let old = format!("GET /mirror HTTP/1.0\r\nHost: {host}\r\n\r\n");
    let answer = once(world.address(), old).await;
    assert_eq!(answer.status, 200);
    let mut client = Client::connect(world.address()).await;
    client
        .send(request("HEAD", "/number", &[("Host", &host)], ""))
        .await;
    let head = client.head().await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("1"))
    );
    let answer = client.ask(get("/number", &[("Host", &host)])).await;
    assert_eq!(answer.status, 200, "nothing was left of the last answer");
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_continue_only_if_somebody_reads() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    let head = |port: u16| {
        let host = host(port);
        request(
            "POST",
            "/mirror",
            &[
                ("Host", &host),
                ("Expect", "100-continue"),
                ("Content-Length", "4"),
            ],
            "",
        )
    };
    client.send(head(program.port)).await;
    assert_eq!(client.head().await.status, 100);
    let answer = client.ask("data").await;
    assert!(answer.body.ends_with("\n\ndata"));
    // Refused without reading: no 100.
    let mut other = Client::connect(world.address()).await;
    let answer = other.ask(head(1)).await;
    assert_eq!(answer.status, 502);
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let world = World::new();
    let (tell, told) = mpsc::unbounded_channel::<&'static str>();
    let told = std::sync::Arc::new(tokio::sync::Mutex::new(told));
    let program = raw(world.ip, 0, move |mut stream, _| {
        let told = told.clone();
        async move {
            read_head(&mut stream).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            while let Some(event) = told.lock().await.recv().await {
                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                stream.write_all(chunk.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let route = world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(get("/", &[("Host", &host(program.port))]))
        .await;
    assert_eq!(client.head().await.status, 200);
    for event in ["data: 1\n\n", "data: two\n\n", "data: 3\n\n"] {
        tell.send(event).unwrap();
        let chunk = client.read_until(event.as_bytes()).await;
        assert!(String::from_utf8(chunk).unwrap().ends_with(event));
        assert_eq!(world.gateway.activity().of(route.uid).unwrap().open, 1);
    }
    drop(client);
    // The program hears of it at its next event at the latest.
    eventually(|| {
        let _ = tell.send("data: anybody?\n\n");
        world.gateway.activity().of(route.uid).unwrap().open == 0
    })
    .await;
    world.quiet().await;
    eventually(|| world.ended(Outcome::Abandoned) == 1).await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let world = World::new();
    let program = raw(world.ip, 0, |mut stream, _| async move {
        read_head(&mut stream).await;
        // Never answers; waits for the end.
        let _ = stream.read_u8().await;
    })
    .await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(get("/", &[("Host", &host(program.port))]))
        .await;
    eventually(|| program.open() == 1).await;
    drop(client);
    eventually(|| program.open() == 0).await;
    world.quiet().await;
}

#[tokio::test]
async fn a_client_may_leave_at_any_byte() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let text = request(
        "POST",
        "/echo",
        &[("Host", &host(program.port))],
        "0123456789",
    );
    for cut in 0..=text.len() {
        let mut client = Client::connect(world.address()).await;
        client.send(&text[..cut]).await;
        drop(client);
    }
    // And in the middle of an answer.
    for cut in 1..60 {
        let mut client = Client::connect(world.address()).await;
        client.send(&text).await;
        client.read_exact(cut).await;
        drop(client);
    }
    world.quiet().await;
    assert_eq!(
        world
            .gateway
            .activity()
            .of(route.uid)
            .map_or(0, |seen| seen.open),
        0
    );
    let answer = once(world.address(), &text).await;
    assert_eq!(answer.body, "0123456789");
}

#[tokio::test]
async fn a_sandbox_that_dies_in_the_middle_resets_the_client() {
    let world = World::new();
    world.apply(world.route("box"));
    let deaths: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
    ];
    for (count, death) in deaths.into_iter().enumerate() {
        let program = script(world.ip, death).await;
        let mut client = Client::connect(world.address()).await;
        client
            .send(get("/", &[("Host", &host(program.port))]))
            .await;
        let (_, end) = client.read_to_any_end().await;
        let error = end.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        eventually(|| world.ended(Outcome::CutShort) == count as u64 + 1).await;
    }
    // The end of the connection may be the end of the answer, if it was never promised otherwise.
    let program = script(world.ip, b"HTTP/1.1 200 OK\r\n\r\nall of it").await;
    let answer = once(world.address(), get("/", &[("Host", &host(program.port))])).await;
    assert_eq!(answer.body, "all of it");
}

#[tokio::test]
async fn an_upgrade_becomes_a_tunnel() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let host = host(program.port);
    let headers = [
        ("Host", host.as_str()),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "eA=="),
    ];
    let mut client = Client::connect(world.address()).await;
    // The first bytes of the new protocol come with the head.
    client.send(get("/upgrade", &headers) + "early ").await;
    let head = client.head().await;
    assert_eq!(head.status, 101);
    assert_eq!(head.header("upgrade"), Some("websocket"));
    assert_eq!(client.read_until(b"early ").await, b"welcome early ");
    for size in [1, 1000, 300_000] {
        let sent = vec![b'x'; size];
        let (mut read, mut write) = client.stream.split();
        let mut seen = vec![0; size];
        let (wrote, got) = tokio::join!(write.write_all(&sent), read.read_exact(&mut seen));
        wrote.unwrap();
        got.unwrap();
        assert_eq!(seen, sent);
    }
    assert_eq!(world.gateway.activity().of(route.uid).unwrap().open, 1);
    // One side's end is passed on, and the other's comes back.
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.read_to_end().await, b"");
    world.quiet().await;
    assert_eq!(world.gateway.activity().of(route.uid).unwrap().open, 0);
}

#[tokio::test]
async fn a_tunnel_ends_when_either_side_does() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let headers = [
        ("Host", host.as_str()),
        ("Connection", "upgrade"),
        ("Upgrade", "x"),
    ];
    let mut client = Client::connect(world.address()).await;
    client.send(get("/upgrade", &headers)).await;
    client.read_until(b"welcome ").await;
    drop(client);
    eventually(|| program.open() == 0).await;
    world.quiet().await;
    // An upgrade that is not taken is an answer like any other.
    let program = script(
        world.ip,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno",
    )
    .await;
    let host = self::host(program.port);
    let answer = once(
        world.address(),
        get("/", &[("Host", &host), headers[1], headers[2]]),
    )
    .await;
    assert_eq!((answer.status, &*answer.body), (400, "no"));
}

#[tokio::test]
async fn upgrades_the_gateway_could_not_see_into_are_not_passed_on() {
    let world = World::new();
    let agent = program(world.ip, 49983).await;
    let web = program(world.ip, 0).await;
    world.apply(world.route("box"));
    for (port, protocol) in [
        (web.port, "h2c"),
        (49983, "websocket"),
        (web.port, "websocket, H2C"),
    ] {
        let host = host(port);
        let headers = [
            ("Host", host.as_str()),
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", protocol),
            ("HTTP2-Settings", "AAMAAABk"),
        ];
        let answer = once(world.address(), get("/mirror", &headers)).await;
        assert_eq!(answer.status, 200);
        assert!(
            !answer.body.contains("upgrade") && !answer.body.contains("http2-settings"),
            "{}",
            answer.body
        );
    }
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_passes_both_ways_in_little_memory() {
    const SIZE: usize = 256 << 20;
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let length = SIZE.to_string();
    let host = host(program.port);
    let before = resident();
    let mut client = Client::connect(world.address()).await;
    client
        .send(request(
            "POST",
            "/echo",
            &[("Host", &host), ("Content-Length", &length)],
            "",
        ))
        .await;
    let chunk = vec![7u8; 1 << 20];
    client.stream.write_all(&chunk).await.unwrap();
    let head = client.head().await;
    assert_eq!(head.status, 200);
    let early = client.take_early().len();
    let (mut read, mut write) = client.stream.split();
    let sending = async {
        for _ in 1..(SIZE >> 20) {
            write.write_all(&chunk).await.unwrap();
        }
    };
    let reading = async {
        let mut buffer = vec![0; 1 << 20];
        let mut count = early;
        let mut most = 0;
        while count < SIZE {
            let more = read.read(&mut buffer).await.unwrap();
            assert!(more > 0, "ended after {count}");
            count += more;
            most = most.max(resident());
        }
        (count, most)
    };
    let ((), (_, most)) = tokio::join!(sending, reading);
    let grown = most.saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB more than before", grown >> 20);
}

#[tokio::test]
async fn only_a_get_is_upgraded() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let headers = [
        ("Host", host.as_str()),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
    ];
    for method in ["OPTIONS", "POST", "DELETE"] {
        let text = request(method, "/mirror", &headers, "");
        let answer = once(world.address(), text).await;
        assert_eq!(answer.status, 200, "{method}");
        assert!(!answer.body.contains("upgrade"), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_sandbox_that_does_not_read_holds_the_client_up() {
    let world = World::new();
    let program = raw(world.ip, 0, |stream, _| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let mut client = Client::connect(world.address()).await;
    client
        .send(request(
            "POST",
            "/",
            &[("Host", &host), ("Content-Length", "1073741824")],
            "",
        ))
        .await;
    let chunk = vec![0u8; 1 << 20];
    let mut sent = 0;
    let stuck = async {
        while sent < 1 << 30 {
            sent += client.stream.write(&chunk).await.unwrap();
        }
    };
    // Long enough for anything that is not bounded to go on.
    let _ = tokio::time::timeout(Duration::from_millis(700), stuck).await;
    assert!(sent < 64 << 20, "{sent} bytes were taken");
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}
