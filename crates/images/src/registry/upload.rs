//! An upload that goes on where it broke off.
//!
//! A blob is sent in pieces. When one does not arrive, the registry is asked how far it got, and the
//! rest is sent; if it no longer knows, the blob is sent from its beginning. Tries that get no
//! further are bounded, with a growing wait between them.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use model::Digest;
use tokio::task::spawn_blocking;

use super::{
    BACKOFF,
    http::{location, unreachable},
    session::Session,
};
use crate::{
    digest::{Hashing, finish, verify},
    error::{Doing as _, ImageError, Result},
    manifest::Descriptor,
};

/// One piece: what is held in memory, and what is sent again after a cut.
const PIECE: u64 = 8 << 20;
/// The longest list of reasons that is read.
const MAX_REASONS: usize = 64 << 10;

/// An upload that the registry knows of.
struct Upload {
    at: Uri,
    sent: u64,
    piece: u64,
}

impl Session<'_> {
    /// Whether the registry has a blob.
    pub(super) async fn has_blob(&self, digest: &Digest) -> Result<bool> {
        let uri = self.uri(&format!("blobs/{digest}"))?;
        let (_, response) = self
            .ask(Method::HEAD, uri, HeaderMap::new(), Bytes::new())
            .await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.rejected(response).await),
        }
    }

    /// Whether the registry finds a blob in its repository `from`, and has it from now on.
    pub(super) async fn mount(&self, digest: &Digest, from: Option<&str>) -> Result<bool> {
        match from {
            Some(_) => Ok(self.begin(digest, from).await?.is_none()),
            None => Ok(false),
        }
    }

    /// Sends a blob, unless the registry has it, or finds it in its repository `from`.
    pub(super) async fn send_blob(
        &self,
        path: PathBuf,
        descriptor: &Descriptor,
        from: Option<&str>,
        sending: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<()> {
        let (digest, size) = (&descriptor.digest, descriptor.size);
        let mut upload = None;
        let (mut fruitless, mut furthest) = (0, 0);
        loop {
            let tried = self.try_blob(&path, descriptor, from, &mut upload, sending);
            let error = match tried.await {
                Ok(()) => {
                    sending(size);
                    return Ok(());
                }
                Err(error) => error,
            };
            // What it does not take may be damaged on the way, or here.
            let again = error.is_retryable() || matches!(error, ImageError::Rejected { .. });
            if matches!(error, ImageError::Rejected { .. }) {
                check_blob(&path, digest).await?;
                upload = None;
            }
            let sent = upload.as_ref().map_or(0, |upload: &Upload| upload.sent);
            fruitless = if sent > furthest { 0 } else { fruitless + 1 };
            furthest = furthest.max(sent);
            if !again || fruitless > self.registry.options.retries {
                return Err(error);
            }
            tracing::debug!(%digest, sent, %error, "an upload goes on");
            let wait = BACKOFF.delay(fruitless.max(1), &self.registry.entropy);
            tokio::time::sleep(wait).await;
        }
    }

    async fn try_blob(
        &self,
        path: &Path,
        descriptor: &Descriptor,
        from: Option<&str>,
        slot: &mut Option<Upload>,
        sending: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<()> {
        let Descriptor { digest, size, .. } = descriptor;
        if self.has_blob(digest).await? {
            return Ok(());
        }
        let went_on = match slot.take() {
            Some(upload) => self.go_on(upload, *size).await?,
            None => None,
        };
        let upload = match went_on {
            Some(upload) => slot.insert(upload),
            None => match self.begin(digest, from).await? {
                Some(upload) => slot.insert(upload),
                None => return Ok(()),
            },
        };
        while upload.sent < *size {
            sending(upload.sent);
            self.send_piece(path, upload, *size).await?;
        }
        sending(upload.sent);
        self.end(upload, digest).await
    }

    /// Starts an upload; none if the registry had the blob elsewhere.
    async fn begin(&self, digest: &Digest, from: Option<&str>) -> Result<Option<Upload>> {
        let path = match from {
            Some(from) => format!("blobs/uploads/?mount={digest}&from={from}"),
            None => "blobs/uploads/".to_owned(),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        let asked = self.ask(Method::POST, self.uri(&path)?, headers, Bytes::new());
        let (at, response) = asked.await?;
        match response.status() {
            StatusCode::CREATED if from.is_some() => Ok(None),
            StatusCode::ACCEPTED => {
                let least = number(response.headers(), "oci-chunk-min-length");
                let at = self.next(&at, response.headers())?;
                Ok(Some(Upload {
                    at,
                    sent: 0,
                    piece: PIECE.max(least.unwrap_or(0)),
                }))
            }
            _ => Err(self.rejected(response).await),
        }
    }

    /// How far an upload got; none if the registry does not know it any more.
    async fn go_on(&self, upload: Upload, size: u64) -> Result<Option<Upload>> {
        let asked = self.ask(
            Method::GET,
            upload.at.clone(),
            HeaderMap::new(),
            Bytes::new(),
        );
        let (at, response) = asked.await?;
        if response.status() != StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let Some(sent) = arrived(response.headers()).filter(|sent| *sent <= size) else {
            return Ok(None);
        };
        let at = self.next(&at, response.headers()).unwrap_or(upload.at);
        Ok(Some(Upload { at, sent, ..upload }))
    }

    async fn send_piece(&self, path: &Path, upload: &mut Upload, size: u64) -> Result<()> {
        let (start, length) = (upload.sent, upload.piece.min(size - upload.sent));
        let from = path.to_owned();
        let read = spawn_blocking(move || {
            let length = usize::try_from(length).map_err(io::Error::other)?;
            let mut piece = vec![0; length];
            File::open(from)?.read_exact_at(&mut piece, start)?;
            io::Result::Ok(piece)
        });
        let read = read.await.map_err(io::Error::other).and_then(|read| read);
        let piece = Bytes::from(read.doing("read a blob")?);
        let mut headers = HeaderMap::new();
        let range = format!("{start}-{}", start + length - 1);
        let octets = HeaderValue::from_static("application/octet-stream");
        headers.insert(header::CONTENT_TYPE, octets);
        headers.extend(HeaderValue::from_str(&range).map(|r| (header::CONTENT_RANGE, r)));
        let (at, response) = self
            .ask(Method::PATCH, upload.at.clone(), headers, piece)
            .await?;
        if response.status() != StatusCode::ACCEPTED {
            return Err(self.rejected(response).await);
        }
        upload.sent = arrived(response.headers()).unwrap_or(start + length);
        upload.at = self.next(&at, response.headers())?;
        if upload.sent <= start || upload.sent > start + length {
            let why = "it does not say how far an upload got";
            return Err(unreachable(self.host(), why));
        }
        Ok(())
    }

    /// The registry checks what it has got before it keeps it.
    async fn end(&self, upload: &Upload, digest: &Digest) -> Result<()> {
        let separator = if upload.at.query().is_some() {
            '&'
        } else {
            '?'
        };
        let uri = format!("{}{separator}digest={digest}", upload.at);
        let uri = uri.parse().map_err(|e| unreachable(self.host(), &e))?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        let (_, response) = self.ask(Method::PUT, uri, headers, Bytes::new()).await?;
        match response.status() {
            StatusCode::CREATED | StatusCode::NO_CONTENT => Ok(()),
            _ => Err(self.rejected(response).await),
        }
    }

    fn next(&self, from: &Uri, headers: &HeaderMap) -> Result<Uri> {
        let why = "it does not say where an upload goes on";
        location(from, headers).ok_or_else(|| unreachable(self.host(), why))
    }

    /// Why an answer is not what was hoped for.
    pub(super) async fn rejected(&self, response: Response<Incoming>) -> ImageError {
        #[derive(serde::Deserialize)]
        struct Reasons {
            errors: Vec<Reason>,
        }
        #[derive(serde::Deserialize)]
        struct Reason {
            code: String,
        }
        let status = response.status();
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status) {
            return self.unauthorized();
        }
        let body = Limited::new(response.into_body(), MAX_REASONS).collect();
        let body = self.registry.within(self.host(), body).await;
        let reasons = body.ok().map(|body| body.to_bytes());
        let reasons = reasons.and_then(|bytes| serde_json::from_slice::<Reasons>(&bytes).ok());
        let code = reasons.and_then(|reasons| reasons.errors.into_iter().next());
        // One of the agreed words or nothing: anything else may say too much.
        let word = |code: &str| {
            code.len() < 40 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
        };
        let code = code.map(|reason| reason.code).filter(|code| word(code));
        ImageError::Rejected {
            registry: self.reference.registry().into(),
            name: self.reference.to_string().into(),
            status: status.as_u16(),
            code: code
                .map(|code| format!(" {code}"))
                .unwrap_or_default()
                .into(),
        }
    }
}

/// How many bytes an answer says have arrived: `Range: 0-99` means a hundred. An upload of nothing
/// is said in several ways.
fn arrived(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::RANGE)?.to_str().ok()?;
    let last = range.trim_start_matches("bytes=").strip_prefix("0-")?;
    match last {
        "-1" | "0" => Some(0),
        last => last.parse::<u64>().ok()?.checked_add(1),
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Refuses a blob that is not on this disk as it should be.
async fn check_blob(path: &Path, digest: &Digest) -> Result<()> {
    let path = path.to_owned();
    let hashed = spawn_blocking(move || {
        let mut hashing = Hashing::new(File::open(path)?);
        io::copy(&mut hashing, &mut io::sink())?;
        io::Result::Ok(finish(hashing.hash))
    });
    let hashed = hashed.await.map_err(io::Error::other).and_then(|h| h);
    let actual = hashed.doing("read a blob")?;
    verify("a blob", digest, actual.clone()).map_err(|_| ImageError::Damaged {
        what: digest.as_str().into(),
        how: format!("its content is {actual}").into(),
    })
}
