//! Files that clients have uploaded for COPY, each team's by the hash that the client names them by.
//!
//! The hash is the client's word: what is under it is whatever the team itself has put there.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use kit::Clock;
use model::Namespace;
use tokio::sync::mpsc;

use crate::{
    error::{Doing as _, Refused, Result},
    recipe::is_hash,
};

/// How long a client may send nothing.
const IDLE: Duration = Duration::from_secs(60);

/// Bounds on what is kept.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Largest archive in bytes, as it is uploaded.
    pub upload: u64,
    /// Bytes of all archives of a team.
    pub team: u64,
    /// How long one is kept.
    pub keep: Duration,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            upload: 4 << 30,
            team: 20 << 30,
            keep: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// Uploaded files.
#[derive(Debug)]
pub struct Shelf {
    directory: PathBuf,
    room: Room,
    clock: Arc<dyn Clock>,
}

impl Shelf {
    pub(crate) fn open(directory: PathBuf, room: Room, clock: Arc<dyn Clock>) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let shelf = Self {
            directory,
            room,
            clock,
        };
        shelf.sweep();
        Ok(shelf)
    }

    fn place(&self, team: &Namespace, hash: &str) -> Result<PathBuf> {
        if !is_hash(hash) {
            let why = "it is not a SHA-256 in hexadecimal digits";
            return Err(Refused::bad("hash", why));
        }
        Ok(self.directory.join(team.as_str()).join(hash))
    }

    /// Whether a team has uploaded something under a hash.
    ///
    /// # Errors
    /// If it is no hash.
    pub fn has(&self, team: &Namespace, hash: &str) -> Result<bool> {
        Ok(self.place(team, hash)?.exists())
    }

    pub(crate) fn read(&self, team: &Namespace, hash: &str) -> Result<Option<File>> {
        match File::open(self.place(team, hash)?) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing("open uploaded files"),
        }
    }

    /// Takes an upload. What was there under the hash is replaced once all has arrived.
    ///
    /// # Errors
    /// If it is too large, breaks off, or the disk fails.
    pub async fn put(
        &self,
        team: &Namespace,
        hash: &str,
        content: impl Stream<Item = io::Result<Bytes>>,
    ) -> Result<()> {
        let place = self.place(team, hash)?;
        let directory = self.directory.join(team.as_str());
        fs::create_dir_all(&directory).doing("make a directory for uploaded files")?;
        let free = self.room.team.saturating_sub(size_of(&directory));
        let most = self.room.upload.min(free);
        let number = self.clock.monotonic().as_nanos();
        let beside = directory.join(format!("{hash}.{number}.new"));
        let (sender, mut receiver) = mpsc::channel::<Bytes>(4);
        let path = beside.clone();
        let writer = tokio::task::spawn_blocking(move || {
            let mut file = File::create_new(&path)?;
            while let Some(piece) = receiver.blocking_recv() {
                file.write_all(&piece)?;
            }
            file.sync_all()
        });
        let sent = async {
            let mut content = std::pin::pin!(content);
            let mut size = 0;
            loop {
                let next = tokio::time::timeout(IDLE, content.next()).await;
                let next =
                    next.map_err(|_| Refused::bad("body", "none of it came for a minute"))?;
                let Some(piece) = next else { break };
                let piece = piece.map_err(|_| Refused::bad("body", "it ended early"))?;
                size += piece.len() as u64;
                if size > most {
                    let why = format!(
                        "the uploaded files are larger than {most} bytes, which is what is left of \
                         {} for one upload and {} for the team",
                        self.room.upload, self.room.team
                    );
                    return Err(Refused::TooMany(why.into()));
                }
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let sent = sent.await;
        drop(sender);
        let written = writer.await.map_err(io::Error::other).and_then(|r| r);
        let kept = sent
            .and_then(|()| written.doing("write uploaded files"))
            .and_then(|()| fs::rename(&beside, &place).doing("keep uploaded files"));
        if kept.is_err() {
            fs::remove_file(&beside).ok();
        }
        kept
    }

    /// Removes what is too old, and what was left half-way.
    pub(crate) fn sweep(&self) {
        let now = u64::try_from(self.clock.wall_micros()).unwrap_or_default();
        for team in list(&self.directory) {
            for file in list(&team) {
                let modified = file.metadata().and_then(|about| about.modified()).ok();
                let since = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                let age = Duration::from_micros(now).saturating_sub(since.unwrap_or_default());
                if age > self.room.keep {
                    fs::remove_file(&file).ok();
                }
            }
        }
    }
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn size_of(directory: &Path) -> u64 {
    let sizes = list(directory);
    let sizes = sizes.iter().filter_map(|path| path.metadata().ok());
    sizes.map(|about| about.len()).sum()
}
