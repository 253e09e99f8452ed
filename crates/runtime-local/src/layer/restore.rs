//! From an archive to an upper directory.

use std::{
    ffi::CString,
    fs::File,
    io::{self, BufReader, Read, Seek as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use model::Digest;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT,
        Uid, XattrFlags, chownat, fchmod, fchown, fsetxattr, futimens, linkat, mkdirat, mknodat,
        openat, openat2, symlinkat, utimensat,
    },
    io::Errno,
};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Entry, EntryType};

use super::{
    HEX_XATTR, LITERAL, OPAQUE, WHITEOUT, XATTR,
    attributes::{Way, is_kept, translate},
    sparse,
};
use crate::{
    error::{Doing as _, EngineError, Result},
    ranges::Range,
};

/// Fills an empty upper directory from an archive, and proves that the archive is the one that
/// its digest names.
pub(crate) fn restore(archive: &Path, digest: &Digest, upper: &Path, range: Range) -> Result<()> {
    let file = File::open(archive).doing("open the layer")?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, upper, flags, Mode::empty()).doing("open the writable layer")?;
    let mut hashing = Hashing {
        inner: BufReader::with_capacity(1 << 18, file),
        hash: Sha256::new(),
    };
    let mut unpack = Unpack {
        top: top.as_fd(),
        range,
        times: Vec::new(),
    };
    unpack.all(&mut hashing).doing("unpack the layer")?;
    io::copy(&mut hashing, &mut io::sink()).doing("read the layer")?;
    let hex: String = hashing
        .hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if digest.as_str() != format!("sha256:{hex}") {
        return Err(EngineError::Damaged {
            what: format!("layer {digest}").into(),
            how: format!("its content is sha256:{hex}").into(),
        });
    }
    Ok(())
}

struct Unpack<'a> {
    top: BorrowedFd<'a>,
    range: Range,
    /// Directories get their times last: filling them changes those.
    times: Vec<(Vec<u8>, Timestamps)>,
}

/// What the records before an entry say about it.
#[derive(Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Vec<u8>,
    literal: bool,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// How long a file with holes is.
    real_size: Option<u64>,
}

impl Unpack<'_> {
    fn all(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut archive = Archive::new(from);
        // The library reads records line by line; a value may have lines of its own.
        let mut records = Records::default();
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            if entry.header().entry_type() == EntryType::XHeader {
                records = Records::read(&mut entry)?;
            } else {
                self.one(&mut entry, &std::mem::take(&mut records))?;
            }
        }
        for (path, times) in std::mem::take(&mut self.times).into_iter().rev() {
            let directory = self.open_directory(&path)?;
            futimens(&directory, &times)?;
        }
        Ok(())
    }

    fn one(&mut self, entry: &mut Entry<'_, &mut dyn Read>, records: &Records) -> io::Result<()> {
        let path = match &records.path {
            Some(path) => path.clone(),
            None => entry.path_bytes().into_owned(),
        };
        let path = path.strip_suffix(b"/").unwrap_or(&path);
        let path = if path == b"." { b"" } else { path };
        let (parent, name) = split(path)?;
        let parent_fd = self.open_directory(parent)?;
        let parent_fd = parent_fd.as_fd();

        if name == OPAQUE && !records.literal {
            let name = c"trusted.overlay.opaque";
            return Ok(fsetxattr(parent_fd, name, b"y", XattrFlags::empty())?);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT)
            && !records.literal
        {
            plain(hidden)?;
            let (kind, mode) = (FileType::CharacterDevice, Mode::empty());
            return Ok(mknodat(parent_fd, CString::new(hidden)?, kind, mode, 0)?);
        }

        let c_name = CString::new(name)?;
        let mode = Mode::from_raw_mode(entry.header().mode()? & 0o7777);
        let owner = self.owner(entry)?;
        let times = times(records, entry)?;
        match entry.header().entry_type() {
            EntryType::Directory => {
                let fd = if name.is_empty() {
                    self.top.try_clone_to_owned()?
                } else {
                    match mkdirat(parent_fd, &c_name, Mode::from_raw_mode(0o700)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    open_in(parent_fd, &c_name)?
                };
                self.times.push((path.to_vec(), times));
                self.dress(fd.as_fd(), owner, mode, records)
            }
            EntryType::Regular => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let fd = openat(parent_fd, &c_name, flags, Mode::from_raw_mode(0o600))?;
                let mut file = File::from(fd);
                match records.real_size {
                    None => drop(io::copy(entry, &mut file)?),
                    Some(size) => fill(&mut file, size, entry)?,
                }
                self.dress(file.as_fd(), owner, mode, records)?;
                Ok(futimens(&file, &times)?)
            }
            EntryType::Link => {
                let (target_parent, target_name) = split(&records.link)?;
                let target_parent = self.open_directory(target_parent)?;
                let target_name = CString::new(target_name)?;
                Ok(linkat(
                    target_parent,
                    target_name,
                    parent_fd,
                    &c_name,
                    AtFlags::empty(),
                )?)
            }
            EntryType::Symlink => {
                symlinkat(CString::new(records.link.as_slice())?, parent_fd, &c_name)?;
                self.dress_by_name(parent_fd, &c_name, owner, &times)
            }
            EntryType::Fifo => {
                mknodat(parent_fd, &c_name, FileType::Fifo, mode, 0)?;
                rustix::fs::chmodat(parent_fd, &c_name, mode, AtFlags::empty())?;
                self.dress_by_name(parent_fd, &c_name, owner, &times)
            }
            other => Err(io::Error::other(format!(
                "{} is of a kind no layer has: {other:?}",
                String::from_utf8_lossy(path)
            ))),
        }
    }

    fn owner(&self, entry: &Entry<'_, &mut dyn Read>) -> io::Result<(Uid, Gid)> {
        let outside = |id: u64| {
            u32::try_from(id)
                .ok()
                .and_then(|id| self.range.outside(id))
                .ok_or_else(|| io::Error::other(format!("user id {id} is not one of a sandbox's")))
        };
        let (uid, gid) = (entry.header().uid()?, entry.header().gid()?);
        Ok((Uid::from_raw(outside(uid)?), Gid::from_raw(outside(gid)?)))
    }

    /// Owner first: a change of owner takes away capabilities and setuid bits.
    fn dress(
        &self,
        fd: BorrowedFd<'_>,
        (uid, gid): (Uid, Gid),
        mode: Mode,
        records: &Records,
    ) -> io::Result<()> {
        fchown(fd, Some(uid), Some(gid))?;
        fchmod(fd, mode)?;
        for (name, value) in &records.xattrs {
            if !is_kept(name) {
                continue;
            }
            if let Some(value) = translate(name, value.clone(), Way::Outward(self.range)) {
                fsetxattr(
                    fd,
                    CString::new(name.as_slice())?,
                    &value,
                    XattrFlags::empty(),
                )?;
            }
        }
        Ok(())
    }

    fn dress_by_name(
        &self,
        parent: BorrowedFd<'_>,
        name: &CString,
        (uid, gid): (Uid, Gid),
        times: &Timestamps,
    ) -> io::Result<()> {
        chownat(
            parent,
            name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        Ok(utimensat(parent, name, times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// A directory of the layer. No name leads out of it, and no link is followed.
    fn open_directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return self.top.try_clone_to_owned();
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat2(
            self.top,
            CString::new(path)?,
            flags,
            Mode::empty(),
            resolve,
        )?)
    }
}

/// Writes the parts of a file that hold data; the rest of it stays a hole.
fn fill(file: &mut File, size: u64, entry: &mut Entry<'_, &mut dyn Read>) -> io::Result<()> {
    let parts = sparse::read_list(entry, size)?;
    file.set_len(size)?;
    for (begin, length) in parts {
        file.seek(io::SeekFrom::Start(begin))?;
        if io::copy(&mut entry.take(length), file)? != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn open_in(parent: BorrowedFd<'_>, name: &CString) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Directory and name of a path.
fn split(path: &[u8]) -> io::Result<(&[u8], &[u8])> {
    if path.starts_with(b"/") {
        return Err(io::Error::other("a path from the root"));
    }
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b""[..], path),
    };
    if !name.is_empty() {
        plain(name)?;
    } else if !path.is_empty() {
        return Err(io::Error::other("a path without a name"));
    }
    Ok((parent, name))
}

/// Refuses a name that is not one of a file in its directory.
fn plain(name: &[u8]) -> io::Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(io::Error::other(format!(
            "{:?} is not a file name",
            String::from_utf8_lossy(name)
        )));
    }
    Ok(())
}

/// More than any entry of a layer needs: names and attributes are bounded by the kernel.
const MAX_RECORDS: u64 = 16 << 20;

impl Records {
    /// Reads `length key=value` lines; the length counts the whole line, so a value may hold
    /// anything.
    fn read(entry: &mut Entry<'_, &mut dyn Read>) -> io::Result<Self> {
        let malformed = || io::Error::other("a malformed record");
        if entry.size() > MAX_RECORDS {
            return Err(malformed());
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        let mut records = Self::default();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let space = rest
                .iter()
                .position(|byte| *byte == b' ')
                .ok_or_else(malformed)?;
            let length = std::str::from_utf8(&rest[..space])
                .ok()
                .and_then(|text| text.parse().ok());
            let (line, after) = length
                .and_then(|length| rest.split_at_checked(length))
                .ok_or_else(malformed)?;
            let record = line
                .get(space + 1..)
                .and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or_else(malformed)?;
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(malformed)?;
            let key = std::str::from_utf8(&record[..equals]).map_err(io::Error::other)?;
            records.take(key, record[equals + 1..].to_vec())?;
            rest = after;
        }
        Ok(records)
    }

    fn take(&mut self, key: &str, value: Vec<u8>) -> io::Result<()> {
        if key == "path" {
            self.path = Some(value);
        } else if key == "linkpath" {
            self.link = value;
        } else if key == sparse::NAME {
            self.path = Some(value);
        } else if key == sparse::REAL_SIZE {
            let size = std::str::from_utf8(&value)
                .ok()
                .and_then(|v| v.parse().ok());
            self.real_size = Some(size.ok_or_else(|| io::Error::other("a malformed size"))?);
        } else if key == "mtime" {
            self.mtime = parse_time(&value);
        } else if key == LITERAL {
            self.literal = true;
        } else if let Some(name) = key.strip_prefix(XATTR) {
            self.xattrs.push((name.as_bytes().to_vec(), value));
        } else if let Some(hex) = key.strip_prefix(HEX_XATTR) {
            let name = parse_hex(hex).ok_or_else(|| io::Error::other("an attribute's name"))?;
            self.xattrs.push((name, value));
        }
        Ok(())
    }
}

fn parse_hex(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Seconds, and a fraction of up to nine digits.
fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some((seconds.parse().ok()?, nanoseconds))
}

fn times(records: &Records, entry: &Entry<'_, &mut dyn Read>) -> io::Result<Timestamps> {
    let (seconds, nanoseconds) = match records.mtime {
        Some(mtime) => mtime,
        None => (i64::try_from(entry.header().mtime()?).unwrap_or(0), 0),
    };
    Ok(Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.into(),
        },
    })
}

struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}
