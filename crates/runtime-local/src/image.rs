//! What a sandbox lies on: which image its name leads to, and which one a captured layer needs.

use std::{fs, io, path::Path, sync::Arc};

use ::runtime::{IMAGES, RuntimeError, WorkloadSpec};
use images::{ImageConfig, ImageError, InUse, Kept, Origin, Pinned, Reference, Sweep, Swept};
use model::{Digest, StringMap, Uid, template::ImagePullPolicy};

use crate::{
    base::BASE,
    engine::Engine,
    error::{Doing as _, EngineError, Result, impossible},
    record::{Place, Record},
    rootfs::Image,
};

impl Engine {
    /// Sees to it that the image is on this host, before anything else is done. What it answers
    /// keeps the image there until the sandbox's own record does.
    pub(crate) async fn ensure_image(
        &self,
        images: &StringMap,
        pull: ImagePullPolicy,
        from: Option<&Digest>,
    ) -> Result<Option<Arc<Pinned>>> {
        let name = only(images)?;
        if self.options.images.contains_key(name) {
            return Ok(None);
        }
        let needed = match from {
            Some(layer) => self.images.find_capture(layer)?,
            None => None,
        };
        match needed {
            Some(Origin::Image { digest }) => {
                if let Some(here) = self.images.find_digest(&digest) {
                    return Ok(Some(Arc::new(here)));
                }
                // What the tag leads to by now would be another.
                let exact = name.parse::<Reference>().map(|name| name.at(digest));
                let exact = exact?.to_string();
                Ok(Some(self.images.ensure(&exact, pull).await?))
            }
            Some(Origin::Host { .. } | Origin::Directory { .. }) => Ok(None),
            None if name == BASE => Ok(self.images.find(BASE)?.map(Arc::new)),
            None => Ok(Some(self.images.ensure(name, pull).await?)),
        }
    }

    /// An image that is not on this host.
    pub(crate) fn missing_image(&self, images: &StringMap) -> Option<Box<str>> {
        let name = only(images).ok()?;
        let here = self.options.images.contains_key(name)
            || name == BASE
            || self.images.find(name).is_ok_and(|found| found.is_some());
        (!here).then(|| name.into())
    }

    /// The image of the one container a sandbox has here.
    pub(crate) fn find_image(&self, images: &StringMap) -> Result<Image> {
        let name = only(images)?;
        if let Some(directory) = self.options.images.get(name) {
            return Ok(Image {
                layers: vec![directory.clone()],
                usr: None,
                origin: Origin::Directory { name: name.into() },
                pinned: None,
            });
        }
        match self.images.find(name)? {
            Some(pinned) => Ok(unpacked(pinned)),
            None if name == BASE => self.bases.host(),
            None => Err(ImageError::NotPresent(name.into()).into()),
        }
    }

    /// The image that a sandbox was made on, whatever its name leads to by now.
    pub(crate) fn find_image_of(&self, record: &Record) -> Result<Image> {
        if let Some(Origin::Image { digest }) = &record.origin
            && let Some(pinned) = self.images.find_digest(digest)
        {
            return Ok(unpacked(pinned));
        }
        self.find_image(&record.images)
    }

    /// The image that a sandbox is made on: if it goes on from a captured layer, what that was
    /// captured on and nothing else.
    pub(crate) fn find_image_for(&self, spec: &WorkloadSpec) -> Result<Image> {
        let Some(layer) = &spec.from else {
            return self.find_image(&spec.images);
        };
        match self.images.find_capture(layer)? {
            None => self.find_image(&spec.images),
            Some(Origin::Directory { name }) => {
                self.find_image(&[("main", &*name)].into_iter().collect())
            }
            Some(Origin::Image { digest }) => {
                let pinned = self.images.find_digest(&digest).ok_or_else(|| {
                    impossible(
                        "snapshot",
                        format!("it lies on image {digest}, which is not on this host: import it"),
                    )
                })?;
                Ok(unpacked(pinned))
            }
            Some(origin @ Origin::Host { .. }) => {
                let host = self.bases.host()?;
                match host.origin == origin {
                    true => Ok(host),
                    false => Err(impossible(
                        "snapshot",
                        "it was captured over programs of the host that have changed since: bring \
                         them back, or make sandboxes from an image (`dormouse template \
                         build-base` makes one)",
                    )),
                }
            }
        }
    }

    /// What a layer that is captured now lies on: the host's programs may have changed under it.
    pub(crate) fn origin_now(&self, noted: Option<&Origin>) -> Result<Option<Origin>> {
        match noted {
            Some(Origin::Host { .. }) => Ok(Some(self.bases.host()?.origin)),
            Some(other) => Ok(Some(other.clone())),
            None => Ok(None),
        }
    }

    /// What the image of a sandbox says about its processes; none if its root is no image.
    pub(crate) fn image_config(&self, uid: Uid) -> Option<ImageConfig> {
        self.config_of(&self.origin(uid)?)
    }

    /// The same of what a sandbox lies on.
    pub(crate) fn config_of(&self, origin: &Origin) -> Option<ImageConfig> {
        match origin {
            Origin::Image { digest } => Some(self.images.find_digest(digest)?.config().clone()),
            Origin::Host { .. } | Origin::Directory { .. } => None,
        }
    }

    /// What a sandbox lies on.
    pub(crate) fn origin(&self, uid: Uid) -> Option<Origin> {
        let slot = self.slot(uid)?;
        let seen = slot.seen.lock();
        seen.as_ref()?.record.origin.clone()
    }

    /// Removes images and captured layers that nothing leads to.
    pub(crate) fn sweep_images(&self, how: Sweep, used: InUse) -> Result<Swept, ImageError> {
        self.images.gc(how, || in_use(&self.data, used))
    }
}

fn unpacked(pinned: Pinned) -> Image {
    Image {
        layers: pinned.directories(),
        usr: None,
        origin: Origin::Image {
            digest: pinned.digest().clone(),
        },
        pinned: Some(Arc::new(pinned)),
    }
}

fn only(images: &StringMap) -> Result<&str> {
    let mut all = images.iter();
    match (all.next(), all.next()) {
        (Some((_, image)), None) => Ok(image),
        (None, _) => Err(impossible("images", "no image is named")),
        (Some(_), Some(_)) => Err(impossible(
            "images",
            "the local runtime runs one container in a sandbox",
        )),
    }
}

/// What the sandboxes of a data directory lie on, and the layers they went on from, besides what
/// `used` knows already.
///
/// # Errors
/// If a sandbox's record cannot be read: then nobody knows what it needs.
pub fn in_use(data: &Path, mut used: InUse) -> Result<InUse, ImageError> {
    let damaged = |error: EngineError| ImageError::Damaged {
        what: "the record of a sandbox".into(),
        how: error.to_string().into(),
    };
    let listed = match fs::read_dir(data.join("sandboxes")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(used),
        other => other.doing("list the sandboxes").map_err(damaged)?,
    };
    for entry in listed {
        let entry = entry.doing("list the sandboxes").map_err(damaged)?;
        let place = Place::new(entry.path());
        let record = match place.read_record() {
            // Nothing of it was started yet, or it was removed just now.
            Err(EngineError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            other => other.map_err(damaged)?,
        };
        let user = format!("the files of sandbox {}", entry.file_name().display());
        if let Some(origin) = record.origin {
            if let Origin::Image { digest } = &origin {
                used.add(digest, user.as_str());
            }
            used.origins.push(origin);
        }
        if let Some(layer) = record.layer {
            used.add(&layer, user);
            if let Kept::Only(kept) = &mut used.captures {
                kept.insert(layer);
            }
        }
    }
    Ok(used)
}

impl From<ImageError> for EngineError {
    fn from(error: ImageError) -> Self {
        match error {
            error if error.is_retryable() => Self::Image(error),
            error => Self::Refused(RuntimeError::Impossible {
                field: IMAGES,
                reason: error.to_string().into(),
            }),
        }
    }
}
