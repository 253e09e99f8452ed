//! Single questions to one repository.

use std::sync::Arc;

use kit::Tasks;
use model::Digest;

use super::{Reach, credentials::Login, session::Session};
use crate::{error::Result, manifest::Descriptor, reference::Reference, store::Inner};

/// A repository, and as whom it is asked.
#[derive(Debug)]
pub(crate) struct Remote<'a> {
    inner: &'a Arc<Inner>,
    repository: &'a Reference,
    login: &'a Login,
    tasks: &'a Tasks,
}

impl<'a> Remote<'a> {
    pub(crate) const fn new(
        inner: &'a Arc<Inner>,
        repository: &'a Reference,
        login: &'a Login,
        tasks: &'a Tasks,
    ) -> Self {
        Self {
            inner,
            repository,
            login,
            tasks,
        }
    }

    async fn session(&self) -> Result<Session<'a>> {
        let (registry, tasks) = (&self.inner.registry, self.tasks.clone());
        Session::open(
            registry,
            self.repository,
            tasks,
            self.login,
            Reach::Anywhere,
        )
        .await
    }

    /// Whether it has a manifest.
    pub(crate) async fn has_manifest(&self, digest: &Digest) -> Result<bool> {
        self.session().await?.has_manifest(digest).await
    }

    /// A manifest of its, by digest.
    pub(crate) async fn fetch_manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        let session = self.session().await?;
        let (_, bytes) = session.fetch_document(digest.as_str()).await?;
        Ok(bytes)
    }

    /// Brings a blob of its here.
    pub(crate) async fn fetch_blob(&self, blob: &Descriptor) -> Result<()> {
        let session = self.session().await?;
        session.fetch_blob(self.inner, blob, &|_| {}).await
    }
}
