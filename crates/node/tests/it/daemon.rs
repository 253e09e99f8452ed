//! The daemon of a node, asked as a control loop would.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use kit::Tasks;
use node::{Containerd, containerd::State, daemon};
use peer::{Identity, Keys, NodeIdentity};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::node::{Node, Pod, Registry};

const REST: &str = "n=0; while :; do n=$((n+1)); echo $n > /count; sleep 1; done";

fn keys(key: &str) -> Keys {
    Keys::parse(&key.repeat(40)).unwrap()
}

fn identity(key: &str) -> Identity {
    Identity::new(&keys(key)).unwrap()
}

struct Daemon {
    address: SocketAddr,
    stopping: CancellationToken,
    ended: JoinHandle<std::io::Result<()>>,
}

async fn serve(containerd: Containerd) -> Daemon {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stopping = CancellationToken::new();
    let issued = NodeIdentity::issue(&keys("k")).unwrap();
    let identity = NodeIdentity::parse(&issued).unwrap();
    let serving = daemon::serve(listener, identity, containerd, stopping.clone());
    Daemon {
        address,
        stopping,
        ended: Tasks::default().spawn(serving),
    }
}

impl Daemon {
    async fn ask(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let stream = identity("k").connect_to_node(stream).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        Tasks::default().spawn(connection);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", peer::NODE)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn tell(&self, word: &str, pod: &Pod<'_>) -> (StatusCode, Value) {
        self.order(word, pod, (1, 1)).await
    }

    async fn order(&self, word: &str, pod: &Pod<'_>, rank: (u64, u64)) -> (StatusCode, Value) {
        let target = json!({
            "podUid": pod.uid,
            "container": "sandbox",
            "containerId": format!("containerd://{}", pod.id),
            "rank": {"generation": rank.0, "operation": rank.1},
        });
        self.ask(Method::POST, &format!("/v1/{word}"), &target)
            .await
    }

    async fn state(&self, pod: &Pod<'_>) -> (StatusCode, Value) {
        let path = format!("/v1/state?containerId={}", pod.id);
        self.ask(Method::GET, &path, &Value::Null).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_freezes_and_thaws_and_forgets_nothing_over_a_restart() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    pod.wait_for("cat /count");
    let daemon = serve(node.containerd()).await;
    let (frozen, awake) = (json!({"frozen": true}), json!({"frozen": false}));
    assert_eq!(daemon.state(&pod).await, (StatusCode::OK, awake.clone()));
    for _ in 0..2 {
        assert_eq!(
            daemon.tell("freeze", &pod).await,
            (StatusCode::OK, frozen.clone())
        );
        assert_eq!(pod.state().await, State::Frozen);
    }
    daemon.stopping.cancel();
    daemon.ended.await.unwrap().unwrap();
    let daemon = serve(node.containerd()).await;
    assert_eq!(daemon.state(&pod).await, (StatusCode::OK, frozen));
    for _ in 0..2 {
        assert_eq!(
            daemon.tell("thaw", &pod).await,
            (StatusCode::OK, awake.clone())
        );
        assert_eq!(pod.state().await, State::Running);
    }
    let (status, _) = daemon.ask(Method::GET, "/healthz", &Value::Null).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_refuses_what_is_older_than_what_it_heard_over_a_restart() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    let daemon = serve(node.containerd()).await;
    assert_eq!(daemon.order("freeze", &pod, (2, 9)).await.0, StatusCode::OK);
    assert_eq!(daemon.order("thaw", &pod, (2, 10)).await.0, StatusCode::OK);
    daemon.stopping.cancel();
    daemon.ended.await.unwrap().unwrap();
    let daemon = serve(node.containerd()).await;
    for late in [(2, 9), (1, 99), (0, 0)] {
        let (status, said) = daemon.order("freeze", &pod, late).await;
        assert_eq!(
            (status, &said["reason"]),
            (StatusCode::CONFLICT, &json!("Stale"))
        );
        assert_eq!(pod.state().await, State::Running);
    }
    assert_eq!(daemon.order("freeze", &pod, (3, 1)).await.0, StatusCode::OK);
    assert_eq!(
        daemon.order("thaw", &pod, (2, 10)).await.0,
        StatusCode::CONFLICT
    );
    assert_eq!(pod.state().await, State::Frozen);
    // What is older is not kept for ever.
    let labels = node.ctr(&["containers", "info", &pod.id]);
    assert_eq!(labels.matches("dormouse.dev/order.").count(), 1, "{labels}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_orders_that_arrive_at_once_the_newest_holds() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let pod = node.pod(&base, "p1", REST);
    // Two of them: they share nothing but containerd.
    let (one, other) = (
        serve(node.containerd()).await,
        serve(node.containerd()).await,
    );
    for round in 1..=10 {
        let (late, newest) = ((round, 1), (round, 2));
        let (words, wanted) = match round % 2 {
            0 => (["thaw", "freeze"], State::Frozen),
            _ => (["freeze", "thaw"], State::Running),
        };
        let (_, (status, _)) = tokio::join!(
            one.order(words[0], &pod, late),
            other.order(words[1], &pod, newest)
        );
        assert_eq!(status, StatusCode::OK);
        assert_eq!(pod.state().await, wanted, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_refuses_strangers_and_everything_that_is_not_ours() {
    let registry = Registry::start().with_image("base:1");
    let node = Node::start();
    let base = format!("{}/base:1", registry.address);
    node.pull(&base);
    let daemon = serve(node.containerd()).await;
    let stream = TcpStream::connect(daemon.address).await.unwrap();
    let stranger = identity("x").connect_to_node(stream).await;
    let refused = match stranger {
        Err(_) => true,
        // TLS 1.3 tells a client only when it reads.
        Ok(mut stream) => {
            use tokio::io::AsyncReadExt as _;
            !matches!(stream.read(&mut [0]).await, Ok(1))
        }
    };
    assert!(refused, "somebody without the key was let in");

    node.holder(&base, "theirs", &["app=other"]);
    let theirs = node.container(&base, "theirs", "sandbox", REST);
    let (status, said) = daemon.tell("freeze", &theirs).await;
    assert_eq!(
        (status, &said["reason"]),
        (StatusCode::FORBIDDEN, &json!("Foreign"))
    );
    assert_eq!(daemon.state(&theirs).await.0, StatusCode::FORBIDDEN);
    let ours = node.pod(&base, "ours", REST);
    let mistaken = Pod {
        uid: "theirs".into(),
        ..ours
    };
    assert_eq!(
        daemon.tell("freeze", &mistaken).await.0,
        StatusCode::FORBIDDEN
    );
    let absent = Pod {
        id: "nothing".into(),
        ..mistaken
    };
    let (status, said) = daemon.tell("freeze", &absent).await;
    assert_eq!(
        (status, &said["reason"]),
        (StatusCode::NOT_FOUND, &json!("Absent"))
    );
    for bad in [
        json!({"podUid": "ours", "container": "helper", "containerId": "ours-sandbox"}),
        json!({"podUid": "ours", "container": "sandbox", "containerId": "../x"}),
        json!({"podUid": "ours"}),
    ] {
        let (status, said) = daemon.ask(Method::POST, "/v1/freeze", &bad).await;
        assert_eq!(
            (status, &said["reason"]),
            (StatusCode::BAD_REQUEST, &json!("Invalid")),
            "{bad}"
        );
    }
    for (method, path) in [(Method::POST, "/v1/exec"), (Method::DELETE, "/v1/freeze")] {
        assert!(
            daemon
                .ask(method, path, &Value::Null)
                .await
                .0
                .is_client_error()
        );
    }
}

#[tokio::test]
async fn without_containerd_the_daemon_says_so() {
    let daemon = serve(Containerd::new("/nowhere/containerd.sock", "k8s.io")).await;
    let (status, said) = daemon.ask(Method::GET, "/healthz", &Value::Null).await;
    assert_eq!(
        (status, &said["reason"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("Unavailable"))
    );
}
