//! The entries of an archive: tar as POSIX, GNU and Go write it.
//!
//! Read block by block here and not by a library's iterator, because every number and every name
//! is decided on before anything is believed: a size from a record must bound the content, a value
//! may hold newlines, a name need not be text.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::{HEX_XATTR, LITERAL, XATTR, sparse};
use crate::error::{Doing as _, Hostile, ImageError, Result};

/// Size of a header, and what content is padded to.
const BLOCK: usize = 512;
/// More than any entry needs: names and attributes are bounded by the kernel.
const MAX_RECORDS: u64 = 1 << 20;
/// Longest path and longest target of a link.
const MAX_PATH: usize = 4096;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    File,
    Link,
    Symlink,
    Fifo,
    Device,
}

/// An entry; its content is read from the archive.
#[derive(Debug)]
pub(super) struct Entry {
    /// As it is written.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    /// Where a link leads.
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds.
    pub(super) mtime: (i64, u32),
    /// Not a whiteout, though its name looks like one.
    pub(super) literal: bool,
    /// How long a file with holes is; its content is then a list of parts, and those.
    pub(super) real_size: Option<u64>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    pub(super) fn hostile(&self, why: Hostile) -> ImageError {
        hostile(&self.path, why)
    }
}

pub(super) fn hostile(path: &[u8], why: Hostile) -> ImageError {
    let shown = &path[..path.len().min(256)];
    ImageError::Hostile {
        entry: String::from_utf8_lossy(shown).into(),
        why,
    }
}

/// Reads entries one after the other.
pub(super) struct Archive<R> {
    from: R,
    /// Content of the entry at hand that nobody has read yet, and the padding after it.
    left: u64,
    padding: u64,
    entries_left: u64,
    bytes_left: u64,
    /// Name of the entry at hand, for errors.
    at: Vec<u8>,
}

impl<R: Read> Archive<R> {
    pub(super) const fn new(from: R, entries: u64, bytes: u64) -> Self {
        Self {
            from,
            left: 0,
            padding: 0,
            entries_left: entries,
            bytes_left: bytes,
            at: Vec::new(),
        }
    }

    /// The next entry; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        let mut records = Records::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            self.entries_left = self
                .entries_left
                .checked_sub(1)
                .ok_or_else(|| self.bad(Hostile::Entries))?;
            let mut size = header.entry_size().map_err(|_| self.bad(Hostile::Header))?;
            let kind = header.entry_type();
            let is_entry = !matches!(
                kind,
                EntryType::XHeader
                    | EntryType::XGlobalHeader
                    | EntryType::GNULongName
                    | EntryType::GNULongLink
            );
            if is_entry && let Some(recorded) = records.size {
                size = recorded;
            }
            // Only files have content, whatever the header of a link says.
            if matches!(kind, EntryType::Link | EntryType::Symlink) {
                size = 0;
            }
            self.left = size;
            self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
            match kind {
                EntryType::XHeader => {
                    let bytes = self.small()?;
                    records
                        .read(&bytes)
                        .ok_or_else(|| self.bad(Hostile::Records))?;
                }
                // About the archive, not about an entry.
                EntryType::XGlobalHeader => {}
                EntryType::GNULongName => records.path = Some(until_nul(self.small()?)),
                EntryType::GNULongLink => records.link = Some(until_nul(self.small()?)),
                other => return self.entry(&header, other, records).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header, kind: EntryType, records: Records) -> Result<Entry> {
        let path = match records.path {
            Some(path) => path,
            None => header.path_bytes().into_owned(),
        };
        self.at.clone_from(&path);
        if path.len() > MAX_PATH || path.contains(&0) {
            return Err(self.bad(Hostile::Name));
        }
        let kind = match kind {
            EntryType::Directory => Kind::Directory,
            // How archives of old name a directory.
            EntryType::Regular if path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Link => Kind::Link,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => Kind::Device,
            _ => return Err(self.bad(Hostile::Kind)),
        };
        let real_size = match records.sparse {
            Sparse::No => None,
            Sparse::Version(1, 0) if kind == Kind::File && records.real_size.is_some() => {
                records.real_size
            }
            Sparse::Version(..) => return Err(self.bad(Hostile::Kind)),
        };
        let link = match records.link {
            Some(link) => link,
            None => header.link_name_bytes().unwrap_or_default().into_owned(),
        };
        if link.len() > MAX_PATH || link.contains(&0) {
            return Err(self.bad(Hostile::Link));
        }
        let field = |at: std::ops::Range<usize>, parsed: io::Result<u64>| {
            // Some writers leave out what does not matter to them.
            let blank = |byte: &u8| *byte == 0 || *byte == b' ';
            match header.as_bytes()[at].iter().all(blank) {
                true => Some(0),
                false => parsed.ok(),
            }
        };
        let id = |recorded: Option<u64>, at, parsed| {
            let id = recorded.or_else(|| field(at, parsed))?;
            // The last one means "leave it".
            u32::try_from(id).ok().filter(|id| *id != u32::MAX)
        };
        let mode = field(100..108, header.mode().map(u64::from));
        Ok(Entry {
            kind,
            link,
            mode: mode
                .and_then(|mode| u32::try_from(mode & 0o7777).ok())
                .ok_or_else(|| self.bad(Hostile::Header))?,
            uid: id(records.uid, 108..116, header.uid()).ok_or_else(|| self.bad(Hostile::Owner))?,
            gid: id(records.gid, 116..124, header.gid()).ok_or_else(|| self.bad(Hostile::Owner))?,
            mtime: records.mtime.unwrap_or_else(|| {
                let seconds = header.mtime().unwrap_or(0);
                (i64::try_from(seconds).unwrap_or(0), 0)
            }),
            literal: records.literal,
            real_size,
            xattrs: records.xattrs,
            path,
        })
    }

    /// Reads on behind the last entry up to the end: what the digest covers, too.
    pub(super) fn finish(&mut self) -> Result<()> {
        let mut buffer = [0; 1 << 14];
        while self.fill(&mut buffer)? > 0 {}
        Ok(())
    }

    /// Content of the entry at hand; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if most == 0 {
            return Ok(0);
        }
        let read = self.fill(&mut buffer[..most])?;
        if read == 0 {
            return Err(self.bad(Hostile::Cut));
        }
        self.left -= read as u64;
        Ok(read)
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let mut zeroes = 0;
        loop {
            let block = header.as_mut_bytes();
            let mut filled = 0;
            while filled < BLOCK {
                match self.fill(&mut block[filled..])? {
                    0 => break,
                    read => filled += read,
                }
            }
            match filled {
                // Some writers leave the end out.
                0 => return Ok(None),
                BLOCK => {}
                _ => return Err(self.bad(Hostile::Cut)),
            }
            if block.iter().any(|byte| *byte != 0) {
                break;
            }
            zeroes += 1;
            if zeroes == 2 {
                return Ok(None);
            }
        }
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let bytes = header.as_bytes();
        let actual = sum(&bytes[..148]) + 8 * u32::from(b' ') + sum(&bytes[156..]);
        match header.cksum() {
            Ok(said) if said == actual => Ok(Some(header)),
            Ok(_) | Err(_) => Err(self.bad(Hostile::Header)),
        }
    }

    /// Content that is kept in memory.
    fn small(&mut self) -> Result<Vec<u8>> {
        if self.left > MAX_RECORDS {
            return Err(self.bad(Hostile::Records));
        }
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(bytes),
                read => bytes.extend(&buffer[..read]),
            }
        }
    }

    /// Passes what is left of the entry at hand.
    fn skip(&mut self) -> Result<()> {
        let mut buffer = [0; 1 << 14];
        while self.read(&mut buffer)? > 0 {}
        let mut padding = std::mem::take(&mut self.padding);
        while padding > 0 {
            let most = usize::try_from(padding).map_or(BLOCK, |left| left.min(BLOCK));
            match self.fill(&mut buffer[..most])? {
                0 => return Err(self.bad(Hostile::Cut)),
                read => padding -= read as u64,
            }
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let read = match self.from.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Not the disk but what is written on it: a damaged compression.
                Err(error) if error.raw_os_error().is_none() => {
                    return Err(ImageError::malformed("the layer's compression", error));
                }
                other => other.doing("read the layer")?,
            };
            self.bytes_left = self
                .bytes_left
                .checked_sub(read as u64)
                .ok_or_else(|| self.bad(Hostile::Bytes))?;
            return Ok(read);
        }
    }

    fn bad(&self, why: Hostile) -> ImageError {
        hostile(&self.at, why)
    }
}

/// The content of the entry at hand, for what reads from anything.
pub(super) struct Content<'a, R> {
    archive: &'a mut Archive<R>,
    pub(super) failure: Option<ImageError>,
}

impl<'a, R: Read> Content<'a, R> {
    pub(super) const fn of(archive: &'a mut Archive<R>) -> Self {
        Self {
            archive,
            failure: None,
        }
    }
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.archive.read(buffer).map_err(|error| {
            self.failure = Some(error);
            io::Error::other("the archive failed")
        })
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.unwrap_or(bytes.len()));
    bytes
}

/// What the headers before an entry say about it.
#[derive(Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    literal: bool,
    sparse: Sparse,
    real_size: Option<u64>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Whether and how a file has its holes left out.
#[derive(Clone, Copy, Default)]
enum Sparse {
    #[default]
    No,
    Version(u64, u64),
}

impl Records {
    /// Reads `length key=value` lines; the length counts the whole line, so a value may hold
    /// anything. None where that is not what they are.
    fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = rest.iter().position(|byte| *byte == b' ')?;
            let length = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
            let (line, after) = rest.split_at_checked(length)?;
            let record = line.get(space + 1..)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let key = std::str::from_utf8(&record[..equals]).ok()?;
            self.take(key, &record[equals + 1..])?;
            rest = after;
        }
        Some(())
    }

    fn take(&mut self, key: &str, value: &[u8]) -> Option<()> {
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        match key {
            "path" => self.path = Some(value.to_vec()),
            "linkpath" => self.link = Some(value.to_vec()),
            "size" => self.size = Some(number()?),
            "uid" => self.uid = Some(number()?),
            "gid" => self.gid = Some(number()?),
            "mtime" => self.mtime = Some(parse_time(value)?),
            LITERAL => self.literal = true,
            sparse::NAME => self.path = Some(value.to_vec()),
            sparse::REAL_SIZE => self.real_size = Some(number()?),
            sparse::MAJOR | sparse::MINOR => {
                let (major, minor) = match self.sparse {
                    Sparse::No => (0, 0),
                    Sparse::Version(major, minor) => (major, minor),
                };
                self.sparse = match key == sparse::MAJOR {
                    true => Sparse::Version(number()?, minor),
                    false => Sparse::Version(major, number()?),
                };
            }
            // An older way to say it.
            _ if key.starts_with("GNU.sparse.") => self.sparse = Sparse::Version(0, 1),
            _ => {
                let name = match key.strip_prefix(XATTR) {
                    Some(name) => name.as_bytes().to_vec(),
                    None => match key.strip_prefix(HEX_XATTR) {
                        Some(hex) => parse_hex(hex)?,
                        None => return Some(()),
                    },
                };
                self.xattrs.push((name, value.to_vec()));
            }
        }
        Some(())
    }
}

fn parse_hex(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Seconds, and a fraction of which nine digits count.
fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some((seconds.parse().ok()?, nanoseconds))
}
