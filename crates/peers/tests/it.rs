//! Gateways and one who asks them, over real connections on loopback.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{Epoch, Name, Namespace, Uid, Version};
use parking_lot::Mutex;
use peer::{Identity, Keys};
use peers::{Desk, Front, Kin, Known, Noted, Peers, Used, frame::Seen, kin::Stranger};
use tokio::{net::TcpListener, sync::watch};

const ONE: Uid = Uid::from_random(1);
const KEY: &str = "0123456789abcdef0123456789abcdef";
const OTHER_KEY: &str = "fedcba9876543210fedcba9876543210";

/// A gateway without a gateway.
#[derive(Debug)]
struct Pretended {
    clock: SystemClock,
    used: Mutex<Vec<Used>>,
    version: watch::Sender<u64>,
}

impl Pretended {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: SystemClock::default(),
            used: Mutex::default(),
            version: watch::channel(0).0,
        })
    }

    fn uses(&self, open: u32) {
        let last = u64::try_from(self.clock.monotonic().as_micros()).unwrap();
        *self.used.lock() = vec![Used {
            uid: ONE,
            epoch: Epoch(1),
            open,
            last,
        }];
    }
}

#[async_trait]
impl Front for Pretended {
    fn noted(&self) -> Noted {
        Noted {
            now: self.clock.monotonic(),
            watched: self.clock.monotonic(),
            used: self.used.lock().clone(),
        }
    }

    async fn seen(&self, _: &Namespace, _: &Name, version: Version) -> Seen {
        let mut at = self.version.subscribe();
        let seen = at.wait_for(|at| *at >= version.to_u64());
        let seen = tokio::time::timeout(Duration::from_secs(1), seen).await;
        Seen {
            seen: seen.is_ok(),
            now: u64::try_from(self.clock.monotonic().as_micros()).unwrap(),
            used: self.used.lock().first().copied(),
        }
    }

    async fn drained(&self, _: Uid, _: Epoch) {
        while self.used.lock().iter().any(|used| used.open > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn identity(key: &str) -> Identity {
    Identity::new(&Keys::parse(key).unwrap()).unwrap()
}

static PROCESSES: AtomicU64 = AtomicU64::new(1);

/// Serves a gateway; it ends when the tasks do.
async fn serve(front: &Arc<Pretended>, at: Option<SocketAddr>) -> (SocketAddr, Tasks) {
    let (address, tasks, _) = serve_of(front, at, "one").await;
    (address, tasks)
}

/// The same, of an installation.
async fn serve_of(
    front: &Arc<Pretended>,
    at: Option<SocketAddr>,
    installation: &str,
) -> (SocketAddr, Tasks, Kin) {
    let tasks = Tasks::default();
    let listener = loop {
        let at = at.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            // The last one has only just left.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let address = listener.local_addr().unwrap();
    let process = PROCESSES.fetch_add(1, Ordering::Relaxed);
    let kin = Kin::of(installation).unwrap();
    let desk = Desk::new(
        front.clone(),
        kin.clone(),
        process,
        tasks.stopping().clone(),
    );
    let (router, identity, group) = (desk.router(), identity(KEY), tasks.clone());
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = group.stopping().cancelled() => return,
                accepted = listener.accept() => accepted.unwrap().0,
            };
            let (router, identity, stop) = (router.clone(), identity.clone(), group.clone());
            group.spawn(async move {
                let Ok(stream) = identity.accept(accepted).await else {
                    return;
                };
                let http = auto::Builder::new(TokioExecutor::new());
                let service = TowerToHyperService::new(router);
                let serving = http.serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    () = stop.stopping().cancelled() => {}
                    _ = serving => {}
                }
            });
        }
    });
    (address, tasks, kin)
}

type Listed = watch::Sender<Option<BTreeSet<SocketAddr>>>;

fn ask(addresses: &[SocketAddr], key: &str, tasks: &Tasks) -> (Peers, Listed) {
    let (listed, members) = watch::channel(Some(addresses.iter().copied().collect()));
    let clock = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    let kin = Kin::of("one").unwrap();
    let peers = Peers::start(members, identity(key), kin, clock, entropy, tasks);
    (peers, listed)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

fn is_quiet(known: &[Known]) -> bool {
    !known.is_empty()
        && known
            .iter()
            .all(|known| matches!(known, Known::Quiet { .. }))
}

async fn sees(peers: &Peers, version: u64) -> bool {
    let (namespace, name) = (Namespace::new("team").unwrap(), Name::new("one").unwrap());
    let version = Version::from_u64(version);
    peers
        .seen(&namespace, &name, version, Duration::from_secs(5))
        .await
}

#[tokio::test]
async fn use_at_any_gateway_is_known_and_a_listed_one_that_is_away_makes_it_unknown() {
    let tasks = Tasks::default();
    let (a, b) = (Pretended::new(), Pretended::new());
    let ((at_a, _a), (at_b, serving_b)) = (serve(&a, None).await, serve(&b, None).await);
    let (peers, _listed) = ask(&[at_a, at_b], KEY, &tasks);
    assert!(peers.known(ONE, Epoch(1)).contains(&Known::Unknown));
    until("both are asked", || is_quiet(&peers.known(ONE, Epoch(1)))).await;
    b.uses(1);
    until("use is heard of", || {
        peers.known(ONE, Epoch(1)).contains(&Known::InUse)
    })
    .await;
    assert!(is_quiet(&peers.known(ONE, Epoch(2))));
    serving_b.drain(Duration::from_secs(5)).await.unwrap();
    until("it is missed", || {
        peers.known(ONE, Epoch(1)).contains(&Known::Unknown)
    })
    .await;
    assert_eq!(peers.unreachable(), Some(vec![at_b]));
    // Another process in its place: what was open ended with the first.
    let c = Pretended::new();
    let (_, _c) = serve(&c, Some(at_b)).await;
    until("it is back", || is_quiet(&peers.known(ONE, Epoch(1)))).await;
    let last = peers
        .known(ONE, Epoch(1))
        .into_iter()
        .filter_map(|known| match known {
            Known::Quiet { last, .. } => last,
            Known::InUse | Known::Unknown => None,
        });
    assert_eq!(
        last.count(),
        1,
        "what the one that is gone saw is remembered"
    );
}

#[tokio::test]
async fn a_version_is_waited_for_and_its_answer_brings_the_use_after_it() {
    let tasks = Tasks::default();
    let a = Pretended::new();
    let (at, _a) = serve(&a, None).await;
    let (peers, _listed) = ask(&[at], KEY, &tasks);
    until("it is asked", || is_quiet(&peers.known(ONE, Epoch(1)))).await;
    assert!(!sees(&peers, 7).await);
    let waiting = sees(&peers, 7);
    let telling = async {
        a.uses(1);
        a.version.send_replace(7);
    };
    let (seen, ()) = tokio::join!(waiting, telling);
    assert!(seen);
    assert_eq!(peers.known(ONE, Epoch(1)), [Known::InUse]);
    // And what is inside is waited for.
    let left = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        a.uses(0);
    };
    tokio::join!(peers.drained(ONE, Epoch(1)), left);
}

#[tokio::test]
async fn one_that_leaves_the_list_is_not_waited_for_and_nobody_vouches_without_a_list() {
    let tasks = Tasks::default();
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let (peers, listed) = ask(&[nobody], KEY, &tasks);
    assert!(!sees(&peers, 1).await);
    assert_eq!(peers.known(ONE, Epoch(1)), [Known::Unknown]);
    listed.send_replace(Some(BTreeSet::new()));
    assert!(sees(&peers, 1).await);
    assert_eq!(peers.known(ONE, Epoch(1)), []);
    listed.send_replace(None);
    assert_eq!(peers.known(ONE, Epoch(1)), [Known::Unknown]);
}

#[tokio::test]
async fn who_does_not_hold_the_key_hears_nothing() {
    let tasks = Tasks::default();
    let a = Pretended::new();
    let (at, _a) = serve(&a, None).await;
    let (stranger, _listed) = ask(&[at], OTHER_KEY, &tasks);
    let (friend, _also) = ask(&[at], KEY, &tasks);
    until("the friend is answered", || {
        is_quiet(&friend.known(ONE, Epoch(1)))
    })
    .await;
    assert_eq!(stranger.known(ONE, Epoch(1)), [Known::Unknown]);
    assert!(!sees(&stranger, 0).await);
}

#[tokio::test]
async fn a_gateway_of_another_installation_vouches_for_nothing_though_it_holds_the_key() {
    let tasks = Tasks::default();
    let (ours, other) = (Pretended::new(), Pretended::new());
    other.version.send_replace(u64::MAX);
    ours.version.send_replace(u64::MAX);
    let (at_ours, _ours) = serve(&ours, None).await;
    let (at_other, _other, other_kin) = serve_of(&other, None, "two").await;
    let (peers, listed) = ask(&[at_ours, at_other], KEY, &tasks);
    until("it is counted", || {
        peers.strangers()[&Stranger::Installation] > 1
    })
    .await;
    assert!(other_kin.strangers()[&Stranger::Installation] > 1);
    until("ours is asked", || {
        peers.unreachable() == Some(vec![at_other])
    })
    .await;
    assert!(peers.known(ONE, Epoch(1)).contains(&Known::Unknown));
    assert!(!sees(&peers, 1).await, "nobody knows what it goes by");
    listed.send_replace(Some(BTreeSet::from([at_ours])));
    until("ours is enough", || is_quiet(&peers.known(ONE, Epoch(1)))).await;
    assert!(sees(&peers, 1).await);
    assert_eq!(peers.strangers()[&Stranger::Format], 0);
}

#[tokio::test]
async fn who_says_nothing_of_a_format_is_neither_answered_nor_believed() {
    use hyper::service::Service as _;
    let desk = Desk::new(
        Pretended::new(),
        Kin::of("one").unwrap(),
        1,
        tokio_util::sync::CancellationToken::new(),
    );
    let status = async |headers: &[(&str, &str)]| {
        let mut request = http::Request::builder().uri("/v1/seen?namespace=a&name=b&version=0");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let service = TowerToHyperService::new(desk.clone().router());
        service.call(request).await.unwrap().status().as_u16()
    };
    let (whose, spoken) = ("dormouse-installation", "dormouse-peers-format");
    assert_eq!(status(&[]).await, 400);
    assert_eq!(status(&[(whose, "one")]).await, 400);
    assert_eq!(status(&[(whose, "one"), (spoken, "2")]).await, 400);
    assert_eq!(status(&[(spoken, "1")]).await, 421);
    assert_eq!(status(&[(whose, "two"), (spoken, "1")]).await, 421);
    assert_eq!(status(&[(whose, "one"), (spoken, "1")]).await, 200);

    // Nor is a gateway that says nothing of it, as one that holds the key and is something else.
    let tasks = Tasks::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(|| async { "{}" });
    let served = identity(KEY);
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = served.accept(stream).await else {
                continue;
            };
            let http = auto::Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(router.clone());
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    let (peers, _listed) = ask(&[at], KEY, &tasks);
    until("it is counted", || peers.strangers()[&Stranger::Format] > 1).await;
    assert_eq!(peers.known(ONE, Epoch(1)), [Known::Unknown]);
    assert_eq!(peers.unreachable(), Some(vec![at]));
}
