//! Sweeping: what nothing leads to is removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use failpoints::{Step, reached};
use model::Digest;

use super::{Inner, Origin, State, Store, files, new_name};
use crate::{
    digest::{from_hex, hex},
    error::{Doing as _, Result},
};

/// What is used by something that the store does not know.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// What sandboxes lie on, or will.
    pub origins: Vec<Origin>,
    /// Captured layers that may still be asked for.
    pub captures: Kept,
    /// Who needs an image or a captured layer, for people.
    pub users: BTreeMap<Digest, BTreeSet<Box<str>>>,
}

impl InUse {
    /// Notes who needs something.
    pub fn add(&mut self, digest: &Digest, user: impl Into<Box<str>>) {
        let users = self.users.entry(digest.clone()).or_default();
        users.insert(user.into());
    }
}

impl From<Kept> for InUse {
    fn from(captures: Kept) -> Self {
        Self {
            captures,
            ..Self::default()
        }
    }
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

/// How to sweep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    /// Only say what would be removed.
    pub dry_run: bool,
    /// How long nothing must have led to a thing before it goes, by the sweeps that saw it so. What
    /// was written a moment ago and is in no record yet is safe for that long.
    pub grace: Duration,
    /// When this is, on a clock that never goes back.
    pub at: Duration,
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
    /// Images and captured layers that stay, and why.
    pub kept: BTreeMap<Digest, BTreeSet<Box<str>>>,
}

impl Swept {
    /// Whether there was nothing to remove.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.images.is_empty()
            && self.layers.is_empty()
            && self.blobs.is_empty()
            && self.partial.is_empty()
    }
}

impl Store {
    /// Removes what no name, no pin, no sandbox and no captured layer leads to; only says so if
    /// it is a dry run. `in_use` is asked once, at the moment that counts.
    ///
    /// # Errors
    /// If another process has the images open, `in_use` cannot tell, or the disk fails.
    pub fn gc(&self, how: Sweep, in_use: impl FnOnce() -> Result<InUse>) -> Result<Swept> {
        let inner = self.inner();
        let _alone = inner.lock.alone()?;
        let mut state = inner.state.lock();
        // The pins are read under the lock that new ones need, and before the sandboxes: one that
        // let go of its pin has written its record.
        let mut waiting = Waiting {
            how,
            before: &state.lost,
            now: BTreeMap::new(),
        };
        let found = inner.unreachable(&state, &in_use()?, &mut waiting)?;
        let lost = waiting.now;
        if !how.dry_run {
            state.lost = lost;
            inner.move_to_trash(&mut state, &found)?;
        }
        drop(state);
        if !how.dry_run {
            reached(Step::Swept);
            inner.empty_trash()?;
        }
        Ok(found)
    }
}

/// Since when nothing has led to things.
struct Waiting<'a> {
    how: Sweep,
    before: &'a BTreeMap<Digest, Duration>,
    now: BTreeMap<Digest, Duration>,
}

impl Waiting<'_> {
    /// Whether a thing that nothing leads to may go; else how long it still stays.
    fn is_over(&mut self, digest: &Digest) -> Result<(), Duration> {
        let since = self.before.get(digest).copied().unwrap_or(self.how.at);
        self.now.insert(digest.clone(), since);
        let waited = self.how.at.saturating_sub(since);
        match self.how.grace.checked_sub(waited) {
            None | Some(Duration::ZERO) => Ok(()),
            Some(left) => Err(left),
        }
    }
}

fn goes_in(left: Duration) -> Box<str> {
    format!(
        "nothing leads to it any more; it goes in {} s",
        left.as_secs()
    )
    .into()
}

impl Inner {
    fn unreachable(
        &self,
        state: &State,
        in_use: &InUse,
        waiting: &mut Waiting<'_>,
    ) -> Result<Swept> {
        let mut why: BTreeMap<Digest, BTreeSet<Box<str>>> = BTreeMap::new();
        let mut because = |digest: &Digest, reason: Box<str>| {
            why.entry(digest.clone()).or_default().insert(reason);
        };
        let users = |digest: &Digest| in_use.users.get(digest).into_iter().flatten().cloned();
        const HELD: &str = "a transfer or a start is under way";
        let pinned = |digest: &Digest| state.pins.contains_key(digest);
        let mut roots: BTreeSet<Digest> = BTreeSet::new();
        let (mut kept, mut dropped) = (BTreeSet::new(), BTreeSet::new());
        for digest in entries(&self.images.join("captures"))? {
            let used = in_use.captures.contains(&digest);
            if used || pinned(&digest) {
                let held = pinned(&digest).then(|| HELD.into());
                let mut reasons: Vec<Box<str>> = users(&digest).chain(held).collect();
                if reasons.is_empty() {
                    reasons.push("it is not known who needs it".into());
                }
                reasons.into_iter().for_each(|r| because(&digest, r));
            } else if let Err(left) = waiting.is_over(&digest) {
                because(&digest, goes_in(left));
            } else {
                dropped.insert(digest);
                continue;
            }
            let path = self.images.join("captures").join(hex(&digest));
            if let Some(Some(Origin::Image { digest: below })) = files::read_json(&path)? {
                because(&below, format!("layer {digest} lies on it").into());
                roots.insert(below);
            }
            kept.insert(digest);
        }
        for (name, lead) in &state.names {
            let digest = &lead.digest;
            because(digest, format!("it is called {name}").into());
            roots.insert(digest.clone());
        }
        for origin in &in_use.origins {
            if let Origin::Image { digest } = origin {
                users(digest).for_each(|user| because(digest, user));
                roots.insert(digest.clone());
            }
        }
        let mut swept = Swept::default();
        let mut reached = Vec::new();
        // What goes with its image has waited with it.
        let mut gone: BTreeSet<&Digest> = BTreeSet::new();
        for image in state.images.values() {
            let digest = image.digest();
            let index = image.index().is_some_and(|index| roots.contains(index));
            if pinned(digest) {
                because(digest, HELD.into());
            } else if !roots.contains(digest) && !index {
                match waiting.is_over(digest) {
                    Err(left) => because(digest, goes_in(left)),
                    Ok(()) => {
                        swept.images.push(digest.clone());
                        gone.extend(image.blobs().chain(image.chains()));
                        continue;
                    }
                }
            }
            reached.push(image);
        }
        let chains: BTreeSet<_> = reached.iter().flat_map(|image| image.chains()).collect();
        let blobs: BTreeSet<_> = reached.iter().flat_map(|image| image.blobs()).collect();
        for digest in entries(&self.layers.join("unpacked"))? {
            let needed = chains.contains(&digest) || pinned(&digest);
            if !needed && (gone.contains(&digest) || waiting.is_over(&digest).is_ok()) {
                swept.layers.push(digest);
            }
        }
        for digest in entries(&self.layers.join("sha256"))? {
            let needed = blobs.contains(&digest) || kept.contains(&digest) || pinned(&digest);
            if !needed && (gone.contains(&digest) || waiting.is_over(&digest).is_ok()) {
                swept.bytes += size(&self.blob(&digest));
                swept.blobs.push(digest);
            }
        }
        for digest in entries(&self.layers.join("partial"))? {
            if !pinned(&digest) && waiting.is_over(&digest).is_ok() {
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
        swept.kept = why;
        Ok(swept)
    }

    /// From the top down, so that a crash in between leaves nothing that leads nowhere.
    fn move_to_trash(&self, state: &mut State, found: &Swept) -> Result<()> {
        for digest in &found.images {
            let name = hex(digest);
            files::remove_durably(&self.images.join("manifests").join(name))?;
            state.images.remove(digest);
            self.options.on_sweep.step();
            reached(Step::ImageSwept);
        }
        for digest in &found.layers {
            let name = hex(digest);
            let to = self.layers.join("trash").join(new_name(name));
            fs::rename(self.layers.join("unpacked").join(name), to).doing("remove a layer")?;
            self.options.on_sweep.step();
            reached(Step::LayerSwept);
        }
        for digest in &found.blobs {
            remove(&self.blob(digest))?;
            self.options.on_sweep.step();
            reached(Step::BlobSwept);
            remove(&self.images.join("captures").join(hex(digest)))?;
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

/// Called at each step of a sweep, so that tests can die there.
#[doc(hidden)]
#[derive(Clone, Default)]
pub struct OnSweep(pub Option<Arc<dyn Fn() + Send + Sync>>);

impl OnSweep {
    fn step(&self) {
        if let Some(hook) = &self.0 {
            hook();
        }
    }
}

impl fmt::Debug for OnSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnSweep")
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
