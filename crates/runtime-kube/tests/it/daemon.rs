//! A node's daemon over the stand-in: it stops and continues the agents of Pods by signals.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kit::Tasks;
use parking_lot::Mutex;
use peer::{Identity, Keys, NodeIdentity};
use runtime::node::{Rank, Reason, Refusal, Standing, Target};
use rustix::process::{Pid, Signal, kill_process};
use standin_kube::Standin;
use tokio::net::TcpListener;

/// The key that test and daemon share.
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";

pub(crate) fn identity() -> Arc<Identity> {
    Arc::new(Identity::new(&Keys::parse(KEY).unwrap()).unwrap())
}

fn of_node() -> Arc<NodeIdentity> {
    let issued = NodeIdentity::issue(&Keys::parse(KEY).unwrap()).unwrap();
    Arc::new(NodeIdentity::parse(&issued).unwrap())
}

/// The agent of a Pod of the stand-in.
pub(crate) fn agent_of(standin: &Standin, pod_uid: &str) -> Option<Pid> {
    let pid = standin.kubelet()?.pid_of_pod(pod_uid, "sandbox")?;
    Pid::from_raw(pid.try_into().ok()?)
}

/// Whether a process is stopped.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// The Pods of containers that were asked about, and the rank of the newest order for each.
type Asked = Arc<Mutex<BTreeMap<String, (String, Rank)>>>;

/// Starts one; answers its port.
pub(crate) async fn start(standin: &Arc<Standin>, tasks: &Tasks) -> u16 {
    let node = standin.address().ip();
    let listener = TcpListener::bind((node, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (standin, identity, stop) = (standin.clone(), of_node(), tasks.stopping().clone());
    let asked = Asked::default();
    let connections = tasks.child();
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            let (stream, _) = accepted.unwrap();
            let (standin, identity, asked) = (standin.clone(), identity.clone(), asked.clone());
            connections.spawn(async move {
                let Ok(stream) = identity.accept(stream).await else {
                    return;
                };
                let service = service_fn(|request| answer(standin.clone(), asked.clone(), request));
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    port
}

async fn answer(
    standin: Arc<Standin>,
    asked: Asked,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let say = |status, body: Vec<u8>| {
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        Ok(response)
    };
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let signal = match head.uri.path() {
        "/v1/freeze" => Signal::STOP,
        "/v1/thaw" => Signal::CONT,
        "/v1/state" => {
            let id = head
                .uri
                .query()
                .unwrap()
                .strip_prefix("containerId=")
                .unwrap();
            let pod = asked.lock().get(id).cloned();
            let agent = pod.and_then(|(uid, _)| agent_of(&standin, &uid));
            let standing = Standing {
                frozen: agent.is_some_and(is_stopped),
            };
            return say(StatusCode::OK, serde_json::to_vec(&standing).unwrap());
        }
        _ => return say(StatusCode::NOT_FOUND, Vec::new()),
    };
    let target: Target = serde_json::from_slice(&body).unwrap();
    assert_eq!(&*target.container, "sandbox");
    {
        let mut asked = asked.lock();
        let before = asked.get(&*target.container_id);
        if before.is_some_and(|(_, newest)| *newest > target.rank) {
            let refusal = Refusal {
                reason: Reason::Stale,
                message: "a newer order was heard".into(),
            };
            return say(StatusCode::CONFLICT, serde_json::to_vec(&refusal).unwrap());
        }
        let pod = (target.pod_uid.clone().into(), target.rank);
        asked.insert(target.container_id.into(), pod);
    }
    // The kubelet notes a process a moment after it was started.
    let mut pid = None;
    for _ in 0..200 {
        pid = agent_of(&standin, &target.pod_uid);
        if pid.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let Some(pid) = pid else {
        return say(StatusCode::NOT_FOUND, Vec::new());
    };
    kill_process(pid, signal).unwrap();
    while is_stopped(pid) != (signal == Signal::STOP) {
        tokio::task::yield_now().await;
    }
    let standing = Standing {
        frozen: signal == Signal::STOP,
    };
    say(StatusCode::OK, serde_json::to_vec(&standing).unwrap())
}
