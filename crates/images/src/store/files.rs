//! Small files and directories of the store.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, chmod, mkdirat},
    io::Errno,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Doing as _, ImageError, Result};

/// Makes a directory that only root may enter; one that is there already is fine.
pub(super) fn ensure_directory(path: &Path) -> Result<()> {
    let private = Mode::from_raw_mode(0o700);
    let make = || match mkdirat(CWD, path, private) {
        Ok(()) | Err(Errno::EXIST) => chmod(path, private),
        Err(error) => Err(error),
    };
    make().doing(format!("make {}", path.display()))
}

/// The files of a directory that have their final names.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let doing = || format!("list {}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).doing(doing())? {
        let path = entry.doing(doing())?.path();
        if path.extension().is_none() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The files of a directory that never got their final names.
pub(super) fn leftovers(directory: &Path) -> Result<Vec<PathBuf>> {
    let doing = || format!("list {}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).doing(doing())? {
        let path = entry.doing(doing())?.path();
        if path.extension().is_some_and(|extension| extension == "new") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Writes a record durably.
pub(super) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let write = || {
        let text = serde_json::to_vec(value)?;
        kit::durable::write_file(path, &text, 0o600)
    };
    write().doing(format!("write {}", path.display()))
}

/// Reads a record; none if there is no such file.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.doing(format!("read {}", path.display()))?,
    };
    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(ImageError::Damaged {
            what: path.display().to_string().into(),
            how: error.to_string().into(),
        }),
    }
}

/// Removes a file, for good.
pub(super) fn remove_durably(path: &Path) -> Result<()> {
    let remove = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        sync_directory(path.parent().unwrap_or(Path::new(".")))
    };
    remove().doing(format!("remove {}", path.display()))
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
