//! Images that come without a manifest.

use std::{collections::BTreeMap, sync::Arc};

use model::Digest;

use super::{Assembly, Hold, Inner, Pinned};
use crate::{
    digest::digest_of,
    error::{Doing as _, ImageError, Result},
    manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_MANIFEST, Resolved, parse},
};

/// A layer's archive that is here: media type, digest, size.
pub(crate) type Archive = (&'static str, Digest, u64);

impl Inner {
    /// Makes an image of archives that are here, lowest first. The same ones make the same image
    /// each time. `name` is for errors.
    pub(crate) fn make_image(
        self: &Arc<Self>,
        name: &str,
        configuration: &[u8],
        layers: Vec<Archive>,
        mut hold: Hold,
    ) -> Result<Pinned> {
        let descriptor = |media_type: &str, digest, size| Descriptor {
            media_type: media_type.into(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        };
        let config = self.put_bytes(configuration, &mut hold)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.into(),
            config: descriptor(OCI_CONFIG, config, configuration.len() as u64),
            layers: layers
                .into_iter()
                .map(|(kind, digest, size)| descriptor(kind, digest, size))
                .collect(),
            annotations: BTreeMap::new(),
        };
        let bytes = serde_json::to_vec(&manifest)
            .map_err(std::io::Error::from)
            .doing("make a manifest")?;
        // Read back: what is kept must pass the rules that what is pulled does.
        let Resolved::Image(manifest) = parse(name, &bytes)? else {
            return Err(ImageError::malformed(name, "not an image"));
        };
        self.put_bytes(&bytes, &mut hold)?;
        let manifest = (digest_of(&bytes), manifest);
        self.put_together(Assembly::new(name, manifest, None, configuration, hold)?)
    }

    /// Unpacks the layers of an image whose archives are here.
    pub(crate) fn put_together(self: &Arc<Self>, assembly: Assembly) -> Result<Pinned> {
        for number in 0..assembly.manifest.layers.len() {
            self.unpack_layer(&assembly, number)?;
        }
        self.finish(assembly)
    }
}
