//! Removing a directory that somebody hostile has filled.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, renameat, unlinkat},
    io::Errno,
};

/// A sandbox can make directories deeper than any stack and any table of descriptors. Below this
/// depth they are moved up before they are removed.
const DEPTH: usize = 64;

/// Removes a directory and all in it, without following a link; nothing to do if it is not there.
/// `parking` is a name of the caller's on the same filesystem, for what is moved up; what an
/// earlier attempt has left there is removed too.
pub fn remove(path: &Path, parking: &Path) -> io::Result<()> {
    let mut remover = Remover { parking, parked: 0 };
    match remover.remove_directory(CWD, path, 0) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    loop {
        match open(CWD, parking) {
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(parked) => remover.empty(parked.as_fd(), 0)?,
        }
        match unlinkat(CWD, parking, AtFlags::REMOVEDIR) {
            // More was moved up meanwhile.
            Err(Errno::NOTEMPTY) => {}
            other => return Ok(other?),
        }
    }
}

/// Whether a directory has nothing in it.
#[cfg(test)]
pub(crate) fn is_empty(path: &Path) -> io::Result<bool> {
    Ok(std::fs::read_dir(path)?.next().is_none())
}

struct Remover<'a> {
    parking: &'a Path,
    parked: usize,
}

impl Remover<'_> {
    fn empty(&mut self, directory: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Directory => true,
                FileType::Unknown => rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()),
                _ => false,
            };
            if !is_directory {
                unlinkat(directory, name, AtFlags::empty())?;
            } else if depth < DEPTH {
                self.remove_directory(directory, name, depth + 1)?;
            } else {
                self.park(directory, name)?;
            }
        }
        Ok(())
    }

    fn remove_directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: impl rustix::path::Arg + Copy,
        depth: usize,
    ) -> io::Result<()> {
        let directory = open(parent, name)?;
        self.empty(directory.as_fd(), depth)?;
        Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn park(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        ensure_directory(self.parking, 0o700)?;
        loop {
            self.parked += 1;
            let place = self.parking.join(self.parked.to_string());
            match renameat(parent, name, CWD, &place) {
                // Of an earlier attempt.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                other => return Ok(other?),
            }
        }
    }
}

fn open(parent: BorrowedFd<'_>, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, path, flags, Mode::empty())
}

/// Makes a directory with exactly this mode; one that is there already is fine.
pub fn ensure_directory(path: &Path, mode: u32) -> io::Result<()> {
    match mkdirat(CWD, path, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_deeper_than_any_stack_is_removed() {
        let around = tempfile::tempdir().unwrap();
        let top = around.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let mut at = open(CWD, &top).unwrap();
        for _ in 0..2000 {
            mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            mkdirat(&at, "e", Mode::from_raw_mode(0o700)).unwrap();
            at = open(at.as_fd(), "d").unwrap();
        }
        let parking = around.path().join("parking");
        std::fs::create_dir_all(parking.join("1/left-by-an-earlier-attempt")).unwrap();
        remove(&top, &parking).unwrap();
        assert!(is_empty(around.path()).unwrap());
        remove(&top, &parking).unwrap();
    }

    #[test]
    fn a_link_is_removed_and_not_followed() {
        let around = tempfile::tempdir().unwrap();
        let (top, kept) = (around.path().join("top"), around.path().join("kept"));
        std::fs::create_dir_all(kept.join("in")).unwrap();
        std::fs::create_dir(&top).unwrap();
        std::os::unix::fs::symlink(&kept, top.join("link")).unwrap();
        remove(&top, &around.path().join("parking")).unwrap();
        assert!(kept.join("in").exists());
    }
}
