//! Putting an installation into a cluster: its objects by server-side apply, and the secrets that its
//! processes share.

use http::{Method, Request};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use serde_json::Value;

use crate::{Cluster, ClusterError};

/// Whose fields they are.
const MANAGER: &str = "dormouse";

/// Where objects of a kind are found: `apiVersion`, kind, plural.
const PLURALS: &[(&str, &str, &str)] = &[
    ("v1", "Namespace", "namespaces"),
    ("v1", "Service", "services"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("apps/v1", "Deployment", "deployments"),
    ("batch/v1", "Job", "jobs"),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "clusterroles",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
    ),
    ("rbac.authorization.k8s.io/v1", "Role", "roles"),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "rolebindings",
    ),
    (
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    ),
    ("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
];

/// Why an object is not in the cluster.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It is of a kind that no installation has.
    #[error("{api_version} {kind} is not a kind that can be installed")]
    Unknown {
        /// Its `apiVersion`.
        api_version: String,
        /// Its kind.
        kind: String,
    },
    /// The cluster refused it.
    #[error("{what} was refused: {source}")]
    Refused {
        /// Which.
        what: String,
        /// Why.
        source: ClusterError,
    },
}

/// Makes an object what it is described to be, and says what it is called.
///
/// # Errors
/// If the cluster refuses it.
pub async fn apply(cluster: &Cluster, object: &Value) -> Result<String, ApplyError> {
    let of = |field: &str| object[field].as_str().unwrap_or_default();
    let (api_version, kind) = (of("apiVersion"), of("kind"));
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let what = format!("{kind}/{name}");
    let known = PLURALS.iter().find(|k| (k.0, k.1) == (api_version, kind));
    let Some((.., plural)) = known else {
        return Err(ApplyError::Unknown {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        });
    };
    let root = if api_version.contains('/') {
        "apis"
    } else {
        "api"
    };
    let place = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("namespaces/{namespace}/{plural}"),
        None => (*plural).to_owned(),
    };
    let uri = format!("/{root}/{api_version}/{place}/{name}?fieldManager={MANAGER}&force=true");
    let refused = |source: ClusterError| ApplyError::Refused {
        what: what.clone(),
        source,
    };
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(uri)
        .header("content-type", "application/apply-patch+yaml")
        .body(object.to_string().into_bytes())
        .map_err(|e| refused(ClusterError::Call(kube::Error::HttpError(e))))?;
    match cluster.client().request::<Value>(request).await {
        Ok(_) => Ok(what),
        Err(error) => Err(refused(ClusterError::Call(error))),
    }
}

/// What became of the secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// They were made.
    Made,
    /// They were there, and are as they were.
    There,
}

/// Makes a Secret of these, unless there is one: nothing is ever replaced, or every token that was
/// given out would be void.
///
/// # Errors
/// If the cluster refuses it.
pub async fn ensure_secret(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    data: impl IntoIterator<Item = (&'static str, String)> + Send,
) -> Result<Keys, ClusterError> {
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.into_iter()
                .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    };
    let api = Api::<Secret>::namespaced(cluster.client(), namespace);
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(Keys::Made),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(Keys::There),
        Err(error) => Err(ClusterError::Call(error)),
    }
}

/// What a Secret holds under a key; nothing if it is not there, or not text.
///
/// # Errors
/// If the cluster refuses it.
pub async fn read_secret(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    key: &str,
) -> Result<Option<String>, ClusterError> {
    let api = Api::<Secret>::namespaced(cluster.client(), namespace);
    let found = api.get_opt(name).await.map_err(ClusterError::Call)?;
    let held = found.and_then(|secret| secret.data?.remove(key));
    Ok(held.and_then(|bytes| String::from_utf8(bytes.0).ok()))
}
