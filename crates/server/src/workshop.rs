//! Builds of templates on this host: what they stand on, and the images they need and make.

use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use auth::Ledger;
use build::{Builder, Identity, Made, Source, Workshop, WorkshopError};
use images::{BASE, Commit, Compression, Credentials, ImageError, Pinned, Reach, Reference, Store};
use kit::Tasks;
use model::{Digest, Uid, template::ImagePullPolicy};
use runtime_local::LocalRuntime;

use crate::data_plane::Foundation;

/// Where the images are that builds make. There is no such registry, so nothing is ever pulled from
/// it by mistake.
const REGISTRY: &str = "templates.invalid";

/// Builds of templates, with what an earlier server was at failed and removed.
///
/// # Errors
/// If those on disk cannot be read.
pub(crate) async fn start_builder(
    on: &Foundation<'_>,
    runtime: &LocalRuntime,
    ledger: Arc<Ledger>,
    tasks: &Tasks,
) -> anyhow::Result<Arc<Builder>> {
    let shared = on.control.caches();
    let ports = build::Ports {
        store: Arc::clone(on.store),
        sandboxes: shared.sandboxes.clone(),
        pools: shared.pools.clone(),
        templates: shared.templates.clone(),
        snapshots: shared.snapshots.clone(),
        clock: Arc::clone(on.clock),
        entropy: Arc::clone(on.entropy),
        seal: on.seal.clone(),
        ledger,
        inside: Arc::clone(&on.engine.inside),
        workshop: Arc::new(LocalWorkshop(runtime.clone())),
    };
    let directory = on.settings.data_dir.0.join("builds");
    let settings = on.settings;
    let mut options = build::Options {
        concurrent: settings.builds_concurrent.0,
        timeout: settings.builds_timeout.0,
        keep_steps: settings.builds_keep.0,
        ..build::Options::default()
    };
    options.uploads.upload = settings.builds_max_upload_bytes.0;
    options.uploads.keep = settings.builds_keep.0;
    let builder = Builder::open(&directory, ports, options, tasks).context("open the builds")?;
    builder.recover().await;
    Ok(builder)
}

/// Makes images on this host.
#[derive(Debug)]
struct LocalWorkshop(LocalRuntime);

#[async_trait]
impl Workshop for LocalWorkshop {
    async fn fetch(&self, source: &Source) -> Result<Made, WorkshopError> {
        let images = self.0.images();
        match source {
            Source::Registry {
                name,
                identity,
                trusted,
            } => {
                let who = match identity {
                    Identity::Installation => {
                        let pulled = images.ensure_chosen(name).await;
                        return Ok(made(name, pulled.map_err(said)?));
                    }
                    Identity::Given(login) => {
                        Some(Credentials::new(&login.user, login.password.reveal()))
                    }
                    Identity::Nobody => None,
                };
                // What clients may choose anyway may be where only this host is.
                let reach = match trusted {
                    true => Reach::Anywhere,
                    false => Reach::Public,
                };
                let pull = images.pull_as(name, who, reach).map_err(said)?;
                Ok(made(name, pull.wait(|_| {}).await.map_err(said)?))
            }
            Source::Here(name) => match images.find(name).map_err(said)? {
                Some(found) => Ok(made(name, Arc::new(found))),
                None if name == BASE => Err(WorkshopError {
                    said: "the template `base` lies on the programs of this host, and nothing can \
                           be built on it: run `dormouse template build-base` first, which makes \
                           it an image"
                        .into(),
                }),
                None => {
                    let pulled = images.ensure(name, ImagePullPolicy::IfNotPresent).await;
                    Ok(made(name, pulled.map_err(said)?))
                }
            },
        }
    }

    async fn commit(&self, layer: &Digest, called: &str) -> Result<Made, WorkshopError> {
        let (images, layer) = (self.0.images().clone(), layer.clone());
        let name = format!("{REGISTRY}/{called}");
        let made = tokio::task::spawn_blocking(move || commit(&images, layer, &name)).await;
        made.map_err(|error| WorkshopError {
            said: error.to_string().into(),
        })?
        .map_err(said)
    }

    async fn output(&self, sandbox: Uid) -> Vec<String> {
        let output = self.0.output(sandbox).await.unwrap_or_default();
        let lines = output.into_iter().map(|line| line.text.to_string());
        lines.collect()
    }
}

fn commit(images: &Store, layer: Digest, name: &str) -> Result<Made, ImageError> {
    let what = Commit {
        layer,
        parent: None,
        // As it lies there: its archive is a blob of this host already.
        compression: Compression::None,
    };
    let committed = images.commit(&what)?;
    let kept = images.keep(committed, name)?;
    // The template's record keeps it, by its digest; a name would keep it for ever.
    images.remove(name)?;
    Ok(made(name, Arc::new(kept.image)))
}

fn made(name: &str, image: Arc<Pinned>) -> Made {
    Made {
        image: by_digest(name, image.digest()),
        env: image.config().env.clone(),
        hold: Box::new(image),
    }
}

/// The name of an image that means it for ever.
fn by_digest(name: &str, digest: &Digest) -> String {
    match name.parse::<Reference>() {
        Ok(reference) => reference.at(digest.clone()).to_string(),
        Err(_) => format!("{REGISTRY}/{name}@{digest}"),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
fn said(error: ImageError) -> WorkshopError {
    WorkshopError {
        said: error.to_string().into(),
    }
}
