//! A connection to a Kubernetes cluster, as every `*-kube` crate uses it.
//!
//! The server holds a [`Cluster`] and gives it to the adapters; only they look inside.

mod error;

use std::{path::Path, sync::Arc};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

pub use error::ClusterError;

/// A connected cluster. Clones share the connection.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: Arc<str>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster of this kubeconfig; without one, that of `$KUBECONFIG` or `~/.kube/config`, and
    /// without those the cluster this process runs in.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ClusterError> {
        let config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(ClusterError::Kubeconfig)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(ClusterError::Kubeconfig)?
            }
            None => Config::infer().await.map_err(ClusterError::NoConfig)?,
        };
        Self::of(config)
    }

    /// The cluster this process runs in, as its service account.
    ///
    /// # Errors
    /// If this process does not run in a Pod that has one.
    pub fn in_cluster() -> Result<Self, ClusterError> {
        Self::of(Config::incluster().map_err(ClusterError::NotInCluster)?)
    }

    /// The cluster of a configuration.
    ///
    /// # Errors
    /// If its certificates or credentials cannot be used.
    pub fn of(mut config: Config) -> Result<Self, ClusterError> {
        // Writes whose outcome is doubtful must not be repeated behind the caller's back.
        config.default_retry = false;
        let namespace = config.default_namespace.as_str().into();
        let client = Client::try_from(config).map_err(ClusterError::from)?;
        Ok(Self { client, namespace })
    }

    /// The client, for adapters.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace of the configuration's context, or of this process's Pod.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}
