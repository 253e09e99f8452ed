//! Archives of files that clients upload: looked through before anything is done with them.
//!
//! The library reads headers that extend others, long names among them, into memory as a whole,
//! however long they say they are. So what it may read between the end of one entry and the next one
//! is bounded from below, by the reader it is given.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufReader, Read, Seek as _, SeekFrom},
    path::{Component, Path},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

/// What one archive may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files, directories and links.
    pub entries: usize,
    /// Bytes of all files, and of the archive that holds them, uncompressed.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 1 << 20,
            bytes: 32 << 30,
        }
    }
}

/// Bytes of all headers of one entry.
const MAX_HEADERS: u64 = 1 << 20;

/// Counts what is read, and ends it where there is too much.
struct Bounded<'b, R> {
    content: R,
    /// Of the whole archive.
    left: u64,
    /// Until the next entry must begin; none within one.
    headers: &'b Cell<Option<u64>>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        let too_much = |what: &str| io::Error::new(io::ErrorKind::FileTooLarge, what.to_owned());
        let bytes = read as u64;
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| too_much("there is too much of it"))?;
        if let Some(headers) = self.headers.get() {
            let left = headers.checked_sub(bytes);
            let left = left.ok_or_else(|| too_much("the headers of an entry are too long"))?;
            self.headers.set(Some(left));
        }
        Ok(read)
    }
}

/// The content of an archive that may be compressed.
///
/// # Errors
/// If it cannot be read.
pub fn plain(mut file: File) -> io::Result<Box<dyn Read + Send>> {
    // Whoever has read it before may have left it at its end.
    file.seek(SeekFrom::Start(0))?;
    let mut magic = [0; 2];
    let mut read = 0;
    while read < magic.len() {
        match file.read(&mut magic[read..])? {
            0 => break,
            more => read += more,
        }
    }
    file.seek(SeekFrom::Start(0))?;
    let file = BufReader::with_capacity(1 << 16, file);
    Ok(match magic {
        [0x1f, 0x8b] => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    })
}

/// Looks through an archive. Answers what is wrong with it, in words for whoever sent it.
///
/// # Errors
/// If a path leaves the context, something is neither file, directory nor link, there is too much of
/// it, or it is no archive.
pub fn check(content: impl Read, limits: Limits) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("the uploaded archive cannot be read: {error}");
    let headers = Cell::new(None);
    let mut archive = Archive::new(Bounded {
        content,
        left: limits.bytes,
        headers: &headers,
    });
    let (mut entries, mut bytes) = (0, 0_u64);
    let mut all = archive.entries().map_err(unreadable)?;
    loop {
        headers.set(Some(MAX_HEADERS));
        let Some(entry) = all.next() else { break };
        headers.set(None);
        let mut entry = entry.map_err(unreadable)?;
        let path = entry.path().map_err(unreadable)?;
        let shown = path.display();
        if !is_within(&path) {
            return Err(format!(
                "{shown:?} in the uploaded archive leaves the context"
            ));
        }
        match entry.header().entry_type() {
            EntryType::Regular
            | EntryType::Continuous
            | EntryType::Directory
            | EntryType::Symlink
            | EntryType::GNUSparse => {}
            EntryType::Link => {
                let target = entry.link_name().map_err(unreadable)?;
                if !target.is_some_and(|target| is_within(&target)) {
                    return Err(format!(
                        "{shown:?} in the uploaded archive is a link out of it"
                    ));
                }
            }
            _ => {
                return Err(format!(
                    "{shown:?} in the uploaded archive is neither a file nor a directory nor a link"
                ));
            }
        }
        entries += 1;
        bytes = bytes.saturating_add(entry.size());
        if entries > limits.entries || bytes > limits.bytes {
            return Err(format!(
                "the uploaded archive holds more than {} entries or {} bytes",
                limits.entries, limits.bytes
            ));
        }
        // Here, and not on the way to the next one, which is bounded.
        io::copy(&mut entry, &mut io::sink()).map_err(unreadable)?;
    }
    // What lies behind the end is sent inside like the rest.
    headers.set(None);
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(unreadable)?;
    Ok(())
}

fn is_within(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;

    fn archive(kind: EntryType, path: &str, link: Option<&str>) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        // By hand: the library would refuse it too.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(link) = link {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn what_leaves_the_context_or_is_no_file_is_refused_by_name() {
        let check = |bytes: Vec<u8>| check(bytes.as_slice(), Limits::default());
        assert_eq!(check(archive(EntryType::Regular, "a/./b", None)), Ok(()));
        // Where a link leads is the business of what is built.
        assert_eq!(
            check(archive(EntryType::Symlink, "a", Some("/etc"))),
            Ok(())
        );
        for (kind, path, link) in [
            (EntryType::Regular, "../a", None),
            (EntryType::Regular, "/etc/passwd", None),
            (EntryType::Directory, "a/../../b", None),
            (EntryType::Link, "a", Some("../b")),
            (EntryType::Char, "a", None),
            (EntryType::Fifo, "a", None),
        ] {
            let said = check(archive(kind, path, link)).unwrap_err();
            assert!(said.contains(path), "{said}");
        }
        let said = check(b"no archive".repeat(100)).unwrap_err();
        assert!(said.contains("cannot be read"), "{said}");
    }

    #[test]
    fn there_is_an_end_to_what_one_may_hold() {
        let bytes = archive(EntryType::Regular, "a", None);
        let none = Limits {
            entries: 0,
            bytes: 0,
        };
        assert!(check(bytes.as_slice(), none).is_err());
    }

    #[test]
    fn a_header_that_says_it_is_huge_is_not_read_whole() {
        for kind in [
            EntryType::GNULongName,
            EntryType::GNULongLink,
            EntryType::XHeader,
        ] {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(8 << 30);
            header.set_cksum();
            let content = header.as_bytes().chain(io::repeat(b'x'));
            let said = check(content, Limits::default()).unwrap_err();
            assert!(said.contains("headers of an entry"), "{said}");
        }
    }

    #[test]
    fn what_lies_behind_the_end_counts() {
        let bytes = archive(EntryType::Regular, "a", None);
        let limits = Limits {
            entries: 10,
            bytes: 1 << 20,
        };
        assert_eq!(check(bytes.as_slice(), limits), Ok(()));
        let said = check(bytes.as_slice().chain(io::repeat(0)), limits).unwrap_err();
        assert!(said.contains("too much"), "{said}");
    }

    #[test]
    fn compressed_or_not_it_reads_the_same() {
        let content = b"some content";
        let directory = tempfile::tempdir().unwrap();
        for compressed in [false, true] {
            let path = directory.path().join(compressed.to_string());
            let mut file = File::create(&path).unwrap();
            if compressed {
                let mut encoder = GzEncoder::new(file, Compression::fast());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap();
            } else {
                file.write_all(content).unwrap();
            }
            let file = File::open(&path).unwrap();
            for _ in 0..2 {
                let mut read = Vec::new();
                let mut reader = plain(file.try_clone().unwrap()).unwrap();
                reader.read_to_end(&mut read).unwrap();
                assert_eq!(read, content);
            }
        }
    }
}
