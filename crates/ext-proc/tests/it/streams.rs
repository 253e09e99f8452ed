//! What lasts: streams, sockets, large bodies, and what they count as.

use std::sync::Arc;

use ext_proc::Upstream;
use routes::{Route, State};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
};

use crate::{
    client::{Client, get, request},
    sandbox::{program, raw, read_head},
    support::Stage,
    world::eventually,
};

const BOTH: [Upstream; 2] = [Upstream::Relay, Upstream::Direct];

fn open(stage: &Stage, route: &Route) -> u32 {
    let used = stage.world.gateway.activity().of(route.uid);
    used.map_or(0, |used| used.open)
}

#[tokio::test]
async fn a_socket_is_use_of_its_sandbox_for_as_long_as_it_is_open() {
    for upstream in BOTH {
        let stage = Stage::new(upstream).await;
        let program = program(stage.world.ip, 0).await;
        let route = stage.world.apply(stage.world.route("runs"));
        let host = format!("{}-runs.sbx.test", program.port);
        let mut client = Client::connect(stage.envoy.address).await;
        let asked = [
            ("Host", host.as_str()),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        client.send(get("/upgrade", &asked)).await;
        let answer = client.head().await;
        assert_eq!(answer.status, 101, "{upstream:?} {}", answer.head);
        assert_eq!(answer.header("upgrade"), Some("websocket"));
        assert_eq!(client.read_exact(8).await, b"welcome ");
        for _ in 0..3 {
            client.send("over and over").await;
            assert_eq!(client.read_exact(13).await, b"over and over");
            assert_eq!(open(&stage, &route), 1, "{upstream:?}");
        }
        // The relay counts for itself; what Envoy takes to a Pod its stream counts.
        let streams = u64::from(upstream == Upstream::Direct);
        eventually(|| stage.server.metrics().open() == streams).await;
        drop(client);
        eventually(|| open(&stage, &route) == 0).await;
        eventually(|| stage.server.metrics().open() == 0).await;
    }
}

#[tokio::test]
async fn events_come_as_they_happen_and_count_until_their_stream_ends() {
    for upstream in BOTH {
        let stage = Stage::new(upstream).await;
        let next = Arc::new(Notify::new());
        let told = next.clone();
        let program = raw(stage.world.ip, 0, move |mut stream, _| {
            let told = told.clone();
            async move {
                read_head(&mut stream).await;
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
                stream.write_all(head).await.unwrap();
                for _ in 0..3 {
                    stream.write_all(b"9\r\ndata: 1\n\n\r\n").await.unwrap();
                    told.notified().await;
                }
                stream.write_all(b"0\r\n\r\n").await.unwrap();
            }
        })
        .await;
        let route = stage.world.apply(stage.world.route("runs"));
        let host = format!("{}-runs.sbx.test", program.port);
        let mut client = Client::connect(stage.envoy.address).await;
        client.send(get("/events", &[("Host", &host)])).await;
        assert_eq!(client.head().await.status, 200);
        for _ in 0..3 {
            client.read_until(b"data: 1\n\n").await;
            assert_eq!(open(&stage, &route), 1, "{upstream:?}");
            next.notify_one();
        }
        client.read_until(b"0\r\n\r\n").await;
        eventually(|| open(&stage, &route) == 0).await;
    }
}

#[tokio::test]
async fn large_bodies_pass_both_ways_untouched() {
    for upstream in BOTH {
        let stage = Stage::new(upstream).await;
        let program = program(stage.world.ip, 0).await;
        let route = stage.world.apply(stage.world.route("runs"));
        let host = format!("{}-runs.sbx.test", program.port);
        let body: String = (0..1 << 20)
            .map(|n: u32| format!("{:07} ", n % 9_999_991))
            .collect();
        let close = [("Host", host.as_str()), ("Connection", "close")];
        let asked = request("POST", "/echo", &close, &body);
        let stream = TcpStream::connect(stage.envoy.address).await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let writing = tokio::spawn(async move {
            write.write_all(asked.as_bytes()).await.unwrap();
            write
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await.unwrap();
        drop(writing.await.unwrap());
        let text = String::from_utf8(back).unwrap();
        let (head, echoed) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{upstream:?} {head}");
        assert!(
            echoed == body,
            "{upstream:?}: {} of {}",
            echoed.len(),
            body.len()
        );
        eventually(|| open(&stage, &route) == 0).await;
    }
}

#[tokio::test]
async fn a_request_without_an_answer_hears_when_its_sandbox_falls_asleep() {
    for upstream in BOTH {
        let stage = Stage::new(upstream).await;
        let program = raw(stage.world.ip, 0, |mut stream, _| async move {
            read_head(&mut stream).await;
            std::future::pending::<()>().await;
        })
        .await;
        let mut route = stage.world.apply(stage.world.route("runs"));
        let host = format!("{}-runs.sbx.test", program.port);
        let mut client = Client::connect(stage.envoy.address).await;
        client.send(get("/", &[("Host", &host)])).await;
        eventually(|| program.taken() == 1).await;
        route.state = State::Paused;
        stage.world.apply(route.clone());
        let answer = client.answer().await;
        assert_eq!(answer.status, 502, "{upstream:?}");
        assert_eq!(answer.json()["message"], "The sandbox was not found");
        eventually(|| open(&stage, &route) == 0).await;
    }
}

#[tokio::test]
async fn who_leaves_while_a_sandbox_wakes_leaves_nothing_behind() {
    let stage = Stage::with(
        Upstream::Relay,
        crate::world::Setup {
            wake: Arc::new(Never),
            ..Default::default()
        },
    )
    .await;
    let mut route = stage.world.route("asleep");
    (route.state, route.wake_on_traffic) = (State::Paused, true);
    let route = stage.world.apply(route);
    let mut client = Client::connect(stage.envoy.address).await;
    client
        .send(get("/", &[("Host", "80-asleep.sbx.test")]))
        .await;
    eventually(|| open(&stage, &route) == 1).await;
    drop(client);
    eventually(|| open(&stage, &route) == 0).await;
    eventually(|| stage.server.metrics().open() == 0).await;
}

/// Wakes nobody, ever.
#[derive(Debug)]
struct Never;

#[async_trait::async_trait]
impl gateway::Wake for Never {
    async fn wake(
        &self,
        _: &Route,
        _: tokio::time::Instant,
    ) -> Result<Arc<Route>, gateway::WakeError> {
        std::future::pending().await
    }
}
