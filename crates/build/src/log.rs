//! What a build says. The lines of one that runs are in memory and on disk, those of one that is over
//! on disk only.

use std::{
    borrow::Cow,
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use model::{Level, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Lines that are kept of one build.
const MAX_LINES: usize = 20_000;
/// Bytes that are kept of one build.
const MAX_BYTES: usize = 8 << 20;
/// Bytes that are kept of one line.
const MAX_LINE: usize = 4 << 10;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at: Timestamp,
    /// How bad.
    pub level: Level,
    /// What.
    pub message: String,
    /// The step it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// The lines of one build.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    lines: Vec<Line>,
    bytes: usize,
    full: bool,
    file: File,
}

impl Log {
    /// Of a build that is over.
    pub(crate) const fn closed(path: PathBuf) -> Self {
        Self {
            path,
            open: Mutex::new(None),
        }
    }

    /// Of a build that is to run.
    pub(crate) fn new(path: PathBuf) -> io::Result<Self> {
        let log = Self::closed(path);
        log.open()?;
        Ok(log)
    }

    /// From now on something may be said.
    pub(crate) fn open(&self) -> io::Result<()> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        *self.open.lock() = Some(Open {
            lines: Vec::new(),
            bytes: 0,
            full: false,
            file,
        });
        Ok(())
    }

    /// Adds a line; one too many is not kept.
    pub(crate) fn add(&self, mut line: Line) {
        let mut open = self.open.lock();
        let Some(open) = open.as_mut() else { return };
        // The last words of a build are kept in any case.
        if line.level != Level::Error {
            if open.full {
                return;
            }
            open.full = open.lines.len() >= MAX_LINES || open.bytes >= MAX_BYTES;
            if open.full {
                line.message = "what it says from here on is not kept".into();
                line.level = Level::Warn;
            }
        }
        if line.message.len() > MAX_LINE {
            line.message
                .truncate(line.message.floor_char_boundary(MAX_LINE));
            line.message.push('…');
        }
        if let Ok(mut text) = serde_json::to_vec(&line) {
            text.push(b'\n');
            // Who watches reads it from memory; what a full disk loses is lost later.
            if let Err(error) = open.file.write_all(&text) {
                tracing::debug!(%error, "a line of a build is not on disk");
            }
        }
        open.bytes += line.message.len();
        open.lines.push(line);
    }

    /// Nothing more will be said.
    pub(crate) fn close(&self) {
        *self.open.lock() = None;
    }

    /// Some lines. May block.
    pub(crate) fn page(&self, page: &Page) -> Vec<Line> {
        if let Some(open) = self.open.lock().as_ref() {
            return page.of(open.lines.iter().map(Cow::Borrowed));
        }
        let Ok(file) = File::open(&self.path) else {
            return Vec::new();
        };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        // The last one may be half a line, of a server that died.
        let lines = lines.filter_map(|line| serde_json::from_str(&line).ok());
        page.of(lines.map(Cow::Owned))
    }
}

/// Which lines are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// How many of them are left out.
    pub offset: usize,
    /// How many there are at most.
    pub limit: usize,
    /// How bad they are at least.
    pub least: Level,
    /// Not before this moment, in milliseconds; backward, not after it.
    pub cursor: Option<i64>,
    /// Whether the newest come first.
    pub backward: bool,
}

impl Page {
    /// Looks through lines one by one, and keeps no more than are wanted.
    fn of<'l>(&self, lines: impl Iterator<Item = Cow<'l, Line>>) -> Vec<Line> {
        let wanted = lines.filter(|line| {
            let millis = line.at.as_micros() / 1000;
            let in_time = self.cursor.is_none_or(|cursor| match self.backward {
                false => millis >= cursor,
                true => millis <= cursor,
            });
            line.level >= self.least && in_time
        });
        if !self.backward {
            let wanted = wanted.skip(self.offset).take(self.limit);
            return wanted.map(Cow::into_owned).collect();
        }
        let most = self.offset.saturating_add(self.limit);
        let mut last = VecDeque::new();
        for line in wanted {
            if last.len() == most {
                last.pop_front();
            }
            last.push_back(line);
        }
        let newest_first = last.into_iter().rev().skip(self.offset);
        newest_first.map(Cow::into_owned).collect()
    }
}

/// Cuts what a process writes into lines.
#[derive(Debug, Default)]
pub(crate) struct Splitter(Vec<u8>);

impl Splitter {
    /// Takes some output, and gives the lines that are whole.
    pub(crate) fn push(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        for &byte in bytes {
            if byte == b'\n' || self.0.len() >= MAX_LINE {
                self.flush(&mut line);
            }
            if byte != b'\n' {
                self.0.push(byte);
            }
        }
    }

    /// What is left at the end.
    pub(crate) fn flush(&mut self, mut line: impl FnMut(String)) {
        let bytes = std::mem::take(&mut self.0);
        let text = String::from_utf8_lossy(&bytes);
        // Of a line that was written over, what it said last.
        let text = text.trim_end_matches('\r');
        let text = text.rsplit('\r').next().unwrap_or(text);
        if !text.is_empty() {
            line(text.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str, level: Level) -> Line {
        Line {
            at: Timestamp::from_micros(1),
            level,
            message: message.into(),
            step: None,
        }
    }

    const fn all(least: Level) -> Page {
        Page {
            offset: 0,
            limit: usize::MAX,
            least,
            cursor: None,
            backward: false,
        }
    }

    #[test]
    fn pages_by_time_go_both_ways() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::new(directory.path().join("log")).unwrap();
        for number in 0..5 {
            log.add(Line {
                at: Timestamp::from_micros(number * 1000),
                ..line(&number.to_string(), Level::Info)
            });
        }
        let said = |log: &Log, backward| -> Vec<String> {
            let page = Page {
                limit: 2,
                cursor: Some(2),
                backward,
                ..all(Level::Debug)
            };
            log.page(&page).into_iter().map(|l| l.message).collect()
        };
        for _ in 0..2 {
            assert_eq!(said(&log, false), ["2", "3"]);
            assert_eq!(said(&log, true), ["2", "1"]);
            log.close();
        }
    }

    #[test]
    fn pages_are_the_same_while_it_runs_and_after() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = Log::new(path.clone()).unwrap();
        for number in 0..5 {
            let level = if number == 2 {
                Level::Error
            } else {
                Level::Info
            };
            log.add(line(&number.to_string(), level));
        }
        let said = |log: &Log, offset, limit, least| -> Vec<String> {
            let page = Page {
                offset,
                limit,
                ..all(least)
            };
            let lines = log.page(&page).into_iter();
            lines.map(|line| line.message).collect()
        };
        let check = |log: &Log| {
            assert_eq!(said(log, 0, 2, Level::Debug), ["0", "1"]);
            assert_eq!(said(log, 3, 100, Level::Debug), ["3", "4"]);
            assert!(said(log, 5, 100, Level::Debug).is_empty());
            assert_eq!(said(log, 0, 100, Level::Error), ["2"]);
        };
        check(&log);
        log.close();
        check(&log);
        log.add(line("late", Level::Info));
        check(&Log::closed(path));
    }

    #[test]
    fn there_is_an_end_to_what_is_kept_but_not_to_why_it_failed() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::new(directory.path().join("log")).unwrap();
        for _ in 0..MAX_BYTES / MAX_LINE + 100 {
            log.add(line(&"x".repeat(2 * MAX_LINE), Level::Info));
        }
        log.add(line("why", Level::Error));
        let lines = log.page(&all(Level::Debug));
        let bytes: usize = lines.iter().map(|line| line.message.len()).sum();
        assert!(bytes < MAX_BYTES + 2 * MAX_LINE, "{bytes}");
        let last: Vec<_> = lines[lines.len() - 2..]
            .iter()
            .map(|l| &*l.message)
            .collect();
        assert_eq!(last, ["what it says from here on is not kept", "why"]);
    }

    #[test]
    fn output_is_cut_into_lines_wherever_it_breaks() {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        for piece in ["a\nb", "c\r\n", "10%\r50%\r", "100%\n\n", "end"] {
            splitter.push(piece.as_bytes(), |line| lines.push(line));
        }
        splitter.flush(|line| lines.push(line));
        assert_eq!(lines, ["a", "bc", "100%", "end"]);
    }
}
