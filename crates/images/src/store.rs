//! Images on disk, below the data directory.
//!
//! ```text
//! layers/sha256/<hex>      blobs by their digest: manifests, configurations, archives of layers,
//!                          captured layers
//! layers/partial/<hex>     downloads under way, or broken off: they go on from there
//! layers/unpacked/<hex>    a layer as a directory, by the digest of its chain
//! layers/trash/            on its way out
//! images/names/<hex>       a name and the digest it leads to
//! images/manifests/<hex>   an image that is whole: all its layers are unpacked
//! images/captures/<hex>    what a captured layer was captured on
//! images/lock, sweep.lock  who has it open, who sweeps
//! ```
//!
//! Everything gets its final name by a rename, after its content is on disk; what has a final name
//! is whole. The order is blobs, layers, image, name, so whoever finds the one finds what it needs.
//! A crash leaves files with a `.new` in their name, which the next opening removes.
//!
//! **Locks.** A process that has the store open holds `lock` shared. Several may: what they write
//! is named by its content. Only a sweep needs to be alone, because what it may remove depends on
//! what others hold in memory: it is refused while another process has the store open. Within a
//! process, `state` is locked for moments; a sweep decides and moves to the trash under it, so
//! nobody can pin what it has just decided to remove.
//!
//! **Pins.** What is being pulled, and what is about to be used by a sandbox, is pinned by digest.
//! A sandbox's own record takes over from the pin: it is on disk before the pin goes.

mod blobs;
mod files;
mod gc;
mod lock;
mod make;
mod note;
mod record;
mod unpacked;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use kit::Tasks;
use model::Digest;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

pub use gc::{InUse, Kept, OnSweep, Sweep, Swept};
pub use note::Note;
pub use record::{Image, Origin};
pub(crate) use unpacked::{Assembly, Unpacked};

use crate::{
    compression::Compression,
    digest::hex,
    error::{Doing as _, ImageError, Result},
    flight::Flights,
    layer::Limits,
    pin::Tags,
    publish::{Fetched, Pushed},
    reference::Reference,
    registry::{Registry, RegistryOptions},
};
use files::{ensure_directory, read_json, write_json};

/// The name of the image that every installation has.
pub const BASE: &str = "base";
/// How often it is looked whether anything is still held.
const LOOK: Duration = Duration::from_millis(10);

/// Choices that hold for every image.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How registries are reached.
    pub registry: RegistryOptions,
    /// What one layer may hold.
    pub limits: Limits,
    /// How captured layers are compressed that are handed on.
    pub compression: Compression,
    /// See [`OnSweep`].
    #[doc(hidden)]
    pub on_sweep: OnSweep,
}

/// The images of one data directory.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    layers: PathBuf,
    images: PathBuf,
    lock: lock::Lock,
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    state: Mutex<State>,
    pub(crate) flights: Flights<Arc<Pinned>>,
    pub(crate) answers: Flights<Digest>,
    pub(crate) tags: Tags,
    pub(crate) pushes: Flights<Pushed>,
    pub(crate) fetches: Flights<Arc<Fetched>>,
    pub(crate) tasks: Tasks,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<Box<str>, Lead>,
    images: BTreeMap<Digest, Arc<Image>>,
    /// How often each digest is pinned: of a blob, a chain or an image.
    pins: BTreeMap<Digest, usize>,
    /// Since when nothing has led to things that are still here, on the sweeps' clock.
    lost: BTreeMap<Digest, Duration>,
}

/// A name and what it leads to.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct NameRecord {
    name: Box<str>,
    #[serde(flatten)]
    lead: Lead,
}

/// What a name leads to.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Lead {
    digest: Digest,
    /// Whether the repository of that name has served every byte of it. What was imported or made here
    /// is called what somebody likes, and versions before this was noted believed digests.
    #[serde(default)]
    served: bool,
}

impl Store {
    /// Opens the images below a data directory; made if they are not there.
    ///
    /// # Errors
    /// If they cannot be read, or the host's certificates not be used.
    pub fn open(data: &Path, options: Options) -> Result<Self> {
        let (layers, images) = (data.join("layers"), data.join("images"));
        fs::create_dir_all(data).doing(format!("make {}", data.display()))?;
        let first = !images.join("captures").exists();
        for directory in [&layers, &images] {
            ensure_directory(directory)?;
        }
        for name in ["sha256", "partial", "unpacked", "trash"] {
            ensure_directory(&layers.join(name))?;
        }
        for name in ["names", "manifests"] {
            ensure_directory(&images.join(name))?;
        }
        let lock = lock::Lock::open(&images)?;
        let inner = Inner {
            registry: Registry::new(options.registry.clone())?,
            layers,
            images,
            lock,
            options,
            state: Mutex::default(),
            flights: Flights::default(),
            answers: Flights::default(),
            tags: Tags::default(),
            pushes: Flights::default(),
            fetches: Flights::default(),
            tasks: Tasks::default(),
        };
        if first {
            inner.note_old_captures()?;
        }
        inner.load()?;
        // Only whoever is alone may take leftovers for leftovers.
        if let Some(_alone) = inner.lock.try_alone()? {
            inner.remove_leftovers()?;
        }
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// The image of a name, if it is here. It stays here while the answer is held.
    ///
    /// # Errors
    /// If the text does not name an image.
    pub fn find(&self, name: &str) -> Result<Option<Pinned>> {
        let name = canonical(name)?;
        let state = self.0.state.lock();
        let digest = match state.names.get(&*name) {
            Some(lead) => lead.digest.clone(),
            // By digest it is the same image whatever it was called.
            None => match Reference::from_str(&name)
                .ok()
                .and_then(|r| r.digest().cloned())
            {
                Some(digest) => digest,
                None => return Ok(None),
            },
        };
        drop(state);
        Ok(self.find_digest(&digest))
    }

    /// The same, for names that somebody chose who may not have all that is here: what is named by
    /// its digest is found only if it came from that repository.
    ///
    /// # Errors
    /// If the text does not name an image.
    pub fn find_chosen(&self, name: &str) -> Result<Option<Pinned>> {
        let name = canonical(name)?;
        let reference = Reference::from_str(&name).ok();
        let wanted = reference.as_ref().and_then(|r| Some((r, r.digest()?)));
        let known = {
            let state = self.0.state.lock();
            let of_repository = |known: &str, digest: &Digest| {
                let (reference, wanted) = wanted?;
                let same = is_of_repository(known, reference);
                let image = state.images.get(digest).filter(|_| same)?;
                let is_it = image.digest() == wanted || image.index() == Some(wanted);
                is_it.then(|| digest.clone())
            };
            let exact = state.names.get(&*name).map(|lead| lead.digest.clone());
            let mut all = state.names.iter();
            exact.or_else(|| all.find_map(|(known, lead)| of_repository(known, &lead.digest)))
        };
        Ok(known.and_then(|digest| self.find_digest(&digest)))
    }

    /// The image of a manifest's or an index's digest, if it is here. It stays here while the
    /// answer is held.
    #[must_use]
    pub fn find_digest(&self, digest: &Digest) -> Option<Pinned> {
        let mut state = self.0.state.lock();
        let image = match state.images.get(digest) {
            Some(image) => image.clone(),
            None => {
                let of_index = |image: &&Arc<Image>| image.index() == Some(digest);
                state.images.values().find(of_index)?.clone()
            }
        };
        *state.pins.entry(image.digest().clone()).or_default() += 1;
        drop(state);
        let digests = vec![image.digest().clone()];
        let hold = Hold {
            store: self.0.clone(),
            digests,
        };
        Some(Pinned { image, _hold: hold })
    }

    /// Every name and its image, by name.
    #[must_use]
    pub fn list(&self) -> Vec<(Box<str>, Arc<Image>)> {
        let state = self.0.state.lock();
        let named = state.names.iter().filter_map(|(name, lead)| {
            Some((name.clone(), state.images.get(&lead.digest)?.clone()))
        });
        named.collect()
    }

    /// Takes a name away; answers whether it was there. What it led to stays until a sweep finds
    /// that nothing else does.
    ///
    /// # Errors
    /// If the text does not name an image, or the disk fails.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let name = canonical(name)?;
        let mut state = self.0.state.lock();
        if !state.names.contains_key(&name) {
            return Ok(false);
        }
        files::remove_durably(&self.0.name_file(&name))?;
        state.names.remove(&name);
        Ok(true)
    }

    /// Notes what a layer was captured on, if that is known, before it gets its name.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn note_capture(&self, digest: &Digest, origin: Option<&Origin>) -> Result<()> {
        match self.write_note(digest, origin)? {
            Some(note) => note.name().and_then(|()| note.sync_name()),
            None => Ok(()),
        }
    }

    /// The same, but for the note's name; nothing if there is such a note already.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn write_note(&self, digest: &Digest, origin: Option<&Origin>) -> Result<Option<Note>> {
        // It is wanted again, whatever a sweep has seen.
        self.0.state.lock().lost.remove(digest);
        Note::write(&self.0, digest, origin)
    }

    /// What a layer was captured on; none if that is not known.
    ///
    /// # Errors
    /// If the note is damaged.
    pub fn find_capture(&self, digest: &Digest) -> Result<Option<Origin>> {
        let path = self.0.images.join("captures").join(hex(digest));
        Ok(read_json::<Option<Origin>>(&path)?.flatten())
    }

    /// Where blobs and captured layers are, by the hexadecimal half of their digest.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.0.layers.join("sha256")
    }

    /// Ends the transfers under way; what they have downloaded stays.
    pub fn stop(&self) {
        self.0.tasks.stopping().cancel();
    }

    /// Leaves the images to another process, or another opening in this one: ends the transfers, and
    /// gives the lock back once nothing is held any more, `patience` later at most. What is imported or
    /// made from then on is refused. Answers whether the lock is free.
    pub async fn close(&self, patience: Duration) -> bool {
        self.stop();
        let unused = async {
            while !self.0.state.lock().pins.is_empty() {
                sleep(LOOK).await;
            }
        };
        let is_unused = timeout(patience, unused).await.is_ok();
        if is_unused {
            self.0.lock.give_back();
        }
        is_unused
    }
}

impl Inner {
    fn name_file(&self, name: &str) -> PathBuf {
        let digest = crate::digest::digest_of(name.as_bytes());
        self.images.join("names").join(hex(&digest))
    }

    /// Images that repository has served, as far as they have a name of it.
    pub(crate) fn served_by(&self, repository: &Reference) -> Vec<Arc<Image>> {
        let state = self.state.lock();
        let named = state.names.iter();
        let named = named.filter(|(name, lead)| lead.served && is_of_repository(name, repository));
        let found = named.filter_map(|(_, lead)| state.images.get(&lead.digest).cloned());
        found.collect()
    }

    /// Gives an image that is whole its name.
    pub(crate) fn name(&self, name: &str, image: &Arc<Image>) -> Result<()> {
        self.lead(name, image, false)
    }

    /// The same, for one that the repository of that name has served.
    pub(crate) fn name_served(&self, name: &str, image: &Arc<Image>) -> Result<()> {
        self.lead(name, image, true)
    }

    fn lead(&self, name: &str, image: &Arc<Image>, served: bool) -> Result<()> {
        self.check_open(name)?;
        let mut state = self.state.lock();
        let before = state.names.get(name);
        // What was served once stays so, whoever brings the same again.
        if before.is_some_and(|lead| lead.digest == *image.digest() && lead.served >= served) {
            return Ok(());
        }
        let record = NameRecord {
            name: name.into(),
            lead: Lead {
                digest: image.digest().clone(),
                served,
            },
        };
        write_json(&self.name_file(name), &record)?;
        state.names.insert(record.name, record.lead);
        Ok(())
    }

    /// Refuses to go on once the images are another's.
    pub(crate) fn check_open(&self, what: &str) -> Result<()> {
        match self.tasks.stopping().is_cancelled() {
            true => Err(ImageError::Stopped(what.into())),
            false => Ok(()),
        }
    }

    /// Notes an image whose layers are all there.
    fn insert(&self, image: Image) -> Result<Arc<Image>> {
        self.check_open(image.digest().as_str())?;
        let path = self.images.join("manifests").join(hex(image.digest()));
        let mut state = self.state.lock();
        write_json(&path, &image)?;
        let image = Arc::new(image);
        state.images.insert(image.digest().clone(), image.clone());
        Ok(image)
    }

    fn load(&self) -> Result<()> {
        let mut state = State::default();
        for path in files::list(&self.images.join("manifests"))? {
            let Some(mut image) = read_json::<Image>(&path)? else {
                continue;
            };
            image.place_in(&self.layers.join("unpacked"));
            match image.missing() {
                None => {
                    state.images.insert(image.digest().clone(), Arc::new(image));
                }
                Some(layer) => tracing::warn!(
                    image = %image.digest(),
                    layer = %layer.display(),
                    "an image lacks a layer and is taken for absent"
                ),
            }
        }
        for path in files::list(&self.images.join("names"))? {
            let Some(record) = read_json::<NameRecord>(&path)? else {
                continue;
            };
            if state.images.contains_key(&record.lead.digest) {
                state.names.insert(record.name, record.lead);
            }
        }
        *self.state.lock() = state;
        Ok(())
    }

    /// Layers that were captured before their origin was noted: everything that is there when the
    /// first note could be written.
    fn note_old_captures(&self) -> Result<()> {
        let new = self.images.join("captures.new");
        ensure_directory(&new)?;
        for path in files::list(&self.layers.join("sha256"))? {
            if let Some(name) = path.file_name() {
                write_json(&new.join(name), &None::<Origin>)?;
            }
        }
        fs::rename(&new, self.images.join("captures")).doing("note the captured layers")
    }
}

fn is_of_repository(name: &str, reference: &Reference) -> bool {
    Reference::from_str(name).is_ok_and(|name| {
        (name.registry(), name.repository()) == (reference.registry(), reference.repository())
    })
}

/// A file name that nobody else uses; leftovers of it are removed at the next opening.
pub(crate) fn new_name(name: &str) -> String {
    format!("{name}.{}.new", kit::unique::name())
}

/// What a name is kept under.
pub(crate) fn canonical(name: &str) -> Result<Box<str>, ImageError> {
    if name == BASE {
        return Ok(name.into());
    }
    Ok(name.parse::<Reference>()?.to_string().into())
}

/// Digests that stay on disk while this is held.
#[derive(Debug)]
pub(crate) struct Hold {
    store: Arc<Inner>,
    digests: Vec<Digest>,
}

impl Hold {
    pub(crate) const fn new(store: Arc<Inner>) -> Self {
        Self {
            store,
            digests: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, digests: impl IntoIterator<Item = Digest>) {
        let mut state = self.store.state.lock();
        for digest in digests {
            *state.pins.entry(digest.clone()).or_default() += 1;
            self.digests.push(digest);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.store.state.lock();
        for digest in &self.digests {
            if let Some(count) = state.pins.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    state.pins.remove(digest);
                }
            }
        }
    }
}

/// An image that stays on disk while this is held.
#[derive(Debug)]
pub struct Pinned {
    image: Arc<Image>,
    _hold: Hold,
}

impl Pinned {
    pub(crate) fn share(&self) -> Arc<Image> {
        self.image.clone()
    }
}

impl std::ops::Deref for Pinned {
    type Target = Image;
    fn deref(&self) -> &Image {
        &self.image
    }
}
