//! The definitions of our kinds in a cluster.
//!
//! An API server prunes the fields that a definition does not have. So definitions only grow: they are
//! put in place before the first process of a new version starts, they are never replaced by older
//! ones, and a process whose types have a field that the installed definition lacks does not start.
//! Then no field that any process writes is dropped, whichever versions run side by side; and a field
//! that nobody knows is refused to who applies it, by name.

use std::time::Duration;

use cluster_kube::{
    Cluster, ClusterError, Reason,
    install::{self, ApplyError},
};
use http::{Method, Request};
use model::{
    kinds,
    meta::{API_VERSION, GROUP},
    schema::{self, VERSION_ANNOTATION},
};
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep};

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How long an API server may take to serve a new definition.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Why the kinds cannot be used in a cluster.
#[derive(Debug, Error)]
pub enum CrdError {
    /// The cluster did not answer, or refused.
    #[error("definition {name} cannot be read: {}", source.explain())]
    Cluster {
        /// Which.
        name: String,
        /// Why.
        source: ClusterError,
    },
    /// The cluster did not take it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// It is not installed.
    #[error("definition {name} is not installed: run `dormouse install`")]
    Missing {
        /// Which.
        name: String,
    },
    /// A newer version of the product was here.
    #[error(
        "definition {name} is of version {installed}, and this is {ours}: it is not replaced by an older one"
    )]
    Newer {
        /// Which.
        name: String,
        /// The version it is of.
        installed: String,
        /// The version of this program.
        ours: &'static str,
    },
    /// Objects are stored in a version that this program does not know.
    #[error(
        "objects of {name} are stored as {stored}, which this version does not know: migrate them first"
    )]
    OtherStored {
        /// Which.
        name: String,
        /// The version.
        stored: String,
    },
    /// A field would be lost.
    #[error("definition {name} lacks {field}: it is of an older version; run `dormouse install`")]
    Lacks {
        /// Which.
        name: String,
        /// The field.
        field: String,
    },
    /// The API server does not serve it.
    #[error("definition {name} is not served: {why}")]
    NotServed {
        /// Which.
        name: String,
        /// What the API server says.
        why: String,
    },
}

impl CrdError {
    /// Whether waiting may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Cluster { source, .. } | Self::Apply(ApplyError::Refused { source, .. }) => {
                source.is_retryable()
            }
            Self::Missing { .. } | Self::Lacks { .. } | Self::NotServed { .. } => true,
            Self::Newer { .. }
            | Self::OtherStored { .. }
            | Self::Apply(ApplyError::Unknown { .. }) => false,
        }
    }
}

/// Puts the definitions of all kinds in place, and waits until they are served.
///
/// # Errors
/// If one is of a newer version, or the cluster refuses it.
pub async fn install(cluster: &Cluster) -> Result<(), CrdError> {
    let all: Vec<Value> = kinds::stored().map(schema::crd).collect();
    install_all(cluster, &all).await
}

/// Puts these definitions in place, and waits until they are served.
///
/// # Errors
/// If one is of a newer version, or the cluster refuses it.
pub async fn install_all(cluster: &Cluster, definitions: &[Value]) -> Result<(), CrdError> {
    // All before any: what is refused has changed nothing.
    for definition in definitions {
        let name = name_of(definition);
        if let Some(installed) = fetch(cluster, name).await? {
            may_replace(name, &installed)?;
        }
    }
    for definition in definitions {
        install::apply(cluster, definition).await?;
    }
    for definition in definitions {
        established(cluster, name_of(definition)).await?;
    }
    Ok(())
}

/// The definitions of all kinds in another API group, for tests and benchmarks that must not meet the
/// product's own objects.
pub fn in_group(group: &str) -> impl Iterator<Item = Value> {
    kinds::stored().map(move |info| {
        let mut definition = schema::crd(info);
        definition["metadata"]["name"] = format!("{}.{group}", info.plural).into();
        definition["spec"]["group"] = group.into();
        // Words on the command line belong to the product's own.
        let names = &mut definition["spec"]["names"];
        names["shortNames"] = Value::Array(Vec::new());
        names["categories"] = Value::Array(Vec::new());
        definition
    })
}

/// Removes definitions, and with them every object of their kinds.
///
/// # Errors
/// If the cluster refuses.
pub async fn remove_all(cluster: &Cluster, definitions: &[Value]) -> Result<(), CrdError> {
    for definition in definitions {
        let name = name_of(definition);
        match call(cluster, Method::DELETE, name).await {
            Err(error) if error.reason() != Some(Reason::NotFound) => {
                return Err(CrdError::Cluster {
                    name: name.to_owned(),
                    source: error,
                });
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Whether every kind is served by this cluster, with every field that this version writes.
///
/// # Errors
/// If one is not, by name.
pub async fn check(cluster: &Cluster) -> Result<(), CrdError> {
    for info in kinds::stored() {
        let name = format!("{}.{GROUP}", info.plural);
        let Some(installed) = fetch(cluster, &name).await? else {
            return Err(CrdError::Missing { name });
        };
        if let Some(why) = not_established(&installed) {
            return Err(CrdError::NotServed { name, why });
        }
        let ours = schema::crd(info);
        let versions = installed["spec"]["versions"].as_array();
        let same = versions
            .into_iter()
            .flatten()
            .find(|version| version["name"] == API_VERSION)
            .unwrap_or(&Value::Null);
        let ours = &ours["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let theirs = &same["schema"]["openAPIV3Schema"];
        if let Some(field) = missing_field("", ours, theirs) {
            return Err(CrdError::Lacks { name, field });
        }
    }
    Ok(())
}

fn name_of(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap_or_default()
}

async fn call(cluster: &Cluster, method: Method, name: &str) -> Result<Value, ClusterError> {
    let request = Request::builder()
        .method(method)
        .uri(format!("{PATH}/{name}"))
        .body(Vec::new())
        .map_err(|e| ClusterError::Call(kube::Error::HttpError(e)))?;
    Ok(cluster.client().request(request).await?)
}

async fn fetch(cluster: &Cluster, name: &str) -> Result<Option<Value>, CrdError> {
    match call(cluster, Method::GET, name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.reason() == Some(Reason::NotFound) => Ok(None),
        Err(source) => Err(CrdError::Cluster {
            name: name.to_owned(),
            source,
        }),
    }
}

fn may_replace(name: &str, installed: &Value) -> Result<(), CrdError> {
    let stored = installed["status"]["storedVersions"].as_array();
    let other = stored
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|version| *version != API_VERSION);
    if let Some(stored) = other {
        return Err(CrdError::OtherStored {
            name: name.to_owned(),
            stored: stored.to_owned(),
        });
    }
    let theirs = installed["metadata"]["annotations"][VERSION_ANNOTATION].as_str();
    match theirs {
        Some(theirs) if numbers(theirs) > numbers(schema::VERSION) => Err(CrdError::Newer {
            name: name.to_owned(),
            installed: theirs.to_owned(),
            ours: schema::VERSION,
        }),
        _ => Ok(()),
    }
}

/// A version of the product as numbers, for comparing.
fn numbers(version: &str) -> Vec<u64> {
    let plain = version.split(['-', '+']).next().unwrap_or_default();
    plain.split('.').map_while(|n| n.parse().ok()).collect()
}

async fn established(cluster: &Cluster, name: &str) -> Result<(), CrdError> {
    let deadline = Instant::now() + ESTABLISHED_WITHIN;
    loop {
        let Some(installed) = fetch(cluster, name).await? else {
            return Err(CrdError::Missing {
                name: name.to_owned(),
            });
        };
        match not_established(&installed) {
            None => return Ok(()),
            Some(why) if Instant::now() >= deadline => {
                return Err(CrdError::NotServed {
                    name: name.to_owned(),
                    why,
                });
            }
            Some(_) => sleep(LOOK_AGAIN).await,
        }
    }
}

/// What keeps a definition from being served.
fn not_established(installed: &Value) -> Option<String> {
    let conditions = installed["status"]["conditions"].as_array();
    let condition = |kind: &str| {
        conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == kind)
    };
    let says = |condition: &Value| condition["message"].as_str().unwrap_or_default().to_owned();
    for (kind, wanted) in [("NamesAccepted", "True"), ("Established", "True")] {
        match condition(kind) {
            Some(found) if found["status"] == wanted => {}
            Some(found) => return Some(says(found)),
            None => return Some(format!("it is not {kind} yet")),
        }
    }
    None
}

/// The first field that one schema has and another one lacks.
fn missing_field(at: &str, ours: &Value, theirs: &Value) -> Option<String> {
    if theirs["x-kubernetes-preserve-unknown-fields"] == true {
        return None;
    }
    let fields = ours["properties"].as_object();
    for (name, field) in fields.into_iter().flatten() {
        let path = if at.is_empty() {
            name.clone()
        } else {
            format!("{at}.{name}")
        };
        match theirs["properties"].get(name) {
            None => return Some(path),
            Some(their) => {
                if let Some(missing) = missing_field(&path, field, their) {
                    return Some(missing);
                }
            }
        }
    }
    for word in ["items", "additionalProperties"] {
        if ours[word].is_object()
            && let Some(missing) = missing_field(&format!("{at}[]"), &ours[word], &theirs[word])
        {
            return Some(missing);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_definition_that_lacks_a_field_is_told_by_its_path() {
        let ours = json!({"properties": {"spec": {"properties": {
            "a": {"type": "string"},
            "list": {"items": {"properties": {"deep": {"type": "string"}}}},
        }}}});
        assert_eq!(missing_field("", &ours, &ours), None);
        let mut older = ours.clone();
        older["properties"]["spec"]["properties"]["list"]["items"] = json!({"properties": {}});
        assert_eq!(
            missing_field("", &ours, &older),
            Some("spec.list[].deep".into())
        );
        // One that has more is newer, and serves us.
        assert_eq!(missing_field("", &older, &ours), None);
    }

    #[test]
    fn a_definition_is_replaced_by_one_that_is_not_older() {
        let of = |version: &str, stored: &str| {
            json!({
                "metadata": {"annotations": {VERSION_ANNOTATION: version}},
                "status": {"storedVersions": [stored]},
            })
        };
        assert!(may_replace("x", &of(schema::VERSION, API_VERSION)).is_ok());
        assert!(may_replace("x", &of("0.0.1", API_VERSION)).is_ok());
        assert!(may_replace("x", &json!({})).is_ok());
        let newer = may_replace("x", &of("1000.0.0", API_VERSION));
        assert!(matches!(newer, Err(CrdError::Newer { .. })));
        let other = may_replace("x", &of("0.0.1", "v2"));
        assert!(matches!(other, Err(CrdError::OtherStored { .. })));
    }
}
