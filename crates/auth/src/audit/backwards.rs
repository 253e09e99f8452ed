//! The lines of a file, last one first.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

const BLOCK: u64 = 1 << 18;

/// Whole lines with the place where each begins, from the last one to the first.
pub(super) struct Backwards {
    file: File,
    /// Everything from here on was read.
    start: u64,
    /// What was read and not given out yet.
    held: Vec<u8>,
}

impl Backwards {
    /// Begins at a place right after a line, or at the end of the file, where half a line is left
    /// out: it is being written right now.
    pub(super) fn new(mut file: File, end: Option<u64>) -> io::Result<Self> {
        let length = file.seek(SeekFrom::End(0))?;
        let mut lines = Self {
            file,
            start: end.unwrap_or(length).min(length),
            held: Vec::new(),
        };
        while !lines.held.contains(&b'\n') && lines.start > 0 {
            lines.read_block()?;
        }
        let whole = lines.held.iter().rposition(|b| *b == b'\n');
        lines.held.truncate(whole.map_or(0, |last| last + 1));
        Ok(lines)
    }

    fn read_block(&mut self) -> io::Result<()> {
        let length = self.start.min(BLOCK);
        self.start -= length;
        let mut block = vec![0; usize::try_from(length).unwrap_or_default()];
        self.file.seek(SeekFrom::Start(self.start))?;
        self.file.read_exact(&mut block)?;
        block.append(&mut self.held);
        self.held = block;
        Ok(())
    }
}

impl Iterator for Backwards {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let before_the_end = self.held.len().checked_sub(1);
            let found = before_the_end.and_then(|end| {
                let earlier = self.held.get(..end)?;
                earlier.iter().rposition(|b| *b == b'\n')
            });
            let begins = match (found, self.start) {
                (Some(newline), _) => newline + 1,
                (None, 0) if self.held.is_empty() => return None,
                (None, 0) => 0,
                (None, _) => match self.read_block() {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                },
            };
            let line = self.held.split_off(begins);
            return Some(Ok((self.start + begins as u64, line)));
        }
    }
}
