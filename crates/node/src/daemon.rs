//! The daemon of a node: freeze and thaw, for control loops that hold the peer key, and nothing else.
//!
//! It remembers nothing: containerd knows what is frozen and who spoke last, over a restart of either.

use std::{io, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Query, State as Shared, rejection::JsonRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use kit::Tasks;
use peer::NodeIdentity;
use runtime::node::{Rank, Reason, Refusal, Standing, Target};
use serde::Deserialize;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    containerd::{Containerd, State},
    error::NodeError,
    guard::{CONTAINER, ContainerId, Sandbox},
};

/// How long somebody who connects may take to show who they are.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long calls under way may take when the daemon ends.
const DRAIN: Duration = Duration::from_secs(20);
/// After accepting has failed, as it does when descriptors run out.
const BREATH: Duration = Duration::from_millis(100);
/// More than any question is long.
const MAX_BODY: usize = 4096;

/// Answers until it is told to stop, and then what is under way.
///
/// # Errors
/// If its address cannot be told.
pub async fn serve(
    listener: TcpListener,
    identity: NodeIdentity,
    containerd: Containerd,
    stopping: CancellationToken,
) -> io::Result<()> {
    let tasks = Tasks::default();
    let graceful = GracefulShutdown::new();
    let router = router(containerd);
    tracing::info!(address = %listener.local_addr()?, "listens for control loops");
    loop {
        let stream = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            },
        };
        let (identity, router) = (identity.clone(), router.clone());
        let watcher = graceful.watcher();
        tasks.spawn(async move {
            if let Err(error) = talk(stream, &identity, router, watcher).await {
                tracing::debug!(%error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    if timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("calls under way are cut off");
    }
    Ok(())
}

async fn talk(
    stream: TcpStream,
    identity: &NodeIdentity,
    router: Router,
    watcher: hyper_util::server::graceful::Watcher,
) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let stream = timeout(HANDSHAKE, identity.accept(stream)).await;
    let stream = stream.map_err(late)??;
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    watcher.watch(connection).await.map_err(io::Error::other)
}

fn router(containerd: Containerd) -> Router {
    Router::new()
        .route("/v1/freeze", post(freeze))
        .route("/v1/thaw", post(thaw))
        .route("/v1/state", get(state))
        .route("/healthz", get(health))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(containerd)
}

type Answer = Result<Json<Standing>, Refused>;

async fn freeze(
    Shared(containerd): Shared<Containerd>,
    target: Result<Json<Target>, JsonRejection>,
) -> Answer {
    let (sandbox, rank) = meant(&containerd, target).await?;
    let changed = sandbox.freeze(rank).await?;
    tracing::info!(container = sandbox.container().id, %rank, changed, "frozen");
    Ok(Json(Standing { frozen: true }))
}

async fn thaw(
    Shared(containerd): Shared<Containerd>,
    target: Result<Json<Target>, JsonRejection>,
) -> Answer {
    let (sandbox, rank) = meant(&containerd, target).await?;
    let changed = sandbox.thaw(rank).await?;
    tracing::info!(container = sandbox.container().id, %rank, changed, "thawed");
    Ok(Json(Standing { frozen: false }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Which {
    container_id: String,
}

async fn state(
    Shared(containerd): Shared<Containerd>,
    which: Result<Query<Which>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    let Query(which) = which.map_err(|error| Refused::invalid(&error.body_text()))?;
    let id = container_id(&which.container_id)?;
    let sandbox = Sandbox::find(&containerd, &id, None).await?;
    match sandbox.state().await? {
        State::Running => Ok(Json(Standing { frozen: false })),
        State::Frozen => Ok(Json(Standing { frozen: true })),
        State::Ended => Err(NodeError::Ended(id.to_string()).into()),
        State::Unknown => Err(NodeError::Unclear(id.to_string()).into()),
    }
}

async fn health(Shared(containerd): Shared<Containerd>) -> Result<String, Refused> {
    let version = containerd.version().await?;
    Ok(format!("containerd {version}\n"))
}

async fn meant(
    containerd: &Containerd,
    target: Result<Json<Target>, JsonRejection>,
) -> Result<(Sandbox, Rank), Refused> {
    let Json(target) = target.map_err(|error| Refused::invalid(&error.body_text()))?;
    if &*target.container != CONTAINER {
        let why = "only the container called sandbox is ever frozen or thawed";
        return Err(Refused::invalid(why));
    }
    let id = container_id(&target.container_id)?;
    let sandbox = Sandbox::find(containerd, &id, Some(&target.pod_uid)).await?;
    Ok((sandbox, target.rank))
}

fn container_id(text: &str) -> Result<ContainerId, Refused> {
    let parsed = text.parse::<ContainerId>();
    parsed.map_err(|error| Refused::invalid(&error.to_string()))
}

/// What is not done, and how that is said.
#[derive(Debug)]
struct Refused(StatusCode, Refusal);

impl Refused {
    fn invalid(message: &str) -> Self {
        let reason = Reason::Invalid;
        let message = message.into();
        Self(StatusCode::BAD_REQUEST, Refusal { reason, message })
    }
}

impl From<NodeError> for Refused {
    fn from(error: NodeError) -> Self {
        let (status, reason) = match &error {
            NodeError::Foreign { .. } => (StatusCode::FORBIDDEN, Reason::Foreign),
            NodeError::Absent(_) => (StatusCode::NOT_FOUND, Reason::Absent),
            NodeError::Ended(_) => (StatusCode::CONFLICT, Reason::Ended),
            NodeError::Stale { .. } => (StatusCode::CONFLICT, Reason::Stale),
            NodeError::Unreachable { .. }
            | NodeError::Late { .. }
            | NodeError::Nonsense { .. }
            | NodeError::Refused { .. }
            | NodeError::Unclear(_)
            | NodeError::Disturbed(_)
            | NodeError::Files { .. }
            | NodeError::Image(_)
            | NodeError::Disk { .. }
            | NodeError::Stopped => (StatusCode::SERVICE_UNAVAILABLE, Reason::Unavailable),
        };
        tracing::warn!(%error, ?reason, "refused");
        let message = error.to_string().into();
        Self(status, Refusal { reason, message })
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}
