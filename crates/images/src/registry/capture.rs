//! A captured layer from where it was published: its image, what that lies on, and from its
//! uppermost layer the archive that a sandbox goes on from.

use std::{fs::File, io, io::Write, sync::Arc};

use kit::Tasks;
use model::Digest;

use super::{Reach, credentials::Login, pull::pull, session::Session};
use crate::{
    commit::{BASE_DIGEST, LAYER},
    compression::decompressed,
    digest::verify,
    error::{Doing as _, ImageError, Result},
    flight::Tell,
    manifest::{Configuration, Descriptor, Manifest, Resolved, parse},
    publish::Fetched,
    reference::Reference,
    store::{Hold, Inner, Origin, Store},
};

/// Brings a captured layer here, and the image it lies on.
pub(crate) async fn fetch_capture(
    store: &Store,
    layer: &Digest,
    from: &Reference,
    login: &Login,
    tasks: &Tasks,
    tell: &Tell,
) -> Result<Fetched> {
    let inner = store.inner();
    let mut hold = Hold::new(inner.clone());
    hold.add([layer.clone()]);
    let session =
        Session::open(&inner.registry, from, tasks.clone(), login, Reach::Anywhere).await?;
    let name = from.to_string();
    let (_, bytes) = session.fetch_document(from.version()).await?;
    let Resolved::Image(manifest) = parse(&name, &bytes)? else {
        return Err(ImageError::malformed(name, "not an image"));
    };
    let (base, top) = parts(&name, &manifest, layer)?;
    session.fetch_blob(inner, &manifest.config, &|_| {}).await?;
    let configuration = inner.read_blob(&manifest.config.digest)?;
    let configuration = Configuration::parse(&name, &configuration, manifest.layers.len())?;
    if configuration.diff_ids().last() != Some(layer) {
        return Err(ImageError::malformed(
            name,
            "its uppermost layer is another",
        ));
    }
    let below = from.at(base.clone());
    let base = match store.find_digest(&base) {
        Some(base) => base,
        None => pull(store, &below, tasks, (login, Reach::Anywhere), tell).await?,
    };
    hold.add([top.digest.clone()]);
    tell.begin(std::iter::once(top.size));
    session
        .fetch_blob(inner, top, &|bytes| tell.arrived(0, bytes))
        .await?;
    let (inner, store, layer, blob) = (
        inner.clone(),
        store.clone(),
        layer.clone(),
        top.digest.clone(),
    );
    let origin = Origin::Image {
        digest: base.digest().clone(),
    };
    let kept = tokio::task::spawn_blocking(move || {
        unpack_capture(&inner, &store, &layer, &blob, &origin, &mut hold).map(|()| hold)
    });
    let kept = kept.await.map_err(io::Error::other);
    let hold = kept.doing("unpack a captured layer")??;
    Ok(Fetched::new(base, hold))
}

/// What the manifest of a captured layer says: the image below, and the layer's archive.
fn parts<'a>(
    name: &str,
    manifest: &'a Manifest,
    layer: &Digest,
) -> Result<(Digest, &'a Descriptor)> {
    let note = |key: &str| Digest::new(manifest.annotations.get(key)?.as_str()).ok();
    if note(LAYER).as_ref() != Some(layer) {
        let why = format!("it is not the image of layer {layer}");
        return Err(ImageError::malformed(name, why));
    }
    match (note(BASE_DIGEST), manifest.layers.last()) {
        (Some(base), Some(top)) => Ok((base, top)),
        (Some(_), None) | (None, _) => {
            let why = "it does not say what it lies on";
            Err(ImageError::malformed(name, why))
        }
    }
}

/// The layer as it was captured, which its digest proves.
fn unpack_capture(
    inner: &Arc<Inner>,
    store: &Store,
    layer: &Digest,
    blob: &Digest,
    origin: &Origin,
    hold: &mut Hold,
) -> Result<()> {
    if inner.blob(layer).exists() {
        return store.note_capture(layer, Some(origin));
    }
    let limit = inner.options.limits.bytes;
    let fill = |to: &mut dyn Write| {
        let file = File::open(inner.blob(blob)).doing("open a captured layer")?;
        let from = decompressed(file).doing("read a captured layer")??;
        let mut from = io::Read::take(from, limit.saturating_add(1));
        let copied = io::copy(&mut from, to);
        copied.map(drop).doing("unpack a captured layer")
    };
    let check = |digest: &Digest, _| {
        verify(format!("layer {layer}"), layer, digest.clone())?;
        store.note_capture(layer, Some(origin))
    };
    inner.put(hold, fill, check).map(drop)
}
