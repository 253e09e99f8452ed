//! OCI layouts.

use model::Digest;

use super::{Found, Source};
use crate::{
    digest::{digest_of, hex, verify},
    error::{ImageError, Result},
    manifest::{Descriptor, Resolved, parse},
    store::{Assembly, Hold},
};

/// Where writers put an image's name, the fullest first.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

impl Source<'_> {
    pub(super) fn import_oci(&self, index: &[u8]) -> Result<Vec<Found>> {
        let Resolved::Index(index) = parse("index.json", index)? else {
            return Err(ImageError::malformed("index.json", "not an index"));
        };
        // Without a word about names, several entries are the platforms of one image.
        let named = index
            .0
            .iter()
            .filter(|entry| name_of(entry).is_some())
            .count();
        if named == 0 {
            let chosen = index.choose("index.json")?;
            return Ok(vec![(self.import_one(chosen)?, Vec::new())]);
        }
        let mut found: Vec<Found> = Vec::new();
        for entry in &index.0 {
            let Some(name) = name_of(entry) else {
                continue;
            };
            match found
                .iter_mut()
                .find(|(image, _)| *image.digest() == entry.digest)
            {
                Some((_, names)) => names.push(name),
                None => found.push((self.import_one(entry)?, vec![name])),
            }
        }
        Ok(found)
    }

    fn import_one(&self, entry: &Descriptor) -> Result<crate::store::Pinned> {
        let mut hold = Hold::new(self.inner.clone());
        let name = entry.digest.as_str();
        let bytes = self.blob(&entry.digest)?;
        let (index, digest, bytes, manifest) = match parse(name, &bytes)? {
            Resolved::Image(manifest) => (None, entry.digest.clone(), bytes, manifest),
            Resolved::Index(index) => {
                let chosen = index.choose(name)?.digest.clone();
                let bytes = self.blob(&chosen)?;
                match parse(name, &bytes)? {
                    Resolved::Image(manifest) => {
                        (Some(entry.digest.clone()), chosen, bytes, manifest)
                    }
                    Resolved::Index(_) => {
                        return Err(ImageError::malformed(name, "an index in an index"));
                    }
                }
            }
        };
        self.inner.put_bytes(&bytes, &mut hold)?;
        let configuration = self.blob(&manifest.config.digest)?;
        self.inner.put_bytes(&configuration, &mut hold)?;
        hold.add(manifest.layers.iter().map(|layer| layer.digest.clone()));
        for layer in &manifest.layers {
            if !self.inner.blob(&layer.digest).exists() {
                let file = self.needed(&path(&layer.digest))?;
                self.inner
                    .put_stream(file, Some(&layer.digest), layer.size, &mut hold)?;
            }
        }
        let manifest = (digest, manifest);
        let assembly = Assembly::new(name, manifest, index, &configuration, hold)?;
        self.inner.put_together(assembly)
    }

    /// A small blob.
    fn blob(&self, digest: &Digest) -> Result<Vec<u8>> {
        let path = path(digest);
        let bytes = self.document(&path)?;
        let bytes = bytes
            .ok_or_else(|| ImageError::malformed(path.as_str(), "it is spoken of and not there"))?;
        verify(path, digest, digest_of(&bytes))?;
        Ok(bytes)
    }
}

fn path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", hex(digest))
}

fn name_of(entry: &Descriptor) -> Option<String> {
    let name = NAMES.iter().find_map(|key| entry.annotations.get(*key))?;
    // A mere tag is not a name.
    (name.contains(['/', ':']) && !name.is_empty()).then(|| name.clone())
}
