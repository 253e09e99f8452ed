//! Whether a cluster knows our kinds, before anything is asked of them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use thiserror::Error;

use crate::{Cluster, ClusterError, Reason};

/// Why the kinds cannot be used.
#[derive(Debug, Error)]
pub enum Missing {
    /// One is not defined.
    #[error(
        "the cluster does not know {0}: apply the definitions with \
         `dormouse install --definitions-only`"
    )]
    Kind(String),
    /// One is defined, and not in our version.
    #[error(
        "the cluster knows {name}, but not its version {version}: apply the definitions of this \
         release with `dormouse install --definitions-only`"
    )]
    Version {
        /// Which.
        name: String,
        /// The one that is wanted.
        version: String,
    },
    /// Not allowed to look.
    #[error("not allowed to look at the definitions of kinds")]
    Forbidden,
    /// The API server fails, or does not answer.
    #[error("the API server cannot be asked for its kinds: {}", .0.explain())]
    Failed(ClusterError),
}

impl Cluster {
    /// Looks whether these kinds, by their plurals, are defined and served in a version.
    ///
    /// # Errors
    /// With the first that is not.
    pub async fn check_kinds(
        &self,
        group: &str,
        version: &str,
        plurals: &[&str],
    ) -> Result<(), Missing> {
        let api = Api::<CustomResourceDefinition>::all(self.client());
        for plural in plurals {
            let name = format!("{plural}.{group}");
            let found = match api.get(&name).await.map_err(ClusterError::from) {
                Ok(found) => found,
                Err(error) => {
                    return Err(match error.reason() {
                        Some(Reason::NotFound) => Missing::Kind(name),
                        Some(Reason::Forbidden) => Missing::Forbidden,
                        _ => Missing::Failed(error),
                    });
                }
            };
            let mut versions = found.spec.versions.iter();
            if !versions.any(|known| known.served && known.name == version) {
                let version = version.to_owned();
                return Err(Missing::Version { name, version });
            }
        }
        Ok(())
    }
}
