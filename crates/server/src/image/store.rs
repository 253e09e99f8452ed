//! What is done with the images of a data directory, by whoever has it: a command, or a server for one.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use images::{Flight, ImageError, InUse, Origin, Store};
use kit::{Clock, Entropy, SystemClock};
use model::Digest;
use serde::{Deserialize, Serialize};
use store_redb::RedbStore;

use super::far::{Far, Line};
use crate::{data_dir::DataDir, gc};

/// An image and what it is called.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) name: Box<str>,
    pub(super) digest: Digest,
    pub(super) size: u64,
}

pub(super) fn list(store: &Store) -> Vec<Listed> {
    let one = |(name, image): (Box<str>, Arc<images::Image>)| Listed {
        name,
        digest: image.digest().clone(),
        size: image.size(),
    };
    store.list().into_iter().map(one).collect()
}

pub(super) fn import(
    store: &Store,
    path: &Path,
    name: Option<&str>,
) -> Result<Vec<Listed>, ImageError> {
    let mut all = Vec::new();
    for imported in store.import(path, name)? {
        for name in imported.names {
            all.push(Listed {
                name,
                digest: imported.image.digest().clone(),
                size: imported.image.size(),
            });
        }
    }
    Ok(all)
}

/// Takes the name of an image away, unless somebody asks for it by that name, or lies on it.
pub(super) async fn remove(
    records: Option<&dyn store::Store>,
    data: &Path,
    store: &Store,
    name: &str,
) -> anyhow::Result<()> {
    let mut users = match records {
        Some(records) => gc::users_of(records, name).await?,
        None => Vec::new(),
    };
    if let Some(image) = store.find(name)? {
        let used = runtime_local::in_use(data, InUse::default())?;
        let lies = used
            .origins
            .iter()
            .any(|origin| matches!(origin, Origin::Image { digest } if digest == image.digest()));
        if lies {
            let by = used.users.get(image.digest()).into_iter().flatten();
            users.extend(by.map(ToString::to_string));
        }
    }
    if !users.is_empty() {
        return Err(ImageError::Used {
            name: name.into(),
            users: users.join(", ").into(),
        }
        .into());
    }
    match store.remove(name)? {
        true => Ok(()),
        false => Err(Unknown(name.into()).into()),
    }
}

/// There is no image of that name.
#[derive(Debug, thiserror::Error)]
#[error("there is no image {0}: `dormouse image ls` lists them")]
pub(super) struct Unknown(Box<str>);

/// The records of a data directory, if a server has ever written some.
pub(super) fn records(data_dir: &DataDir) -> anyhow::Result<Option<RedbStore>> {
    if !data_dir.join("store").exists() {
        return Ok(None);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    let options = store_redb::Options::default();
    let opened = RedbStore::open(data_dir.path(), clock, entropy, options);
    Ok(Some(opened.context("read the records")?))
}

/// Waits for a transfer, and says how far it is.
pub(super) async fn follow<T: Clone>(flight: Flight<T>) -> Result<T, ImageError> {
    let mut line = Line::default();
    flight.wait(|progress| line.show(Far::from(progress))).await
}
