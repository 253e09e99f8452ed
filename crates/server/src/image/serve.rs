//! Images for commands that find a server running: under `/dormouse/images`, for administrators.
//!
//! What takes a while answers with a line of JSON whenever it has got further, and one at the end:
//! `{"done": ...}` or `{"error": "..."}`. It goes on if whoever asked leaves.

use std::{
    convert::Infallible,
    fs,
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use api::Authenticator;
use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use images::{Commit, Compression, Fault, Flight, Format, ImageError, Login, Store};
use kit::Tasks;
use model::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::{io::AsyncReadExt as _, sync::mpsc, task::spawn_blocking};

use super::{
    far::Far,
    spool::Spool,
    store::{Unknown, import, list, remove},
};
use crate::admin::{refusal, refused};

/// Lines that nobody has read yet; what is told meanwhile is old by then.
const UNREAD: usize = 8;
const CHUNK: usize = 1 << 17;

/// The images of the data directory that a server has.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) images: Store,
    pub(crate) compression: Compression,
    pub(crate) records: Arc<dyn store::Store>,
    pub(crate) data: PathBuf,
    pub(crate) spool: Spool,
    pub(crate) admins: Authenticator,
    pub(crate) tasks: Tasks,
}

type Shared = State<Arc<Images>>;
type Answer = Result<Response, Refused>;

pub(crate) fn router(images: Arc<Images>) -> Router {
    let known = middleware::from_fn_with_state(Arc::clone(&images), known);
    Router::new()
        .route("/dormouse/images", get(all).delete(take_name))
        .route("/dormouse/images/pull", post(pull))
        .route("/dormouse/images/push", post(push))
        .route("/dormouse/images/commit", post(commit))
        .route("/dormouse/images/import", post(take_in))
        .route("/dormouse/images/export", get(hand_out))
        .route_layer(known)
        .with_state(images)
}

async fn known(State(images): Shared, request: Request, next: Next) -> Response {
    match refused(&images.admins, request.headers()) {
        None => next.run(request).await,
        Some(refusal) => refusal,
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

async fn all(State(it): Shared) -> Json<Value> {
    Json(json!(list(&it.images)))
}

async fn take_name(State(it): Shared, Query(asked): Query<Named>) -> Answer {
    remove(Some(&*it.records), &it.data, &it.images, &asked.name).await?;
    Ok(Json(Value::Null).into_response())
}

async fn pull(State(it): Shared, Query(asked): Query<Named>) -> Answer {
    let flight = it.images.pull(&asked.name)?;
    Ok(told(&it.tasks, flight, |image| image.digest().clone()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    name: String,
    to: String,
}

async fn push(State(it): Shared, Query(asked): Query<Sent>) -> Answer {
    let flight = it.images.push(&asked.name, &asked.to, Login::Configured)?;
    Ok(told(&it.tasks, flight, |pushed| pushed.reference))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    layer: Digest,
    name: String,
}

async fn commit(State(it): Shared, Query(asked): Query<Kept>) -> Answer {
    let what = Commit {
        layer: asked.layer,
        parent: None,
        compression: it.compression,
    };
    let flight = it.images.commit_as(what, &asked.name)?;
    Ok(told(&it.tasks, flight, |image| image.digest().clone()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: Option<String>,
}

async fn take_in(State(it): Shared, Query(asked): Query<Called>, body: Body) -> Answer {
    let mut file = NamedTempFile::new_in(it.spool.path())?;
    let mut body = body;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            let code = StatusCode::BAD_REQUEST;
            refusal(code, "BadRequest", "the file was not sent to its end")
        })?;
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        file = blocking(move || file.write_all(&bytes).map(|()| file)).await??;
    }
    let (lines, answer) = lines();
    // Whoever leaves now finds it imported.
    it.tasks.clone().spawn(async move {
        let (images, name) = (it.images.clone(), asked.name);
        let work = move || import(&images, file.path(), name.as_deref());
        let imported = spawn_blocking(work).await.unwrap_or_else(|error| {
            let source = Arc::new(io::Error::other(error));
            let doing = "import an image".into();
            Err(ImageError::System { doing, source })
        });
        let _ = lines.send(last(imported)).await;
    });
    Ok(answer)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    name: String,
    format: Archive,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Archive {
    OciArchive,
    DockerArchive,
}

async fn hand_out(State(it): Shared, Query(asked): Query<Wanted>) -> Answer {
    let format = match asked.format {
        Archive::OciArchive => Format::OciArchive,
        Archive::DockerArchive => Format::DockerArchive,
    };
    let directory = tempfile::tempdir_in(it.spool.path())?;
    let images = it.images.clone();
    let file = blocking(move || {
        let path = directory.path().join("image");
        images.export(&asked.name, &path, format)?;
        // It goes with whoever reads it last.
        fs::File::open(&path).map_err(Refused::from)
    })
    .await??;
    let length = file.metadata()?.len();
    let file = tokio::fs::File::from_std(file);
    let content = stream::try_unfold(file, |mut file| async move {
        let mut buffer = bytes::BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut buffer).await?;
        Ok::<_, io::Error>((read > 0).then(|| (buffer.freeze(), file)))
    });
    let length = [("content-length", length.to_string())];
    Ok((length, Body::from_stream(content)).into_response())
}

/// Says how far a transfer is, and what it ends with.
fn told<T, R>(
    tasks: &Tasks,
    flight: Flight<T>,
    result: impl FnOnce(T) -> R + Send + 'static,
) -> Response
where
    T: Clone + Send + Sync + 'static,
    R: Serialize,
{
    let (lines, answer) = lines();
    let stopping = tasks.stopping().clone();
    tasks.spawn(async move {
        let tell = |progress: &images::Progress| {
            let _ = lines.try_send(json!(Far::from(progress)));
        };
        let ended = tokio::select! {
            biased;
            ended = flight.wait(tell) => ended.map(result),
            () = stopping.cancelled() => Err(ImageError::Stopped("it".into())),
            () = lines.closed() => return,
        };
        let _ = lines.send(last(ended)).await;
    });
    answer
}

fn last<R: Serialize>(ended: Result<R, ImageError>) -> Value {
    match ended {
        Ok(result) => json!({"done": result}),
        Err(error) => json!({"error": error.to_string()}),
    }
}

fn lines() -> (mpsc::Sender<Value>, Response) {
    let (sender, receiver) = mpsc::channel::<Value>(UNREAD);
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line = receiver.recv().await?;
        Some((
            Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))),
            receiver,
        ))
    });
    let kind = [("content-type", "application/json")];
    (sender, (kind, Body::from_stream(lines)).into_response())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| io::Error::other(error).into())
}

/// Why something cannot be, as it is answered.
struct Refused(Box<Response>);

impl axum::response::IntoResponse for Refused {
    fn into_response(self) -> Response {
        *self.0
    }
}

impl From<Response> for Refused {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        let code = StatusCode::INTERNAL_SERVER_ERROR;
        refusal(code, "InternalError", &error.to_string()).into()
    }
}

impl From<ImageError> for Refused {
    fn from(error: ImageError) -> Self {
        let (code, reason) = match &error {
            ImageError::Used { .. } => (StatusCode::CONFLICT, "Conflict"),
            ImageError::NotPresent(_) | ImageError::Unknown { .. } => {
                (StatusCode::NOT_FOUND, "NotFound")
            }
            ImageError::Stopped(_) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            _ => match error.fault() {
                Fault::Caller => (StatusCode::BAD_REQUEST, "BadRequest"),
                Fault::Registry => (StatusCode::BAD_GATEWAY, "BadGateway"),
                Fault::Host => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            },
        };
        refusal(code, reason, &error.to_string()).into()
    }
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Self {
        if let Some(unknown) = error.downcast_ref::<Unknown>() {
            let code = StatusCode::NOT_FOUND;
            return refusal(code, "NotFound", &unknown.to_string()).into();
        }
        match error.downcast::<ImageError>() {
            Ok(error) => error.into(),
            Err(other) => io::Error::other(format!("{other:#}")).into(),
        }
    }
}
