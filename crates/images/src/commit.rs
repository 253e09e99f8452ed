//! A captured layer as an image that any tool can run: what it was captured on, and the layer on
//! top.
//!
//! Nothing of it depends on when or where it is made, so the same layer makes the same image each
//! time: who was interrupted asks again, and a registry that has it is not sent it twice. The image
//! says in its annotations what it lies on, so that whoever fetches it can make the layer writable
//! again instead of adding another one.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    sync::Arc,
};

use failpoints::{Step, reached};
use model::Digest;
use serde_json::{Value, json};

use crate::{
    compression::{Compression, compress},
    digest::{Hashing, finish, verify},
    error::{Doing as _, ImageError, Result},
    flight::Flight,
    import::Imported,
    manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_MANIFEST, Resolved, parse},
    store::{Assembly, Hold, Origin, Pinned, Store, canonical},
};

/// The manifest that a layer was captured over, by its digest.
pub(crate) const BASE_DIGEST: &str = "org.opencontainers.image.base.digest";
/// The captured layer, uncompressed: what a sandbox goes on from.
pub(crate) const LAYER: &str = "dev.dormouse.layer";
/// The layer that the sandbox had gone on from, if it had.
const PARENT: &str = "dev.dormouse.parent";

/// What is to become an image.
#[derive(Clone, Debug)]
pub struct Commit {
    /// A captured layer.
    pub layer: Digest,
    /// The layer it was captured on top of, if any.
    pub parent: Option<Digest>,
    /// How it is compressed.
    pub compression: Compression,
}

/// An image of a captured layer: its blobs are durable, and stay while this is held. It has no name
/// and is not unpacked.
#[derive(Debug)]
pub struct Committed {
    digest: Digest,
    pub(crate) manifest: Manifest,
    pub(crate) base: Pinned,
    hold: Hold,
}

impl Committed {
    /// The digest of its manifest.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The digest of the manifest it lies on.
    #[must_use]
    pub fn base(&self) -> &Digest {
        self.base.digest()
    }

    /// Size of its layers' archives in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.manifest.layers.iter().map(|layer| layer.size).sum()
    }
}

/// What the image of a captured layer lies on.
#[derive(Debug)]
pub(crate) struct Below {
    /// Of its manifest.
    pub(crate) digest: Digest,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) configuration: Vec<u8>,
}

impl Store {
    /// Makes an image of a captured layer.
    ///
    /// # Errors
    /// If the layer is not here, does not lie on an image, or the disk fails.
    pub fn commit(&self, what: &Commit) -> Result<Committed> {
        self.commit_telling(what, &|_| {})
    }

    /// Makes an image of a captured layer and gives it a name. Answers at once; it goes on by
    /// itself.
    ///
    /// # Errors
    /// If the name is none.
    pub fn commit_as(&self, what: Commit, name: &str) -> Result<Flight<Arc<Pinned>>> {
        let name = canonical(name)?;
        let key = format!("{} as {name}", what.layer);
        let store = self.clone();
        Ok(self.fly(&self.inner().flights, &key, |_, tell| async move {
            let work = move || {
                let size = store.inner().blob(&what.layer).metadata();
                tell.begin(size.ok().map(|found| found.len()).into_iter());
                let committed = store.commit_telling(&what, &|read| tell.arrived(0, read))?;
                tell.change(|progress| progress.unpacking = Some(0));
                Ok(Arc::new(store.keep(committed, &name)?.image))
            };
            let made = tokio::task::spawn_blocking(work).await;
            made.map_err(io::Error::other)
                .doing("make an image of a layer")?
        }))
    }

    /// `tell` hears how much of the layer was read.
    fn commit_telling(&self, what: &Commit, tell: &dyn Fn(u64)) -> Result<Committed> {
        let inner = self.inner();
        let mut hold = Hold::new(inner.clone());
        hold.add([what.layer.clone()]);
        let base = self.base_of(&what.layer)?;
        let manifest = inner.read_blob(base.digest())?;
        let Resolved::Image(below) = parse(base.digest().as_str(), &manifest)? else {
            return Err(damaged(base.digest(), "it is not an image"));
        };
        let configuration = inner.read_blob(&below.config.digest)?;
        let below = Below {
            digest: base.digest().clone(),
            layers: below.layers,
            configuration,
        };
        let (digest, manifest) = self.put_on(below, what, &mut hold, tell)?;
        Ok(Committed {
            digest,
            manifest,
            base,
            hold,
        })
    }

    /// Makes the configuration and the manifest of a captured layer on what it lies on.
    pub(crate) fn put_on(
        &self,
        below: Below,
        what: &Commit,
        hold: &mut Hold,
        tell: &dyn Fn(u64),
    ) -> Result<(Digest, Manifest)> {
        let inner = self.inner();
        let (blob, size) = self.compressed(what, hold, tell)?;
        let configuration = with_layer(&below.configuration, &what.layer)
            .ok_or_else(|| damaged(&below.digest, "its configuration is none"))?;
        let config = inner.put_bytes(&configuration, hold)?;
        let descriptor = |media_type: &str, digest: Digest, size| Descriptor {
            media_type: media_type.into(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        };
        let mut layers = below.layers;
        for layer in &mut layers {
            layer.media_type = oci_layer(&layer.media_type);
        }
        layers.push(descriptor(what.compression.media_type(), blob, size));
        let notes = [
            (BASE_DIGEST, Some(&below.digest)),
            (LAYER, Some(&what.layer)),
            (PARENT, what.parent.as_ref()),
        ];
        let manifest = Manifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.into(),
            config: descriptor(OCI_CONFIG, config, configuration.len() as u64),
            layers,
            annotations: notes
                .into_iter()
                .filter_map(|(key, digest)| Some((key.to_owned(), digest?.to_string())))
                .collect(),
        };
        let bytes = serde_json::to_vec(&manifest).map_err(io::Error::from);
        let bytes = bytes.doing("make a manifest")?;
        let digest = inner.put_bytes(&bytes, hold)?;
        reached(Step::Committed);
        // Read back: what is handed on must pass the rules that what is pulled does.
        match parse(digest.as_str(), &bytes)? {
            Resolved::Image(manifest) => Ok((digest, manifest)),
            Resolved::Index(_) => Err(damaged(&digest, "it is not an image")),
        }
    }

    /// Unpacks an image of a captured layer and gives it a name, so that sandboxes can be made from
    /// it.
    ///
    /// # Errors
    /// If the name is none, or the disk fails.
    pub fn keep(&self, committed: Committed, name: &str) -> Result<Imported> {
        let inner = self.inner();
        let configuration = inner.read_blob(&committed.manifest.config.digest)?;
        let manifest = (committed.digest, committed.manifest);
        let assembly = Assembly::new(name, manifest, None, &configuration, committed.hold)?;
        self.name_all(inner.put_together(assembly)?, &[name.to_owned()])
    }

    /// The image that a layer was captured on.
    fn base_of(&self, layer: &Digest) -> Result<Pinned> {
        let refuse = |why: String| ImageError::NoBase {
            layer: layer.clone(),
            why: why.into(),
        };
        if !self.inner().blob(layer).exists() {
            return Err(refuse("it is not on this host".into()));
        }
        match self.find_capture(layer)? {
            Some(Origin::Image { digest }) => self.find_digest(&digest).ok_or_else(|| {
                refuse(format!(
                    "it lies on image {digest}, which is not on this host: import it"
                ))
            }),
            Some(Origin::Host { .. }) => Err(refuse(
                "it lies on `base` over the programs of this host, which no other host has: make \
                 sandboxes from an image (`dormouse template build-base` makes `base` one)"
                    .into(),
            )),
            Some(Origin::Directory { name }) => Err(refuse(format!(
                "it lies on the directory {name} of this host: make sandboxes from an image"
            ))),
            None => Err(refuse("what it lies on was not noted".into())),
        }
    }

    /// The layer's archive as it is handed on. It is proven to be what its digest says while it is
    /// read.
    fn compressed(
        &self,
        what: &Commit,
        hold: &mut Hold,
        tell: &dyn Fn(u64),
    ) -> Result<(Digest, u64)> {
        let inner = self.inner();
        let path = inner.blob(&what.layer);
        if what.compression == Compression::None {
            let found = path.metadata().doing("look at a layer")?;
            return Ok((what.layer.clone(), found.len()));
        }
        let fill = |to: &mut dyn Write| {
            let mut from = Telling {
                from: Hashing::new(File::open(&path).doing("open a layer")?),
                tell,
            };
            compress(&mut from, to, what.compression).doing("compress a layer")?;
            verify(
                format!("layer {}", what.layer),
                &what.layer,
                finish(from.from.hash),
            )
        };
        inner.put(hold, fill, |_, _| Ok(()))
    }
}

/// Says how much was read.
struct Telling<'a, R> {
    from: Hashing<R>,
    tell: &'a dyn Fn(u64),
}

impl<R: Read> Read for Telling<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        (self.tell)(self.from.size);
        Ok(read)
    }
}

/// The configuration of an image with one layer more.
fn with_layer(configuration: &[u8], layer: &Digest) -> Option<Vec<u8>> {
    let mut configuration: Value = serde_json::from_slice(configuration).ok()?;
    let ids = configuration.pointer_mut("/rootfs/diff_ids")?;
    ids.as_array_mut()?.push(json!(layer));
    // Whoever speaks of its history speaks of every layer.
    if let Some(history) = configuration
        .get_mut("history")
        .and_then(Value::as_array_mut)
    {
        history.push(json!({"created_by": "dormouse", "comment": "what a sandbox has written"}));
    }
    serde_json::to_vec(&configuration).ok()
}

/// Docker's names of layers in the words of OCI.
fn oci_layer(media_type: &str) -> String {
    match media_type {
        "application/vnd.docker.image.rootfs.diff.tar" => Compression::None.media_type().into(),
        "application/vnd.docker.image.rootfs.diff.tar.gzip" => {
            Compression::Gzip.media_type().into()
        }
        other => other.into(),
    }
}

fn damaged(what: &Digest, how: &str) -> ImageError {
    ImageError::Damaged {
        what: what.as_str().into(),
        how: how.into(),
    }
}
