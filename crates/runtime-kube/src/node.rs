//! The daemon on a node, which freezes containers and lets them go on.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ::runtime::{
    Fence, RuntimeError,
    node::{Reason, Refusal, Standing, Target},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kit::Tasks;
use tokio::{net::TcpStream, time::timeout};

use crate::options::NodeDaemon;

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 * 1024;

/// Why a daemon did not do what it was asked.
enum Unmet {
    /// It has heard of a newer order.
    Stale,
    Failed(RuntimeError),
}

impl From<RuntimeError> for Unmet {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(error)
    }
}

/// The daemon of one node.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) daemon: &'a NodeDaemon,
    pub(crate) at: IpAddr,
    pub(crate) tasks: &'a Tasks,
}

impl Node<'_> {
    pub(crate) async fn freeze(&self, fence: Fence, target: &Target) -> Result<(), RuntimeError> {
        self.order(fence, "/v1/freeze", target).await
    }

    pub(crate) async fn thaw(&self, fence: Fence, target: &Target) -> Result<(), RuntimeError> {
        self.order(fence, "/v1/thaw", target).await
    }

    async fn order(&self, fence: Fence, path: &str, target: &Target) -> Result<(), RuntimeError> {
        match self.ask(Method::POST, path, Some(target)).await {
            Ok(_) => Ok(()),
            Err(Unmet::Stale) => Err(RuntimeError::Stale(fence)),
            Err(Unmet::Failed(error)) => Err(error),
        }
    }

    /// Whether a container is frozen.
    pub(crate) async fn is_frozen(&self, target: &Target) -> Result<bool, RuntimeError> {
        let path = format!("/v1/state?containerId={}", target.container_id);
        let asked = self.ask(Method::GET, &path, None).await;
        let answer = asked.map_err(|unmet| match unmet {
            Unmet::Failed(error) => error,
            Unmet::Stale => self.failed("it takes a question for an order"),
        })?;
        let state: Standing = serde_json::from_slice(&answer)
            .map_err(|error| self.failed(&format!("its answer is not understood: {error}")))?;
        Ok(state.frozen)
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Target>) -> Result<Bytes, Unmet> {
        let asked = timeout(PATIENCE, self.send(method, path, body)).await;
        asked.unwrap_or_else(|_| Err(self.failed("it does not answer").into()))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Target>,
    ) -> Result<Bytes, Unmet> {
        let body = match body {
            Some(target) => serde_json::to_vec(target).map_err(|e| self.failed(&e.to_string()))?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, peer::NODE)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.failed(&error.to_string()))?;
        let address = SocketAddr::new(self.at, self.daemon.port);
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| self.failed(&error.to_string()))?;
        let stream = self.daemon.identity.connect_to_node(stream).await;
        let stream = stream.map_err(|error| self.failed(&error.to_string()))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.failed(&error.to_string()))?;
        self.tasks.spawn(async move {
            // Its failure is that of the call it carries.
            connection.await.ok();
        });
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| self.failed(&error.to_string()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| self.failed(&error.to_string()))?;
        let body = body.to_bytes();
        match status {
            StatusCode::OK | StatusCode::NO_CONTENT => Ok(body),
            status => {
                let why = match serde_json::from_slice::<Refusal>(&body) {
                    Ok(refusal) if refusal.reason == Reason::Stale => return Err(Unmet::Stale),
                    Ok(refusal) => refusal.message.into(),
                    Err(_) => format!("it answered {status}"),
                };
                Err(self.failed(&why).into())
            }
        }
    }

    fn failed(&self, why: &str) -> RuntimeError {
        RuntimeError::Failed(format!("the daemon of node {}: {why}", self.at).into())
    }
}
