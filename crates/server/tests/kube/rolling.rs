//! Gateways and APIs are replaced one after the other while they are used.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use kit::Tasks;
use rustix::process::Signal;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    balancer::{Backend, Balancer},
    http::send,
    installation::{Installation, LOOK, PATIENCE, Role, User},
    loopback::Own,
};

/// Long enough for what a test does meanwhile.
const DRAIN: (&str, &str) = ("DORMOUSE_DRAIN_TIMEOUT", "6s");
/// How many requests each asks after every replacement.
const MANY: usize = 30;

/// A request that is tried once more if it fails, as a client would. Answers how both went, if so.
async fn ask(url: &str, headers: &[(&str, &str)]) -> Result<(), String> {
    let once = || async {
        match send(Method::GET, url, headers, "").await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("{}: {}", answer.status, answer.text())),
            Err(error) => Err(error),
        }
    };
    let Err(first) = once().await else {
        return Ok(());
    };
    once()
        .await
        .map_err(|second| format!("{first}, then {second}"))
}

/// Somebody who asks again and again.
#[derive(Default)]
struct Asking {
    done: AtomicBool,
    asked: AtomicUsize,
    failed: parking_lot::Mutex<Vec<String>>,
}

impl Asking {
    fn begin(url: String, headers: Vec<(&'static str, String)>, tasks: &Tasks) -> Arc<Self> {
        let asking = Arc::new(Self::default());
        let its = Arc::clone(&asking);
        tasks.spawn(async move {
            let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
            while !its.done.load(Ordering::Relaxed) {
                if let Err(error) = ask(&url, &headers).await {
                    its.failed.lock().push(error);
                }
                its.asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        asking
    }

    /// Waits until many more were asked.
    async fn goes_on(&self) {
        let asked = || self.asked.load(Ordering::Relaxed);
        let before = asked();
        let enough = async {
            while asked() < before + MANY {
                tokio::time::sleep(LOOK).await;
            }
        };
        let enough = tokio::time::timeout(PATIENCE, enough).await;
        assert!(enough.is_ok(), "only {} were asked", asked() - before);
    }

    #[track_caller]
    fn end(&self) {
        self.done.store(true, Ordering::Relaxed);
        let asked = self.asked.load(Ordering::Relaxed);
        let failed = self.failed.lock();
        assert!(failed.is_empty(), "{} of {asked}: {failed:?}", failed.len());
    }
}

/// A stream of bytes to a port inside that sends back what it is sent.
struct Tunnel(TcpStream);

impl Tunnel {
    async fn open(role: &Role, id: &str, port: u16) -> Self {
        let at = role.address("serving", "address").await;
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head = format!(
            "GET /-/{id}/{port}/ HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\n\
             Upgrade: dormouse-tcp\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = head_of(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        Self(stream)
    }

    /// Whether it still leads there.
    async fn answers(&mut self) -> bool {
        let mut back = [0; 4];
        let sent = self.0.write_all(b"ping").await;
        sent.is_ok() && self.0.read_exact(&mut back).await.is_ok() && back == *b"ping"
    }
}

async fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A program inside, as the agents of the stand-in see it. Answers its port.
async fn echo(tasks: &Tasks) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let its = tasks.clone();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            its.spawn(async move {
                let (mut reads, mut writes) = stream.split();
                let _ = tokio::io::copy(&mut reads, &mut writes).await;
            });
        }
    });
    port
}

async fn backend(role: &Role) -> Backend {
    Backend {
        serves: role.address("serving", "address").await,
        probes: role.address("probes and metrics", "address").await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_and_apis_are_replaced_under_load_and_no_request_fails_that_is_tried_twice() {
    let installation = Installation::new().await;
    // Nobody else is given the ports of those that ended.
    let own = Own::new();
    let anywhere = format!("{}:0", own.ip);
    let place = [
        DRAIN,
        ("DORMOUSE_E2B_LISTEN", anywhere.as_str()),
        ("DORMOUSE_PEER_LISTEN", anywhere.as_str()),
    ];
    let mut roles = installation.start_with(2, 1, &place).await;
    let mut apis = vec![
        installation.start("api", &roles.env()),
        installation.start("api", &roles.env()),
    ];
    for api in &apis {
        api.ready().await;
    }
    let tasks = Tasks::default();
    let port = echo(&tasks).await;
    let mut fronts = Vec::new();
    for kind in [&roles.gateways, &apis] {
        let mut backends = Vec::new();
        for role in kind {
            backends.push(backend(role).await);
        }
        fronts.push(Balancer::start(backends, &tasks).await);
    }
    let user = User {
        api: format!("http://{}", fronts[1].address),
        key: installation.key.clone(),
    };
    let made = user
        .create(json!({"autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    let inside = format!("http://{}/-/{}/49983/files", fronts[0].address, made.id);
    let inside = format!("{inside}?path=/etc/hostname&username=root");
    let listed = format!("http://{}/v2/sandboxes", fronts[1].address);
    let key = vec![("x-api-key", user.key.reveal().to_owned())];
    let asking = [
        Asking::begin(inside.clone(), Vec::new(), &tasks),
        Asking::begin(inside, Vec::new(), &tasks),
        Asking::begin(listed, key, &tasks),
    ];
    for n in 0..2 {
        let mut tunnel = Tunnel::open(&roles.gateways[n], &made.id, port).await;
        assert!(tunnel.answers().await);
        // A request whose second half comes late.
        let at = roles.gateways[n].address("serving", "address").await;
        let mut slow = TcpStream::connect(at).await.unwrap();
        let head = format!(
            "POST /-/{}/49983/files?path=/tmp/half-{n}&username=root HTTP/1.1\r\nHost: here\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: 11\r\n\r\nfirst",
            made.id
        );
        slow.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        roles.gateways[n].signal(Signal::TERM);
        roles.gateways[n].says("\"stopping\"").await;
        // It serves on until nobody sends it anything, and then what is inside.
        tokio::time::sleep(Duration::from_secs(4)).await;
        slow.write_all(b"second").await.unwrap();
        let answer = head_of(&mut slow).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(tunnel.answers().await, "it lives as long as it may");
        let old = roles.gateways[n].address("serving", "address").await;
        let status = roles.gateways[n].end().await;
        assert!(!tunnel.answers().await, "its time is over");
        assert_eq!(status.code(), Some(1), "and it says that something was cut");
        let peers = roles.gateways[n].address("serving", "peers").await;
        // Others find it where it was.
        let (old_at, peers) = (old.to_string(), peers.to_string());
        let place = [
            DRAIN,
            ("DORMOUSE_E2B_LISTEN", old_at.as_str()),
            ("DORMOUSE_PEER_LISTEN", peers.as_str()),
        ];
        let next = installation.start("gateway", &place);
        next.ready().await;
        fronts[0].replace(old, backend(&next).await);
        roles.gateways[n] = next;
        fronts[0].uses(old).await;
        for asking in &asking {
            asking.goes_on().await;
        }
    }
    for api in &mut apis {
        let old = api.address("serving", "address").await;
        let next = installation.start("api", &roles.env());
        next.ready().await;
        let new = backend(&next).await;
        fronts[1].replace(old, new);
        std::mem::replace(api, next).stop().await;
        fronts[1].uses(new.serves).await;
        for asking in &asking {
            asking.goes_on().await;
        }
    }
    for asking in asking {
        asking.end();
    }
    tasks.stopping().cancel();
    let read = user.state(&made.id).await;
    assert_eq!(read, "running");
}
