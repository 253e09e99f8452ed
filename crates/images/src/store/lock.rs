//! Who has the store open.

use std::{
    fs::{File, OpenOptions, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::error::{Doing as _, ImageError, Result};

/// Held shared while the store is open; the kernel gives it back however the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    directory: PathBuf,
    /// None once it is given back.
    shared: Mutex<Option<File>>,
}

impl Lock {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let file = open(&directory.join("lock"))?;
        file.lock_shared().doing("lock the images")?;
        Ok(Self {
            directory: directory.to_owned(),
            shared: Mutex::new(Some(file)),
        })
    }

    /// Gives it back, for good.
    pub(super) fn give_back(&self) {
        // Said aloud: a process that was just forked has the file too, until it executes something.
        if let Some(Err(error)) = self.shared.lock().take().map(|file| file.unlock()) {
            tracing::warn!(%error, "the lock on the images is given back when this process ends");
        }
    }

    /// Keeps all other processes out, if none has the store open.
    pub(super) fn try_alone(&self) -> Result<Option<Alone<'_>>> {
        // A lock that is asked for again is given up first. Nobody can step in meanwhile but
        // another sweep, and that is kept out here.
        let sweep = open(&self.directory.join("sweep.lock"))?;
        if !try_lock(&sweep)? {
            return Ok(None);
        }
        let Ok(file) = MutexGuard::try_map(self.shared.lock(), Option::as_mut) else {
            return Ok(None);
        };
        if !try_lock(&file)? {
            let shared = file.lock_shared().and(sweep.unlock());
            shared.doing("lock the images")?;
            return Ok(None);
        }
        Ok(Some(Alone { file, sweep }))
    }

    /// Keeps all other processes out.
    pub(super) fn alone(&self) -> Result<Alone<'_>> {
        self.try_alone()?.ok_or_else(|| ImageError::Busy {
            directory: self.directory.display().to_string().into(),
        })
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options
        .mode(0o600)
        .open(path)
        .doing(format!("open {}", path.display()))
}

fn try_lock(file: &File) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error).doing("lock the images"),
    }
}

/// No other process has the store open while this is held.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    file: MappedMutexGuard<'a, File>,
    sweep: File,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // Said aloud: a process that was just forked has the files too, until it executes something.
        if let Err(error) = self.file.lock_shared().and(self.sweep.unlock()) {
            tracing::warn!(%error, "the lock on the images could not be shared again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_given_it_back_is_in_nobodys_way_and_sweeps_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let old = Lock::open(directory.path()).unwrap();
        let new = Lock::open(directory.path()).unwrap();
        assert!(new.try_alone().unwrap().is_none());
        old.give_back();
        assert!(new.try_alone().unwrap().is_some());
        drop(new);
        assert!(old.try_alone().unwrap().is_none());
    }
}
