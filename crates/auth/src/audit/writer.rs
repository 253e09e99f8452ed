//! The thread that writes: what is queued goes out in one write and one fsync.
//!
//! A disk that fails must not stop the service. What could not be written is counted, said in the
//! log, and shows as a gap in the numbers; half a line that it left is cut off, or, if not even that
//! works, the next lines go to a new segment.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot};

use super::{AuditError, Entry, Options, Recorded, Stats, io_error, segment};

/// The most messages that go out together.
const MAX_BATCH: usize = 1024;

/// What the writer is asked.
#[derive(Debug)]
pub(super) enum Message {
    /// To write an entry.
    Record(Box<Entry>),
    /// To say when everything before is on disk, or lost.
    Flush(oneshot::Sender<()>),
    /// To write what is queued, end, and say so.
    Close(oneshot::Sender<()>),
}

/// Counters, for metrics.
#[derive(Debug, Default)]
pub(super) struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    pub(super) fn lose(&self, entries: u64) {
        self.lost.fetch_add(entries, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Stats {
        Stats {
            written: self.written.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// The writing side of a log.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    options: Options,
    counts: Arc<Counts>,
    /// The newest segment; none after a failure that left it in doubt.
    file: Option<File>,
    /// Bytes of it that are whole lines.
    bytes: u64,
    /// The number of the next entry.
    next: u64,
}

impl Writer {
    pub(super) fn open(
        directory: &Path,
        options: Options,
        counts: Arc<Counts>,
    ) -> Result<Self, AuditError> {
        segment::ensure_directory(directory).map_err(io_error("make the directory"))?;
        let all = segment::list(directory).map_err(io_error("list the directory"))?;
        let newest = all.last().copied().unwrap_or(1);
        let file = segment::open(directory, newest).map_err(io_error("open a segment"))?;
        let whole =
            segment::examine(directory, newest).map_err(io_error("read the newest segment"))?;
        let found = file
            .metadata()
            .map_err(io_error("look at the newest segment"))?;
        if found.len() > whole.bytes {
            tracing::warn!(
                bytes = found.len() - whole.bytes,
                "the audit log ended in half a line, which is cut off"
            );
            file.set_len(whole.bytes)
                .and_then(|()| file.sync_all())
                .map_err(io_error("cut off half a line"))?;
        }
        Ok(Self {
            directory: directory.to_owned(),
            options,
            counts,
            file: Some(file),
            bytes: whole.bytes,
            next: whole.last.map_or(newest, |last| last + 1).max(newest),
        })
    }

    /// Writes what comes, until it is closed or nobody is left to send anything.
    pub(super) fn run(mut self, mut inbox: mpsc::Receiver<Message>) {
        let mut closing = Vec::new();
        while let Some(message) = inbox.blocking_recv() {
            let mut batch = vec![message];
            while batch.len() < MAX_BATCH
                && let Ok(message) = inbox.try_recv()
            {
                batch.push(message);
            }
            closing.extend(self.write(batch));
            if !closing.is_empty() {
                // What was queued by then still comes.
                inbox.close();
            }
        }
        drop(self);
        for done in closing {
            // Whoever asked may have left.
            let _ = done.send(());
        }
    }

    /// Writes what was asked together. Answers who wants it to be the last.
    fn write(&mut self, batch: Vec<Message>) -> Vec<oneshot::Sender<()>> {
        let first = self.next;
        let mut lines = Vec::new();
        let mut entries = 0;
        let (mut waiting, mut closing) = (Vec::new(), Vec::new());
        for message in batch {
            match message {
                Message::Record(entry) => {
                    let recorded = Recorded {
                        seq: self.next,
                        entry: entry.cleaned(),
                    };
                    // The number is used up in any case: a gap says that something is missing.
                    self.next += 1;
                    let start = lines.len();
                    match serde_json::to_writer(&mut lines, &recorded) {
                        Ok(()) => {
                            lines.push(b'\n');
                            entries += 1;
                        }
                        Err(error) => {
                            lines.truncate(start);
                            self.counts.lose(1);
                            tracing::error!(%error, "an audit entry cannot be written as JSON");
                        }
                    }
                }
                Message::Flush(done) => waiting.push(done),
                Message::Close(done) => closing.push(done),
            }
        }
        if !lines.is_empty() {
            match self.append(first, &lines) {
                Ok(()) => {
                    self.counts.written.fetch_add(entries, Ordering::Relaxed);
                }
                Err(error) => {
                    self.counts.lose(entries);
                    tracing::error!(%error, entries, "the audit log cannot be written");
                }
            }
        }
        for done in waiting {
            // Whoever asked may have left.
            let _ = done.send(());
        }
        closing
    }

    fn append(&mut self, first: u64, lines: &[u8]) -> io::Result<()> {
        if self.file.is_none() || self.bytes >= self.options.segment_bytes {
            self.begin_segment(first)?;
        }
        let Some(file) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let done = file.write_all(lines).and_then(|()| file.sync_data());
        match done {
            Ok(()) => self.bytes += lines.len() as u64,
            // Half a line must not become the beginning of the next.
            Err(_) if file.set_len(self.bytes).is_ok() => {}
            Err(_) => self.file = None,
        }
        done
    }

    fn begin_segment(&mut self, first: u64) -> io::Result<()> {
        self.file = None;
        let file = segment::open(&self.directory, first)?;
        self.bytes = file.metadata()?.len();
        self.file = Some(file);
        // Too many old lines are no reason not to write new ones.
        let keep = self.options.segments.max(2);
        if let Err(error) = segment::remove_oldest(&self.directory, keep) {
            tracing::warn!(%error, "an old segment of the audit log cannot be removed");
        }
        Ok(())
    }
}
