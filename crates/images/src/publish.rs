//! Captured layers that outlive their host: brought to a registry as images, and back by digest.
//!
//! Like pulls, these belong to the store: whoever leaves cancels nothing, and whoever asks again
//! joins what is under way.

use std::{str::FromStr as _, sync::Arc};

use model::Digest;

use crate::{
    commit::Commit,
    digest::hex,
    error::{Doing as _, ImageError, Result},
    flight::Flight,
    manifest::{Resolved, parse},
    reference::Reference,
    registry::{self, Login, Parcel},
    store::{Hold, Pinned, Store},
};

/// What was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// `registry/repository@digest`: by this it is found again, whatever becomes of its tag.
    pub reference: Box<str>,
    /// Of its manifest.
    pub digest: Digest,
}

/// A captured layer and what it lies on; both stay here while this is held.
#[derive(Debug)]
pub struct Fetched {
    base: Pinned,
    _hold: Hold,
}

impl Fetched {
    pub(crate) const fn new(base: Pinned, hold: Hold) -> Self {
        Self { base, _hold: hold }
    }

    /// What the layer lies on.
    #[must_use]
    pub const fn base(&self) -> &Pinned {
        &self.base
    }
}

/// The repository that snapshots of a registry are pushed to, where it names none.
const SNAPSHOTS: &str = "snapshots";

/// The repository that `registry` means: a host and port, and maybe a path.
///
/// # Errors
/// If it is none.
pub fn repository_of(registry: &str) -> Result<Reference> {
    let refuse = || ImageError::Name {
        text: registry.chars().take(256).collect::<String>().into(),
        why: "a registry is a host and port, maybe with a path, and no tag",
    };
    let registry = registry.trim_end_matches('/');
    let full = match registry.contains('/') {
        true => registry.to_owned(),
        false => format!("{registry}/{SNAPSHOTS}"),
    };
    let reference = Reference::from_str(&full).map_err(|_| refuse())?;
    // A first part that is no host would be taken for a path of the default registry.
    let host = full.split('/').next().unwrap_or_default();
    let tagged = full
        .rsplit('/')
        .next()
        .is_some_and(|last| last.contains([':', '@']));
    match reference.registry() == host && !tagged {
        true => Ok(reference),
        false => Err(refuse()),
    }
}

impl Store {
    /// Pushes an image that is here under a name. Answers at once; the push goes on by itself.
    ///
    /// # Errors
    /// If there is no such image, or the name is none.
    pub fn push(&self, image: &str, to: &str, login: Login) -> Result<Flight<Pushed>> {
        let found = self.find(image)?;
        let found = found.ok_or_else(|| ImageError::NotPresent(image.into()))?;
        let to: Reference = to.parse()?;
        let bytes = self.inner().read_blob(found.digest())?;
        let Resolved::Image(manifest) = parse(image, &bytes)? else {
            return Err(ImageError::malformed(image, "not an image"));
        };
        if to.digest().is_some_and(|digest| digest != found.digest()) {
            return Err(ImageError::Name {
                text: to.to_string().into(),
                why: "its digest is that of another image",
            });
        }
        let parcel = Parcel {
            from: self.repository_with(found.digest(), &to),
            tag: to.digest().is_none().then(|| to.version().into()),
            manifests: vec![(found.digest().clone(), manifest)],
            elsewhere: None,
        };
        let key = format!("{to} {}", found.digest());
        let (store, digest) = (self.clone(), found.digest().clone());
        Ok(
            self.fly(&self.inner().pushes, &key, |tasks, tell| async move {
                let inner = store.inner();
                registry::push(inner, &parcel, &to, &login, &tasks, &tell).await?;
                drop(found);
                Ok(Pushed {
                    reference: to.at(digest.clone()).to_string().into(),
                    digest,
                })
            }),
        )
    }

    /// Makes an image of a captured layer and brings it to a registry, with what it lies on. Its
    /// tag says which layer it is, so that no registry takes it for garbage.
    ///
    /// # Errors
    /// If the registry is none.
    pub fn publish(&self, what: Commit, to: &str, login: Login) -> Result<Flight<Pushed>> {
        let to = repository_of(to)?;
        let key = format!("{to} {}", what.layer);
        let store = self.clone();
        Ok(
            self.fly(&self.inner().pushes, &key, |tasks, tell| async move {
                let maker = store.clone();
                let tag = format!("layer-{}", hex(&what.layer));
                let made = tokio::task::spawn_blocking(move || maker.commit(&what)).await;
                let committed = made.map_err(std::io::Error::other);
                let committed = committed.doing("make an image of a layer")??;
                let inner = store.inner();
                let below = inner.read_blob(committed.base())?;
                let Resolved::Image(below) = parse(committed.base().as_str(), &below)? else {
                    return Err(ImageError::malformed(
                        committed.base().as_str(),
                        "not an image",
                    ));
                };
                let digest = committed.digest().clone();
                let parcel = Parcel {
                    from: store.repository_with(committed.base(), &to),
                    tag: Some(tag.into()),
                    manifests: vec![
                        (committed.base().clone(), below),
                        (digest.clone(), committed.manifest.clone()),
                    ],
                    elsewhere: None,
                };
                registry::push(inner, &parcel, &to, &login, &tasks, &tell).await?;
                Ok(Pushed {
                    reference: to.at(digest.clone()).to_string().into(),
                    digest,
                })
            }),
        )
    }

    /// Brings a captured layer here from where it was published, unless it is here. `from` names
    /// its image by digest.
    ///
    /// # Errors
    /// If `from` is no such name.
    pub fn fetch(&self, layer: &Digest, from: &str, login: Login) -> Result<Flight<Arc<Fetched>>> {
        let from: Reference = from.parse()?;
        if from.digest().is_none() {
            return Err(ImageError::Name {
                text: from.to_string().into(),
                why: "a captured layer is found by the digest of its image only",
            });
        }
        let (store, layer) = (self.clone(), layer.clone());
        let key = from.to_string();
        Ok(
            self.fly(&self.inner().fetches, &key, |tasks, tell| async move {
                let fetched =
                    registry::fetch_capture(&store, &layer, &from, &login, &tasks, &tell).await?;
                Ok(Arc::new(fetched))
            }),
        )
    }

    /// Whether a captured layer is here.
    ///
    /// # Errors
    /// If the note of what it lies on is damaged.
    pub fn has_capture(&self, layer: &Digest) -> Result<bool> {
        Ok(self.inner().blob(layer).exists() && self.find_capture(layer)?.is_some())
    }

    /// Another repository of the same registry that an image came from.
    fn repository_with(&self, image: &Digest, to: &Reference) -> Option<Box<str>> {
        let names = self.list();
        let named = names.iter().filter(|(_, known)| known.digest() == image);
        let mut names = named.filter_map(|(name, _)| Reference::from_str(name).ok());
        let other = names
            .find(|name| name.registry() == to.registry() && name.repository() != to.repository());
        other.map(|name| name.repository().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_with_or_without_a_path() {
        let meant = |text| {
            repository_of(text).map(|r| (r.registry().to_owned(), r.repository().to_owned()))
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(meant("a.com").unwrap(), pair("a.com", "snapshots"));
        assert_eq!(meant("a.com:5000/x/y/").unwrap(), pair("a.com:5000", "x/y"));
        assert_eq!(
            meant("localhost:1").unwrap(),
            pair("localhost:1", "snapshots")
        );
        for bad in [
            "",
            "a",
            "team/app",
            "a.com/x:1",
            "http://a.com/x",
            "a.com/X",
            "a.com/x@y",
        ] {
            assert!(repository_of(bad).is_err(), "{bad}");
        }
    }
}
