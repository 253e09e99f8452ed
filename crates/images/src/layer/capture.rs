//! From an upper directory to an archive.
//!
//! An upper directory may lie on an earlier captured layer, which lies on an image. Then the archive
//! holds both, as if one layer had been written all along: what the upper one says goes, whatever it
//! hides of the earlier one is left out, and what the earlier one hides of the image stays hidden.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{CStr, CString},
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    thread,
};

use failpoints::{Step, reached};
use model::Digest;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, openat, readlinkat,
    statat,
};
use tar::{Builder, EntryType, Header};

use super::{
    DEPTH, HEX_XATTR, Ids, LITERAL, OPAQUE, WHITEOUT, XATTR,
    attributes::{Way, is_kept, translate},
    lowers::Lowers,
    sparse,
};
use crate::{
    digest::{Hashing, finish, hex},
    error::{Doing as _, ImageError, Result},
    store::Note,
};

/// Why there is no archive.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    /// No archive can hold this, today or tomorrow.
    Refused(String),
}

impl<E: Into<io::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

/// What is captured: directories as overlayfs has them, which nobody changes meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// What was written last.
    pub upper: &'a Path,
    /// The captured layer that it lies on, if that becomes part of the archive.
    pub earlier: Option<Earlier<'a>>,
    /// Whose ids are in there.
    pub ids: Ids,
}

/// A captured layer, unpacked.
#[derive(Clone, Copy, Debug)]
pub struct Earlier<'a> {
    /// Its directory.
    pub layer: &'a Path,
    /// The layers of the image that it lies on, uppermost first.
    pub image: &'a [&'a Path],
}

/// Writes the archive of a directory that nobody changes meanwhile; when this returns it is
/// durable under the name of its digest. `temporary` is a name no other capture uses. An archive
/// of more than `most` bytes is refused before it is written. `note` writes down what the layer lies
/// on, if anybody is to know: the file and its note get their names together.
///
/// # Errors
/// If the directory cannot be read or not be kept; then there is no archive.
pub fn capture(
    upper: &Path,
    ids: Ids,
    layers: &Path,
    temporary: &str,
    most: u64,
    note: impl FnOnce(&Digest) -> Result<Option<Note>>,
) -> Result<(Digest, u64)> {
    let written = Written {
        upper,
        earlier: None,
        ids,
    };
    capture_all(written, layers, temporary, most, note)
}

/// The same, for an upper directory that may lie on an earlier layer.
///
/// # Errors
/// If a directory cannot be read or not be kept; then there is no archive.
pub fn capture_all(
    written: Written<'_>,
    layers: &Path,
    temporary: &str,
    most: u64,
    note: impl FnOnce(&Digest) -> Result<Option<Note>>,
) -> Result<(Digest, u64)> {
    let image = written.earlier.map(|earlier| Lowers::of(earlier.image));
    let image = image.transpose()?;
    let new = layers.join(temporary);
    let file = File::create(&new).doing("make the layer's file")?;
    let (digest, size, file) = match write(written, image, file, most) {
        Ok(done) => done,
        Err(error) => {
            // The failure says more than a leftover that the next capture overwrites.
            let _ = fs::remove_file(&new);
            return match error {
                Failure::Io(error) => Err(error).doing("archive the writable layer"),
                Failure::Refused(reason) => Err(ImageError::Uncapturable(reason.into())),
            };
        }
    };
    reached(Step::LayerWritten);
    // The disk makes both durable at once; one after the other would wait for it twice.
    let (synced, noted) = thread::scope(|scope| {
        let synced = scope.spawn(move || file.sync_all());
        let noted = note(&digest);
        let panicked = |_| Err(io::Error::other("it panicked"));
        (synced.join().unwrap_or_else(panicked), noted)
    });
    let noted = match synced.doing("make the layer durable").and(noted) {
        Ok(noted) => noted,
        Err(error) => {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
    };
    if let Some(note) = &noted {
        note.name()?;
    }
    reached(Step::LayerNoted);
    fs::rename(&new, layers.join(hex(&digest))).doing("name the layer's file")?;
    reached(Step::LayerNamed);
    // Whichever comes to the disk first, nothing speaks of the layer before both have.
    if let Some(note) = &noted {
        note.sync_name()?;
    }
    File::open(layers)
        .and_then(|directory| directory.sync_all())
        .doing("make the layer's name durable")?;
    Ok((digest, size))
}

fn write(
    written: Written<'_>,
    image: Option<Lowers>,
    file: File,
    most: u64,
) -> Result<(Digest, u64, File), Failure> {
    let hashing = Hashing::new(BufWriter::with_capacity(1 << 18, file));
    let mut walk = Walk {
        tar: Builder::new(hashing),
        ids: written.ids,
        image,
        left: most,
        links: HashMap::new(),
        names: vec![0; 65_536],
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |path| openat(CWD, path, flags, Mode::empty());
    let top = open(written.upper)?;
    let earlier = written.earlier.map(|it| open(it.layer)).transpose()?;
    let stat = rustix::fs::fstat(&top)?;
    let both = Both {
        upper: top.as_fd(),
        earlier: earlier.as_ref().map(|fd| fd.as_fd()),
        hides: false,
        bare: false,
    };
    walk.directory(both, &stat, &mut Vec::new(), 0)?;
    let hashing = walk.tar.into_inner()?;
    let (hash, size) = (hashing.hash, hashing.size);
    let file = hashing
        .inner
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    Ok((finish(hash), size, file))
}

/// A directory in both layers.
#[derive(Clone, Copy)]
struct Both<'a> {
    upper: BorrowedFd<'a>,
    /// The same in the earlier layer, if it is a directory there.
    earlier: Option<BorrowedFd<'a>>,
    /// Whether the earlier layer has something else in its place, which hides the image's.
    hides: bool,
    /// Whether nothing of the image shows in it, because a directory above is opaque.
    bare: bool,
}

/// Where something is that has a name.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: BorrowedFd<'a>,
    /// The directory that the earlier layer has under that name.
    earlier: Option<BorrowedFd<'a>>,
    hides: bool,
    bare: bool,
}

struct Walk<W: Write> {
    tar: Builder<W>,
    ids: Ids,
    /// What an earlier layer lies on that becomes part of the archive.
    image: Option<Lowers>,
    /// How many bytes the archive may still grow by.
    left: u64,
    /// The first name of each file that has several.
    links: HashMap<(u64, u64), Vec<u8>>,
    /// Room for the names of attributes.
    names: Vec<u8>,
}

impl<W: Write> Walk<W> {
    /// Writes a directory and what is in it. `path` is its name in the archive; the top has none.
    fn directory(
        &mut self,
        both: Both<'_>,
        stat: &Stat,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Failure> {
        if depth > DEPTH {
            return Err(Failure::Refused(format!(
                "directories are nested more than {DEPTH} deep"
            )));
        }
        let extra = self.xattrs(both.upper, path)?;
        // One that is opaque hides all of the earlier layer's.
        let earlier = both.earlier.filter(|_| !extra.opaque);
        let opaque = match earlier {
            Some(earlier) => self.xattrs(earlier, path)?.opaque,
            None => extra.opaque,
        };
        let mut name = path.clone();
        name.extend(if path.is_empty() { &b"./"[..] } else { b"/" });
        self.entry(EntryType::Directory, &name, stat, extra.kept)?;
        if opaque || both.hides {
            name.truncate(path.len() + usize::from(!path.is_empty()));
            if path.is_empty() {
                name.clear();
            }
            name.extend(OPAQUE);
            self.marker(&name)?;
        }
        let mut names = BTreeMap::new();
        for (fd, is_upper) in [(earlier, false), (Some(both.upper), true)] {
            let Some(fd) = fd else { continue };
            for entry in Dir::read_from(fd)? {
                let entry = entry?;
                if ![c".", c".."].contains(&entry.file_name()) {
                    names.insert(CString::from(entry.file_name()), is_upper);
                }
            }
        }
        let bare = both.bare || opaque || both.hides;
        let length = path.len();
        for (name, is_upper) in names {
            if length > 0 {
                path.push(b'/');
            }
            path.extend(name.as_bytes());
            let (from, below) = match (is_upper, earlier) {
                (false, Some(earlier)) => (earlier, None),
                (true | false, below) => (both.upper, below),
            };
            // What is removed and is not of the image was of the earlier layer, and is gone. To say so
            // would be worse than nothing: where no layer below has a directory, whiteouts in it show.
            if let Some(image) = &self.image
                && is_whiteout(from, &name)?
                && (bare || !has(image, path)?)
            {
                path.truncate(length);
                continue;
            }
            let (earlier, hides) = match below {
                Some(below) => earlier_of(below, &name)?,
                None => (None, false),
            };
            let place = Place {
                parent: from,
                earlier: earlier.as_ref().map(|fd| fd.as_fd()),
                hides,
                bare,
            };
            self.any(place, &name, path, depth + 1)?;
            path.truncate(length);
        }
        Ok(())
    }

    /// Writes what has a name in a directory.
    fn any(
        &mut self,
        place: Place<'_>,
        name: &CStr,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Failure> {
        let parent = place.parent;
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let open = |flags| {
            openat(
                parent,
                name,
                flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        let mut pax = Vec::new();
        if name.to_bytes().starts_with(WHITEOUT) {
            pax.push((LITERAL.to_owned(), b"1".to_vec()));
        }
        match kind {
            FileType::Directory => {
                let fd = open(OFlags::RDONLY | OFlags::DIRECTORY)?;
                let both = Both {
                    upper: fd.as_fd(),
                    earlier: place.earlier,
                    hides: place.hides,
                    bare: place.bare,
                };
                return self.directory(both, &stat, path, depth);
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let start = path.len() - name.to_bytes().len();
                let mut whiteout = path[..start].to_vec();
                whiteout.extend(WHITEOUT);
                whiteout.extend(name.to_bytes());
                return self.marker(&whiteout);
            }
            FileType::Socket => return Ok(()),
            FileType::RegularFile
            | FileType::Symlink
            | FileType::Fifo
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
        if stat.st_nlink > 1 {
            let file = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&file) {
                pax.push(("linkpath".into(), first.clone()));
                return self.entry(EntryType::Link, path, &stat, pax);
            }
            self.links.insert(file, path.clone());
        }
        match kind {
            FileType::RegularFile => {
                // Not waiting for anything: a name may have been exchanged for a pipe.
                let file = File::from(open(OFlags::RDONLY | OFlags::NONBLOCK)?);
                pax.extend(self.xattrs(file.as_fd(), path)?.kept);
                self.file(path, &stat, &file, pax)
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new())?;
                pax.push(("linkpath".into(), target.into_bytes()));
                self.entry(EntryType::Symlink, path, &stat, pax)
            }
            FileType::Fifo => self.entry(EntryType::Fifo, path, &stat, pax),
            other => Err(Failure::Refused(format!(
                "{} is a {other:?}, which no sandbox can make",
                String::from_utf8_lossy(path)
            ))),
        }
    }

    fn xattrs(&mut self, fd: BorrowedFd<'_>, path: &[u8]) -> Result<Xattrs, Failure> {
        let found = xattrs(fd, self.ids, &mut self.names)?;
        match found.elsewhere {
            false => Ok(found),
            true => Err(Failure::Refused(format!(
                "{} is only a reference to what another layer has: overlayfs was mounted with \
                 redirect_dir or metacopy",
                String::from_utf8_lossy(path)
            ))),
        }
    }

    /// A regular file, without its holes.
    fn file(
        &mut self,
        path: &[u8],
        stat: &Stat,
        file: &File,
        mut pax: Vec<(String, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let size = u64::try_from(stat.st_size).map_err(io::Error::other)?;
        let whole = [(0, size)];
        let parts = sparse::parts(file, size)?;
        let (list, parts) = match &parts {
            None => (Vec::new(), &whole[..]),
            Some(parts) if parts.len() > sparse::MAX_PARTS => {
                return Err(Failure::Refused(format!(
                    "{} has more than {} holes",
                    String::from_utf8_lossy(path),
                    sparse::MAX_PARTS
                )));
            }
            Some(parts) => {
                let mut record = |key: &str, value: Vec<u8>| pax.push((key.into(), value));
                record(sparse::MAJOR, b"1".into());
                record(sparse::MINOR, b"0".into());
                record(sparse::NAME, path.into());
                record(sparse::REAL_SIZE, size.to_string().into_bytes());
                (sparse::list(parts), parts.as_slice())
            }
        };
        let length = list.len() as u64 + sparse::data(parts);
        let mut content = list.as_slice().chain(sparse::Data::new(file, parts));
        let header = self.header(EntryType::Regular, stat, length, &mut pax);
        self.append(header, path, pax, length, &mut content)
    }

    /// An empty file that says something about its neighbours.
    fn marker(&mut self, path: &[u8]) -> Result<(), Failure> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0);
        header.set_size(0);
        self.append(header, path, Vec::new(), 0, &mut io::empty())
    }

    /// Anything without content.
    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        stat: &Stat,
        mut pax: Vec<(String, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let header = self.header(kind, stat, 0, &mut pax);
        self.append(header, path, pax, 0, &mut io::empty())
    }

    fn header(
        &self,
        kind: EntryType,
        stat: &Stat,
        length: u64,
        pax: &mut Vec<(String, Vec<u8>)>,
    ) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        // What belongs to nobody inside is nobody's.
        let inside = |id| u64::from(self.ids.inside(id).unwrap_or(65_534));
        header.set_uid(inside(stat.st_uid));
        header.set_gid(inside(stat.st_gid));
        header.set_size(length);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        let mtime = format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec);
        pax.push(("mtime".into(), mtime.into_bytes()));
        header
    }

    fn append(
        &mut self,
        mut header: Header,
        path: &[u8],
        mut pax: Vec<(String, Vec<u8>)>,
        length: u64,
        content: &mut dyn io::Read,
    ) -> Result<(), Failure> {
        // Its header, its records and its content, about.
        let records: usize = pax.iter().map(|(k, v)| k.len() + v.len() + 32).sum();
        let more = 1024 + records as u64 + length;
        self.left = self.left.checked_sub(more).ok_or_else(|| {
            Failure::Refused(format!(
                "the writable layer is larger than a snapshot may be: it ends at {}",
                String::from_utf8_lossy(path)
            ))
        })?;
        let field = &mut header.as_mut_bytes()[..100];
        let fits = path.len().min(field.len());
        field[..fits].copy_from_slice(&path[..fits]);
        if fits < path.len() {
            pax.push(("path".into(), path.to_vec()));
        }
        header.set_cksum();
        if !pax.is_empty() {
            let records = pax
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_slice()));
            self.tar.append_pax_extensions(records)?;
        }
        Ok(self.tar.append(&header, content)?)
    }
}

struct Xattrs {
    kept: Vec<(String, Vec<u8>)>,
    opaque: bool,
    /// Part of what it is lies in another layer, under another name or behind it.
    elsewhere: bool,
}

fn has(image: &Lowers, path: &[u8]) -> io::Result<bool> {
    image.has(path).map_err(io::Error::other)
}

fn is_whiteout(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    Ok(kind == FileType::CharacterDevice && stat.st_rdev == 0)
}

/// What the earlier layer has under a name that is a directory in the upper one: a directory, or
/// something that hides what the image has there.
fn earlier_of(below: BorrowedFd<'_>, name: &CStr) -> io::Result<(Option<OwnedFd>, bool)> {
    let stat = match statat(below, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok((None, false)),
        Err(error) => return Err(error.into()),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok((None, true));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((Some(openat(below, name, flags, Mode::empty())?), false))
}

fn xattrs(fd: BorrowedFd<'_>, ids: Ids, buffer: &mut [u8]) -> io::Result<Xattrs> {
    let mut found = Xattrs {
        kept: Vec::new(),
        opaque: false,
        elsewhere: false,
    };
    let length = flistxattr(fd, &mut *buffer)?;
    let mut names: Vec<_> = buffer[..length]
        .split(|byte| *byte == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    for name in names {
        let mut value = vec![0_u8; 65_536];
        let get = |value: &mut Vec<u8>| {
            let length = fgetxattr(fd, CString::new(name)?, value.as_mut_slice())?;
            value.truncate(length);
            io::Result::Ok(())
        };
        if name == b"trusted.overlay.opaque" {
            get(&mut value)?;
            found.opaque |= value == b"y";
        } else if [
            &b"trusted.overlay.redirect"[..],
            b"trusted.overlay.metacopy",
        ]
        .contains(&name)
        {
            found.elsewhere = true;
        } else if is_kept(name) {
            get(&mut value)?;
            if let Some(value) = translate(name, value, Way::Inward(ids)) {
                found.kept.push((key(name), value));
            }
        }
    }
    Ok(found)
}

/// The key of an attribute's record: its name, unless that would be read otherwise.
fn key(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.contains(['=', '\n']) => format!("{XATTR}{text}"),
        Ok(_) | Err(_) => {
            let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{HEX_XATTR}{hex}")
        }
    }
}
