//! Finding entries, page by page.
//!
//! A cursor is a place in a file, so continuing costs nothing for what came before. A page that
//! looked at a lot without finding enough ends early, with a cursor: no request reads the whole log.
//! Newest first, files are read from their ends, and a cursor is the beginning of the last line that
//! was looked at.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom},
    path::Path,
    str::FromStr,
};

use model::{Namespace, SandboxId, Timestamp};
use thiserror::Error;

use super::{AuditError, Recorded, backwards::Backwards, io_error, segment};

/// The most entries of a page.
pub const MAX_LIMIT: usize = 1000;
/// The most bytes that are looked at for a page.
const MAX_BYTES: u64 = 32 << 20;

/// Which entries. Every part narrows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this team.
    pub team: Option<Namespace>,
    /// Of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// By this key or this person.
    pub actor: Option<Box<str>>,
    /// Of this action.
    pub action: Option<Box<str>>,
    /// At this moment or later.
    pub from: Option<Timestamp>,
    /// Before this moment.
    pub until: Option<Timestamp>,
    /// After what a page with this cursor had, in the same order.
    pub after: Option<Cursor>,
    /// Which ones come first.
    pub order: Order,
    /// At most so many on a page: 1 to [`MAX_LIMIT`]; 0 for as many as there can be.
    pub limit: usize,
}

/// The order of a page, and of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As they were recorded.
    #[default]
    OldestFirst,
    /// The other way round.
    NewestFirst,
}

impl Filter {
    /// Whether it asks for this one, wherever it stands.
    #[must_use]
    pub fn matches(&self, recorded: &Recorded) -> bool {
        let entry = &recorded.entry;
        let actor = &entry.actor;
        let is = |wanted: &str| {
            actor.user.as_deref() == Some(wanted)
                || actor.key.as_ref().is_some_and(|key| key.as_str() == wanted)
        };
        (self.team.is_none() || self.team == actor.team)
            && (self.sandbox.is_none() || self.sandbox == entry.sandbox)
            && self.actor.as_deref().is_none_or(is)
            && self
                .action
                .as_deref()
                .is_none_or(|action| action == entry.action.as_str())
            && self.from.is_none_or(|from| entry.time >= from)
            && self.until.is_none_or(|until| entry.time < until)
    }
}

/// Some of the entries that a filter asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries, in the order that was asked for. There can be none although more follow.
    pub entries: Vec<Recorded>,
    /// Where to continue; none at the end.
    pub next: Option<Cursor>,
    /// Lines that could not be read and were passed over.
    pub damaged: u64,
}

/// A place in the log. Its text is for handing back only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    segment: u64,
    offset: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.segment, self.offset)
    }
}

/// It is not a place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this is not a cursor of the audit log: use the one that the last page gave")]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let number = |digits: &str| {
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let (segment, offset) = text.split_once('-').ok_or(InvalidCursor)?;
        Ok(Self {
            segment: number(segment).ok_or(InvalidCursor)?,
            offset: number(offset).ok_or(InvalidCursor)?,
        })
    }
}

/// Reads a page.
pub(super) fn run(directory: &Path, filter: &Filter) -> Result<Page, AuditError> {
    let limit = match filter.limit {
        0 => MAX_LIMIT,
        limit => limit.min(MAX_LIMIT),
    };
    match filter.order {
        Order::OldestFirst => forwards(directory, filter, limit),
        Order::NewestFirst => backwards(directory, filter, limit),
    }
}

fn backwards(directory: &Path, filter: &Filter, limit: usize) -> Result<Page, AuditError> {
    let mut page = Page::default();
    let mut budget = MAX_BYTES;
    let from = filter.after;
    let mut at = from;
    let all = segment::list(directory).map_err(io_error("list the directory"))?;
    let wanted = |first: &u64| from.is_none_or(|from| *first <= from.segment);
    for first in all.into_iter().rev().filter(wanted) {
        let end = from.filter(|from| from.segment == first);
        let end = end.map(|from| from.offset);
        let Some(reader) = open_at_its_end(directory, first, end)? else {
            continue;
        };
        for line in reader {
            let (offset, line) = line.map_err(io_error("read a segment"))?;
            if page.entries.len() >= limit || budget == 0 {
                page.next = at;
                return Ok(page);
            }
            at = Some(Cursor {
                segment: first,
                offset,
            });
            budget = budget.saturating_sub(line.len() as u64);
            take(&mut page, filter, &line);
        }
    }
    Ok(page)
}

/// The lines of a segment from its end, or from a place on; none if it was removed.
fn open_at_its_end(
    directory: &Path,
    first: u64,
    end: Option<u64>,
) -> Result<Option<Backwards>, AuditError> {
    let mut file = match File::open(segment::path(directory, first)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error("open a segment"))?,
    };
    if let Some(end) = end.filter(|end| *end > 0)
        && !follows_a_line(&mut file, end).map_err(io_error("read a segment"))?
    {
        return Err(InvalidCursor.into());
    }
    let lines = Backwards::new(file, end).map_err(io_error("read a segment"))?;
    Ok(Some(lines))
}

fn take(page: &mut Page, filter: &Filter, line: &[u8]) {
    match serde_json::from_slice::<Recorded>(line) {
        Ok(recorded) if filter.matches(&recorded) => page.entries.push(recorded),
        Ok(_) => {}
        Err(_) => page.damaged += 1,
    }
}

fn forwards(directory: &Path, filter: &Filter, limit: usize) -> Result<Page, AuditError> {
    let mut page = Page::default();
    let mut budget = MAX_BYTES;
    let start = filter.after.unwrap_or(Cursor {
        segment: 0,
        offset: 0,
    });
    let all = segment::list(directory).map_err(io_error("list the directory"))?;
    for first in all.into_iter().filter(|first| *first >= start.segment) {
        let offset = if first == start.segment {
            start.offset
        } else {
            0
        };
        let Some(mut reader) = open(directory, first, offset)? else {
            continue;
        };
        let mut at = Cursor {
            segment: first,
            offset,
        };
        let mut line = Vec::new();
        loop {
            line.clear();
            reader
                .read_until(b'\n', &mut line)
                .map_err(io_error("read a segment"))?;
            // Half a line is being written right now: it is for the next query.
            if line.last() != Some(&b'\n') {
                break;
            }
            // There is something here that does not fit any more.
            if page.entries.len() >= limit || budget == 0 {
                page.next = Some(at);
                return Ok(page);
            }
            let read = line.len() as u64;
            at.offset += read;
            budget = budget.saturating_sub(read);
            take(&mut page, filter, &line);
        }
    }
    Ok(page)
}

/// A segment from a place on; none if it was removed.
fn open(directory: &Path, first: u64, offset: u64) -> Result<Option<BufReader<File>>, AuditError> {
    let mut file = match File::open(segment::path(directory, first)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error("open a segment"))?,
    };
    if offset > 0 && !follows_a_line(&mut file, offset).map_err(io_error("read a segment"))? {
        return Err(InvalidCursor.into());
    }
    Ok(Some(BufReader::with_capacity(1 << 18, file)))
}

/// Goes to a place, and says whether a line ended right before it.
fn follows_a_line(file: &mut File, offset: u64) -> io::Result<bool> {
    if offset > file.metadata()?.len() {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(offset - 1))?;
    let mut before = [0];
    file.read_exact(&mut before)?;
    Ok(before == *b"\n")
}
