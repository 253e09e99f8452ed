//! A connection to a Kubernetes cluster, as every `*-kube` crate uses it.
//!
//! The server holds a [`Cluster`] and gives it to the adapters; only they look inside. Every request
//! passes a lane (`lane`), where it is counted (`counts`), bounded in time, and waits where the API
//! server says so, and goes over a connection that is noticed when it is dead (`connection`);
//! [`ClusterError`] tells what a failure means.

pub mod endpoints;
pub mod events;
pub mod install;
pub mod lease;

mod connection;
mod counts;
mod error;
mod lane;

use std::{path::Path, sync::Arc};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    counts::Counts,
    lane::{Lane, Road},
};

pub use counts::{Call, Tally};
pub use error::{ClusterError, Fault, Reason};

/// A connected cluster. Clones share its connections.
#[derive(Clone)]
pub struct Cluster {
    /// Of the lane that this handle is for.
    client: Client,
    background: Client,
    counts: Arc<Counts>,
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
    pub fn of(config: Config) -> Result<Self, ClusterError> {
        let counts = Arc::<Counts>::default();
        let road = Road::new(connection::open(&config)?, Arc::clone(&counts));
        Ok(Self {
            client: road.lane(Lane::Foreground),
            background: road.lane(Lane::Background),
            counts,
            namespace: config.default_namespace.into(),
        })
    }

    /// The same cluster, for work that nobody waits for: only so many of its requests are on their
    /// way at once.
    #[must_use]
    pub fn background(&self) -> Self {
        Self {
            client: self.background.clone(),
            ..self.clone()
        }
    }

    /// The same cluster, with another namespace as this process's own.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.into(),
            ..self.clone()
        }
    }

    /// How many requests were sent through this handle and its clones.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.counts.tally()
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
