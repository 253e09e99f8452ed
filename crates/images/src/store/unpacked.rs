//! Layers as directories, each made once.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use model::Digest;
use sha2::Sha256;

use super::{
    Hold, Inner, Pinned,
    files::{ensure_directory, sync_directory},
    new_name,
    record::{Image, LayerRecord},
};
use crate::{
    compression::decompressed,
    digest::{Hashing, finish, hex, verify},
    error::{Doing as _, ImageError, Result},
    layer::{Ids, unpack},
    manifest::{Configuration, Manifest, chain},
};

/// An image that is being put together: its manifest and configuration are known.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) digest: Digest,
    pub(crate) index: Option<Digest>,
    pub(crate) manifest: Manifest,
    pub(crate) configuration: Configuration,
    chains: Vec<Digest>,
    /// So that no sweep takes away what is already there.
    pub(crate) hold: Hold,
}

impl Assembly {
    /// Holds on to everything it will be made of.
    pub(crate) fn new(
        name: &str,
        manifest: (Digest, Manifest),
        index: Option<Digest>,
        configuration: &[u8],
        mut hold: Hold,
    ) -> Result<Self> {
        let (digest, manifest) = manifest;
        let configuration = Configuration::parse(name, configuration, manifest.layers.len())?;
        let mut chains: Vec<Digest> = Vec::new();
        for diff_id in configuration.diff_ids() {
            chains.push(chain(chains.last(), diff_id));
        }
        let blobs = manifest.layers.iter().map(|layer| layer.digest.clone());
        let own = [digest.clone(), manifest.config.digest.clone()];
        hold.add(blobs.chain(own).chain(chains.iter().cloned()));
        Ok(Self {
            digest,
            index,
            manifest,
            configuration,
            chains,
            hold,
        })
    }
}

/// When a layer was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpacked {
    /// Now, and its archive was found to be what it should.
    Now,
    /// Before; nobody has looked at its archive.
    Before,
}

impl Inner {
    fn unpacked(&self, chain: &Digest) -> PathBuf {
        self.layers.join("unpacked").join(hex(chain))
    }

    /// Unpacks a layer whose archive is there, and those below are unpacked.
    pub(crate) fn unpack_layer(&self, assembly: &Assembly, number: usize) -> Result<Unpacked> {
        let there = self.unpacked(&assembly.chains[number]);
        if there.is_dir() {
            return Ok(Unpacked::Before);
        }
        let new = new_name(hex(&assembly.chains[number]));
        let new = self.layers.join("unpacked").join(new);
        let below: Vec<_> = assembly.chains[..number]
            .iter()
            .rev()
            .map(|chain| self.unpacked(chain))
            .collect();
        let made = self
            .unpack_into(assembly, number, &new, &below)
            .and_then(|()| {
                match fs::rename(&new, &there) {
                    // Another pull of the same layer was faster.
                    Err(_) if there.is_dir() => self.discard(&new),
                    other => other.doing("name a layer")?,
                }
                sync_directory(&self.layers.join("unpacked")).doing("make a layer's name durable")
            });
        made.inspect_err(|_| self.discard(&new))?;
        Ok(Unpacked::Now)
    }

    /// Proves that the archive of a layer is the one that it was unpacked from.
    pub(crate) fn check_layer(&self, assembly: &Assembly, number: usize) -> Result<()> {
        let layer = &assembly.manifest.layers[number];
        let file = File::open(self.blob(&layer.digest)).doing("open a layer's archive")?;
        let archive = decompressed(file).doing("read a layer's archive")??;
        // What is longer is another.
        let mut hashing = Hashing::new(archive.take(self.options.limits.bytes));
        match io::copy(&mut hashing, &mut io::sink()) {
            // Not the disk but what is written on it.
            Err(error) if error.raw_os_error().is_none() => {
                return Err(ImageError::malformed("the layer's compression", error));
            }
            other => other.doing("read a layer's archive")?,
        };
        verify_diff_id(assembly, number, hashing.hash)
    }

    fn unpack_into(
        &self,
        assembly: &Assembly,
        number: usize,
        new: &Path,
        below: &[PathBuf],
    ) -> Result<()> {
        ensure_directory(new)?;
        rustix::fs::chmod(new, rustix::fs::Mode::from_raw_mode(0o755)).doing("make a layer")?;
        let layer = &assembly.manifest.layers[number];
        let file = File::open(self.blob(&layer.digest)).doing("open a layer's archive")?;
        let archive = decompressed(file).doing("read a layer's archive")??;
        let mut hashing = Hashing::new(archive);
        let below: Vec<&Path> = below.iter().map(PathBuf::as_path).collect();
        let limits = self.options.limits;
        // Few large reads: headers are read block by block.
        let buffered = BufReader::with_capacity(1 << 17, &mut hashing);
        unpack(buffered, new, &below, Ids::Same, limits)?;
        verify_diff_id(assembly, number, hashing.hash)?;
        // Every file of it, before its directory gets the name that says it is whole.
        let directory = File::open(new).doing("open a layer")?;
        rustix::fs::syncfs(&directory).doing("make a layer durable")
    }

    /// Notes an image whose layers are all unpacked.
    pub(crate) fn finish(self: &Arc<Self>, assembly: Assembly) -> Result<Pinned> {
        let layers = assembly.manifest.layers.iter().zip(&assembly.chains);
        let layers = layers.zip(assembly.configuration.diff_ids());
        let layers = layers.map(|((layer, chain), diff_id)| LayerRecord {
            blob: layer.digest.clone(),
            size: layer.size,
            diff_id: diff_id.clone(),
            chain: chain.clone(),
        });
        let layers = layers.collect();
        let image = Image::new(
            assembly.digest,
            assembly.index,
            assembly.manifest.config.digest,
            assembly.configuration.config.unwrap_or_default(),
            layers,
            self.layers.join("unpacked"),
        );
        if let Some(layer) = image.missing() {
            return Err(ImageError::Damaged {
                what: format!("layer {}", layer.display()).into(),
                how: "it is gone".into(),
            });
        }
        let image = self.insert(image)?;
        Ok(Pinned {
            image,
            _hold: assembly.hold,
        })
    }

    /// An empty directory for a while; what is left of it is removed at the next opening.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.layers.join("partial").join(new_name(name));
        ensure_directory(&path)?;
        Ok(path)
    }

    /// Removes a directory that nobody uses; what cannot be removed now is removed at the next
    /// opening.
    pub(crate) fn discard(&self, path: &Path) {
        if let Err(error) = crate::tree::remove(path, &self.layers.join("trash/parking")) {
            tracing::warn!(path = %path.display(), %error, "a directory could not be removed");
        }
    }
}

/// Refuses the archive of a layer that is not what the image's configuration says.
fn verify_diff_id(assembly: &Assembly, number: usize, uncompressed: Sha256) -> Result<()> {
    let layer = &assembly.manifest.layers[number].digest;
    let diff_id = &assembly.configuration.diff_ids()[number];
    verify(
        format!("layer {layer} uncompressed"),
        diff_id,
        finish(uncompressed),
    )
}
