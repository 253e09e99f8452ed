//! From a name to an image.

use std::{io, sync::Arc};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt as _, Limited};
use kit::Tasks;
use model::Digest;

use super::{credentials::Login, reach::Reach, session::Session};
use crate::{
    digest::{digest_of, verify},
    error::{Doing as _, ImageError, Result},
    flight::{Progress, Tell},
    manifest::{ACCEPT, MAX_DOCUMENT, Manifest, Resolved, parse},
    reference::Reference,
    store::{Assembly, Hold, Inner, Pinned, Store, Unpacked},
};

/// Layers of one image that are downloaded ahead of the one that is unpacked.
const AHEAD: usize = 3;

/// Brings an image here, or finds that what its name leads to now is here already.
pub(crate) async fn pull(
    store: &Store,
    reference: &Reference,
    tasks: &Tasks,
    (login, reach): (&Login, Reach),
    tell: &Tell,
) -> Result<Pinned> {
    let inner = store.inner();
    let session = Session::open(&inner.registry, reference, tasks.clone(), login, reach).await?;
    let session = session.proving(inner);
    let mut hold = Hold::new(inner.clone());
    let (digest, bytes) = session.fetch_document(reference.version()).await?;
    if let Some(found) = store.find_digest(&digest)
        && session.may_take_image(&found)
    {
        return Ok(found);
    }
    let name = reference.to_string();
    let (index, digest, bytes, manifest) = match parse(&name, &bytes)? {
        Resolved::Image(manifest) => (None, digest, bytes, manifest),
        Resolved::Index(index) => {
            let chosen = index.choose(&name)?.digest.clone();
            let (chosen, bytes) = session.fetch_document(chosen.as_str()).await?;
            match parse(&name, &bytes)? {
                Resolved::Image(manifest) => (Some(digest), chosen, bytes, manifest),
                Resolved::Index(_) => {
                    let why = "an index in an index";
                    return Err(ImageError::malformed(name, why));
                }
            }
        }
    };
    if manifest.config.size > MAX_DOCUMENT {
        return Err(ImageError::TooLarge {
            what: format!("the configuration of {name}").into(),
            limit: MAX_DOCUMENT,
        });
    }
    hold.add([manifest.config.digest.clone()]);
    let parts = manifest.layers.iter().chain([&manifest.config]);
    hold.add(parts.map(|part| session.download_name(&part.digest)));
    inner.put_bytes(&bytes, &mut hold)?;
    session.fetch_blob(inner, &manifest.config, &|_| {}).await?;
    let configuration = inner.read_blob(&manifest.config.digest)?;
    let assembly = Assembly::new(&name, (digest, manifest), index, &configuration, hold)?;
    assemble(inner, &session, assembly, tell).await
}

/// The digest of the image that a name leads to now, as the registry says.
pub(crate) async fn resolve(store: &Store, reference: &Reference, tasks: &Tasks) -> Result<Digest> {
    let inner = store.inner();
    let (login, reach) = (Login::Configured, Reach::Anywhere);
    let session = Session::open(&inner.registry, reference, tasks.clone(), &login, reach).await?;
    let (digest, bytes) = session.fetch_document(reference.version()).await?;
    let name = reference.to_string();
    match parse(&name, &bytes)? {
        Resolved::Image(_) => Ok(digest),
        Resolved::Index(index) => Ok(index.choose(&name)?.digest.clone()),
    }
}

async fn assemble(
    inner: &Arc<Inner>,
    session: &Session<'_>,
    assembly: Assembly,
    tell: &Tell,
) -> Result<Pinned> {
    let assembly = Arc::new(assembly);
    let manifest: &Manifest = &assembly.manifest;
    tell.begin(manifest.layers.iter().map(|layer| layer.size));
    let downloads: Vec<_> = (0..manifest.layers.len())
        .map(|number| download(inner, session, &assembly, number, tell).boxed())
        .collect();
    let mut downloads = stream::iter(downloads).buffered(AHEAD);
    let mut number = 0;
    while let Some(downloaded) = downloads.next().await {
        downloaded?;
        let diff_id = assembly.configuration.diff_ids()[number].clone();
        let may_take = session.may_take(&diff_id);
        let (inner, assembly) = (inner.clone(), assembly.clone());
        tell.change(|progress| progress.unpacking = Some(number));
        let unpacked = tokio::task::spawn_blocking(move || {
            match inner.unpack_layer(&assembly, number)? {
                Unpacked::Now => Ok(true),
                Unpacked::Before if may_take => Ok(false),
                // Its name is in the configuration, which says what it likes.
                Unpacked::Before => inner.check_layer(&assembly, number).map(|()| true),
            }
        });
        let proven: Result<bool> = unpacked
            .await
            .map_err(io::Error::other)
            .doing("unpack a layer")?;
        if proven? {
            session.note_served(&diff_id);
        }
        number += 1;
    }
    drop(downloads);
    let assembly = Arc::try_unwrap(assembly)
        .map_err(|_| io::Error::other("it is still being unpacked"))
        .doing("finish an image")?;
    tell.change(|progress: &mut Progress| progress.unpacking = None);
    inner.finish(assembly)
}

async fn download(
    inner: &Inner,
    session: &Session<'_>,
    assembly: &Assembly,
    number: usize,
    tell: &Tell,
) -> Result<()> {
    let layer = &assembly.manifest.layers[number];
    let arriving = |bytes| tell.arrived(number, bytes);
    // Even if it is unpacked: the image may be handed on.
    session.fetch_blob(inner, layer, &arriving).await
}

impl Session<'_> {
    /// A manifest or an index, by tag or digest; in the latter case it is what it says.
    pub(super) async fn fetch_document(&self, version: &str) -> Result<(Digest, Vec<u8>)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        let response = self.get(&format!("manifests/{version}"), headers).await?;
        let claimed = response.headers().get("docker-content-digest").cloned();
        let body = Limited::new(
            response.into_body(),
            usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX),
        );
        let body = self.registry.within(self.host(), body.collect()).await?;
        let bytes = Vec::from(body.to_bytes());
        let digest = digest_of(&bytes);
        let claimed = claimed.as_ref().and_then(|value| value.to_str().ok());
        for expected in [Some(version), claimed].into_iter().flatten() {
            if let Ok(expected) = Digest::new(expected) {
                let what = format!("the manifest of {}", self.reference);
                verify(what, &expected, digest.clone())?;
            }
        }
        self.note_served(&digest);
        Ok((digest, bytes))
    }
}
