//! An image made of another and what is put on top of it.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::Value;

use crate::{
    compression::Compression,
    error::{Doing as _, ImageError, Result},
    import::Imported,
    layer::{Ids, capture},
    manifest::{Resolved, parse},
    reference::Reference,
    store::{Hold, Pinned, Store, new_name},
};

impl Store {
    /// Makes an image of `base` and of what `fill` puts into an empty directory: owners and modes
    /// are taken as they are there. The same content makes the same layer.
    ///
    /// # Errors
    /// If the base is not here, `fill` fails, or the disk does; then there is no image.
    pub fn derive(
        &self,
        base: &str,
        name: &str,
        fill: impl FnOnce(&Path, &Pinned) -> Result<()>,
    ) -> Result<Imported> {
        let inner = self.inner();
        let called: Box<str> = name.parse::<Reference>()?.to_string().into();
        let base = self
            .find(base)?
            .ok_or_else(|| ImageError::NotPresent(base.into()))?;
        let scratch = inner.scratch("derive")?;
        let made = (|| {
            let open = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&scratch, open).doing("open the new layer's directory")?;
            fill(&scratch, &base)?;
            let temporary = new_name("derive");
            let (layer, size) = capture(
                &scratch,
                Ids::Same,
                &self.blobs(),
                &temporary,
                u64::MAX,
                |_| Ok(None),
            )?;
            let mut hold = Hold::new(inner.clone());
            hold.add([layer.clone()]);
            let manifest = inner.read_blob(base.digest())?;
            let Resolved::Image(below) = parse(name, &manifest)? else {
                return Err(ImageError::malformed(name, "what it lies on is no image"));
            };
            let configuration = inner.read_blob(&below.config.digest)?;
            let configuration = with_layer(&configuration, layer.as_str())
                .ok_or_else(|| ImageError::malformed(name, "what it lies on is not configured"))?;
            let mut layers: Vec<_> = below
                .layers
                .into_iter()
                .map(|below| (oci_type(&below.media_type), below.digest, below.size))
                .collect();
            layers.push((Compression::None.media_type(), layer, size));
            inner.make_image(name, &configuration, layers, hold)
        })();
        inner.discard(&scratch);
        let image = made?;
        inner.name(&called, &image.share())?;
        Ok(Imported {
            names: vec![called],
            image,
        })
    }
}

/// A configuration that also speaks of this layer.
fn with_layer(configuration: &[u8], diff_id: &str) -> Option<Vec<u8>> {
    let mut configuration: Value = serde_json::from_slice(configuration).ok()?;
    let layers = configuration.pointer_mut("/rootfs/diff_ids")?;
    layers.as_array_mut()?.push(diff_id.into());
    // It would have to speak of each layer, and nothing reads it.
    configuration.as_object_mut()?.remove("history");
    serde_json::to_vec(&configuration).ok()
}

fn oci_type(said: &str) -> &'static str {
    if said.ends_with("zstd") {
        Compression::Zstd.media_type()
    } else if said.ends_with("gzip") {
        Compression::Gzip.media_type()
    } else {
        Compression::None.media_type()
    }
}
