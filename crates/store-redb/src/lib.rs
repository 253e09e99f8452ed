//! The embedded Store backend: one file, transactions, group commit.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`writer`] | the one thread that writes; batches; what happens after a disk error |
//! | [`apply`] | one request inside a transaction |
//! | [`read`] | get and list, from snapshots |
//! | [`rows`] | how records become rows |
//! | [`engine`] | the open database |
//! | [`directory`] | the data directory: format, lock, creation |
//! | [`backup`] | copies, and taking them back |
//! | [`disk`] | what the file lies on |
//!
//! What the file system must keep is what was synced before; anything written since may be lost,
//! torn or reordered. Pages are never changed in place: a commit writes new ones and a header, and
//! checksums tell after a power cut whether that header has all its pages. If not, the header
//! before it is used, which nobody has been told was superseded.

mod apply;
mod backup;
mod directory;
mod disk;
mod engine;
mod error;
mod read;
mod rows;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
};

use async_trait::async_trait;
use kit::{Clock, Entropy};
use model::{Key, Uid, Version};
use parking_lot::Mutex;
use redb::Database;
use store::{
    Change, Deletion, Draft, Listing, Outcome, Precondition, Query, Record, Scope, Store,
    StoreError, Watch, history::History, rules::Effect,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    apply::Request,
    directory::Directory,
    disk::{Disk, FileDisk},
    engine::{Shared, unavailable},
    read::Read,
    writer::{Message, Writer},
};
pub use crate::{
    backup::restore,
    error::{BackupError, OpenError},
};

/// How a store is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory for pages of the database. Small: what is read often is cached as objects elsewhere,
    /// and the operating system caches the file.
    pub cache_bytes: usize,
    /// Changes that watches can look back on.
    pub history: usize,
    /// Requests that wait for the writer before callers have to wait to ask.
    pub queue: usize,
    /// Writes are refused while the disk has less room than this.
    pub headroom_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 8 << 20,
            history: 4096,
            queue: 1024,
            headroom_bytes: 32 << 20,
        }
    }
}

/// Whether this version can open the store of a data directory, as far as that can be seen while
/// another process has it.
///
/// # Errors
/// If its format is another, or cannot be read.
pub fn check(directory: &Path) -> Result<(), OpenError> {
    Directory::check(directory)
}

/// A store in a data directory.
#[derive(Debug)]
pub struct RedbStore {
    shared: Arc<Shared>,
    /// `None` only while dropping.
    writer: Option<(mpsc::Sender<Message>, JoinHandle<()>)>,
    entropy: Arc<Entropy>,
    /// Held until the writer has closed the file.
    directory: Mutex<Option<Directory>>,
}

impl RedbStore {
    /// Opens the store in a data directory, making both if the directory is empty or missing.
    ///
    /// # Errors
    /// If another process has it, its format is newer, or its file is missing or damaged; nothing is
    /// changed then.
    pub fn open(
        directory: &Path,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let directory = Directory::take(directory)?;
        directory.ensure_database()?;
        let disk = Box::new(FileDisk::new(directory.database()));
        Self::start(disk, Some(directory), clock, entropy, options)
    }

    fn start(
        disk: Box<dyn Disk>,
        directory: Option<Directory>,
        clock: Arc<dyn Clock>,
        entropy: Arc<Entropy>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let path = disk.path().to_owned();
        let open = || {
            let medium = disk.open();
            medium.map_err(|e| OpenError::engine(&path, redb::Error::Io(e)))
        };
        engine::verify(open()?, options.cache_bytes).map_err(|e| OpenError::engine(&path, e))?;
        let medium = open()?;
        let (db, head) =
            engine::open(medium, options.cache_bytes).map_err(|e| OpenError::engine(&path, e))?;
        let history = Arc::new(History::new(head, options.history));
        let shared = Arc::new(Shared::new(db, history));
        let (sender, inbox) = mpsc::channel(options.queue);
        let writer = Writer {
            inbox,
            shared: Arc::clone(&shared),
            disk,
            clock,
            options,
            head,
            last_batch: 0,
            doubt: None,
            leaving: None,
        };
        let thread = thread::Builder::new()
            .name("store-writer".into())
            .spawn(|| writer.run())
            .map_err(OpenError::io("start the writer of", path))?;
        Ok(Self {
            shared,
            writer: Some((sender, thread)),
            entropy,
            directory: Mutex::new(directory),
        })
    }

    /// Closes the store for good, so that another process can open it: waits for the batch in flight
    /// and releases the file. Whoever asks after that is told that it is unavailable; watches hear
    /// nothing more.
    pub async fn close(&self) {
        if let Some((writer, _)) = &self.writer {
            let (reply, closed) = oneshot::channel();
            // One that has ended has closed the file.
            if writer.send(Message::Close(reply)).await.is_ok() {
                let _ = closed.await;
            }
        }
        if let Some(directory) = self.directory.lock().take() {
            directory.release();
        }
    }

    /// The last version that is durable and that watchers can see.
    #[must_use]
    pub fn version(&self) -> Version {
        self.shared.history.head()
    }

    /// Copies the store, as it is now, into a new file, while it runs. Returns the version that the
    /// copy holds; [`restore`] takes it back.
    ///
    /// # Errors
    /// If there is a file already, or the copy cannot be written.
    pub async fn backup(&self, to: impl Into<PathBuf>) -> Result<Version, BackupError> {
        let to = to.into();
        let shared = Arc::clone(&self.shared);
        let copied = tokio::task::spawn_blocking(move || {
            let db = shared.database();
            let db = db.map_err(|e| BackupError::Source(e.to_string()))?;
            backup::backup(&db, &to)
        });
        copied
            .await
            .unwrap_or_else(|e| Err(BackupError::Source(e.to_string())))
    }

    async fn write(&self, request: Request) -> Result<Effect, StoreError> {
        const GONE: &str = "its writer has stopped: see the log, and restart";
        let (reply, answer) = oneshot::channel();
        let Some((writer, _)) = &self.writer else {
            return Err(unavailable(Outcome::NotApplied, GONE));
        };
        if writer
            .send(Message::Write(Box::new(request), reply))
            .await
            .is_err()
        {
            return Err(unavailable(Outcome::NotApplied, GONE));
        }
        // Unanswered means that the writer died with the request in its hands.
        answer
            .await
            .unwrap_or_else(|_| Err(unavailable(Outcome::Unknown, GONE)))
    }

    /// What a read found; if the engine failed, the writer is told to look after it.
    fn found<T>(&self, read: Read<T>) -> Result<T, StoreError> {
        read.unwrap_or_else(|error| {
            if let Some((writer, _)) = &self.writer {
                // A full queue has a write in it, which notices by itself.
                let _ = writer.try_send(Message::Check);
            }
            Err(unavailable(Outcome::NotApplied, error.to_string()))
        })
    }
}

impl Drop for RedbStore {
    /// Waits for the batch in flight, and for the file to be closed as after a clean end.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            // A panic of the writer has been reported where it happened.
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl Store for RedbStore {
    /// Reads on the caller's thread: one record is a few pages, nearly always in memory, and takes
    /// less time than handing the read to another thread would.
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        let db = self.shared.database()?;
        self.found(read::get(&db, key))
    }

    /// Reads on a thread for blocking work: a listing may go over every record.
    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        let shared = Arc::clone(&self.shared);
        let query = query.clone();
        let listed = tokio::task::spawn_blocking(move || {
            let db: Arc<Database> = shared.database()?;
            Ok(read::list(&db, &query))
        });
        let read = listed
            .await
            .unwrap_or_else(|e| Err(unavailable(Outcome::NotApplied, e.to_string())))?;
        self.found(read)
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        let uid = Uid::from_random(self.entropy.u128());
        let effect = self.write(Request::Create(draft, uid)).await?;
        Ok(effect.into_record())
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        Ok(self.write(Request::Update(change)).await?.into_record())
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        let effect = self.write(Request::Delete(key.clone(), only_if)).await?;
        Ok(effect.into_deletion())
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        Ok(Box::new(self.shared.history.watch(scope, after)?))
    }
}
