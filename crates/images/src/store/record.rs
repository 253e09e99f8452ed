//! What is known of an image that is whole.

use std::path::{Path, PathBuf};

use model::Digest;
use serde::{Deserialize, Serialize};

use crate::{digest::hex, manifest::ImageConfig};

/// An image whose layers are all unpacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<Digest>,
    pub(crate) config_digest: Digest,
    config: ImageConfig,
    /// Lowest first.
    pub(crate) layers: Vec<LayerRecord>,
    #[serde(skip)]
    unpacked: PathBuf,
}

/// One layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerRecord {
    /// Its archive as it was pulled.
    pub(crate) blob: Digest,
    /// Of that.
    pub(crate) size: u64,
    /// Its archive, uncompressed.
    pub(crate) diff_id: Digest,
    /// It and all below it.
    pub(crate) chain: Digest,
}

impl Image {
    pub(crate) const fn new(
        digest: Digest,
        index: Option<Digest>,
        config_digest: Digest,
        config: ImageConfig,
        layers: Vec<LayerRecord>,
        unpacked: PathBuf,
    ) -> Self {
        Self {
            digest,
            index,
            config_digest,
            config,
            layers,
            unpacked,
        }
    }

    /// The digest of its manifest: what it is, whatever it is called.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The digest of the index that it was chosen from.
    #[must_use]
    pub const fn index(&self) -> Option<&Digest> {
        self.index.as_ref()
    }

    /// What it says about the processes in it.
    #[must_use]
    pub const fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// Its layers as directories, uppermost first, as an overlay wants them.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        let directory = |layer: &LayerRecord| self.unpacked.join(hex(&layer.chain));
        self.layers.iter().rev().map(directory).collect()
    }

    /// Size of its layers' archives.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }

    /// Its blobs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Digest> {
        let layers = self.layers.iter().map(|layer| &layer.blob);
        [&self.digest, &self.config_digest]
            .into_iter()
            .chain(layers)
    }

    /// What its layers' archives are, uncompressed.
    pub(crate) fn diff_ids(&self) -> impl Iterator<Item = &Digest> {
        self.layers.iter().map(|layer| &layer.diff_id)
    }

    /// Its layers on disk.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &Digest> {
        self.layers.iter().map(|layer| &layer.chain)
    }

    pub(super) fn place_in(&mut self, unpacked: &Path) {
        unpacked.clone_into(&mut self.unpacked);
    }

    /// A layer that should be there.
    pub(super) fn missing(&self) -> Option<PathBuf> {
        self.directories().into_iter().find(|layer| !layer.is_dir())
    }
}

/// What the writable layer of a sandbox lies on, and can only be used with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Origin {
    /// An image.
    Image {
        /// Of its manifest.
        digest: Digest,
    },
    /// The generated root over the host's own programs.
    Host {
        /// Of both, as they were.
        fingerprint: Box<str>,
    },
    /// A directory that the host's configuration names.
    Directory {
        /// Its name there.
        name: Box<str>,
    },
}
