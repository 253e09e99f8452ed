//! What a sandbox's start command has said, read from outside.
//!
//! The agent keeps it in a file of the sandbox's own, so it is here while the sandbox is frozen or
//! has ended, and goes with its files. Everything in the sandbox may have written there: what is
//! read is bounded, no link is followed, and what is not as the agent writes it is left out.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::fd::AsFd as _,
};

use model::{Timestamp, Uid};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use wire::envd::{KEPT_LINE, KEPT_OUTPUT, KEPT_OUTPUT_BEFORE, KEPT_OUTPUT_BYTES};

use crate::engine::Engine;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The agent: how the command ended.
    End,
}

/// A line that a start command has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// When.
    pub at: Timestamp,
    /// Where to.
    pub source: Source,
    /// What, made readable where it was no text.
    pub text: Box<str>,
}

impl Engine {
    /// The last of what the start command of a sandbox has said, oldest first.
    pub(crate) fn output(&self, uid: Uid) -> Vec<OutputLine> {
        if self.slot(uid).is_none() {
            return Vec::new();
        }
        let upper = self.place(uid).upper();
        let mut lines = Vec::new();
        for path in [KEPT_OUTPUT_BEFORE, KEPT_OUTPUT] {
            // What cannot be read was not written by an agent, or not yet.
            if let Ok((bytes, whole)) = read_end(&upper, path) {
                lines.extend(parse(&bytes, whole));
            }
        }
        lines
    }
}

/// The last of a file beneath a directory, and whether that is all of it.
fn read_end(upper: &std::path::Path, path: &str) -> io::Result<(Vec<u8>, bool)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let upper = openat(CWD, upper, flags, Mode::empty())?;
    let file = openat2(
        upper.as_fd(),
        path.trim_start_matches('/'),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?;
    let mut file = File::from(file);
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let most = KEPT_OUTPUT_BYTES / 2;
    let skipped = about.len().saturating_sub(most);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, skipped == 0))
}

fn parse(bytes: &[u8], whole: bool) -> Vec<OutputLine> {
    let lines = bytes.split(|byte| *byte == b'\n');
    // The first is the rest of another, where not all was read.
    lines.skip(usize::from(!whole)).filter_map(line).collect()
}

fn line(bytes: &[u8]) -> Option<OutputLine> {
    let mut parts = bytes.splitn(3, |byte| *byte == b' ');
    let at = std::str::from_utf8(parts.next()?).ok()?;
    let at = wire::time::parse_rfc3339(at)?;
    let source = match parts.next()? {
        b"stdout" => Source::Stdout,
        b"stderr" => Source::Stderr,
        b"end" => Source::End,
        _ => return None,
    };
    let text = parts.next()?;
    let text = &text[..text.len().min(KEPT_LINE)];
    let micros = at.seconds.checked_mul(1_000_000)?;
    Some(OutputLine {
        at: Timestamp::from_micros(micros.checked_add(i64::from(at.nanos / 1000))?),
        source,
        text: String::from_utf8_lossy(text).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_writes_is_read_and_nothing_else() {
        let bytes = b"9Z stdout cut\n\
            1970-01-01T00:00:01.5Z stdout one two\n\
            nonsense\n\
            1970-01-01T00:00:02Z elsewhere x\n\
            9999999999999-01-01T00:00:02Z stdout x\n\
            1970-01-01T00:00:02Z stderr \xff\n\
            1970-01-01T00:00:03Z end exit status 1\n\
            1970-01-01T00:00:04Z stdout";
        let read = parse(bytes, false);
        let read: Vec<_> = read
            .iter()
            .map(|l| (l.at.as_micros(), l.source, &*l.text))
            .collect();
        let expected = [
            (1_500_000, Source::Stdout, "one two"),
            (2_000_000, Source::Stderr, "\u{fffd}"),
            (3_000_000, Source::End, "exit status 1"),
        ];
        assert_eq!(read, expected);
        let long = [b"1970-01-01T00:00:01Z stdout ".as_slice(), &[b'x'; 9999]].concat();
        assert_eq!(parse(&long, true)[0].text.len(), KEPT_LINE);
    }

    #[test]
    fn links_pipes_and_directories_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("var/log/dormouse");
        std::fs::create_dir_all(&log).unwrap();
        let path = root.path().join(KEPT_OUTPUT.trim_start_matches('/'));
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(read_end(root.path(), KEPT_OUTPUT).is_err());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR).unwrap();
        assert!(read_end(root.path(), KEPT_OUTPUT).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(read_end(root.path(), KEPT_OUTPUT).is_err());
        std::fs::remove_dir(&path).unwrap();
        kit::durable::write_file(&path, &vec![b'x'; 2 << 20], 0o600).unwrap();
        let (bytes, whole) = read_end(root.path(), KEPT_OUTPUT).unwrap();
        assert_eq!((bytes.len() as u64, whole), (KEPT_OUTPUT_BYTES / 2, false));
    }
}
