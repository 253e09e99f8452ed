//! What the database file lies on: a file system, or in tests one that fails on purpose.

use std::{
    fmt::Debug,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use redb::StorageBackend;
use rustix::fs::Advice;

/// Where the database file is.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Opens the file, which must be there and not be empty.
    fn open(&self) -> io::Result<Medium>;

    /// Opens the file after an error, as the disk has it. The operating system may remember
    /// content that it failed to write; that must not be taken for what is stored.
    fn reopen(&self) -> io::Result<Medium>;

    /// How many more bytes can be written.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Its name, for messages.
    fn path(&self) -> &Path;
}

/// A file system.
#[derive(Debug)]
pub(crate) struct FileDisk {
    path: PathBuf,
}

impl FileDisk {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Disk for FileDisk {
    fn open(&self) -> io::Result<Medium> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        if file.metadata()?.len() == 0 {
            // The engine would take an empty file for an invitation to start afresh.
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is empty",
            ));
        }
        Ok(Medium(Box::new(PlainFile(file))))
    }

    fn reopen(&self) -> io::Result<Medium> {
        let file = File::open(&self.path)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        self.open()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.path)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// An open file. The directory's lock keeps other processes away, so the engine's own locks, which
/// are optional, are not implemented.
#[derive(Debug)]
pub(crate) struct PlainFile(pub(crate) File);

impl StorageBackend for PlainFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// Any backend, as the engine wants it: by value.
#[derive(Debug)]
pub(crate) struct Medium(pub(crate) Box<dyn StorageBackend>);

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}
