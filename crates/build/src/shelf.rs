//! Files that clients have uploaded for COPY, each team's by the hash that the client names them by.
//!
//! The hash is the client's word: what is under it is whatever the team itself has put there.
//!
//! Every byte is counted against its team before it is written, whether its upload is under way or
//! over, so that uploads at once cannot take more than one after the other could. An upload holds no
//! thread while its client is silent.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use kit::Clock;
use model::Namespace;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    error::{Doing as _, Refused, Result},
    recipe::is_hash,
};

/// How long a client may send nothing.
const IDLE: Duration = Duration::from_secs(60);
/// How long an upload may wait for others of its team.
const PATIENCE: Duration = Duration::from_secs(600);
/// Uploads of a team at once; more wait.
const AT_ONCE: usize = 8;
/// Bytes that are written at once.
const PIECE: usize = 256 << 10;
/// How the name of a file ends that is not complete.
const PART: &str = "new";

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
    teams: Mutex<BTreeMap<Box<str>, Team>>,
    counter: AtomicU64,
}

/// What a team has.
#[derive(Clone, Debug)]
struct Team {
    /// Of what is kept and of what is on its way.
    bytes: u64,
    places: Arc<Semaphore>,
}

impl Default for Team {
    fn default() -> Self {
        Self {
            bytes: 0,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

/// An upload under way. Unless it is kept, nothing is left of it.
struct Upload<'s> {
    shelf: &'s Shelf,
    team: &'s Namespace,
    path: PathBuf,
    bytes: u64,
    kept: bool,
}

impl Upload<'_> {
    /// Counts what has come, before it is written.
    fn grow(&mut self, by: usize) -> Result<()> {
        let (by, room) = (by as u64, &self.shelf.room);
        if self.bytes.saturating_add(by) > room.upload {
            let most = room.upload;
            return Err(Refused::TooLarge(
                format!("the uploaded files are larger than {most} bytes").into(),
            ));
        }
        let mut teams = self.shelf.teams.lock();
        let team = teams.entry(self.team.as_str().into()).or_default();
        if team.bytes.saturating_add(by) > room.team {
            let why = format!(
                "the uploaded files of the team would be larger than {} bytes: they are kept for {} \
                 seconds",
                room.team,
                room.keep.as_secs()
            );
            return Err(Refused::TooMany(why.into()));
        }
        team.bytes += by;
        self.bytes += by;
        Ok(())
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.kept {
            fs::remove_file(&self.path).ok();
            self.shelf.give_back(self.team.as_str(), self.bytes);
        }
    }
}

impl Shelf {
    pub(crate) fn open(directory: PathBuf, room: Room, clock: Arc<dyn Clock>) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let mut teams = BTreeMap::<Box<str>, Team>::new();
        for team in list(&directory) {
            let Some(name) = team.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let known = teams.entry(name.into()).or_default();
            for file in list(&team) {
                // Left by a server that died.
                if file.extension().is_some_and(|end| end == PART) {
                    fs::remove_file(&file)?;
                } else {
                    known.bytes += size_of(&file);
                }
            }
        }
        let shelf = Self {
            directory,
            room,
            clock,
            teams: Mutex::new(teams),
            counter: AtomicU64::new(0),
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
        let places = {
            let mut teams = self.teams.lock();
            let team = teams.entry(team.as_str().into()).or_default();
            Arc::clone(&team.places)
        };
        let turn = tokio::time::timeout(PATIENCE, places.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let why = "the team uploads too much at once: wait for that";
            return Err(Refused::TooMany(why.into()));
        };
        let directory = self.directory.join(team.as_str());
        fs::create_dir_all(&directory).doing("make a directory for uploaded files")?;
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut upload = Upload {
            shelf: self,
            team,
            path: directory.join(format!("{hash}.{number}.{PART}")),
            bytes: 0,
            kept: false,
        };
        let mut file = File::create_new(&upload.path).doing("write uploaded files")?;
        let mut content = std::pin::pin!(content);
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            let next = tokio::time::timeout(IDLE, content.next()).await;
            let next = next.map_err(|_| Refused::bad("body", "none of it came for a minute"))?;
            let Some(more) = next else { break };
            let more = more.map_err(|_| Refused::bad("body", "it ended early"))?;
            upload.grow(more.len())?;
            piece.extend_from_slice(&more);
            if piece.len() >= PIECE {
                (file, piece) = write(file, piece).await.doing("write uploaded files")?;
            }
        }
        let (file, _) = write(file, piece).await.doing("write uploaded files")?;
        let synced = tokio::task::spawn_blocking(move || file.sync_all()).await;
        let synced = synced.map_err(io::Error::other).and_then(|done| done);
        synced.doing("write uploaded files")?;
        self.keep(&mut upload, &place)
    }

    fn keep(&self, upload: &mut Upload<'_>, place: &Path) -> Result<()> {
        // Nobody replaces the same file meanwhile, which would be given back twice.
        let mut teams = self.teams.lock();
        let replaced = size_of(place);
        fs::rename(&upload.path, place).doing("keep uploaded files")?;
        upload.kept = true;
        if let Some(team) = teams.get_mut(upload.team.as_str()) {
            team.bytes = team.bytes.saturating_sub(replaced);
        }
        Ok(())
    }

    fn give_back(&self, team: &str, bytes: u64) {
        if let Some(team) = self.teams.lock().get_mut(team) {
            team.bytes = team.bytes.saturating_sub(bytes);
        }
    }

    /// Removes what is too old.
    pub(crate) fn sweep(&self) {
        let now = u64::try_from(self.clock.wall_micros()).unwrap_or_default();
        for team in list(&self.directory) {
            let Some(name) = team.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            for file in list(&team) {
                let about = file.metadata().ok();
                let modified = about.and_then(|about| about.modified().ok());
                let since = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                let age = Duration::from_micros(now).saturating_sub(since.unwrap_or_default());
                let under_way = file.extension().is_some_and(|end| end == PART);
                if age > self.room.keep && !under_way {
                    let bytes = size_of(&file);
                    if fs::remove_file(&file).is_ok() {
                        self.give_back(name, bytes);
                    }
                }
            }
        }
    }
}

/// Writes a piece on a thread that may block, and gives back what it took.
async fn write(mut file: File, mut piece: Vec<u8>) -> io::Result<(File, Vec<u8>)> {
    let written = tokio::task::spawn_blocking(move || {
        file.write_all(&piece)?;
        piece.clear();
        Ok((file, piece))
    });
    written.await.map_err(io::Error::other)?
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn size_of(file: &Path) -> u64 {
    file.metadata().map_or(0, |about| about.len())
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, stream};
    use kit::SystemClock;

    use super::*;

    const ROOM: Room = Room {
        upload: 10,
        team: 15,
        keep: Duration::from_secs(3600),
    };

    fn shelf(directory: &Path) -> Shelf {
        Shelf::open(directory.into(), ROOM, Arc::new(SystemClock::default())).unwrap()
    }

    fn bytes(count: usize) -> impl Stream<Item = io::Result<Bytes>> {
        stream::iter([Ok(Bytes::from(vec![0; count]))])
    }

    fn files(directory: &Path) -> usize {
        list(directory).iter().flat_map(|team| list(team)).count()
    }

    #[tokio::test]
    async fn uploads_at_once_take_no_more_than_the_team_may_have() {
        let directory = tempfile::tempdir().unwrap();
        let shelf = shelf(directory.path());
        let team = Namespace::new("a").unwrap();
        let hash = |digit: &str| digit.repeat(64);
        let (first, second) = (hash("1"), hash("2"));
        // The first has sent some, and goes on later.
        let pending = stream::iter([Ok(Bytes::from(vec![0; 10]))]).chain(stream::pending());
        let mut under_way = Box::pin(shelf.put(&team, &first, pending));
        assert!(under_way.as_mut().now_or_never().is_none());
        let refused = shelf.put(&team, &second, bytes(10)).await;
        assert!(matches!(refused, Err(Refused::TooMany(_))), "{refused:?}");
        // What breaks off leaves nothing, and takes nothing.
        drop(under_way);
        assert_eq!(files(directory.path()), 0);
        shelf.put(&team, &second, bytes(10)).await.unwrap();
        // What is replaced is not counted twice.
        shelf.put(&team, &second, bytes(5)).await.unwrap();
        shelf.put(&team, &first, bytes(10)).await.unwrap();
        assert!(shelf.put(&team, &hash("3"), bytes(1)).await.is_err());
        assert_eq!(files(directory.path()), 2);
    }

    #[tokio::test]
    async fn one_that_is_too_large_is_another_matter_than_a_team_that_has_too_much() {
        let directory = tempfile::tempdir().unwrap();
        let shelf = shelf(directory.path());
        let team = Namespace::new("a").unwrap();
        let refused = shelf.put(&team, &"1".repeat(64), bytes(11)).await;
        assert!(matches!(refused, Err(Refused::TooLarge(_))), "{refused:?}");
        assert_eq!(files(directory.path()), 0);
    }

    #[test]
    fn what_a_server_that_died_left_half_way_is_gone_and_the_rest_counts() {
        let directory = tempfile::tempdir().unwrap();
        let team = directory.path().join("a");
        fs::create_dir(&team).unwrap();
        File::create(team.join("x.1.new")).unwrap();
        let mut whole = File::create(team.join("1".repeat(64))).unwrap();
        whole.write_all(&[0; 7]).unwrap();
        let shelf = shelf(directory.path());
        assert_eq!(files(directory.path()), 1);
        assert_eq!(shelf.teams.lock()["a"].bytes, 7);
    }
}
