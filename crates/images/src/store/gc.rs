//! Sweeping: what nothing leads to is removed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use model::Digest;

use super::{Inner, Origin, State, Store, files};
use crate::{
    digest::from_hex,
    error::{Doing as _, Result},
};

/// What is used by something that the store does not know.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// What sandboxes lie on.
    pub origins: Vec<Origin>,
    /// Captured layers that may still be asked for.
    pub captures: Kept,
}

/// Which captured layers a sweep leaves alone.
#[derive(Clone, Debug, Default)]
pub enum Kept {
    /// All: whoever asks does not know who needs them.
    #[default]
    All,
    /// These, and no others.
    Only(BTreeSet<Digest>),
}

impl Kept {
    fn contains(&self, digest: &Digest) -> bool {
        match self {
            Self::All => true,
            Self::Only(these) => these.contains(digest),
        }
    }
}

/// What a sweep removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Images that nothing led to.
    pub images: Vec<Digest>,
    /// Unpacked layers.
    pub layers: Vec<Digest>,
    /// Blobs and captured layers.
    pub blobs: Vec<Digest>,
    /// Downloads that nobody waits for.
    pub partial: Vec<Digest>,
    /// Size of the blobs and downloads in bytes.
    pub bytes: u64,
}

impl Swept {
    /// Whether there was nothing to remove.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Store {
    /// Removes what no name, no pin, no sandbox and no captured layer leads to; only says so if
    /// it is a dry run. `in_use` is asked once, at the moment that counts.
    ///
    /// # Errors
    /// If another process has the images open, `in_use` cannot tell, or the disk fails.
    pub fn gc(&self, dry_run: bool, in_use: impl FnOnce() -> Result<InUse>) -> Result<Swept> {
        let inner = self.inner();
        let _alone = inner.lock.alone()?;
        let mut state = inner.state.lock();
        // The pins are read under the lock that new ones need, and before the sandboxes: one that
        // let go of its pin has written its record.
        let found = inner.unreachable(&state, &in_use()?)?;
        if !dry_run {
            inner.move_to_trash(&mut state, &found)?;
        }
        drop(state);
        if !dry_run {
            inner.empty_trash()?;
        }
        Ok(found)
    }
}

impl Inner {
    fn unreachable(&self, state: &State, in_use: &InUse) -> Result<Swept> {
        let captures = entries(&self.images.join("captures"))?;
        let (kept, dropped): (BTreeSet<_>, BTreeSet<_>) =
            captures.into_iter().partition(|digest| {
                in_use.captures.contains(digest) || state.pins.contains_key(digest)
            });
        let mut roots: BTreeSet<Digest> = state.names.values().cloned().collect();
        roots.extend(state.pins.keys().cloned());
        let mut origins = in_use.origins.clone();
        for digest in &kept {
            let path = self
                .images
                .join("captures")
                .join(crate::digest::hex(digest));
            origins.extend(files::read_json::<Option<Origin>>(&path)?.flatten());
        }
        roots.extend(origins.into_iter().filter_map(|origin| match origin {
            Origin::Image { digest } => Some(digest),
            Origin::Host { .. } | Origin::Directory { .. } => None,
        }));
        let (reached, lost): (Vec<_>, Vec<_>) = state
            .images
            .values()
            .partition(|image| roots.contains(image.digest()));
        let chains: BTreeSet<_> = reached.iter().flat_map(|image| image.chains()).collect();
        let blobs: BTreeSet<_> = reached.iter().flat_map(|image| image.blobs()).collect();
        let lost_images = lost.iter().map(|image| image.digest().clone());
        let mut swept = Swept {
            images: lost_images.collect(),
            ..Swept::default()
        };
        let pinned = |digest: &Digest| state.pins.contains_key(digest);
        for digest in entries(&self.layers.join("unpacked"))? {
            if !chains.contains(&digest) && !pinned(&digest) {
                swept.layers.push(digest);
            }
        }
        for digest in entries(&self.layers.join("sha256"))? {
            let needed = blobs.contains(&digest) || kept.contains(&digest) || pinned(&digest);
            if !needed {
                swept.bytes += size(&self.blob(&digest));
                swept.blobs.push(digest);
            }
        }
        for digest in entries(&self.layers.join("partial"))? {
            if !pinned(&digest) {
                swept.bytes += size(&self.partial(&digest));
                swept.partial.push(digest);
            }
        }
        // A note whose layer never came.
        for digest in dropped.difference(&swept.blobs.iter().cloned().collect()) {
            if !blobs.contains(digest) {
                swept.blobs.push(digest.clone());
            }
        }
        Ok(swept)
    }

    /// From the top down, so that a crash in between leaves nothing that leads nowhere.
    fn move_to_trash(&self, state: &mut State, found: &Swept) -> Result<()> {
        for digest in &found.images {
            let name = crate::digest::hex(digest);
            files::remove_durably(&self.images.join("manifests").join(name))?;
            state.images.remove(digest);
        }
        for digest in &found.layers {
            let name = crate::digest::hex(digest);
            let to = self.layers.join("trash").join(self.new_name(name));
            fs::rename(self.layers.join("unpacked").join(name), to).doing("remove a layer")?;
        }
        for digest in &found.blobs {
            remove(&self.blob(digest))?;
            remove(
                &self
                    .images
                    .join("captures")
                    .join(crate::digest::hex(digest)),
            )?;
        }
        for digest in &found.partial {
            remove(&self.partial(digest))?;
        }
        Ok(())
    }

    fn empty_trash(&self) -> Result<()> {
        for path in files::leftovers(&self.layers.join("trash"))? {
            self.discard(&path);
        }
        Ok(())
    }

    /// Removes what never got its final name. Nobody else may have the store open.
    pub(super) fn remove_leftovers(&self) -> Result<()> {
        for directory in ["unpacked", "partial"] {
            for path in files::leftovers(&self.layers.join(directory))? {
                self.discard(&path);
            }
        }
        for path in files::leftovers(&self.layers.join("sha256"))? {
            remove(&path)?;
        }
        for directory in ["names", "manifests", "captures"] {
            for path in files::leftovers(&self.images.join(directory))? {
                remove(&path)?;
            }
        }
        self.empty_trash()
    }
}

/// What has its final name.
fn entries(directory: &Path) -> Result<Vec<Digest>> {
    let named = |path: &PathBuf| from_hex(path.file_name()?.to_str()?);
    Ok(files::list(directory)?.iter().filter_map(named).collect())
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).doing(format!("remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
