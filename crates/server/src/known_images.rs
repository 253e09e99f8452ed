//! Images, as the E2B API asks for them: which one a name leads to, as the runtime says.

use std::sync::Arc;

use async_trait::async_trait;
use e2b::ports::{ImageProblem, Images};
use model::{Namespace, template::ImagePullPolicy};
use runtime::{Runtime, RuntimeError};

/// What the runtime knows.
#[derive(Debug)]
pub(crate) struct KnownImages(pub(crate) Arc<dyn Runtime>);

#[async_trait]
impl Images for KnownImages {
    async fn pin(
        &self,
        team: &Namespace,
        image: &str,
        pull: ImagePullPolicy,
    ) -> Result<Box<str>, ImageProblem> {
        let pinned = self.0.pin(team, image, pull).await;
        pinned.map_err(|error| match error {
            RuntimeError::Impossible { reason, .. } => ImageProblem::Wrong(reason),
            // What went wrong here is not for who asked to mend.
            error => ImageProblem::Later(error.to_string().into()),
        })
    }
}
