//! The audit log: who did what to which sandbox, and what became of it.
//!
//! ```text
//!  record ──bounded queue──▶ one thread: write what is queued ──▶ one fsync for all of it
//!                                │ a segment is full: begin the next, remove the oldest
//!                                ▼
//!          audit/00000000000000000001.jsonl, 00000000000000004711.jsonl, …
//! ```
//!
//! One JSON object a line, in the order they were recorded, numbered without a gap; the name of a
//! segment is the number of its first line. Lines are only ever added. A number that is missing
//! between two lines is an entry that could not be written, and the server's log says why.
//!
//! What a crash left half-written at the end is cut off at the next start; a line that is damaged
//! otherwise is passed over by queries, and counted.
//!
//! Nothing that a client wrote gets in as it is: the fields are names that were checked, words
//! chosen by the code, and two short texts that are cleaned of anything that looks like a key.
//!
//! | Module | What it holds |
//! |---|---|
//! | `entry` | what is recorded |
//! | `segment` | the files |
//! | `writer` | the thread that writes them |
//! | `query` | finding entries, page by page, in both orders |
//! | `backwards` | the lines of a file, last one first |

mod backwards;
mod entry;
mod query;
mod segment;
mod writer;

#[cfg(test)]
mod tests;

use std::{io, path::Path, path::PathBuf, sync::Arc, thread};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

pub use entry::{Action, Actor, Entry, Outcome, Recorded};
pub use query::{Cursor, Filter, InvalidCursor, MAX_LIMIT, Order, Page};

use writer::{Counts, Message, Writer};

/// How large the log may get.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A segment that has this many bytes is full.
    pub segment_bytes: u64,
    /// The most segments that are kept; at least two.
    pub segments: usize,
    /// Entries that may wait to be written before whoever records one has to wait.
    pub queue: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            segments: 16,
            queue: 4096,
        }
    }
}

/// Why the log cannot be used.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A file failed.
    #[error("{what} of the audit log: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// What should continue a query is not a cursor of this log.
    #[error(transparent)]
    Cursor(#[from] InvalidCursor),
    /// The thread that writes has ended.
    #[error("the audit log is closed")]
    Closed,
}

pub(crate) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> AuditError {
    move |source| AuditError::Io { what, source }
}

/// How the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries written since the start.
    pub written: u64,
    /// Entries that could not be written since the start.
    pub lost: u64,
}

/// The audit log. Cheap to clone; the last one to go waits until everything is on disk.
#[derive(Clone, Debug)]
pub struct Audit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    // Taken when the last handle goes, so that the thread sees the end of the queue.
    inbox: Option<mpsc::Sender<Message>>,
    counts: Arc<Counts>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Audit {
    /// Opens the log in a directory, made if it is not there, and cuts off what a crash left
    /// half-written.
    ///
    /// # Errors
    /// If the directory or its newest segment cannot be used.
    pub fn open(directory: &Path, options: Options) -> Result<Self, AuditError> {
        let (inbox, messages) = mpsc::channel(options.queue.max(1));
        let counts = Arc::new(Counts::default());
        let writer = Writer::open(directory, options, Arc::clone(&counts))?;
        let thread = thread::Builder::new()
            .name("audit".into())
            .spawn(move || writer.run(messages))
            .map_err(io_error("start the writer"))?;
        Ok(Self(Arc::new(Shared {
            directory: directory.to_owned(),
            inbox: Some(inbox),
            counts,
            thread: Mutex::new(Some(thread)),
        })))
    }

    /// Records an entry. Returns once it is queued, which is at once unless the disk is slower than
    /// what is asked of it; it is on disk a moment later. A caller that goes away while it waits
    /// has recorded nothing.
    pub async fn record(&self, entry: Entry) {
        let Some(inbox) = &self.0.inbox else { return };
        if inbox.send(Message::Record(Box::new(entry))).await.is_err() {
            self.0.counts.lose(1);
            tracing::warn!("an audit entry came after the log was closed, and is lost");
        }
    }

    /// Ends writing: what was recorded before is on disk or known to be lost, what comes later is lost
    /// and counted. From then on another process may open the log.
    pub async fn close(&self) {
        let (done, wait) = oneshot::channel();
        let Some(inbox) = &self.0.inbox else { return };
        // A writer that has ended writes nothing.
        if inbox.send(Message::Close(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Waits until everything that was recorded before is on disk, or known to be lost.
    ///
    /// # Errors
    /// If the log is closed.
    pub async fn flush(&self) -> Result<(), AuditError> {
        let (done, wait) = oneshot::channel();
        let inbox = self.0.inbox.as_ref().ok_or(AuditError::Closed)?;
        let sent = inbox.send(Message::Flush(done)).await;
        sent.map_err(|_| AuditError::Closed)?;
        wait.await.map_err(|_| AuditError::Closed)
    }

    /// The entries that a filter asks for, what was just recorded included.
    ///
    /// # Errors
    /// If the cursor is none of this log's, or a file cannot be read.
    pub async fn query(&self, filter: Filter) -> Result<Page, AuditError> {
        self.flush().await?;
        let directory = self.0.directory.clone();
        let reading = tokio::task::spawn_blocking(move || query::run(&directory, &filter));
        reading.await.map_err(|_| AuditError::Closed)?
    }

    /// What it has been doing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.counts.read()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the writer is in the log already.
            let _ = thread.join();
        }
    }
}
