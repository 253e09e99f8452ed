//! `POST /files`: as a form of one or more files, or as bare bytes.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use rustix::process::{Gid, Uid};
use tokio::sync::mpsc;
use wire::envd::{METADATA_HEADER_PREFIX, METADATA_XATTR_PREFIX, WrittenFile};

use super::{CHUNK, Query, refusal, resolve};
use crate::{
    entry,
    http::{Refusal, json, shown},
    paths::name_of,
    rpc::Body,
    server::Agent,
    users::User,
};

/// Pieces of a body on their way to the file.
const QUEUE: usize = 8;
const MAX_KEY: usize = 246;
const MAX_METADATA: usize = 4096;

type Pieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

pub(crate) async fn upload(agent: Arc<Agent>, request: Request<Incoming>) -> Response<Body> {
    match take(&agent, request).await {
        Ok(written) => json(StatusCode::OK, &written),
        Err(refused) => refused.into_response(),
    }
}

fn bad(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

async fn take(agent: &Arc<Agent>, request: Request<Incoming>) -> Result<Vec<WrittenFile>, Refusal> {
    let query = Query::parse(request.uri());
    let shown = shown(request.headers(), request.extensions());
    query.authorize(agent, &Method::POST, shown)?;
    let user = query.user(agent)?;
    let metadata = metadata_of(request.headers())?;
    let content_type = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let encoding = request.headers().get(header::CONTENT_ENCODING).cloned();
    let body = BodyDataStream::new(request.into_body())
        .map_err(io::Error::other)
        .boxed();
    let body = match encoding
        .as_ref()
        .map(|value| value.as_bytes().to_ascii_lowercase())
        .as_deref()
    {
        None | Some(b"" | b"identity") => body,
        Some(b"gzip" | b"x-gzip") => gunzip(body),
        Some(other) => {
            return Err(bad(format!(
                "unsupported Content-Encoding: {}, supported are gzip and identity",
                String::from_utf8_lossy(other)
            )));
        }
    };
    let kind = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    match kind.as_str() {
        "multipart/form-data" => {
            let boundary = multer::parse_boundary(&content_type)
                .map_err(|why| bad(format!("error parsing multipart form: {why}")))?;
            form(
                agent,
                query,
                &user,
                &metadata,
                multer::Multipart::new(body, boundary),
            )
            .await
        }
        "application/octet-stream" => {
            let path = query.path.as_deref().filter(|path| !path.is_empty());
            let path = path.ok_or_else(|| bad("path is required for application/octet-stream"))?;
            let path = resolve(agent, path, &user)?;
            Ok(vec![write(agent, path, &user, &metadata, body).await?])
        }
        _ => Err(bad(format!(
            "unsupported Content-Type: {content_type:?}, supported are multipart/form-data and \
             application/octet-stream"
        ))),
    }
}

async fn form(
    agent: &Arc<Agent>,
    query: Query,
    user: &User,
    metadata: &BTreeMap<String, String>,
    mut parts: multer::Multipart<'static>,
) -> Result<Vec<WrittenFile>, Refusal> {
    let mut written = Vec::new();
    let mut seen = HashSet::new();
    let named = query.path.filter(|path| !path.is_empty());
    loop {
        let part = match parts.next_field().await {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(written),
            Err(why) => return Err(bad(format!("error reading form: {why}"))),
        };
        if part.name() != Some("file") {
            continue;
        }
        let path = match (&named, part.file_name()) {
            (Some(path), _) => resolve(agent, path, user)?,
            (None, Some(name)) if !name.is_empty() => resolve(agent, name.as_bytes(), user)?,
            (None, _) => return Err(bad("a file without a name: give path or a filename")),
        };
        if !seen.insert(path.clone()) {
            return Err(bad(format!(
                "you cannot upload multiple files to the same path '{}' in one upload request",
                path.display()
            )));
        }
        let pieces = part.map_err(io::Error::other).boxed();
        written.push(write(agent, path, user, metadata, pieces).await?);
    }
}

/// `X-Metadata-<key>` headers.
fn metadata_of(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Refusal> {
    let mut metadata = BTreeMap::new();
    let mut total = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA_HEADER_PREFIX) else {
            continue;
        };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(bad(format!(
                "metadata key {key:?} must have 1 to {MAX_KEY} bytes"
            )));
        }
        let value = value
            .to_str()
            .ok()
            .filter(|value| value.bytes().all(|b| (b' '..0x7f).contains(&b)))
            .ok_or_else(|| bad(format!("metadata value of {key:?} must be printable ASCII")))?;
        total += METADATA_XATTR_PREFIX.len() + key.len() + value.len();
        if total > MAX_METADATA {
            return Err(bad(format!(
                "metadata must not have more than {MAX_METADATA} bytes"
            )));
        }
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

/// Undoes gzip on a thread of its own, with little in between.
fn gunzip(mut body: Pieces) -> Pieces {
    let (compressed, taken) = mpsc::channel::<io::Result<Bytes>>(QUEUE);
    let (given, plain) = mpsc::channel::<io::Result<Bytes>>(QUEUE);
    let work = tokio::task::spawn_blocking(move || {
        let mut decoder = MultiGzDecoder::new(PieceReader {
            taken,
            piece: Bytes::new(),
        });
        loop {
            let mut piece = BytesMut::zeroed(CHUNK);
            let message = match decoder.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    piece.truncate(read);
                    Ok(piece.freeze())
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
            };
            let failed = message.is_err();
            if given.blocking_send(message).is_err() || failed {
                return;
            }
        }
    });
    let feed = async move {
        while let Some(piece) = body.next().await {
            if compressed.send(piece).await.is_err() {
                return;
            }
        }
    };
    // The feeding is part of the stream: who stops reading stops it.
    let feed: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(feed);
    futures_util::stream::unfold(
        (plain, Some(feed), work),
        |(mut plain, mut feed, work)| async move {
            loop {
                let Some(feeding) = feed.as_mut() else {
                    let piece = plain.recv().await?;
                    return Some((piece, (plain, feed, work)));
                };
                tokio::select! {
                    piece = plain.recv() => return Some((piece?, (plain, feed, work))),
                    () = feeding => feed = None,
                }
            }
        },
    )
    .boxed()
}

/// Pieces from a channel as something to read from.
struct PieceReader {
    taken: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl io::Read for PieceReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.taken.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece?,
            }
        }
        let length = out.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut out[..length]);
        Ok(length)
    }
}

/// Writes a file. To who watches this is one creation, one change of owner, and the writes.
async fn write(
    agent: &Arc<Agent>,
    path: PathBuf,
    user: &User,
    metadata: &BTreeMap<String, String>,
    mut pieces: Pieces,
) -> Result<WrittenFile, Refusal> {
    let parent = path.parent().map(Path::to_owned);
    if let Some(parent) = parent {
        let user = user.clone();
        let made = agent
            .blocking(move || entry::ensure_dirs(&parent, &user))
            .await;
        made.and_then(|made| made).map_err(|why| refusal(&why))?;
        // Who watches must see what comes into it next.
        agent.watchers.catch_up();
    }
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (target, owner, said) = (path.clone(), user.clone(), metadata.clone());
    let work = tokio::task::spawn_blocking(move || write_pieces(&target, &owner, &said, receiver));
    let mut cut_off = None;
    loop {
        let piece = tokio::select! {
            biased;
            piece = pieces.next() => piece,
            // The writer has failed, and says why.
            () = sender.closed() => break,
        };
        match piece {
            Some(Ok(piece)) => {
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Some(Err(why)) => {
                cut_off = Some(bad(format!("error reading upload: {why}")));
                break;
            }
            None => break,
        }
    }
    drop(sender);
    let written = work
        .await
        .map_err(|why| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("write: {why}")))?;
    written?;
    if let Some(refused) = cut_off {
        return Err(refused);
    }
    Ok(WrittenFile {
        name: name_of(&path),
        path: path.to_string_lossy().into_owned(),
        kind: "file".to_owned(),
        metadata: metadata.clone(),
    })
}

fn write_pieces(
    path: &Path,
    user: &User,
    metadata: &BTreeMap<String, String>,
    mut pieces: mpsc::Receiver<Bytes>,
) -> Result<(), Refusal> {
    let failed = |operation: &str, why: &io::Error| match why.kind() {
        io::ErrorKind::IsADirectory => bad(format!("path is a directory: {}", path.display())),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Refusal::new(
            StatusCode::INSUFFICIENT_STORAGE,
            format!("not enough disk space available for '{}'", path.display()),
        ),
        _ => refusal(&entry::error(operation, path, why)),
    };
    let file = open(path).map_err(|why| failed("open", &why))?;
    rustix::fs::fchown(
        &file,
        Some(Uid::from_raw(user.uid)),
        Some(Gid::from_raw(user.gid)),
    )
    .map_err(|why| failed("chown", &why.into()))?;
    entry::set_attributes(&file, metadata).map_err(|why| failed("set metadata of", &why))?;
    let mut out = BufWriter::with_capacity(CHUNK, file);
    while let Some(piece) = pieces.blocking_recv() {
        out.write_all(&piece).map_err(|why| failed("write", &why))?;
    }
    out.flush().map_err(|why| failed("write", &why))
}

fn open(path: &Path) -> io::Result<File> {
    // A pipe without a reader is refused instead of waited for.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o666)
        .custom_flags(nonblocking)
        .open(path)
}
