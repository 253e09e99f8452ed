//! What the layers below say about a path.
//!
//! An archive may leave directories out that are in a layer below. The overlay shows such a
//! directory as its uppermost layer has it, so it must be made as it is below.

use std::{
    ffi::CString,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, fstat, openat, statat,
    },
    io::Errno,
};

use super::{OPAQUE_XATTR, attributes::is_kept};
use crate::error::{Doing as _, Result};

/// Directories of the layer at hand and of those below, uppermost first.
#[derive(Debug)]
pub(super) struct Lowers(Vec<Arc<OwnedFd>>);

/// What is at a path below.
#[derive(Debug)]
pub(super) enum Below {
    Nothing,
    Directory {
        stat: Stat,
        xattrs: Vec<(CString, Vec<u8>)>,
    },
    /// A link, a file: nothing to be in.
    Other,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Lowers {
    /// These layers, with another on top.
    pub(super) fn open(top: OwnedFd, layers: &[&Path]) -> Result<Self> {
        let mut all = Self::of(layers)?;
        all.0.insert(0, Arc::new(top));
        Ok(all)
    }

    /// These layers.
    pub(super) fn of(layers: &[&Path]) -> Result<Self> {
        let open = |layer: &&Path| {
            let opened = openat(CWD, *layer, DIRECTORY, Mode::empty());
            opened
                .map(Arc::new)
                .doing(format!("open the layer {}", layer.display()))
        };
        Ok(Self(layers.iter().map(open).collect::<Result<_>>()?))
    }

    /// Whether an overlay of these layers has anything at a path.
    pub(super) fn has(&self, path: &[u8]) -> Result<bool> {
        let Some(parent) = path.iter().rposition(|byte| *byte == b'/') else {
            let found = self.find(path)?;
            return Ok(!matches!(found, Below::Nothing));
        };
        match self.find(&path[..parent])? {
            Below::Directory { .. } => Ok(!matches!(self.find(path)?, Below::Nothing)),
            Below::Nothing | Below::Other => Ok(false),
        }
    }

    /// What an overlay of these layers has at a path.
    pub(super) fn find(&self, path: &[u8]) -> Result<Below> {
        self.walk(path).doing("look into the layers below")
    }

    /// Name by name, as an overlay does: a directory is all those of its name, from the uppermost
    /// down to where one of the layers ends it.
    fn walk(&self, path: &[u8]) -> Result<Below, Errno> {
        let mut merged: Vec<Arc<OwnedFd>> = self.0.clone();
        for name in path.split(|byte| *byte == b'/') {
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            let mut next = Vec::new();
            for directory in &merged {
                match look(directory, &name)? {
                    Seen::Nothing => {}
                    Seen::Directory(found) => next.push(Arc::new(found)),
                    Seen::Other if next.is_empty() => return Ok(Below::Other),
                    Seen::Other | Seen::Whiteout => break,
                }
                // What it holds is all there is of the name.
                if is_opaque(directory)? {
                    break;
                }
            }
            merged = next;
        }
        let Some(directory) = merged.first() else {
            return Ok(Below::Nothing);
        };
        Ok(Below::Directory {
            stat: fstat(directory)?,
            xattrs: xattrs(directory.as_fd())?,
        })
    }
}

enum Seen {
    Nothing,
    Whiteout,
    Directory(OwnedFd),
    Other,
}

fn look(directory: &OwnedFd, name: &CString) -> Result<Seen, Errno> {
    let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Seen::Nothing),
        other => other?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Seen::Directory(openat(
            directory,
            name,
            DIRECTORY,
            Mode::empty(),
        )?)),
        FileType::CharacterDevice if stat.st_rdev == 0 => Ok(Seen::Whiteout),
        _ => Ok(Seen::Other),
    }
}

fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    let mut value = [0; 2];
    match fgetxattr(directory, OPAQUE_XATTR, &mut value) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What belongs to the layer.
pub(super) fn xattrs(directory: BorrowedFd<'_>) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    let mut names = vec![0_u8; 65_536];
    let length = match flistxattr(directory, &mut names) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let mut all = Vec::new();
    for name in names[..length].split(|byte| *byte == 0) {
        if !is_kept(name) {
            continue;
        }
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut value = vec![0; 65_536];
        let length = fgetxattr(directory, &name, value.as_mut_slice())?;
        value.truncate(length);
        all.push((name, value));
    }
    Ok(all)
}
