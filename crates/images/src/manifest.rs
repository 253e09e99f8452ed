//! What a registry says an image is: manifests, indexes, configurations.

use std::{collections::BTreeMap, fmt};

use model::Digest;
use serde::{Deserialize, Serialize};

use crate::{
    digest::finish,
    error::{ImageError, Result},
};
use sha2::{Digest as _, Sha256};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// What is asked of a registry.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// The longest manifest, index or configuration.
pub(crate) const MAX_DOCUMENT: u64 = 8 << 20;
/// More layers than any overlay of a sandbox should have.
const MAX_LAYERS: usize = 128;

/// A thing by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// What an image runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
}

impl Platform {
    /// This host's, in the words of Go.
    pub(crate) fn of_host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self {
            architecture: architecture.into(),
            os: "linux".into(),
            variant: None,
        }
    }

    fn suits(&self, host: &Self) -> bool {
        self.os == host.os && self.architecture == host.architecture
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

/// A manifest or an index: which one is told by what is in it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// What a name leads to.
#[derive(Debug)]
pub(crate) enum Resolved {
    Image(Manifest),
    Index(Index),
}

/// One image.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    pub(crate) media_type: String,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Images for several platforms, or several images.
#[derive(Debug)]
pub(crate) struct Index(pub(crate) Vec<Descriptor>);

/// Reads a manifest or an index. `name` is for errors.
pub(crate) fn parse(name: &str, bytes: &[u8]) -> Result<Resolved> {
    let what = || format!("the manifest of {name}");
    let document: Document =
        serde_json::from_slice(bytes).map_err(|error| ImageError::malformed(what(), error))?;
    let unsupported = |why: String| ImageError::Unsupported {
        what: what().into(),
        why: why.into(),
    };
    if document.schema_version != 2 {
        let version = document.schema_version;
        return Err(unsupported(format!("schema version {version}, not 2")));
    }
    match (document.manifests, document.config, document.layers) {
        (Some(manifests), None, None) => Ok(Resolved::Index(Index(manifests))),
        (None, Some(config), Some(layers)) => {
            if layers.len() > MAX_LAYERS {
                return Err(ImageError::TooLarge {
                    what: format!("the number of layers of {name}").into(),
                    limit: MAX_LAYERS as u64,
                });
            }
            for layer in &layers {
                let kind = layer.media_type.as_str();
                if kind.contains("foreign") || kind.contains("nondistributable") {
                    return Err(unsupported("a layer that no registry may hand out".into()));
                }
                if kind.ends_with("+encrypted") || !kind.contains(".tar") {
                    return Err(unsupported(format!("a layer of type {kind}")));
                }
            }
            Ok(Resolved::Image(Manifest {
                schema_version: 2,
                media_type: if document.media_type.is_empty() {
                    OCI_MANIFEST.into()
                } else {
                    document.media_type
                },
                config,
                layers,
                annotations: document.annotations.unwrap_or_default(),
            }))
        }
        _ => Err(ImageError::malformed(
            what(),
            "neither an image nor an index",
        )),
    }
}

impl Index {
    /// The image for this host.
    pub(crate) fn choose(&self, name: &str) -> Result<&Descriptor> {
        let host = Platform::of_host();
        let images = || self.0.iter().filter(|descriptor| is_image(descriptor));
        let suits = |descriptor: &&Descriptor| {
            let platform = descriptor.platform.as_ref();
            platform.is_some_and(|platform| platform.suits(&host))
        };
        if let Some(found) = images().find(suits) {
            return Ok(found);
        }
        // One image and no word about a platform: an index that is just a list.
        let mut unnamed = images().filter(|descriptor| descriptor.platform.is_none());
        if let (Some(only), None) = (unnamed.next(), unnamed.next()) {
            return Ok(only);
        }
        let offered: Vec<_> = images()
            .filter_map(|descriptor| descriptor.platform.as_ref())
            .map(Platform::to_string)
            .collect();
        Err(ImageError::Platform {
            name: name.into(),
            wanted: host.to_string().into(),
            offered: offered.join(", ").into(),
        })
    }
}

/// Whether a descriptor leads to an image or an index, and not to a signature or the like.
fn is_image(descriptor: &Descriptor) -> bool {
    let kind = descriptor.media_type.as_str();
    let known = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST, ""];
    let attestation = descriptor
        .platform
        .as_ref()
        .is_some_and(|platform| platform.os == "unknown");
    known.contains(&kind) && !attestation
}

/// What an image says about the processes in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all(serialize = "camelCase", deserialize = "PascalCase"),
    default
)]
pub struct ImageConfig {
    /// `NAME=value` of every process.
    #[serde(alias = "env", deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
    /// User and group they run as, by name or number; empty means root.
    #[serde(alias = "user", deserialize_with = "null_is_empty")]
    pub user: String,
    /// Directory they run in; empty means the root.
    #[serde(alias = "workingDir", deserialize_with = "null_is_empty")]
    pub working_dir: String,
    /// What is started.
    #[serde(alias = "entrypoint", deserialize_with = "null_is_empty")]
    pub entrypoint: Vec<String>,
    /// Its arguments, or what is started where there is no entrypoint.
    #[serde(alias = "cmd", deserialize_with = "null_is_empty")]
    pub cmd: Vec<String>,
}

fn null_is_empty<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// The document that a manifest's `config` leads to.
#[derive(Debug, Deserialize)]
pub(crate) struct Configuration {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    pub(crate) config: Option<ImageConfig>,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    #[serde(default, deserialize_with = "null_is_empty")]
    diff_ids: Vec<Digest>,
}

impl Configuration {
    /// Reads a configuration and checks that it belongs to as many layers.
    pub(crate) fn parse(name: &str, bytes: &[u8], layers: usize) -> Result<Self> {
        let what = format!("the configuration of {name}");
        let read: Self = serde_json::from_slice(bytes)
            .map_err(|error| ImageError::malformed(what.as_str(), error))?;
        if read.rootfs.diff_ids.len() != layers {
            let ids = read.rootfs.diff_ids.len();
            let why = format!("it speaks of {ids} layers, its manifest of {layers}");
            return Err(ImageError::malformed(what, why));
        }
        let host = Platform::of_host();
        let said = Platform {
            architecture: read.architecture.clone(),
            os: read.os.clone(),
            variant: None,
        };
        // Hand-made ones leave it out.
        if !said.architecture.is_empty() && !said.os.is_empty() && !said.suits(&host) {
            return Err(ImageError::Platform {
                name: name.into(),
                wanted: host.to_string().into(),
                offered: said.to_string().into(),
            });
        }
        Ok(read)
    }

    /// What each layer is, uncompressed; lowest first.
    pub(crate) fn diff_ids(&self) -> &[Digest] {
        &self.rootfs.diff_ids
    }
}

/// A layer and all below it: what a directory on disk stands for. The same archive over other
/// layers may unpack to something else.
pub(crate) fn chain(below: Option<&Digest>, diff_id: &Digest) -> Digest {
    match below {
        None => diff_id.clone(),
        Some(below) => finish(Sha256::new_with_prefix(format!("{below} {diff_id}"))),
    }
}
