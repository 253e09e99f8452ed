//! What the sandbox's start command says, kept for those who ask later.
//!
//! It goes to a file of the sandbox's own, which whoever runs the sandbox reads from outside: also
//! while it is frozen, and without asking anybody inside. Each line has its time and its source
//! before it. When the file is half of what may be kept it takes the place of the one before it, so
//! that the last of it is always there and the disk is never full of it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use kit::Clock;
use wire::{
    envd::{KEPT_LINE, KEPT_OUTPUT, KEPT_OUTPUT_BEFORE, KEPT_OUTPUT_BYTES},
    process::EndEvent,
    time::{Timestamp, write_rfc3339},
};

use crate::fan::{Event, Listener, Source};

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    before: PathBuf,
    clock: Arc<dyn Clock>,
    file: Option<(File, u64)>,
    /// What came after the last end of a line, of each source.
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    /// The place that is agreed on.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self::at(KEPT_OUTPUT.into(), KEPT_OUTPUT_BEFORE.into(), clock)
    }

    fn at(path: PathBuf, before: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self {
            path,
            before,
            clock,
            file: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
        }
    }

    /// Keeps everything until the end. A disk that is full costs lines, never the program's time.
    pub(crate) async fn keep(mut self, mut listener: Listener<Event>) {
        while let Some(Ok(event)) = listener.recv().await {
            match event {
                Event::Start(_) => {}
                Event::Data(source, bytes) => self.take(source, &bytes),
                Event::End(end) => return self.finish(&end),
            }
        }
    }

    fn take(&mut self, source: Source, bytes: &Bytes) {
        let (name, mut rest) = match source {
            Source::Stdout | Source::Pty => ("stdout", std::mem::take(&mut self.stdout)),
            Source::Stderr => ("stderr", std::mem::take(&mut self.stderr)),
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for part in piece.chunks(KEPT_LINE) {
                if rest.len() + part.len() > KEPT_LINE {
                    self.write(name, &std::mem::take(&mut rest));
                }
                rest.extend_from_slice(part);
            }
            if rest.last() == Some(&b'\n') {
                rest.pop();
                self.write(name, &std::mem::take(&mut rest));
            }
        }
        match source {
            Source::Stdout | Source::Pty => self.stdout = rest,
            Source::Stderr => self.stderr = rest,
        }
    }

    fn finish(&mut self, end: &EndEvent) {
        for (name, rest) in [
            ("stdout", std::mem::take(&mut self.stdout)),
            ("stderr", std::mem::take(&mut self.stderr)),
        ] {
            if !rest.is_empty() {
                self.write(name, &rest);
            }
        }
        self.write("end", end.status.as_bytes());
    }

    fn write(&mut self, source: &str, line: &[u8]) {
        let micros = self.clock.wall_micros();
        let now = Timestamp {
            seconds: micros.div_euclid(1_000_000),
            nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1000).unwrap_or_default(),
        };
        let mut text = String::new();
        if write_rfc3339(&mut text, &now).is_err() {
            return;
        }
        let mut text = text.into_bytes();
        text.extend_from_slice(b" ");
        text.extend_from_slice(source.as_bytes());
        text.extend_from_slice(b" ");
        text.extend_from_slice(line);
        text.push(b'\n');
        // What cannot be kept is lost; the next line may have more luck.
        if self.append(&text).is_err() {
            self.file = None;
        }
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let length = text.len() as u64;
        if let Some((_, size)) = &self.file
            && size + length > KEPT_OUTPUT_BYTES / 2
        {
            self.file = None;
            fs::rename(&self.path, &self.before)?;
        }
        if self.file.is_none() {
            self.file = Some(self.open()?);
        }
        if let Some((file, size)) = &mut self.file {
            file.write_all(text)?;
            *size += length;
        }
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        if let Some(directory) = self.path.parent() {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o755).create(directory)?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(no_follow())
            .open(&self.path)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }
}

/// Nobody is sent elsewhere by a link that an image has put there.
fn no_follow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kit::SystemClock;

    use super::*;

    fn output(directory: &std::path::Path) -> Output {
        let path = |name: &str| directory.join("log").join(name);
        Output::at(
            path("start.log"),
            path("start.log.1"),
            Arc::new(SystemClock::default()),
        )
    }

    fn lines(output: &Output) -> Vec<String> {
        let text = fs::read(&output.path).unwrap();
        let text = String::from_utf8_lossy(&text);
        let after_time = |line: &str| line.split_once(' ').unwrap().1.to_owned();
        text.lines().map(after_time).collect()
    }

    #[test]
    fn lines_of_both_sources_are_told_apart_however_they_come() {
        let directory = tempfile::tempdir().unwrap();
        let mut output = output(directory.path());
        for (source, text) in [
            (Source::Stdout, "one\ntw"),
            (Source::Stderr, "bad"),
            (Source::Stdout, "o\n\nthree"),
            (Source::Stderr, " news\n"),
        ] {
            output.take(source, &Bytes::from_static(text.as_bytes()));
        }
        output.finish(&EndEvent {
            status: "exit status 1".into(),
            ..EndEvent::default()
        });
        let expected = [
            "stdout one",
            "stdout two",
            "stdout ",
            "stderr bad news",
            "stdout three",
            "end exit status 1",
        ];
        assert_eq!(lines(&output), expected);
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_file_stays_small() {
        let directory = tempfile::tempdir().unwrap();
        let mut output = output(directory.path());
        let block = Bytes::from(vec![b'x'; 100_000]);
        for _ in 0..50 {
            output.take(Source::Stdout, &block);
        }
        assert!(
            lines(&output)
                .iter()
                .all(|line| line.len() <= KEPT_LINE + 7)
        );
        let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
        let whole = size(&output.path) + size(&output.before);
        assert!(whole <= KEPT_OUTPUT_BYTES, "{whole}");
        assert!(whole > KEPT_OUTPUT_BYTES / 2, "{whole}");
    }
}
