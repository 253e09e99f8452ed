//! The port for waking: who may call it, and what its answers become.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use gateway::{Wake, WakeError};
use routes::{Gate, Route, State};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    time::Instant,
};

use crate::{
    client::{Client, get, once, request},
    sandbox::program,
    world::{Setup, World, eventually},
};

/// Does what it is told; without a word, never answers.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) says: Mutex<Option<Result<Route, WakeError>>>,
    pub(crate) calls: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Wake for Script {
    async fn wake(&self, _: &Route, _: Instant) -> Result<Arc<Route>, WakeError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        let says = self.says.lock().await.clone();
        match says {
            Some(says) => says.map(Arc::new),
            None => std::future::pending().await,
        }
    }
}

pub(crate) fn world(script: &Arc<Script>, wake_timeout: Duration) -> World {
    let mut setup = Setup {
        wake: script.clone(),
        ..Setup::default()
    };
    setup.options.wake_timeout = wake_timeout;
    World::with(setup)
}

pub(crate) fn asleep(world: &World, state: State) -> Route {
    let mut route = world.secured("box");
    (route.state, route.wake_on_traffic, route.traffic) = (state, true, Gate::Open);
    route
}

#[tokio::test]
async fn a_request_is_held_until_its_sandbox_is_awake_and_sent_once() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let program = program(world.ip, 0).await;
    for state in [
        State::Paused,
        State::Pausing,
        State::Resuming,
        State::Unknown,
    ] {
        let route = world.apply(asleep(&world, state));
        let mut awake = route.clone();
        awake.state = State::Running;
        *script.says.lock().await = Some(Ok(awake));
        let host = format!("{}-box.sbx.test", program.port);
        let answer = once(
            world.address(),
            request("POST", "/mirror", &[("Host", &host)], "first bytes"),
        )
        .await;
        assert_eq!(answer.status, 200, "{state:?}");
        assert!(answer.body.ends_with("\n\nfirst bytes"));
    }
    assert_eq!(script.calls.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn one_that_is_being_closed_is_waited_for_whether_or_not_traffic_may_wake_it() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let program = program(world.ip, 0).await;
    let open = world.route("box");
    *script.says.lock().await = Some(Ok(open.clone()));
    let host = format!("{}-box.sbx.test", program.port);
    let answers = [(true, 200, 1), (false, 502, 1)];
    for (is_closing, status, calls) in answers {
        world.apply(Route {
            state: State::Pausing,
            is_closing,
            ..open.clone()
        });
        let answer = once(world.address(), get("/mirror", &[("Host", &host)])).await;
        assert_eq!(answer.status, status, "{is_closing}");
        assert_eq!(script.calls.load(Ordering::SeqCst), calls, "{is_closing}");
    }
}

#[tokio::test]
async fn failures_have_their_rows() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let route = world.apply(asleep(&world, State::Paused));
    let mut other = route.clone();
    other.epoch = other.epoch.next();
    other.state = State::Running;
    let retry_after = Duration::from_secs(7);
    let rows = [
        (Err(WakeError::NotFound), 502, None),
        (Err(WakeError::Failed), 503, Some("5")),
        (Err(WakeError::Timeout), 503, Some("5")),
        (Err(WakeError::Overloaded { retry_after }), 503, Some("7")),
        (Err(WakeError::TeamLimit { retry_after }), 429, Some("7")),
        // Awake, and somebody else's; or not awake at all.
        (Ok(other), 502, None),
        (Ok(route.clone()), 502, None),
    ];
    for (says, status, retry) in rows {
        *script.says.lock().await = Some(says.clone());
        let answer = once(world.address(), get("/", &[("Host", "80-box.sbx.test")])).await;
        assert_eq!(answer.status, status, "{says:?}");
        assert_eq!(answer.header("retry-after"), retry, "{says:?}");
    }
}

#[tokio::test]
async fn a_gate_that_closed_meanwhile_is_closed() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let mut awake = world.apply(asleep(&world, State::Paused));
    (awake.state, awake.traffic) = (State::Running, Gate::Closed);
    *script.says.lock().await = Some(Ok(awake));
    let answer = once(world.address(), get("/", &[("Host", "80-box.sbx.test")])).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn who_shows_no_token_wakes_nothing() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    world.apply(asleep(&world, State::Paused));
    let host = ("Host", "49983-box.sbx.test");
    let preflight = [
        host,
        ("Origin", "https://page.test"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-access-token"),
    ];
    for (text, status) in [
        (get("/health", &[host]), 401),
        (get("/health", &[host, ("X-Access-Token", "guess")]), 401),
        (get("/files?path=a&signature=v1_no", &[host]), 401),
        (request("OPTIONS", "/health", &preflight, ""), 204),
    ] {
        assert_eq!(once(world.address(), &text).await.status, status, "{text}");
    }
    assert_eq!(script.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_wait_has_an_end_and_a_client_that_leaves_ends_only_its_own() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_millis(300));
    world.apply(asleep(&world, State::Paused));
    let answer = once(world.address(), get("/", &[("Host", "80-box.sbx.test")])).await;
    assert_eq!(answer.status, 503);
    // Where the wait itself ends no sooner than the test.
    let world = self::world(&script, Duration::from_secs(60));
    world.apply(asleep(&world, State::Paused));
    let mut client = Client::connect(world.address()).await;
    client.send(get("/", &[("Host", "80-box.sbx.test")])).await;
    eventually(|| script.waiting.load(Ordering::SeqCst) == 1).await;
    drop(client);
    eventually(|| script.waiting.load(Ordering::SeqCst) == 0).await;
    world.quiet().await;
}

#[tokio::test]
async fn a_request_under_which_its_sandbox_falls_asleep_wakes_it_or_is_refused() {
    for opted_in in [true, false] {
        let script = Arc::new(Script::default());
        let world = world(&script, Duration::from_secs(60));
        let (listener, port) = silent(world.ip).await;
        let mut running = asleep(&world, State::Running);
        running.wake_on_traffic = opted_in;
        let running = world.apply(running);
        let mut client = Client::connect(world.address()).await;
        let host = format!("{port}-box.sbx.test");
        client.send(get("/slow", &[("Host", &host)])).await;
        let (mut inside, _) = listener.accept().await.unwrap();
        let head = read_head(&mut inside).await;
        assert!(head.starts_with("GET /slow"));
        let pausing = |state| Route {
            state,
            ..running.clone()
        };
        // It has a while to answer first.
        world.apply(pausing(State::Pausing));
        world.apply(pausing(State::Paused));
        if opted_in {
            eventually(|| script.waiting.load(Ordering::SeqCst) == 1).await;
            // Awake again, the answer comes as if nothing had been.
            world.apply(running.clone());
            inside
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await
                .unwrap();
            assert_eq!(client.head().await.status, 200);
            assert_eq!(client.read_exact(2).await, b"ok");
        } else {
            assert_eq!(client.head().await.status, 502);
            assert_eq!(script.calls.load(Ordering::SeqCst), 0);
        }
    }
}

#[tokio::test]
async fn a_request_whose_sandbox_falls_asleep_while_it_is_dialled_wakes_it() {
    let script = Arc::new(Script::default());
    let mut setup = Setup {
        wake: script.clone(),
        ..Setup::default()
    };
    setup.options.limits.connect_timeout = Duration::from_secs(60);
    let world = World::with(setup);
    // Room for one connection that nobody takes: any other waits.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((world.ip, 0).into()).unwrap();
    let listener = socket.listen(0).unwrap();
    let to = listener.local_addr().unwrap();
    let first = TcpStream::connect(to).await.unwrap();
    let running = world.apply(asleep(&world, State::Running));
    let mut client = Client::connect(world.address()).await;
    let host = format!("{}-box.sbx.test", to.port());
    client.send(get("/", &[("Host", &host)])).await;
    let activity = world.gateway.activity();
    eventually(|| activity.of(running.uid).is_some_and(|seen| seen.open == 1)).await;
    world.apply(Route {
        state: State::Paused,
        ..running.clone()
    });
    eventually(|| script.waiting.load(Ordering::SeqCst) == 1).await;
    world.apply(running.clone());
    listener.accept().await.unwrap();
    drop(first);
    let (mut inside, _) = listener.accept().await.unwrap();
    read_head(&mut inside).await;
    inside
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(client.head().await.status, 204);
}

#[tokio::test]
async fn what_is_inside_is_waited_for_and_what_is_parked_is_not() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let (listener, port) = silent(world.ip).await;
    let running = world.apply(asleep(&world, State::Running));
    let activity = world.gateway.activity();
    let mut client = Client::connect(world.address()).await;
    let host = format!("{port}-box.sbx.test");
    client.send(get("/", &[("Host", &host)])).await;
    let (mut inside, _) = listener.accept().await.unwrap();
    let drained = tokio::spawn({
        let activity = activity.clone();
        async move { activity.drained(running.uid, running.epoch).await }
    });
    world.apply(Route {
        state: State::Pausing,
        ..running.clone()
    });
    let mut parked = Client::connect(world.address()).await;
    parked.send(get("/", &[("Host", &host)])).await;
    eventually(|| script.waiting.load(Ordering::SeqCst) == 1).await;
    assert_eq!(activity.of(running.uid).unwrap().open, 2);
    assert!(!drained.is_finished());
    inside
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(client.head().await.status, 204);
    drained.await.unwrap();
    assert_eq!(activity.of(running.uid).unwrap().open, 1);
}

/// A program that takes connections and says nothing by itself.
async fn silent(ip: std::net::IpAddr) -> (TcpListener, u16) {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}
