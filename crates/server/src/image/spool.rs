//! Where files are while images are sent or fetched. Nothing in it outlives the server that made it; but
//! one that was replaced may still be receiving, so each has a directory of its own and holds it locked.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::Path,
};

use tempfile::TempDir;

/// A directory of this server alone, removed with it.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: TempDir,
    _lock: File,
}

impl Spool {
    /// Makes one, and removes what servers that died have left.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        let all = data.join("run").join("images");
        fs::create_dir_all(&all)?;
        for entry in fs::read_dir(&all)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            } else if is_free(&entry.path())? {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let directory = tempfile::tempdir_in(&all)?;
        let lock = File::open(directory.path())?;
        lock.lock_shared()?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn is_free(directory: &Path) -> io::Result<bool> {
    match File::open(directory)?.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_server_left_goes_and_what_another_still_receives_stays() {
        let data = tempfile::tempdir().unwrap();
        let left = data.path().join("run/images/left");
        fs::create_dir_all(&left).unwrap();
        File::create(left.join("upload")).unwrap();
        let old = Spool::open(data.path()).unwrap();
        assert!(!left.exists());
        let receives = old.path().join("upload");
        File::create(&receives).unwrap();
        let new = Spool::open(data.path()).unwrap();
        assert!(receives.exists());
        assert_ne!(new.path(), old.path());
        drop(old);
        assert!(!receives.exists() && new.path().exists());
    }
}
