//! From an upper directory to an archive.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write},
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use model::Digest;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, openat, readlinkat,
    statat,
};
use tar::{Builder, EntryType, Header};

use super::{
    DEPTH, HEX_XATTR, Ids, LITERAL, OPAQUE, WHITEOUT, XATTR,
    attributes::{Way, is_kept, translate},
};
use crate::{
    digest::{Hashing, finish, hex},
    error::{Doing as _, Result},
};

/// Writes the archive of a directory that nobody changes meanwhile; when this returns it is
/// durable under the name of its digest. `temporary` is a name no other capture uses. `note` is
/// called with the digest before the file gets its name, so that whoever finds the one can rely on
/// the other.
///
/// # Errors
/// If the directory cannot be read, or the archive not be kept; then there is none.
pub fn capture(
    upper: &Path,
    ids: Ids,
    layers: &Path,
    temporary: &str,
    note: impl FnOnce(&Digest) -> Result<()>,
) -> Result<(Digest, u64)> {
    let new = layers.join(temporary);
    let file = File::create(&new).doing("make the layer's file")?;
    let written = write(upper, ids, file);
    let (digest, size) = match written {
        Ok(done) => done,
        Err(error) => {
            // The failure says more than a leftover that the next capture overwrites.
            let _ = fs::remove_file(&new);
            return Err(error).doing("archive the writable layer");
        }
    };
    if let Err(error) = note(&digest) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    fs::rename(&new, layers.join(hex(&digest))).doing("name the layer's file")?;
    File::open(layers)
        .and_then(|directory| directory.sync_all())
        .doing("make the layer's name durable")?;
    Ok((digest, size))
}

fn write(upper: &Path, ids: Ids, file: File) -> io::Result<(Digest, u64)> {
    let hashing = Hashing::new(BufWriter::with_capacity(1 << 18, file));
    let mut walk = Walk {
        tar: Builder::new(hashing),
        ids,
        links: HashMap::new(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, upper, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&top)?;
    walk.directory(top.as_fd(), &stat, &mut Vec::new(), 0)?;
    let hashing = walk.tar.into_inner()?;
    let (hash, size) = (hashing.hash, hashing.size);
    let file = hashing
        .inner
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok((finish(hash), size))
}

struct Walk<W: Write> {
    tar: Builder<W>,
    ids: Ids,
    /// The first name of each file that has several.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl<W: Write> Walk<W> {
    /// Writes a directory and what is in it. `path` is its name in the archive; the top has none.
    fn directory(
        &mut self,
        fd: BorrowedFd<'_>,
        stat: &Stat,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEPTH {
            return Err(io::Error::other(format!(
                "directories are nested more than {DEPTH} deep"
            )));
        }
        let extra = xattrs(fd, self.ids)?;
        let mut name = path.clone();
        name.extend(if path.is_empty() { &b"./"[..] } else { b"/" });
        self.entry(
            EntryType::Directory,
            &name,
            stat,
            extra.kept,
            &mut io::empty(),
        )?;
        if extra.opaque {
            name.truncate(path.len() + usize::from(!path.is_empty()));
            if path.is_empty() {
                name.clear();
            }
            name.extend(OPAQUE);
            self.marker(&name)?;
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(fd)? {
            let entry = entry?;
            if ![c".", c".."].contains(&entry.file_name()) {
                names.push(CString::from(entry.file_name()));
            }
        }
        names.sort();
        let length = path.len();
        for name in names {
            if length > 0 {
                path.push(b'/');
            }
            path.extend(name.as_bytes());
            self.any(fd, &name, path, depth + 1)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn any(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> io::Result<()> {
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
                return self.directory(fd.as_fd(), &stat, path, depth);
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
                return self.entry(EntryType::Link, path, &stat, pax, &mut io::empty());
            }
            self.links.insert(file, path.clone());
        }
        match kind {
            FileType::RegularFile => {
                // Not waiting for anything: a name may have been exchanged for a pipe.
                let file = File::from(open(OFlags::RDONLY | OFlags::NONBLOCK)?);
                pax.extend(xattrs(file.as_fd(), self.ids)?.kept);
                // Exactly as long as the header says; a file that is shorter now is an error.
                let mut content = file.take(size(&stat)?);
                self.entry(EntryType::Regular, path, &stat, pax, &mut content)
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new())?;
                pax.push(("linkpath".into(), target.into_bytes()));
                self.entry(EntryType::Symlink, path, &stat, pax, &mut io::empty())
            }
            FileType::Fifo => self.entry(EntryType::Fifo, path, &stat, pax, &mut io::empty()),
            other => Err(io::Error::other(format!(
                "{} is a {other:?}, which no sandbox can make",
                String::from_utf8_lossy(path)
            ))),
        }
    }

    /// An empty file that says something about its neighbours.
    fn marker(&mut self, path: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0);
        header.set_size(0);
        self.append(header, path, Vec::new(), &mut io::empty())
    }

    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        stat: &Stat,
        mut pax: Vec<(String, Vec<u8>)>,
        content: &mut dyn io::Read,
    ) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        // What belongs to nobody inside is nobody's.
        let inside = |id| u64::from(self.ids.inside(id).unwrap_or(65_534));
        header.set_uid(inside(stat.st_uid));
        header.set_gid(inside(stat.st_gid));
        header.set_size(if kind == EntryType::Regular {
            size(stat)?
        } else {
            0
        });
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        let mtime = format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec);
        pax.push(("mtime".into(), mtime.into_bytes()));
        self.append(header, path, pax, content)
    }

    fn append(
        &mut self,
        mut header: Header,
        path: &[u8],
        mut pax: Vec<(String, Vec<u8>)>,
        content: &mut dyn io::Read,
    ) -> io::Result<()> {
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
        self.tar.append(&header, content)
    }
}

fn size(stat: &Stat) -> io::Result<u64> {
    u64::try_from(stat.st_size).map_err(io::Error::other)
}

struct Xattrs {
    kept: Vec<(String, Vec<u8>)>,
    opaque: bool,
}

fn xattrs(fd: BorrowedFd<'_>, ids: Ids) -> io::Result<Xattrs> {
    let mut names = vec![0_u8; 65_536];
    let length = flistxattr(fd, &mut names)?;
    let mut found = Xattrs {
        kept: Vec::new(),
        opaque: false,
    };
    let mut names: Vec<_> = names[..length]
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
