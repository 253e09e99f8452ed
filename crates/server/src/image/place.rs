//! Where images are worked on: in a data directory that nobody has, or through the server that has
//! it. Whoever gives a command need not know which.

use std::path::Path;

use anyhow::{Context as _, bail};
use cli::Admin;
use images::{Commit, Compression, Format, InUse, Kept, Login, Store, Sweep};
use model::Digest;
use serde_json::Value;

use super::{
    Reach,
    remote::Remote,
    store::{self as here, Listed, follow, records},
};
use crate::{
    config::Settings,
    data_dir::{self, DataDir},
    gc,
};

pub(super) enum Place {
    Here(Here),
    Server(Box<Remote>),
}

/// A data directory that this process has to itself.
pub(super) struct Here {
    data_dir: DataDir,
    store: Store,
    compression: Compression,
}

impl Place {
    /// Finds out which it is.
    ///
    /// # Errors
    /// If the directory cannot be used, or what is asked for cannot be asked of a server.
    pub(super) fn find(settings: &Settings, reach: Reach) -> anyhow::Result<Self> {
        let path = &settings.data_dir.0;
        let error = match DataDir::take(path) {
            Ok(data_dir) => {
                let mut options = super::options(settings);
                reach.add_to(&mut options);
                let compression = options.compression;
                let store = Store::open(data_dir.path(), options).context("open the images")?;
                return Ok(Self::Here(Here {
                    data_dir,
                    store,
                    compression,
                }));
            }
            Err(error) => error,
        };
        let held = error.downcast::<data_dir::InUse>()?;
        if reach.says_something() {
            bail!(
                "a server has this data directory, and reaches registries as it was told at its \
                 start: set registry.insecure and registry.ca_file there, or stop it first"
            );
        }
        match Admin::of(path) {
            Ok(admin) => Ok(Self::Server(Box::new(Remote { admin, held }))),
            // Whoever has it and never wrote how it is reached is no server.
            Err(_) => Err(held.into()),
        }
    }

    pub(super) async fn list(&self) -> anyhow::Result<Vec<Listed>> {
        match self {
            Self::Here(it) => Ok(here::list(&it.store)),
            Self::Server(it) => it.list().await,
        }
    }

    pub(super) async fn pull(&self, name: &str) -> anyhow::Result<Digest> {
        match self {
            Self::Here(it) => Ok(follow(it.store.pull(name)?).await?.digest().clone()),
            Self::Server(it) => it.follow("/pull", &[("name", name)]).await,
        }
    }

    pub(super) async fn push(&self, name: &str, to: &str) -> anyhow::Result<Box<str>> {
        match self {
            Self::Here(it) => {
                let pushed = it.store.push(name, to, Login::Configured)?;
                Ok(follow(pushed).await?.reference)
            }
            Self::Server(it) => it.follow("/push", &[("name", name), ("to", to)]).await,
        }
    }

    pub(super) async fn commit(&self, layer: &Digest, name: &str) -> anyhow::Result<Digest> {
        match self {
            Self::Here(it) => {
                let what = Commit {
                    layer: layer.clone(),
                    parent: None,
                    compression: it.compression,
                };
                let made = follow(it.store.commit_as(what, name)?).await?;
                Ok(made.digest().clone())
            }
            Self::Server(it) => {
                let query = [("layer", layer.as_str()), ("name", name)];
                it.follow("/commit", &query).await
            }
        }
    }

    pub(super) async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
    ) -> anyhow::Result<Vec<Listed>> {
        match self {
            Self::Here(it) => Ok(here::import(&it.store, path, name)?),
            Self::Server(it) => it.import(path, name).await,
        }
    }

    pub(super) async fn export(
        &self,
        name: &str,
        path: &Path,
        format: Format,
    ) -> anyhow::Result<()> {
        match self {
            Self::Here(it) => Ok(it.store.export(name, path, format)?),
            Self::Server(it) => it.export(name, path, format).await,
        }
    }

    pub(super) async fn remove(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Here(it) => {
                let records = records(&it.data_dir)?;
                let records = records.as_ref().map(|records| records as &dyn store::Store);
                here::remove(records, it.data_dir.path(), &it.store, name).await
            }
            Self::Server(it) => it.remove(name).await,
        }
    }

    /// As `dormouse gc` prints it.
    pub(super) async fn sweep(&self, dry_run: bool) -> anyhow::Result<Value> {
        let it = match self {
            Self::Here(it) => it,
            Self::Server(it) => return it.sweep(dry_run).await,
        };
        let used = match records(&it.data_dir)? {
            Some(records) => gc::used(&records).await?,
            None => InUse::from(Kept::All),
        };
        let how = Sweep {
            dry_run,
            ..Sweep::default()
        };
        let in_use = || runtime_local::in_use(it.data_dir.path(), used);
        Ok(gc::shown(&it.store.gc(how, in_use)?))
    }
}
