//! What a captured layer lies on, written down beside it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use model::Digest;

use super::{
    Inner, Origin,
    files::{read_json, sync_directory},
    new_name,
};
use crate::{
    digest::hex,
    error::{Doing as _, Result},
};

/// A note whose content is durable, and that has no name yet. Layers may be the same and lie on
/// different things: the last note counts.
#[derive(Debug)]
pub struct Note {
    new: PathBuf,
    path: PathBuf,
    directory: PathBuf,
}

impl Note {
    pub(super) fn write(
        inner: &Inner,
        digest: &Digest,
        origin: Option<&Origin>,
    ) -> Result<Option<Self>> {
        let directory = inner.images.join("captures");
        let path = directory.join(hex(digest));
        // The same files again, over the same thing: what is there was made durable then.
        let there = read_json::<Option<Origin>>(&path).ok().flatten().flatten();
        if there.is_some() && there.as_ref() == origin {
            return Ok(None);
        }
        let new = directory.join(new_name(hex(digest)));
        let write = || {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(&serde_json::to_vec(&origin)?)?;
            file.sync_all()
        };
        match write() {
            Ok(()) => Ok(Some(Self {
                new,
                path,
                directory,
            })),
            Err(error) => {
                // The failure says more than a leftover, which the next opening removes.
                let _ = fs::remove_file(&new);
                Err::<_, io::Error>(error).doing(format!("write {}", path.display()))
            }
        }
    }

    /// Gives it its name.
    pub(crate) fn name(&self) -> Result<()> {
        let named = fs::rename(&self.new, &self.path);
        named.doing(format!("write {}", self.path.display()))
    }

    /// Makes its name durable.
    pub(crate) fn sync_name(&self) -> Result<()> {
        let synced = sync_directory(&self.directory);
        synced.doing(format!("write {}", self.path.display()))
    }
}
