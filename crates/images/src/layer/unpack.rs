//! From an archive to a directory.
//!
//! The archive may be anybody's, and this runs as the host's root. So no path is resolved but
//! beneath the directory and without following a link, nothing that is there is ever opened for
//! writing or replaced, devices are not made, and sizes are counted as they come. The first entry
//! that breaks a rule ends it and is named; what was made until then is the caller's to remove.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read, Seek as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT,
        Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fremovexattr, fsetxattr, futimens,
        linkat, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};

use super::{
    DEPTH, Ids, OPAQUE, OPAQUE_XATTR, WHITEOUT,
    archive::{Archive, Content, Entry, Kind},
    attributes::{Way, is_kept, translate},
    lowers::{Below, Lowers, xattrs},
    sparse,
};
use crate::error::{Doing as _, Hostile, Result};

/// What one layer may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Headers in its archive.
    pub entries: u64,
    /// Bytes of its archive, uncompressed.
    pub bytes: u64,
}

impl Limits {
    /// For what was captured on this host: it has been on this disk already.
    pub const NONE: Self = Self {
        entries: u64::MAX,
        bytes: u64::MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 2_000_000,
            bytes: 64 << 30,
        }
    }
}

/// Fills an empty directory from an archive, and reads the archive to its end. `lowers` are the
/// layers below, uppermost first.
///
/// # Errors
/// If an entry breaks a rule, which is then named, or the disk fails.
pub fn unpack(
    archive: impl Read,
    into: &Path,
    lowers: &[&Path],
    ids: Ids,
    limits: Limits,
) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, into, flags, Mode::empty()).doing("open the layer's directory")?;
    let mut archive = Archive::new(archive, limits.entries, limits.bytes);
    let again = || top.try_clone().doing("open the layer's directory");
    let mut unpack = Unpack {
        top: top.as_fd(),
        lowers: Lowers::open(again()?, lowers)?,
        ids,
        times: Vec::new(),
        parent: (Vec::new(), again()?),
        buffer: vec![0; 1 << 17],
    };
    while let Some(entry) = archive.next()? {
        unpack.one(&entry, &mut archive)?;
    }
    archive.finish()?;
    unpack.set_times()
}

struct Unpack<'a> {
    top: BorrowedFd<'a>,
    lowers: Lowers,
    ids: Ids,
    /// Directories get their times last: filling them changes those.
    times: Vec<(Vec<u8>, Timestamps)>,
    /// The directory of the last entry: most often the next one's, too. Directories stay what they
    /// are once they are made.
    parent: (Vec<u8>, OwnedFd),
    buffer: Vec<u8>,
}

impl Unpack<'_> {
    fn one<R: Read>(&mut self, entry: &Entry, archive: &mut Archive<R>) -> Result<()> {
        let path = clean(&entry.path).map_err(|why| entry.hostile(why))?;
        if path.is_empty() {
            return self.top_itself(entry);
        }
        let (parent, name) = split(&path);
        if entry.kind == Kind::Device {
            // A sandbox has devices of its own at `/dev`; images made of a whole system bring some.
            return match parent == b"dev" || parent.starts_with(b"dev/") {
                true => Ok(()),
                false => Err(entry.hostile(Hostile::Device)),
            };
        }
        self.enter(entry, parent)?;
        let there = self.parent.1.as_fd();
        let on = Target { there, entry };
        if !entry.literal && name.starts_with(WHITEOUT) {
            return on.whiteout(name);
        }
        let name = CString::new(name).map_err(|_| entry.hostile(Hostile::Name))?;
        let owner = self.owner(entry)?;
        let mode = Mode::from_raw_mode(entry.mode);
        match entry.kind {
            Kind::Directory => {
                let (fd, new) = on.directory(&name)?;
                if !new {
                    undress(fd.as_fd()).doing("take the attributes of a directory away")?;
                }
                dress(fd.as_fd(), owner, mode, entry, self.ids)?;
                self.times.push((path, times(entry)));
                Ok(())
            }
            Kind::File => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let private = Mode::from_raw_mode(0o600);
                let mut file = File::from(on.make(&name, || openat(there, &name, flags, private))?);
                match entry.real_size {
                    None => self.copy(archive, &mut file, u64::MAX).map(drop)?,
                    Some(size) => self.copy_parts(entry, archive, &mut file, size)?,
                }
                dress(file.as_fd(), owner, mode, entry, self.ids)?;
                futimens(&file, &times(entry)).doing("set the times of a file")
            }
            Kind::Link => {
                let target = clean(&entry.link).map_err(|_| entry.hostile(Hostile::Link))?;
                self.link(entry, &target, &name)
            }
            Kind::Symlink => {
                let target = CString::new(entry.link.as_slice());
                let target = target.map_err(|_| entry.hostile(Hostile::Link))?;
                on.make(&name, || symlinkat(&target, there, &name))?;
                on.dress_by_name(&name, owner)
            }
            Kind::Fifo => {
                on.make(&name, || mknodat(there, &name, FileType::Fifo, mode, 0))?;
                on.dress_by_name(&name, owner)?;
                // After the owner, which takes bits of it away.
                chmodat(there, &name, mode, AtFlags::empty()).doing("set the mode of a pipe")
            }
            Kind::Device => Ok(()),
        }
    }

    /// Writes content to a file, up to `most` bytes.
    fn copy<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        file: &mut File,
        most: u64,
    ) -> Result<u64> {
        let mut copied = 0;
        while copied < most {
            let room = usize::try_from(most - copied)
                .map_or(self.buffer.len(), |left| left.min(self.buffer.len()));
            match archive.read(&mut self.buffer[..room])? {
                0 => break,
                read => {
                    let written = file.write_all(&self.buffer[..read]);
                    written.doing("write a file of the layer")?;
                    copied += read as u64;
                }
            }
        }
        Ok(copied)
    }

    /// Writes the parts of a file that hold data; the rest of it stays a hole.
    fn copy_parts<R: Read>(
        &mut self,
        entry: &Entry,
        archive: &mut Archive<R>,
        file: &mut File,
        size: u64,
    ) -> Result<()> {
        let mut content = Content::of(archive);
        let parts = sparse::read_list(&mut content, size).map_err(|_| {
            let failure = content.failure.take();
            failure.unwrap_or_else(|| entry.hostile(Hostile::Records))
        })?;
        match file.set_len(size) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(entry.hostile(Hostile::Bytes));
            }
            // Beyond what any file can be.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(entry.hostile(Hostile::Bytes));
            }
            other => other.doing("make a file of the layer")?,
        }
        for (begin, length) in parts {
            let moved = file.seek(io::SeekFrom::Start(begin));
            moved.doing("write a file of the layer")?;
            if self.copy(archive, file, length)? != length {
                return Err(entry.hostile(Hostile::Cut));
            }
        }
        Ok(())
    }

    fn top_itself(&mut self, entry: &Entry) -> Result<()> {
        if entry.kind != Kind::Directory {
            return Err(entry.hostile(Hostile::Name));
        }
        let mode = Mode::from_raw_mode(entry.mode);
        dress(self.top, self.owner(entry)?, mode, entry, self.ids)?;
        self.times.push((Vec::new(), times(entry)));
        Ok(())
    }

    fn link(&self, entry: &Entry, target: &[u8], name: &CStr) -> Result<()> {
        let wrong = || entry.hostile(Hostile::Link);
        let (parent, target) = split(target);
        let target = CString::new(target).map_err(|_| wrong())?;
        let from = match open_beneath(self.top, parent) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => return Err(wrong()),
            other => other.doing("open the directory of a link's target")?,
        };
        let found = match statat(&from, &target, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(wrong()),
            other => other.doing("look at a link's target")?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {}
            _ => return Err(wrong()),
        }
        let there = self.parent.1.as_fd();
        Target { there, entry }.make(name, || {
            linkat(&from, &target, there, name, AtFlags::empty())
        })
    }

    fn owner(&self, entry: &Entry) -> Result<(Uid, Gid)> {
        let outside = |id| {
            let outside = self.ids.outside(id);
            outside.ok_or_else(|| entry.hostile(Hostile::Owner))
        };
        Ok((
            Uid::from_raw(outside(entry.uid)?),
            Gid::from_raw(outside(entry.gid)?),
        ))
    }

    /// Makes a directory of the layer the one at hand, with what the archive left out.
    fn enter(&mut self, entry: &Entry, path: &[u8]) -> Result<()> {
        if self.parent.0 == path {
            return Ok(());
        }
        let through = || entry.hostile(Hostile::Through);
        let fd = match open_beneath(self.top, path) {
            Err(Errno::NOENT) => self.make_left_out(entry, path)?,
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => return Err(through()),
            Err(Errno::NAMETOOLONG) => return Err(entry.hostile(Hostile::Name)),
            other => other.doing("open a directory of the layer")?,
        };
        self.parent = (path.to_vec(), fd);
        Ok(())
    }

    fn make_left_out(&mut self, entry: &Entry, path: &[u8]) -> Result<OwnedFd> {
        let mut at = self.top.try_clone_to_owned().doing("open the layer")?;
        let mut end = 0;
        for name in path.split(|byte| *byte == b'/') {
            end += name.len();
            let so_far = &path[..end];
            end += 1;
            let c_name = CString::new(name).map_err(|_| entry.hostile(Hostile::Name))?;
            at = match open_in(at.as_fd(), &c_name) {
                Ok(there) => there,
                Err(Errno::NOENT) => self.make_as_below(entry, at.as_fd(), &c_name, so_far)?,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    return Err(entry.hostile(Hostile::Through));
                }
                Err(Errno::NAMETOOLONG) => return Err(entry.hostile(Hostile::Name)),
                Err(error) => return Err(error).doing("open a directory of the layer"),
            };
        }
        Ok(at)
    }

    fn make_as_below(
        &mut self,
        entry: &Entry,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
    ) -> Result<OwnedFd> {
        let below = self.lowers.find(path)?;
        if matches!(below, Below::Other) {
            return Err(entry.hostile(Hostile::Through));
        }
        let make = || {
            mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            let fd = open_in(parent, name)?;
            match &below {
                Below::Directory { stat, xattrs } => {
                    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                    fchown(&fd, Some(uid), Some(gid))?;
                    fchmod(&fd, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
                    for (name, value) in xattrs {
                        fsetxattr(&fd, name, value, XattrFlags::empty())?;
                    }
                }
                Below::Nothing | Below::Other => {
                    let root = self.ids.outside(0).unwrap_or(0);
                    fchown(&fd, Some(Uid::from_raw(root)), Some(Gid::from_raw(root)))?;
                    fchmod(&fd, Mode::from_raw_mode(0o755))?;
                }
            }
            Ok::<_, Errno>(fd)
        };
        let fd = make().doing("make a directory of the layer")?;
        if let Below::Directory { stat, .. } = below {
            let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
            self.times
                .push((path.to_vec(), timestamps(stat.st_mtime, nanoseconds)));
        }
        Ok(fd)
    }

    fn set_times(&mut self) -> Result<()> {
        for (path, times) in std::mem::take(&mut self.times) {
            let directory = open_beneath(self.top, &path).doing("open a directory again")?;
            futimens(&directory, &times).doing("set the times of a directory")?;
        }
        Ok(())
    }
}

/// Where an entry goes.
#[derive(Clone, Copy)]
struct Target<'a> {
    there: BorrowedFd<'a>,
    entry: &'a Entry,
}

impl Target<'_> {
    fn whiteout(self, name: &[u8]) -> Result<()> {
        let wrong = || self.entry.hostile(Hostile::Whiteout);
        if self.entry.kind != Kind::File {
            return Err(wrong());
        }
        if name == OPAQUE {
            return self.opaque(self.there);
        }
        let hidden = &name[WHITEOUT.len()..];
        if hidden.is_empty() || hidden == b"." || hidden == b".." || hidden.starts_with(WHITEOUT) {
            return Err(wrong());
        }
        let hidden = CString::new(hidden).map_err(|_| wrong())?;
        let device = FileType::CharacterDevice;
        match mknodat(self.there, &hidden, device, Mode::empty(), 0) {
            // It hides what is below; what this layer has itself stays.
            Err(Errno::EXIST) => match open_in(self.there, &hidden) {
                Ok(directory) => self.opaque(directory.as_fd()),
                Err(Errno::NOTDIR | Errno::LOOP) if !self.is_whiteout(&hidden)? => Ok(()),
                Err(Errno::NOTDIR | Errno::LOOP) => Err(self.entry.hostile(Hostile::Duplicate)),
                Err(error) => Err(error).doing("look at what is hidden"),
            },
            Err(Errno::NAMETOOLONG) => Err(wrong()),
            other => other.doing("make a whiteout"),
        }
    }

    fn opaque(self, directory: BorrowedFd<'_>) -> Result<()> {
        let flags = XattrFlags::empty();
        fsetxattr(directory, OPAQUE_XATTR, b"y", flags).doing("make a directory opaque")
    }

    /// Only this layer's own whiteouts are such devices: others are refused.
    fn is_whiteout(self, name: &CStr) -> Result<bool> {
        let stat = statat(self.there, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.doing("look at a name that is there")?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
    }

    /// A directory, and whether it is new.
    fn directory(self, name: &CStr) -> Result<(OwnedFd, bool)> {
        let opened = match mkdirat(self.there, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => open_in(self.there, name).map(|fd| (fd, true)),
            Err(Errno::EXIST) => open_in(self.there, name).map(|fd| (fd, false)),
            Err(error) => Err(error),
        };
        match opened {
            Err(Errno::NOTDIR | Errno::LOOP) if self.is_whiteout(name)? => {
                let make = || {
                    unlinkat(self.there, name, AtFlags::empty())?;
                    mkdirat(self.there, name, Mode::from_raw_mode(0o700))?;
                    open_in(self.there, name)
                };
                let fd = make().doing("make a directory of the layer")?;
                self.opaque(fd.as_fd())?;
                Ok((fd, true))
            }
            Err(Errno::NOTDIR | Errno::LOOP) => Err(self.entry.hostile(Hostile::Duplicate)),
            Err(Errno::NAMETOOLONG) => Err(self.entry.hostile(Hostile::Name)),
            other => other.doing("make a directory of the layer"),
        }
    }

    /// Makes something new; a whiteout of the same layer gives way.
    fn make<T>(self, name: &CStr, make: impl Fn() -> rustix::io::Result<T>) -> Result<T> {
        match make() {
            Err(Errno::EXIST) if self.is_whiteout(name)? => {
                unlinkat(self.there, name, AtFlags::empty()).doing("remove a whiteout")?;
                make().doing("make an entry of the layer")
            }
            Err(Errno::EXIST) => Err(self.entry.hostile(Hostile::Duplicate)),
            Err(Errno::NAMETOOLONG) => Err(self.entry.hostile(Hostile::Name)),
            // An empty target.
            Err(Errno::NOENT) => Err(self.entry.hostile(Hostile::Link)),
            other => other.doing("make an entry of the layer"),
        }
    }

    fn dress_by_name(self, name: &CStr, (uid, gid): (Uid, Gid)) -> Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(self.there, name, Some(uid), Some(gid), flags).doing("give an entry its owner")?;
        utimensat(self.there, name, &times(self.entry), flags).doing("set the times of an entry")
    }
}

/// Owner first: a change of owner takes away capabilities and setuid bits.
fn dress(
    fd: BorrowedFd<'_>,
    (uid, gid): (Uid, Gid),
    mode: Mode,
    entry: &Entry,
    ids: Ids,
) -> Result<()> {
    fchown(fd, Some(uid), Some(gid)).doing("give an entry its owner")?;
    fchmod(fd, mode).doing("give an entry its mode")?;
    for (name, value) in &entry.xattrs {
        if !is_kept(name) {
            continue;
        }
        let Some(value) = translate(name, value.clone(), Way::Outward(ids)) else {
            continue;
        };
        let wrong = || entry.hostile(Hostile::Attribute);
        let name = CString::new(name.as_slice()).map_err(|_| wrong())?;
        match fsetxattr(fd, &name, &value, XattrFlags::empty()) {
            Err(Errno::INVAL | Errno::RANGE | Errno::TOOBIG) => return Err(wrong()),
            other => other.doing("give an entry its attribute")?,
        }
    }
    Ok(())
}

/// Takes away what a directory got from the one below, before its own entry came.
fn undress(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    for (name, _) in xattrs(fd)? {
        fremovexattr(fd, &name)?;
    }
    Ok(())
}

/// A directory of the layer. No name leads out of it, and no link is followed.
fn open_beneath(top: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if path.is_empty() { b"." } else { path };
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    openat2(top, path, flags, Mode::empty(), resolve)
}

fn open_in(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// A path without `.` and doubled slashes; empty for the top itself.
fn clean(path: &[u8]) -> Result<Vec<u8>, Hostile> {
    if path.starts_with(b"/") {
        return Err(Hostile::Absolute);
    }
    if path.is_empty() {
        return Err(Hostile::Name);
    }
    let mut cleaned = Vec::with_capacity(path.len());
    let mut depth = 0;
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => continue,
            b".." => return Err(Hostile::Parent),
            _ => {}
        }
        depth += 1;
        if depth > DEPTH {
            return Err(Hostile::Deep);
        }
        if !cleaned.is_empty() {
            cleaned.push(b'/');
        }
        cleaned.extend(name);
    }
    Ok(cleaned)
}

/// Directory and name of a path that is clean.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn times(entry: &Entry) -> Timestamps {
    timestamps(entry.mtime.0, entry.mtime.1)
}

fn timestamps(seconds: i64, nanoseconds: u32) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.into(),
        },
    }
}
