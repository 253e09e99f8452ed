//! The files of the log.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufRead as _, BufReader, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;

const SUFFIX: &str = ".jsonl";

/// The path of the segment whose first line has this number.
pub(super) fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:020}{SUFFIX}"))
}

/// The segments, oldest first, by the number of their first line.
pub(super) fn list(directory: &Path) -> io::Result<Vec<u64>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let first = name.to_str().and_then(|n| n.strip_suffix(SUFFIX));
        // Other files are none of ours.
        all.extend(first.and_then(|digits| digits.parse::<u64>().ok()));
    }
    all.sort_unstable();
    Ok(all)
}

/// Makes the directory, for its owner only.
pub(super) fn ensure_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

/// Makes a segment, or takes the one that is there, for adding lines.
pub(super) fn open(directory: &Path, first: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path(directory, first))?;
    // The name has to survive like the lines.
    File::open(directory)?.sync_all()?;
    Ok(file)
}

/// Removes the oldest segments, so that at most so many are left.
pub(super) fn remove_oldest(directory: &Path, keep: usize) -> io::Result<()> {
    let all = list(directory)?;
    for first in &all[..all.len().saturating_sub(keep)] {
        match fs::remove_file(path(directory, *first)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// How far a segment is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Bytes up to the end of the last complete line.
    pub(super) bytes: u64,
    /// The largest number of a line.
    pub(super) last: Option<u64>,
}

#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// Reads a segment for how far it is whole.
pub(super) fn examine(directory: &Path, first: u64) -> io::Result<Whole> {
    let mut whole = Whole {
        bytes: 0,
        last: None,
    };
    let mut reader = BufReader::with_capacity(1 << 18, File::open(path(directory, first))?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(whole);
        }
        whole.bytes += read as u64;
        // A damaged line has no number; the lines around it have.
        if let Ok(Numbered { seq }) = serde_json::from_slice(&line) {
            whole.last = whole.last.max(Some(seq));
        }
    }
}
