//! Files with holes, as the PAX format 1.0 of GNU tar has them: a list of the parts that hold data,
//! in decimal, then those parts. Go's library, and so every OCI tool, and Python's read it too.
//!
//! Without it a sandbox could write one byte at the end of eight exabytes, and a capture would fill
//! the host's disk with zeroes.

use std::{
    fs::File,
    io::{self, BufRead, Read},
    os::unix::fs::FileExt as _,
};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

/// Keys of the records.
pub(super) const MAJOR: &str = "GNU.sparse.major";
pub(super) const MINOR: &str = "GNU.sparse.minor";
pub(super) const NAME: &str = "GNU.sparse.name";
pub(super) const REAL_SIZE: &str = "GNU.sparse.realsize";

const BLOCK: usize = 512;
/// A hole that is worth an entry in the list.
const HOLE: u64 = 64 << 10;
/// More parts than any program makes by itself, and few enough to hold in memory.
pub(super) const MAX_PARTS: usize = 1 << 20;

/// A part that holds data: where it begins, and how long it is.
pub(super) type Part = (u64, u64);

/// The parts of a file that hold data; nothing where it has no hole worth the trouble. Ends early
/// with one part more than [`MAX_PARTS`].
pub(super) fn parts(file: &File, size: u64) -> io::Result<Option<Vec<Part>>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut at = 0;
    while at < size && parts.len() <= MAX_PARTS {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            begin => begin?.min(size),
        };
        let end = seek(file, SeekFrom::Hole(begin))?.min(size);
        match parts.last_mut() {
            Some((first, length)) if begin - (*first + *length) < HOLE => *length = end - *first,
            None if begin < HOLE => parts.push((0, end)),
            Some(_) | None => parts.push((begin, end - begin)),
        }
        at = end;
    }
    let kept = data(&parts);
    Ok((size - kept >= HOLE).then_some(parts))
}

/// How much data parts hold.
pub(super) fn data(parts: &[Part]) -> u64 {
    parts.iter().map(|(_, length)| length).sum()
}

/// The list as it is written before the data.
pub(super) fn list(parts: &[Part]) -> Vec<u8> {
    let mut text = format!("{}\n", parts.len());
    for (begin, length) in parts {
        text.push_str(&format!("{begin}\n{length}\n"));
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// The data of parts, one after the other. A file that is shorter by now is an error.
#[derive(Debug)]
pub(super) struct Data<'a> {
    pub(super) file: &'a File,
    pub(super) parts: std::slice::Iter<'a, Part>,
    current: Part,
}

impl<'a> Data<'a> {
    pub(super) fn new(file: &'a File, parts: &'a [Part]) -> Self {
        Self {
            file,
            parts: parts.iter(),
            current: (0, 0),
        }
    }
}

impl Read for Data<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.1 == 0 {
            match self.parts.next() {
                None => return Ok(0),
                Some(part) => self.current = *part,
            }
        }
        let (begin, length) = self.current;
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], begin)?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.current = (begin + read as u64, length - read as u64);
        Ok(read)
    }
}

/// Reads a list, and leaves the reader at the data.
pub(super) fn read_list(from: &mut dyn Read, size: u64) -> io::Result<Vec<Part>> {
    let malformed = || io::Error::other("a malformed list of parts");
    let mut from = Blocks {
        from,
        block: [0; BLOCK],
        at: BLOCK,
    };
    let count = from.number()?.ok_or_else(malformed)?;
    if count > MAX_PARTS as u64 {
        return Err(malformed());
    }
    let mut parts = Vec::new();
    let mut last = 0;
    for _ in 0..count {
        let begin = from.number()?.ok_or_else(malformed)?;
        let length = from.number()?.ok_or_else(malformed)?;
        let end = begin.checked_add(length).ok_or_else(malformed)?;
        if begin < last || end > size {
            return Err(malformed());
        }
        last = end;
        parts.push((begin, length));
    }
    Ok(parts)
}

/// Reads whole blocks, so that nothing of the data after the list is taken.
struct Blocks<'a> {
    from: &'a mut dyn Read,
    block: [u8; BLOCK],
    at: usize,
}

impl Blocks<'_> {
    /// A decimal number and the end of its line.
    fn number(&mut self) -> io::Result<Option<u64>> {
        let mut line = Vec::new();
        Read::by_ref(self).take(21).read_until(b'\n', &mut line)?;
        let text = line
            .strip_suffix(b"\n")
            .and_then(|l| std::str::from_utf8(l).ok());
        Ok(text.and_then(|text| text.parse().ok()))
    }
}

impl Read for Blocks<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let read = available.len().min(buffer.len());
        buffer[..read].copy_from_slice(&available[..read]);
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Blocks<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == BLOCK {
            self.from.read_exact(&mut self.block)?;
            self.at = 0;
        }
        Ok(&self.block[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount;
    }
}
