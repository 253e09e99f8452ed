//! What `docker save` writes: a list of images, each a configuration and plain archives of layers.
//! There is no manifest in it, so one is made; the same image gets the same one each time.

use std::io::{Read as _, Seek as _};

use serde::Deserialize;

use super::{Found, Source};
use crate::{
    compression::Compression,
    error::{Doing as _, ImageError, Result},
    store::Hold,
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Source<'_> {
    pub(super) fn import_docker(&self, list: &[u8]) -> Result<Vec<Found>> {
        let saved: Vec<Saved> = serde_json::from_slice(list)
            .map_err(|error| ImageError::malformed("manifest.json", error))?;
        saved.iter().map(|one| self.import_saved(one)).collect()
    }

    fn import_saved(&self, saved: &Saved) -> Result<Found> {
        let mut hold = Hold::new(self.inner.clone());
        let configuration = self.document(&saved.config)?.ok_or_else(|| {
            ImageError::malformed(saved.config.as_str(), "it is spoken of and not there")
        })?;
        let mut layers = Vec::new();
        for path in &saved.layers {
            let mut file = self.needed(path)?;
            let mut start = [0; 8];
            let read = file.read(&mut start).doing(format!("read {path}"))?;
            let compression = Compression::of(&start[..read])?;
            file.rewind().doing(format!("read {path}"))?;
            let limit = self.inner.options.limits.bytes;
            let (digest, size) = self.inner.put_stream(file, None, limit, &mut hold)?;
            layers.push((compression.media_type(), digest, size));
        }
        let name = saved.config.as_str();
        let image = self.inner.make_image(name, &configuration, layers, hold)?;
        Ok((image, saved.repo_tags.clone().unwrap_or_default()))
    }
}
