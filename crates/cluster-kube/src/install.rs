//! Putting an installation into a cluster: its objects by server-side apply, and the secrets that its
//! processes share.

use http::{Method, Request};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use serde_json::{Map, Value, json};

use crate::{Cluster, ClusterError, Reason};

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
    let target = Target::of(object)?;
    let query = format!("?fieldManager={MANAGER}&force=true");
    let sent = target.send(cluster, Method::PATCH, &query, object).await;
    sent.map_err(|source| target.refused(source))?;
    Ok(target.what)
}

/// What became of an object that should not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// There was none.
    WasNotThere,
    /// It was removed.
    Gone,
    /// There is one of this name that lacks its labels: somebody else's.
    Others,
    /// Who installs may not look, so nobody knows.
    NotSeen,
}

/// Removes an object that was installed before, and says what it is called.
///
/// # Errors
/// If the cluster refuses it.
pub async fn remove(cluster: &Cluster, object: &Value) -> Result<(String, Removed), ApplyError> {
    let target = Target::of(object)?;
    let was_not_there = |error: &ClusterError| error.reason() == Some(Reason::NotFound);
    let found = match target.send(cluster, Method::GET, "", &Value::Null).await {
        Ok(found) => found,
        Err(error) if was_not_there(&error) => return Ok((target.what, Removed::WasNotThere)),
        // Who never had it need not be let see it.
        Err(error) if error.reason() == Some(Reason::Forbidden) => {
            return Ok((target.what, Removed::NotSeen));
        }
        Err(error) => return Err(target.refused(error)),
    };
    let labels = |object: &Value| object["metadata"]["labels"].as_object().cloned();
    let (ours, its) = (labels(object), labels(&found).unwrap_or_default());
    let is_ours = |labels: Map<String, Value>| {
        labels
            .iter()
            .all(|(key, value)| its.get(key) == Some(value))
    };
    if !ours.is_some_and(is_ours) {
        return Ok((target.what, Removed::Others));
    }
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": found["metadata"]["uid"]},
    });
    match target.send(cluster, Method::DELETE, "", &options).await {
        Ok(_) => Ok((target.what, Removed::Gone)),
        Err(error) if was_not_there(&error) => Ok((target.what, Removed::WasNotThere)),
        Err(error) => Err(target.refused(error)),
    }
}

/// Where an object is, or is to be.
struct Target {
    /// What people call it.
    what: String,
    path: String,
}

impl Target {
    fn of(object: &Value) -> Result<Self, ApplyError> {
        let of = |field: &str| object[field].as_str().unwrap_or_default();
        let (api_version, kind) = (of("apiVersion"), of("kind"));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let known = PLURALS.iter().find(|k| (k.0, k.1) == (api_version, kind));
        let Some((.., plural)) = known else {
            return Err(ApplyError::Unknown {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
            });
        };
        let root = match api_version.contains('/') {
            true => "apis",
            false => "api",
        };
        let place = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaces/{namespace}/{plural}"),
            None => (*plural).to_owned(),
        };
        Ok(Self {
            what: format!("{kind}/{name}"),
            path: format!("/{root}/{api_version}/{place}/{name}"),
        })
    }

    fn refused(&self, source: ClusterError) -> ApplyError {
        let what = self.what.clone();
        ApplyError::Refused { what, source }
    }

    async fn send(
        &self,
        cluster: &Cluster,
        method: Method,
        query: &str,
        body: &Value,
    ) -> Result<Value, ClusterError> {
        let kind = match method {
            Method::PATCH => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{query}", self.path))
            .header("content-type", kind)
            .body(body)
            .map_err(|e| ClusterError::Call(kube::Error::HttpError(e)))?;
        let answer = cluster.client().request(request).await;
        answer.map_err(ClusterError::Call)
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
