//! From an image to a name in a registry.
//!
//! Blobs first, then the manifest of what the image lies on, then its own: whoever finds a manifest
//! finds everything it speaks of, and a push that broke off has published nothing.

use std::sync::Arc;

use bytes::Bytes;
use failpoints::{Step, reached};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use kit::Tasks;
use model::Digest;

use super::{BACKOFF, Reach, credentials::Login, session::Session};
use crate::{
    carry::Elsewhere,
    digest::verify,
    error::{ImageError, Result},
    flight::Tell,
    manifest::{ACCEPT, Descriptor, Manifest},
    reference::Reference,
    store::Inner,
};

/// What is sent: manifests in this order, and all that they speak of.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) manifests: Vec<(Digest, Manifest)>,
    /// Tags that the last of them gets.
    pub(crate) tag: Option<Box<str>>,
    /// Another repository of the same registry that may have the blobs.
    pub(crate) from: Option<Box<str>>,
    /// Where blobs are had that are not here.
    pub(crate) elsewhere: Option<Elsewhere>,
}

impl Parcel {
    fn blobs(&self) -> Vec<&Descriptor> {
        let mut blobs: Vec<&Descriptor> = Vec::new();
        let all = self.manifests.iter().flat_map(|(_, manifest)| {
            let layers = manifest.layers.iter();
            layers.chain([&manifest.config])
        });
        for blob in all {
            if !blobs.iter().any(|known| known.digest == blob.digest) {
                blobs.push(blob);
            }
        }
        blobs
    }
}

/// Brings what is here to a registry, as far as it is not there.
pub(crate) async fn push(
    inner: &Arc<Inner>,
    parcel: &Parcel,
    to: &Reference,
    login: &Login,
    tasks: &Tasks,
    tell: &Tell,
) -> Result<()> {
    let from = parcel.from.as_deref();
    let session = Session::open(&inner.registry, to, tasks.clone(), login, Reach::Anywhere).await?;
    let session = session.for_writing(from);
    let blobs = parcel.blobs();
    tell.begin(blobs.iter().map(|blob| blob.size));
    for (number, blob) in blobs.into_iter().enumerate() {
        let sending = |bytes| tell.arrived(number, bytes);
        let path = inner.blob(&blob.digest);
        if !path.exists()
            && let Some(elsewhere) = &parcel.elsewhere
        {
            // What the registry has, or finds, need not come by here.
            if session.has_blob(&blob.digest).await? || session.mount(&blob.digest, from).await? {
                continue;
            }
            elsewhere.bring(inner, blob, login, tasks).await?;
        }
        session.send_blob(path, blob, from, &sending).await?;
        reached(Step::BlobPushed);
    }
    let last = parcel.manifests.len().saturating_sub(1);
    for (number, (digest, manifest)) in parcel.manifests.iter().enumerate() {
        let bytes = Bytes::from(inner.read_blob(digest)?);
        let kind = manifest.media_type.as_str();
        let version = digest.as_str();
        session.send_manifest(version, kind, digest, &bytes).await?;
        reached(Step::ManifestPushed);
        // By its digest first: a tag never leads to what is not there.
        if let Some(tag) = parcel.tag.as_deref().filter(|_| number == last) {
            session.send_manifest(tag, kind, digest, &bytes).await?;
        }
    }
    reached(Step::Pushed);
    Ok(())
}

impl Session<'_> {
    /// Whether the registry has a manifest.
    pub(super) async fn has_manifest(&self, digest: &Digest) -> Result<bool> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        let uri = self.uri(&format!("manifests/{digest}"))?;
        let (_, response) = self.ask(Method::HEAD, uri, headers, Bytes::new()).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.rejected(response).await),
        }
    }

    async fn send_manifest(
        &self,
        version: &str,
        kind: &str,
        digest: &Digest,
        bytes: &Bytes,
    ) -> Result<()> {
        let mut attempt = 0;
        loop {
            let error = match self.try_manifest(version, kind, digest, bytes).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            attempt += 1;
            if !error.is_retryable() || attempt > self.registry.options.retries {
                return Err(error);
            }
            tokio::time::sleep(BACKOFF.delay(attempt, &self.registry.entropy)).await;
        }
    }

    async fn try_manifest(
        &self,
        version: &str,
        kind: &str,
        digest: &Digest,
        bytes: &Bytes,
    ) -> Result<()> {
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_str(kind)
            .map_err(|error| ImageError::malformed(digest.as_str(), error))?;
        headers.insert(header::CONTENT_TYPE, kind);
        let uri = self.uri(&format!("manifests/{version}"))?;
        let (_, response) = self.ask(Method::PUT, uri, headers, bytes.clone()).await?;
        if response.status() != StatusCode::CREATED && response.status() != StatusCode::OK {
            return Err(self.rejected(response).await);
        }
        let claimed = response.headers().get("docker-content-digest");
        let claimed = claimed.and_then(|value| value.to_str().ok());
        match claimed.and_then(|text| Digest::new(text).ok()) {
            Some(kept) => verify(format!("the manifest of {}", self.reference), digest, kept),
            None => Ok(()),
        }
    }
}
