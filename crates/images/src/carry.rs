//! A captured layer on an image that somebody else keeps: on a node of a cluster, whose container
//! runtime has pulled it.
//!
//! The result is the same, to the byte, as if the image had been pulled here first, so that what was
//! captured on one machine goes on in a cluster and the other way round. An image that is itself one
//! of a captured layer is not what the next layer lies on: the layers have become one, and lie on what
//! the first one lay on.

use std::{
    fmt::Debug,
    fs::{self, File},
    io,
    path::Path,
    str::FromStr as _,
    sync::Arc,
};

use futures_util::future::BoxFuture;
use kit::Tasks;
use model::Digest;
use serde_json::Value;

use crate::{
    commit::{BASE_DIGEST, Below, Commit, LAYER},
    digest::{Hashing, digest_of, finish, hex, verify},
    error::{Doing as _, ImageError, Result},
    flight::Flight,
    manifest::{Descriptor, MAX_DOCUMENT, Manifest, Resolved, parse},
    publish::{Pushed, repository_of},
    reference::Reference,
    registry::{self, Login, Parcel, Remote},
    store::{Hold, Inner, Store, new_name},
};

/// Whoever keeps an image's blobs.
pub trait Blobs: Send + Sync + Debug {
    /// Writes a blob into a file that is not there yet. Answers whether it has the blob; fails if it
    /// cannot say, or the disk does.
    fn copy<'a>(&'a self, blob: &'a Digest, to: &'a Path) -> BoxFuture<'a, io::Result<bool>>;
}

/// An image that somebody else keeps.
#[derive(Clone, Debug)]
pub struct Foreign {
    digest: Digest,
    manifest: Manifest,
    configuration: Vec<u8>,
    /// What it is called, where that leads to a registry.
    name: Option<Reference>,
    blobs: Arc<dyn Blobs>,
}

impl Foreign {
    /// The captured layer on top of it, if it is the image of one.
    #[must_use]
    pub fn layer(&self) -> Option<Digest> {
        let (_, layer) = self.captured()?;
        Some(layer)
    }

    /// How many layers it has.
    #[must_use]
    pub const fn layers(&self) -> usize {
        self.manifest.layers.len()
    }

    /// The manifest that the next captured layer lies on.
    #[must_use]
    pub fn base(&self) -> Digest {
        match self.captured() {
            Some((base, _)) => base,
            None => self.digest.clone(),
        }
    }

    /// What its annotations say it was captured on, and as which layer.
    fn captured(&self) -> Option<(Digest, Digest)> {
        let note = |key: &str| Digest::new(self.manifest.annotations.get(key)?.as_str()).ok();
        note(BASE_DIGEST).zip(note(LAYER))
    }

    /// What the next captured layer lies on.
    fn below(&self) -> Result<Below> {
        let mut layers = self.manifest.layers.clone();
        let mut configuration = self.configuration.clone();
        if self.layer().is_some() {
            layers.pop();
            configuration = without_layer(&configuration).ok_or_else(|| {
                ImageError::malformed(self.digest.as_str(), "its configuration is none")
            })?;
        }
        Ok(Below {
            digest: self.base(),
            layers,
            configuration,
        })
    }
}

/// The configuration of the image that one of a captured layer lies on: what was added is taken away.
fn without_layer(configuration: &[u8]) -> Option<Vec<u8>> {
    let mut configuration: Value = serde_json::from_slice(configuration).ok()?;
    let ids = configuration.pointer_mut("/rootfs/diff_ids")?;
    ids.as_array_mut()?.pop()?;
    if let Some(history) = configuration.get_mut("history") {
        history.as_array_mut()?.pop();
    }
    serde_json::to_vec(&configuration).ok()
}

/// Where the blobs of a push are had that are not here.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    name: Option<Reference>,
    blobs: Arc<dyn Blobs>,
}

impl Elsewhere {
    /// Brings a blob here: from whoever keeps the image, or else from where they had it from.
    pub(crate) async fn bring(
        &self,
        inner: &Arc<Inner>,
        blob: &Descriptor,
        login: &Login,
        tasks: &Tasks,
    ) -> Result<()> {
        if inner.copied(&*self.blobs, &blob.digest).await? {
            return Ok(());
        }
        let Some(name) = &self.name else {
            return Err(ImageError::Damaged {
                what: blob.digest.as_str().into(),
                how: "nobody has it: neither the node nor a registry".into(),
            });
        };
        let remote = Remote::new(inner, name, login, tasks);
        remote.fetch_blob(blob).await
    }
}

impl Inner {
    /// Has a blob copied here by whoever keeps it; what arrives must be it.
    async fn copied(self: &Arc<Self>, blobs: &dyn Blobs, digest: &Digest) -> Result<bool> {
        let new = self.blob(digest).with_file_name(new_name("copy"));
        let found = blobs.copy(digest, &new).await;
        if !found.doing(format!("copy {digest}"))? {
            return Ok(false);
        }
        let (inner, digest) = (self.clone(), digest.clone());
        let kept = tokio::task::spawn_blocking(move || {
            let kept = check(&new, &digest).and_then(|()| inner.name_blob(&new, &digest));
            kept.inspect_err(|_| {
                // The failure says more than a leftover, which the next opening removes.
                let _ = fs::remove_file(&new);
            })
        });
        kept.await
            .map_err(io::Error::other)
            .doing("copy a blob")??;
        Ok(true)
    }
}

/// Makes a file durable that must be what its digest says.
fn check(path: &Path, digest: &Digest) -> Result<()> {
    let mut hashing = Hashing::new(File::open(path).doing("read a blob")?);
    io::copy(&mut hashing, &mut io::sink()).doing("read a blob")?;
    verify("a blob of the node", digest, finish(hashing.hash))?;
    hashing.inner.sync_all().doing("make a blob durable")
}

impl Store {
    /// Reads what an image is that somebody else keeps. `digest` is that of its manifest or index.
    ///
    /// # Errors
    /// If its documents are not there, or are none.
    pub async fn look_at(
        &self,
        name: &str,
        digest: &Digest,
        blobs: Arc<dyn Blobs>,
    ) -> Result<Foreign> {
        let read = async |digest: &Digest| {
            let inner = self.inner();
            if !inner.blob(digest).exists() && !inner.copied(&*blobs, digest).await? {
                let (what, how) = (digest.as_str().into(), "the node does not have it".into());
                return Err(ImageError::Damaged { what, how });
            }
            let size = inner.blob(digest).metadata().doing("look at a document")?;
            if size.len() > MAX_DOCUMENT {
                return Err(ImageError::TooLarge {
                    what: format!("a document of {name}").into(),
                    limit: MAX_DOCUMENT,
                });
            }
            inner.read_blob(digest)
        };
        let bytes = read(digest).await?;
        let (digest, manifest) = match parse(name, &bytes)? {
            Resolved::Image(manifest) => (digest.clone(), manifest),
            Resolved::Index(index) => {
                let chosen = index.choose(name)?.digest.clone();
                match parse(name, &read(&chosen).await?)? {
                    Resolved::Image(manifest) => (chosen, manifest),
                    Resolved::Index(_) => {
                        return Err(ImageError::malformed(name, "an index in an index"));
                    }
                }
            }
        };
        let configuration = read(&manifest.config.digest).await?;
        // Its name may be one that only the node knows.
        let name = Reference::from_str(name).ok();
        Ok(Foreign {
            digest,
            manifest,
            configuration,
            name,
            blobs,
        })
    }

    /// Makes an image of a captured layer on one that somebody else keeps, and brings it to a registry
    /// with what it lies on. When this is over, the registry says that it has it.
    ///
    /// # Errors
    /// If the registry is none.
    pub fn carry(
        &self,
        layer: Digest,
        on: Foreign,
        to: &str,
        login: Login,
    ) -> Result<Flight<Pushed>> {
        let to = repository_of(to)?;
        let key = format!("{to} {layer}");
        let store = self.clone();
        Ok(
            self.fly(&self.inner().pushes, &key, |tasks, tell| async move {
                let inner = store.inner();
                let what = Commit {
                    parent: on.layer(),
                    compression: inner.options.compression,
                    layer,
                };
                let below = on.below()?;
                let (maker, tag) = (store.clone(), format!("layer-{}", hex(&what.layer)));
                let made = tokio::task::spawn_blocking(move || {
                    let mut hold = Hold::new(maker.inner().clone());
                    let made = maker.put_on(below, &what, &mut hold, &|_| {});
                    made.map(|made| (made, hold))
                });
                let made = made.await.map_err(io::Error::other);
                let ((digest, manifest), _hold) = made.doing("make an image of a layer")??;
                let mut manifests = vec![(digest.clone(), manifest)];
                let base = on.base();
                let there = Remote::new(inner, &to, &login, &tasks);
                if on.layer().is_none() {
                    manifests.insert(0, (on.digest.clone(), on.manifest.clone()));
                } else if !there.has_manifest(&base).await? {
                    let base = base_from(inner, &on, &base, &login, &tasks).await?;
                    manifests.insert(0, base);
                }
                let elsewhere = Elsewhere {
                    name: on.name.clone(),
                    blobs: on.blobs.clone(),
                };
                let same = |name: &&Reference| name.registry() == to.registry();
                let others = on.name.as_ref().filter(same);
                let others = others.map(Reference::repository);
                let parcel = Parcel {
                    from: others
                        .filter(|other| *other != to.repository())
                        .map(Into::into),
                    tag: Some(tag.into()),
                    manifests,
                    elsewhere: Some(elsewhere),
                };
                registry::push(inner, &parcel, &to, &login, &tasks, &tell).await?;
                if !there.has_manifest(&digest).await? {
                    return Err(ImageError::Unreachable {
                        registry: to.registry().into(),
                        why: "it does not have what it took".into(),
                    });
                }
                Ok(Pushed {
                    reference: to.at(digest.clone()).to_string().into(),
                    digest,
                })
            }),
        )
    }
}

/// The manifest that a captured layer's image lies on, from beside that image.
async fn base_from(
    inner: &Arc<Inner>,
    on: &Foreign,
    base: &Digest,
    login: &Login,
    tasks: &Tasks,
) -> Result<(Digest, Manifest)> {
    let Some(name) = &on.name else {
        return Err(ImageError::NoBase {
            layer: base.clone(),
            why: "the image of the last capture has no registry".into(),
        });
    };
    let bytes = Remote::new(inner, name, login, tasks)
        .fetch_manifest(base)
        .await?;
    verify(base.as_str(), base, digest_of(&bytes))?;
    match parse(base.as_str(), &bytes)? {
        Resolved::Image(manifest) => {
            let mut hold = Hold::new(inner.clone());
            inner.put_bytes(&bytes, &mut hold)?;
            Ok((base.clone(), manifest))
        }
        Resolved::Index(_) => Err(ImageError::malformed(base.as_str(), "not an image")),
    }
}
