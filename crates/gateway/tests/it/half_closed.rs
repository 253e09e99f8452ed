//! Clients that have said all they will say, and listen on; and those that only look like it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use gateway::{Wake, WakeError, metrics::Outcome};
use routes::{Route, State};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Semaphore,
    time::{Instant, sleep},
};

use crate::{
    client::{Answer, Client, get, request},
    sandbox::{Program, program, raw, read_head},
    tls::tls,
    waking::{self, Script},
    world::{Setup, World, eventually},
};

/// Wakes when it is told to.
#[derive(Debug)]
struct Later {
    told: Semaphore,
    waiting: AtomicUsize,
}

#[async_trait]
impl Wake for Later {
    async fn wake(&self, route: &Route, _: Instant) -> Result<Arc<Route>, WakeError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _told = self.told.acquire().await.unwrap();
        let mut awake = route.clone();
        awake.state = State::Running;
        Ok(Arc::new(awake))
    }
}

/// Answers after a while, with what it was asked.
async fn slow(world: &World, after: Duration) -> Program {
    raw(world.ip, 0, move |mut stream, _| async move {
        let head = read_head(&mut stream).await;
        sleep(after).await;
        let line = head.lines().next().unwrap_or_default();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}",
            line.len()
        );
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.read_u8().await;
    })
    .await
}

fn host(port: u16) -> String {
    format!("{port}-box.sbx.test")
}

/// The answer, and whether something was said before it.
async fn last_answer(client: &mut Client) -> (Answer, bool) {
    let mut answer = client.head().await;
    let was_hinted = answer.status == 100;
    if was_hinted {
        answer = client.head().await;
    }
    let rest = client.read_to_end().await;
    answer.body = String::from_utf8(rest).unwrap();
    (answer, was_hinted)
}

#[tokio::test]
async fn who_has_said_all_and_listens_gets_its_answer() {
    let world = World::new();
    let slow = slow(&world, Duration::from_millis(1500)).await;
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let (late, soon) = (host(slow.port), host(program.port));
    let chunked = format!(
        "POST /mirror HTTP/1.1\r\nHost: {soon}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    );
    let asked = [
        (get("/late", &[("Host", &late)]), "GET /late HTTP/1.1"),
        (
            request("POST", "/mirror", &[("Host", &soon)], "hello"),
            "hello",
        ),
        (chunked, "hi"),
    ];
    for (text, expected) in asked {
        let mut client = Client::connect(world.address()).await;
        client.send(text).await;
        client.stream.shutdown().await.unwrap();
        let (answer, _) = last_answer(&mut client).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with(expected), "{}", answer.body);
    }
    assert_eq!(world.ended(Outcome::Forwarded), 3);
    world.quiet().await;
}

#[tokio::test]
async fn several_requests_before_the_end_are_all_answered() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let one = get("/number", &[("Host", &host)]);
    let mut client = Client::connect(world.address()).await;
    client.send(one.repeat(3)).await;
    client.stream.shutdown().await.unwrap();
    let all = String::from_utf8(client.read_to_end().await).unwrap();
    assert_eq!(all.matches("200 OK").count(), 3, "{all}");
}

#[tokio::test]
async fn an_older_client_is_sent_nothing_that_it_does_not_know() {
    let world = World::new();
    let slow = slow(&world, Duration::from_millis(300)).await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    client
        .send(format!(
            "GET / HTTP/1.0\r\nHost: {}\r\n\r\n",
            host(slow.port)
        ))
        .await;
    client.stream.shutdown().await.unwrap();
    let (answer, was_hinted) = last_answer(&mut client).await;
    assert_eq!((answer.status, was_hinted), (200, false));
}

#[tokio::test]
async fn a_stream_goes_on_for_who_listens() {
    let world = World::new();
    let program = raw(world.ip, 0, |mut stream, _| async move {
        read_head(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..5 {
            stream.write_all(b"2\r\nhi\r\n").await.unwrap();
            sleep(Duration::from_millis(500)).await;
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    })
    .await;
    world.apply(world.route("box"));
    let host = host(program.port);
    let mut client = Client::connect(world.address()).await;
    client.send(get("/", &[("Host", &host)])).await;
    client.read_until(b"hi\r\n").await;
    client.stream.shutdown().await.unwrap();
    let rest = client.read_to_end().await;
    assert!(
        rest.ends_with(b"0\r\n\r\n"),
        "{:?}",
        String::from_utf8_lossy(&rest)
    );
}

#[tokio::test]
async fn who_waits_for_a_sandbox_to_wake_may_have_said_all() {
    let later = Arc::new(Later {
        told: Semaphore::new(0),
        waiting: AtomicUsize::new(0),
    });
    let world = World::with(Setup {
        wake: later.clone(),
        ..Setup::default()
    });
    let program = program(world.ip, 0).await;
    world.apply(waking::asleep(&world, State::Paused));
    let host = host(program.port);
    let mut client = Client::connect(world.address()).await;
    client.send(get("/number", &[("Host", &host)])).await;
    client.stream.shutdown().await.unwrap();
    eventually(|| later.waiting.load(Ordering::SeqCst) == 1).await;
    // Something is said to find out whether it is gone.
    assert_eq!(client.head().await.status, 100);
    later.told.add_permits(1);
    assert_eq!(last_answer(&mut client).await.0.status, 200);
}

#[tokio::test]
async fn who_is_gone_is_found_out_though_it_looks_alike() {
    let script = Arc::new(Script::default());
    let world = waking::world(&script, Duration::from_secs(60));
    let silent = raw(world.ip, 0, |mut stream, _| async move {
        read_head(&mut stream).await;
        while let Ok(1..) = stream.read(&mut [0; 64]).await {}
    })
    .await;
    let awake = world.route("awake");
    world.apply(awake);
    world.apply(waking::asleep(&world, State::Paused));
    let to = |id: &str| format!("{}-{id}.sbx.test", silent.port);
    let chunked = "Transfer-Encoding: chunked";
    let posted = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\n{chunked}\r\n\r\n0\r\n\r\n",
        to("awake")
    );
    for text in [get("/", &[("Host", &to("awake"))]), posted] {
        let mut client = Client::connect(world.address()).await;
        client.send(text).await;
        eventually(|| silent.open() == 1).await;
        drop(client);
        eventually(|| silent.open() == 0).await;
    }
    let mut client = Client::connect(world.address()).await;
    client.send(get("/", &[("Host", &to("box"))])).await;
    eventually(|| script.waiting.load(Ordering::SeqCst) == 1).await;
    drop(client);
    eventually(|| script.waiting.load(Ordering::SeqCst) == 0).await;
    world.quiet().await;
    assert_eq!(world.ended(Outcome::Abandoned), 3);
}

#[tokio::test]
async fn with_tls_too() {
    let tls = tls();
    let world = World::with(Setup {
        tls: Some(tls.server.clone()),
        ..Setup::default()
    });
    let slow = slow(&world, Duration::from_millis(1500)).await;
    world.apply(world.route("box"));
    let name = host(slow.port);
    let mut client = tls.connect(&world, &name, "http/1.1").await;
    let text = get("/late", &[("Host", &name)]);
    client.write_all(text.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).await.unwrap();
    assert!(all.contains("200 OK"), "{all}");
    assert!(all.ends_with("GET /late HTTP/1.1"), "{all}");
}
