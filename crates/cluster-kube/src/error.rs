//! What can go wrong with a cluster.

use thiserror::Error;

/// A refusal or failure of a cluster.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "no cluster is configured: set KUBECONFIG, or run in a Pod with a service account: {0}"
    )]
    NoConfig(#[source] kube::config::InferConfigError),
    /// This process has no service account.
    #[error("this process does not run in a Pod with a service account: {0}")]
    NotInCluster(#[source] kube::config::InClusterError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] kube::Error),
}
