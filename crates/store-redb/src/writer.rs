//! The writer: one thread, one transaction for all requests that wait, one fsync for all of them.
//!
//! ```text
//!  waiting ──first request──▶ collect what is queued ──▶ apply each ──▶ commit (fsync)
//!     ▲                                                                   │
//!     └────────────── answer everyone ◀── publish to watchers ◀── durable ┘
//! ```
//!
//! A request that the rules refuse fails alone. An error of the engine fails the batch, and the
//! state in memory is no longer trusted: the database is closed, opened again from what the disk
//! holds, and the version found there decides what became of the batch. Until that works, nobody
//! is told anything but that the store is unavailable, and whether the write may have happened.
//!
//! A disk that is nearly full is noticed before a transaction begins, so that reads are not
//! disturbed; writes resume by themselves when there is room.

use std::{sync::Arc, thread, time::Duration};

use kit::Clock;
use model::{Timestamp, Version};
use redb::{Database, ReadableDatabase as _};
use store::{
    Outcome, StoreError, WatchEvent,
    rules::{Effect, Stamp},
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    Options,
    apply::{Request, Tables, set_version},
    disk::Disk,
    engine::{self, Shared, unavailable},
    error::{EngineError, is_full},
    read,
};

/// The most requests in one transaction.
const MAX_BATCH: usize = 1024;
/// A batch takes no more requests once it has this many bytes.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// How often the writer looks for more requests before it stops waiting for them: microseconds.
const PATIENCE: u32 = 32;
/// How often a closed database is tried again, in ticks.
const RETRY_TICKS: u32 = 40;
/// How soon requests are refused while it is closed.
const TICK: Duration = Duration::from_millis(25);
/// What who comes too late is told.
const CLOSED: &str = "the store is closed: this process has handed it over, or ends";

/// What the writer is asked.
#[derive(Debug)]
pub(crate) enum Message {
    /// To write something.
    Write(Box<Request>, Reply),
    /// To look after the database: a read failed.
    Check,
    /// To end, and to say so.
    Close(oneshot::Sender<()>),
}

pub(crate) type Answer = Result<Effect, StoreError>;
type Reply = oneshot::Sender<Answer>;

/// The writing side of a store.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) inbox: mpsc::Receiver<Message>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    /// The last version that is durable and published.
    pub(crate) head: Version,
    /// How many requests the last batch had.
    pub(crate) last_batch: usize,
    /// A commit that failed in a way that leaves open whether it happened.
    pub(crate) doubt: Option<Doubt>,
    /// Who asked for the end.
    pub(crate) leaving: Option<oneshot::Sender<()>>,
}

/// What watchers must still be told if the disk turns out to have it.
#[derive(Debug)]
pub(crate) struct Doubt {
    head: Version,
    changes: Vec<WatchEvent>,
}

/// What a transaction did.
struct Done {
    answers: Vec<Answer>,
    changes: Vec<WatchEvent>,
    head: Version,
}

/// A transaction that failed; `attempted` is what it would have done if the commit had begun.
struct Failed {
    error: EngineError,
    attempted: Option<Box<Done>>,
}

impl<E: Into<EngineError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            attempted: None,
        }
    }
}

/// What reopening found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Applied,
    NotApplied,
}

impl Writer {
    /// Serves until the store is closed or dropped.
    pub(crate) fn run(mut self) {
        while self.leaving.is_none()
            && let Some(first) = self.next()
        {
            let open = match first {
                Message::Write(request, reply) => self.serve(request, reply),
                Message::Check => self.check(),
                Message::Close(done) => {
                    self.leaving = Some(done);
                    break;
                }
            };
            if !open && !self.wait_until_open() {
                break;
            }
        }
        self.shared.close(CLOSED);
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Write(_, reply) = message {
                refuse(vec![reply], Outcome::NotApplied, CLOSED);
            }
        }
        if let Some(done) = self.leaving {
            // Whoever asked may have left; it is closed all the same.
            let _ = done.send(());
        }
    }

    /// The next message; `None` once the store is dropped.
    fn next(&mut self) -> Option<Message> {
        // Who was just answered often asks again at once. Looking a few times is quicker than
        // sleeping and being woken, and yields the processor to whoever is about to ask.
        for _ in 0..PATIENCE {
            match self.inbox.try_recv() {
                Ok(message) => return Some(message),
                Err(mpsc::error::TryRecvError::Empty) => thread::yield_now(),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
            }
        }
        self.inbox.blocking_recv()
    }

    /// Writes a batch that begins with this request. False: the database is closed now.
    fn serve(&mut self, request: Box<Request>, reply: Reply) -> bool {
        let mut bytes = request.size();
        let mut requests = vec![*request];
        let mut replies = vec![reply];
        let mut patience = PATIENCE;
        while requests.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
            match self.inbox.try_recv() {
                Ok(Message::Write(request, reply)) => {
                    bytes += request.size();
                    requests.push(*request);
                    replies.push(reply);
                    patience = PATIENCE;
                }
                // A read failed: the transaction will find out by itself.
                Ok(Message::Check) => {}
                Ok(Message::Close(done)) => {
                    self.leaving = Some(done);
                    break;
                }
                // As many as were just answered are likely on their way: one sync for all of them
                // is worth a moment. A lone writer is never waited for.
                Err(_) if requests.len() < self.last_batch && patience > 0 => {
                    patience -= 1;
                    thread::yield_now();
                }
                Err(_) => break,
            }
        }
        self.last_batch = requests.len();
        if let Some(reason) = self.no_room(bytes) {
            refuse(replies, Outcome::NotApplied, &reason);
            return true;
        }
        let db = match self.shared.database() {
            Ok(db) => db,
            Err(error) => {
                refuse(replies, Outcome::NotApplied, &error.to_string());
                return false;
            }
        };
        let result = self.transact(&db, requests);
        // Before anything else: a failed database can only be closed when nobody holds it.
        drop(db);
        match result {
            Ok(done) => {
                self.head = done.head;
                self.shared.history.publish(done.changes);
                answer(replies, done.answers);
                true
            }
            Err(failed) => self.recover(failed, replies),
        }
    }

    /// All requests in one transaction, durable when this returns.
    fn transact(&self, db: &Database, requests: Vec<Request>) -> Result<Done, Failed> {
        let transaction = db.begin_write()?;
        let mut done = Done {
            answers: Vec::with_capacity(requests.len()),
            changes: Vec::with_capacity(requests.len()),
            head: self.head,
        };
        let now = Timestamp::from_micros(self.clock.wall_micros());
        let mut tables = Tables::open(&transaction)?;
        for request in requests {
            let version = done.head.next();
            done.answers
                .push(
                    tables
                        .apply(request, Stamp { version, now })?
                        .map(|(effect, change)| {
                            if let Some(change) = change {
                                done.head = version;
                                done.changes.push(change);
                            }
                            effect
                        }),
                );
        }
        drop(tables);
        if done.head == self.head {
            transaction.abort()?;
            return Ok(done);
        }
        set_version(&transaction, done.head)?;
        // One phase: the header is written and synced together with the pages it points to. If
        // power fails in between, checksums show which of the two headers has all of its pages.
        match transaction.commit() {
            Ok(()) => Ok(done),
            Err(error) => Err(Failed {
                error: error.into(),
                attempted: Some(Box::new(done)),
            }),
        }
    }

    /// Why a batch of this size had better not be tried.
    fn no_room(&self, bytes: usize) -> Option<String> {
        // A record is written with the page it lies in and those above: a few times its size.
        let wanted = self.options.headroom_bytes + 4 * bytes as u64;
        let free = self.disk.free_bytes().ok()?;
        (free < wanted).then(|| {
            format!(
                "the disk of {} has {free} bytes left and {wanted} are wanted: make room, writes then resume by themselves",
                self.disk.path().display()
            )
        })
    }

    /// After an engine error: go back to what the disk holds, and answer by that.
    fn recover(&mut self, failed: Failed, replies: Vec<Reply>) -> bool {
        let Failed { error, attempted } = failed;
        let reason = self.explain(&error);
        tracing::error!(%error, path = %self.disk.path().display(), "write failed; reopening the store");
        let mut answers = None;
        self.doubt = attempted.map(|done| {
            answers = Some(done.answers);
            Doubt {
                head: done.head,
                changes: done.changes,
            }
        });
        match (self.reopen(&reason), answers) {
            (Ok(Found::Applied), Some(answers)) => {
                answer(replies, answers);
                true
            }
            (Ok(_), _) => {
                refuse(replies, Outcome::NotApplied, &reason);
                true
            }
            // The commit never began, so nothing of it can be on the disk.
            (Err(_), None) => {
                refuse(replies, Outcome::NotApplied, &reason);
                false
            }
            (Err(_), Some(_)) => {
                refuse(replies, Outcome::Unknown, &reason);
                false
            }
        }
    }

    /// After a failed read: whether the database still works, or works again.
    fn check(&mut self) -> bool {
        let works = match self.shared.database() {
            Ok(db) => db
                .begin_read()
                .map_err(EngineError::from)
                .and_then(|snapshot| read::version(&snapshot)),
            Err(_) => return false,
        };
        match works {
            Ok(_) => true,
            Err(error) => {
                let reason = self.explain(&error);
                tracing::error!(%error, path = %self.disk.path().display(), "read failed; reopening the store");
                self.reopen(&reason).is_ok()
            }
        }
    }

    /// Closes the database and opens what the disk holds.
    fn reopen(&mut self, reason: &str) -> Result<Found, ()> {
        self.shared.close(reason);
        let opened = match self.disk.reopen() {
            Ok(medium) => engine::open(medium, self.options.cache_bytes),
            Err(error) => Err(EngineError::Io(error)),
        };
        let (db, version) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(%error, path = %self.disk.path().display(), "the store cannot be reopened yet");
                return Err(());
            }
        };
        let found = match self.doubt.take() {
            _ if version == self.head => Found::NotApplied,
            Some(doubt) if version == doubt.head => {
                self.head = version;
                self.shared.history.publish(doubt.changes);
                Found::Applied
            }
            doubt => {
                self.doubt = doubt;
                tracing::error!(
                    found = %version, acknowledged = %self.head, path = %self.disk.path().display(),
                    "the disk has lost acknowledged writes; the store stays closed: restore a backup"
                );
                return Err(());
            }
        };
        tracing::info!(path = %self.disk.path().display(), "the store is open again");
        self.shared.put(db);
        Ok(found)
    }

    /// Refuses requests until the database opens again. False: the store was closed or dropped
    /// meanwhile.
    fn wait_until_open(&mut self) -> bool {
        loop {
            for _ in 0..RETRY_TICKS {
                loop {
                    match self.inbox.try_recv() {
                        Ok(Message::Write(_, reply)) => refuse(
                            vec![reply],
                            Outcome::NotApplied,
                            "it is closed after a disk error and being reopened: see the log, mend the disk",
                        ),
                        Ok(Message::Check) => {}
                        Ok(Message::Close(done)) => {
                            self.leaving = Some(done);
                            return false;
                        }
                        Err(mpsc::error::TryRecvError::Empty) => break,
                        Err(mpsc::error::TryRecvError::Disconnected) => return false,
                    }
                }
                thread::sleep(TICK);
            }
            if self
                .reopen("it is closed after a disk error and being reopened")
                .is_ok()
            {
                return true;
            }
        }
    }

    fn explain(&self, error: &EngineError) -> String {
        let path = self.disk.path().display();
        if is_full(error) {
            format!("the disk of {path} is full: make room, writes then resume by themselves")
        } else {
            format!("{path}: {error}")
        }
    }
}

fn answer(replies: Vec<Reply>, answers: Vec<Answer>) {
    for (reply, answer) in replies.into_iter().zip(answers) {
        // Whoever asked may have left; the write stands all the same.
        let _ = reply.send(answer);
    }
}

fn refuse(replies: Vec<Reply>, outcome: Outcome, reason: &str) {
    for reply in replies {
        let _ = reply.send(Err(unavailable(outcome, reason)));
    }
}
