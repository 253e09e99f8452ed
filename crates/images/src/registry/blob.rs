//! A download that goes on where it broke off.
//!
//! Bytes are hashed as they are written, by a thread of their own. What has arrived stays when the
//! connection breaks, the process ends or the host goes down; the next try hashes it again and
//! asks for the rest.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use model::Digest;
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{BACKOFF, http::unreachable, session::Session};
use crate::{
    digest::{finish, verify},
    error::{Doing as _, ImageError, Result},
    manifest::Descriptor,
    store::Inner,
};

/// Pieces that wait for the disk.
const QUEUE: usize = 64;
/// How often to look whether another pull of the same blob is done.
const AGAIN: Duration = Duration::from_millis(50);

/// What has arrived so far.
struct Arrived {
    file: File,
    hash: Sha256,
    size: u64,
}

impl Arrived {
    /// What an earlier try has left; none while another pull downloads the same.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever had it may have finished with it since it was opened.
        let same = |there: std::fs::Metadata| Ok(there.ino() == file.metadata()?.ino());
        if !std::fs::metadata(path).and_then(same).unwrap_or(false) {
            return Ok(None);
        }
        let mut arrived = Self {
            hash: Sha256::new(),
            size: 0,
            file: file.try_clone()?,
        };
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Some(arrived)),
                read => {
                    arrived.hash.update(&buffer[..read]);
                    arrived.size += read as u64;
                }
            }
        }
    }

    fn start_over(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.hash = Sha256::new();
        self.size = 0;
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }
}

impl Session<'_> {
    /// Brings a blob here, unless it is and may be taken; when this returns it is verified and
    /// durable.
    pub(super) async fn fetch_blob(
        &self,
        store: &Inner,
        descriptor: &Descriptor,
        arriving: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<()> {
        let Descriptor { digest, size, .. } = descriptor;
        if self.has(store, digest) {
            arriving(*size);
            return Ok(());
        }
        let limit = self.registry.options.max_blob_bytes;
        if *size > limit {
            return Err(ImageError::TooLarge {
                what: digest.as_str().into(),
                limit,
            });
        }
        let mut arrived = loop {
            let path = store.partial(&self.download_name(digest));
            let opened = blocking(move || Arrived::open(&path)).await?;
            match opened.doing("open a download")? {
                Some(arrived) => break arrived,
                None => tokio::time::sleep(AGAIN).await,
            }
            if self.has(store, digest) {
                arriving(*size);
                return Ok(());
            }
        };
        let _permit = self.registry.downloads.acquire().await;
        if arrived.size > *size {
            arrived.start_over().doing("start a download over")?;
        }
        // What was begun before has come from here too if it has to prove itself, else who knows.
        let whole = self.proves || arrived.size == 0;
        arriving(arrived.size);
        let mut fruitless = 0;
        while arrived.size < *size {
            let before = arrived.size;
            let (after, outcome) = self.fetch_rest(arrived, descriptor, arriving).await?;
            arrived = after;
            let error = match outcome {
                Ok(()) => unreachable(self.host(), "it sent less than it promised"),
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            if arrived.size >= *size {
                break;
            }
            fruitless = if arrived.size > before {
                0
            } else {
                fruitless + 1
            };
            if fruitless > self.registry.options.retries {
                return Err(error);
            }
            tracing::debug!(%digest, at = arrived.size, %error, "a download goes on");
            let wait = BACKOFF.delay(fruitless.max(1), &self.registry.entropy);
            tokio::time::sleep(wait).await;
        }
        self.keep(store, digest.clone(), arrived).await?;
        if whole {
            self.note_served(digest);
        }
        Ok(())
    }

    async fn keep(&self, store: &Inner, digest: Digest, arrived: Arrived) -> Result<()> {
        let partial = store.partial(&self.download_name(&digest));
        let actual = finish(arrived.hash);
        if let Err(error) = verify(digest.as_str(), &digest, actual) {
            // Nothing of it can be used.
            let _ = std::fs::remove_file(&partial);
            return Err(error);
        }
        // Its lock is held until it has its name: whoever waits for it finds the one or the other.
        let file = arrived.file;
        let synced = blocking(move || file.sync_all().map(|()| file)).await?;
        let _file = synced.doing("make a download durable")?;
        store.name_blob(&partial, &digest)
    }

    /// One try. The outer failure is one of this host.
    async fn fetch_rest(
        &self,
        mut arrived: Arrived,
        descriptor: &Descriptor,
        arriving: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(Arrived, Result<()>)> {
        let mut headers = HeaderMap::new();
        if arrived.size > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", arrived.size));
            headers.extend(range.ok().map(|range| (header::RANGE, range)));
        }
        let path = format!("blobs/{}", descriptor.digest);
        let response = match self.get(&path, headers).await {
            Ok(response) => response,
            Err(error) => return Ok((arrived, Err(error))),
        };
        // Not what was asked for: all of it, or nothing.
        let goes_on = response.status() == StatusCode::PARTIAL_CONTENT
            && starts_at(response.headers(), arrived.size);
        if arrived.size > 0 && !goes_on {
            arrived.start_over().doing("start a download over")?;
        }
        if !goes_on && response.status() != StatusCode::OK {
            return Ok((
                arrived,
                Err(unreachable(self.host(), "it cannot go on in a blob")),
            ));
        }
        let (send, mut receive) = mpsc::channel::<Bytes>(QUEUE);
        let mut size = arrived.size;
        let writer = spawn_blocking(move || {
            while let Some(bytes) = receive.blocking_recv() {
                arrived.take(&bytes)?;
            }
            io::Result::Ok(arrived)
        });
        let mut body = response.into_body();
        let outcome = loop {
            let next = async { body.frame().await.transpose() };
            let frame = match self.registry.within(self.host(), next).await {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            size += bytes.len() as u64;
            if size > descriptor.size {
                break Err(ImageError::TooLarge {
                    what: descriptor.digest.as_str().into(),
                    limit: descriptor.size,
                });
            }
            arriving(size);
            if send.send(bytes).await.is_err() {
                // The writer has failed and says why.
                break Ok(());
            }
        };
        drop(send);
        let written = writer.await.map_err(io::Error::other);
        let arrived = written.and_then(|inner| inner).doing("write a download")?;
        Ok((arrived, outcome))
    }
}

/// Whether an answer begins where it was asked to.
fn starts_at(headers: &HeaderMap, start: u64) -> bool {
    let range = headers
        .get(header::CONTENT_RANGE)
        .and_then(|v| v.to_str().ok());
    let range = range.and_then(|range| range.strip_prefix("bytes "));
    let first = range.and_then(|range| range.split('-').next());
    first.and_then(|first| first.parse().ok()) == Some(start)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = spawn_blocking(work).await;
    done.map_err(io::Error::other).doing("use the disk")
}
