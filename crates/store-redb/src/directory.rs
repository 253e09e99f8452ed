//! The data directory: its format, its lock, and the database file in it.
//!
//! ```text
//! FORMAT               the format number of the whole directory; written last, so that it promises
//!                      that everything else is there
//! store/LOCK           held while a process has the store
//! store/incarnation    the newest incarnation that began here, readable without the database
//! store/records.redb   the database; appears whole, by renaming
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use model::{Incarnation, Version};

use crate::{
    disk::{Medium, PlainFile},
    engine::{self, FORMAT_NOW},
    error::OpenError,
};

/// Where the format number is.
const FORMAT: &str = "FORMAT";

/// A data directory that this process has for itself.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Released when this goes.
    lock: File,
}

impl Directory {
    /// Takes the directory, making it if it is not there.
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let store = path.join("store");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&store)
            .map_err(OpenError::io("create", &store))?;
        let lock_path = store.join("LOCK");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(OpenError::io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
            Err(TryLockError::Error(e)) => return Err(OpenError::io("lock", &lock_path)(e)),
        }
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    /// Gives the directory back.
    pub(crate) fn release(self) {
        // Said aloud: a process that was just forked has the file too, until it executes something.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "the lock on the store is released when this process ends");
        }
    }

    /// Whether this version reads what is in a directory that another process may have.
    pub(crate) fn check(path: &Path) -> Result<(), OpenError> {
        match read_format(path)? {
            None | Some(FORMAT_NOW) => Ok(()),
            Some(found) => Err(unknown_format(path, found)),
        }
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("store").join("records.redb")
    }

    /// Where a database is made before it takes its place.
    pub(crate) fn new_database(&self) -> PathBuf {
        self.path.join("store").join("records.redb.new")
    }

    /// Makes sure that there is a database of the format this version reads: makes one in an empty
    /// directory, and nowhere else.
    pub(crate) fn ensure_database(&self) -> Result<(), OpenError> {
        let database = self.database();
        let exists = database
            .try_exists()
            .map_err(OpenError::io("look for", &database))?;
        match (read_format(&self.path)?, exists) {
            (Some(FORMAT_NOW), true) => Ok(()),
            (Some(FORMAT_NOW), false) => Err(OpenError::Missing(database)),
            // A later format adds its arm here, and in `check`: copy `store/` beside itself, then go
            // forward.
            (Some(found), _) => Err(unknown_format(&self.path, found)),
            // A crash came between the database and FORMAT; the database is whole.
            (None, true) => self.write_format(),
            (None, false) => {
                self.create_database()?;
                self.write_format()
            }
        }
    }

    fn create_database(&self) -> Result<(), OpenError> {
        let new = self.new_database();
        let file = self.fresh_file(&new)?;
        self.write_incarnation(Incarnation(0))?;
        let medium = Medium(Box::new(PlainFile(file)));
        let db = engine::initialise(medium, Version::new(Incarnation(0), 0))
            .map_err(|e| OpenError::engine(&new, e))?;
        drop(db);
        self.install(&new)
    }

    /// An empty file for a new database, in place of what an interrupted attempt left.
    pub(crate) fn fresh_file(&self, path: &Path) -> Result<File, OpenError> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(OpenError::io("remove", path)(e));
            }
            Ok(()) | Err(_) => {}
        }
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(OpenError::io("create", path))
    }

    /// Puts a finished database in its place, in one step.
    pub(crate) fn install(&self, new: &Path) -> Result<(), OpenError> {
        let database = self.database();
        File::open(new)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(new, &database))
            .and_then(|()| File::open(self.path.join("store"))?.sync_all())
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(OpenError::io("put in place", &database))
    }

    /// Promises that the directory is complete.
    pub(crate) fn write_format(&self) -> Result<(), OpenError> {
        let path = self.path.join(FORMAT);
        kit::durable::write_file(&path, format!("{FORMAT_NOW}\n").as_bytes(), 0o644)
            .map_err(OpenError::io("write", path))
    }

    fn incarnation(&self) -> PathBuf {
        self.path.join("store").join("incarnation")
    }

    /// The newest incarnation that began here, if one did.
    pub(crate) fn read_incarnation(&self) -> Result<Option<Incarnation>, OpenError> {
        let path = self.incarnation();
        match fs::read_to_string(&path) {
            Ok(content) => match content.trim().parse() {
                Ok(number) => Ok(Some(Incarnation(number))),
                Err(_) => Err(OpenError::Damaged {
                    reason: format!("{content:?} is not a number"),
                    path,
                }),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(OpenError::io("read", path)(e)),
        }
    }

    /// Notes that an incarnation begins.
    pub(crate) fn write_incarnation(&self, incarnation: Incarnation) -> Result<(), OpenError> {
        let path = self.incarnation();
        kit::durable::write_file(&path, format!("{}\n", incarnation.0).as_bytes(), 0o600)
            .map_err(OpenError::io("write", path))
    }
}

fn read_format(directory: &Path) -> Result<Option<u32>, OpenError> {
    let path = directory.join(FORMAT);
    match fs::read_to_string(&path) {
        Ok(content) => match content.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(OpenError::UnreadableFormat { path, content }),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(OpenError::io("read", path)(e)),
    }
}

fn unknown_format(directory: &Path, found: u32) -> OpenError {
    let path = directory.join(FORMAT);
    match found > FORMAT_NOW {
        true => OpenError::NewerFormat {
            path,
            found,
            supported: FORMAT_NOW,
        },
        false => OpenError::UnreadableFormat {
            path,
            content: found.to_string(),
        },
    }
}
