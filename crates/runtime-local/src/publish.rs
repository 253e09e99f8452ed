//! Captured layers that other hosts can go on from.
//!
//! A secret that a policy names is a file of that name below `secrets/` of the data directory, in
//! the format of Docker's `config.json`.

use std::sync::Arc;

use ::runtime::{Publication, WorkloadSpec};
use images::{Commit, Fetched, ImageError, Login};
use model::{Digest, Name};

use crate::{
    engine::Engine,
    error::{EngineError, Result, impossible},
};

impl Engine {
    /// Brings a captured layer to a registry. Answers its image, by digest.
    pub(crate) async fn publish(&self, layer: &Digest, to: &Publication) -> Result<Box<str>> {
        let what = Commit {
            layer: layer.clone(),
            parent: to.parent.clone(),
            compression: self.options.image_store.compression,
        };
        let login = self.login(to.secret.as_ref());
        let flight = self.images.publish(what, &to.registry, login);
        let flight = flight.map_err(refused("snapshotRegistry"))?;
        let pushed = flight.wait(|_| {}).await;
        Ok(pushed.map_err(refused("snapshotRegistry"))?.reference)
    }

    /// Brings the layer that a sandbox goes on from here, if it was published and is not here. It
    /// stays while the answer is held.
    pub(crate) async fn fetch_layer(&self, spec: &WorkloadSpec) -> Result<Option<Arc<Fetched>>> {
        let (Some(layer), Some(published)) = (&spec.from, &spec.published) else {
            return Ok(None);
        };
        if self.images.has_capture(layer)? {
            return Ok(None);
        }
        let login = self.login(published.secret.as_ref());
        let flight = self.images.fetch(layer, &published.image, login);
        let flight = flight.map_err(refused("snapshot"))?;
        let fetched = flight.wait(|_| {}).await;
        Ok(Some(fetched.map_err(refused("snapshot"))?))
    }

    fn login(&self, secret: Option<&Name>) -> Login {
        match secret {
            Some(name) => Login::Secret(self.data.join("secrets").join(name.as_str())),
            None => Login::Configured,
        }
    }
}

/// What cannot work names the field that asked for it.
fn refused(field: &'static str) -> impl Fn(ImageError) -> EngineError {
    move |error| match error.is_retryable() {
        true => EngineError::Image(error),
        false => impossible(field, error.to_string()),
    }
}
