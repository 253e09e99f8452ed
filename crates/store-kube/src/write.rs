//! Creating and updating.

use std::sync::Arc;

use cluster_kube::Reason;
use http::Method;
use model::{Key, StringMap, Version};
use serde_json::json;
use store::{Change, Draft, Half, Outcome, Record, StoreError, record::MAX_RECORD_BYTES};

use crate::{
    KubeStore,
    call::decode,
    error,
    kinds::Kind,
    wire::{self, Expected},
};

impl KubeStore {
    pub(crate) async fn add(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        let (kind, key) = (self.kinds.find(draft.kind)?, draft.key());
        let mut meta = draft.meta;
        // Nothing of this is a draft's to say, and an API server would keep it.
        meta.uid = None;
        meta.resource_version = None;
        let body = wire::whole(kind, &meta, Expected::default(), &draft.spec)
            .map_err(|e| unencodable(&key, &e))?;
        within_limit(&key, body.len() + draft.status.len())?;
        let made = self.post(kind, &key, body).await?;
        if kind.is_default_status(&draft.status) {
            return Ok(made);
        }
        self.first_status(kind, made, draft.status, &draft.fields)
            .await
    }

    /// Writes the status of what was just created: an API server takes none from who creates.
    async fn first_status(
        &self,
        kind: &Kind,
        made: Arc<Record>,
        status: Arc<str>,
        fields: &StringMap,
    ) -> Result<Arc<Record>, StoreError> {
        let mut seen = made;
        loop {
            let change = Change {
                key: seen.key(),
                uid: seen.meta.uid,
                expected: seen.version(),
                half: Half::Status {
                    status: Arc::clone(&status),
                },
                fields: fields.clone(),
            };
            let error = match self.replace(change).await {
                Ok(record) => return Ok(record),
                Err(error) => error,
            };
            let key = seen.key();
            seen = match (error, self.read(&key).await) {
                // Control is faster than this second write: what it has observed is newer, and stays.
                (StoreError::Conflict { .. }, Ok(Some(now)))
                    if now.meta.uid == seen.meta.uid && !kind.is_default_status(&now.status) =>
                {
                    return Ok(now);
                }
                (StoreError::Conflict { .. }, Ok(Some(now))) if now.meta.uid == seen.meta.uid => {
                    now
                }
                (error, _) => return Err(in_doubt(&error)),
            };
        }
    }

    async fn post(&self, kind: &Kind, key: &Key, body: Vec<u8>) -> Result<Arc<Record>, StoreError> {
        let path = kind.collection(key.namespace.as_ref());
        let size = body.len();
        let mut sent = self.send(Method::POST, &path, &[], body.clone()).await;
        if let Err(error) = &sent
            && error.reason() == Some(Reason::NotFound)
        {
            self.is_served(kind, error)?;
            self.ensure_namespace(key).await?;
            sent = self.send(Method::POST, &path, &[], body).await;
        }
        match sent {
            Ok(text) => decode(kind, key, &text),
            Err(error) => Err(error::refused(key, size, &error)),
        }
    }

    /// Makes the namespace of a team that has no record yet.
    async fn ensure_namespace(&self, key: &Key) -> Result<(), StoreError> {
        let Some(namespace) = &key.namespace else {
            return Err(StoreError::NotFound(key.clone()));
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {"app.kubernetes.io/managed-by": "dormouse"},
            },
        });
        let body = body.to_string().into_bytes();
        match self
            .send(Method::POST, "/api/v1/namespaces", &[], body)
            .await
        {
            Ok(_) => {
                tracing::info!(%namespace, "made the namespace of a team");
                Ok(())
            }
            Err(e) if e.reason() == Some(Reason::AlreadyExists) => Ok(()),
            Err(e) => {
                let why = match e.reason() {
                    Some(Reason::Forbidden) => format!(
                        "and this account may not make it: run `kubectl create namespace {namespace}`"
                    ),
                    _ => format!("and cannot be made: {}", e.explain()),
                };
                Err(StoreError::Unavailable {
                    outcome: Outcome::NotApplied,
                    reason: format!("namespace {namespace} is not there, {why}").into(),
                })
            }
        }
    }

    pub(crate) async fn replace(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        let kind = self.kinds.find(change.key.kind)?;
        let key = &change.key;
        let expected = Expected {
            uid: change.uid,
            version: Some(change.expected),
        };
        if change.expected == Version::ZERO {
            // To an API server this would mean any version.
            return Err(self.why_not(key, expected).await);
        }
        let (path, body) = match &change.half {
            Half::Spec { meta, spec } => {
                (kind.object(key), wire::whole(kind, meta, expected, spec))
            }
            Half::Status { status } => {
                // What says nothing is sent as nothing: an object that has no status stays as it is.
                let status = (!kind.is_default_status(status)).then_some(&**status);
                (
                    format!("{}/status", kind.object(key)),
                    wire::observed(kind, key, expected, status),
                )
            }
        };
        let body = body.map_err(|e| unencodable(key, &e))?;
        let size = body.len();
        within_limit(key, size)?;
        let before = match &change.half {
            Half::Spec { meta, .. } if meta.is_deleting() && meta.finalizers.is_empty() => {
                Some(self.newest_version(kind, key).await?)
            }
            Half::Spec { .. } | Half::Status { .. } => None,
        };
        match self.send(Method::PUT, &path, &[], body).await {
            Ok(text) => {
                let record = decode(kind, key, &text)?;
                if record.meta.is_deleting() && record.meta.finalizers.is_empty() {
                    // The answer is what it was.
                    return self
                        .removal(kind, key, before.unwrap_or(change.expected))
                        .await;
                }
                Ok(record)
            }
            Err(e) if e.reason() == Some(Reason::Conflict) => {
                Err(self.why_not(key, expected).await)
            }
            Err(e) if e.reason() == Some(Reason::NotFound) => {
                self.is_served(kind, &e)?;
                Err(StoreError::NotFound(key.clone()))
            }
            Err(e) => Err(error::refused(key, size, &e)),
        }
    }

    /// Why a write that expected this was refused: an API server says only that it was.
    pub(crate) async fn why_not(&self, key: &Key, expected: Expected) -> StoreError {
        let current = match self.read(key).await {
            Ok(Some(current)) => current,
            Ok(None) => return StoreError::NotFound(key.clone()),
            Err(error) => return error,
        };
        if let Some(uid) = expected.uid.filter(|uid| *uid != current.uid()) {
            return StoreError::OtherUid {
                key: key.clone(),
                expected: uid,
                actual: current.uid(),
            };
        }
        match expected.version {
            Some(version) if version != current.version() => StoreError::Conflict {
                key: key.clone(),
                expected: version,
                actual: current.version(),
            },
            _ => StoreError::Unavailable {
                outcome: Outcome::NotApplied,
                reason: format!("{key} is as expected, and its change was refused as a conflict")
                    .into(),
            },
        }
    }
}

/// What was created is there: however its second write failed, the whole is in doubt.
fn in_doubt(error: &StoreError) -> StoreError {
    StoreError::Unavailable {
        outcome: Outcome::Unknown,
        reason: format!("it was created, and its status not written: {error}").into(),
    }
}

fn unencodable(key: &Key, error: &serde_json::Error) -> StoreError {
    StoreError::Invalid {
        key: key.clone(),
        reason: format!("it is not JSON: {error}").into(),
    }
}

fn within_limit(key: &Key, size: usize) -> Result<(), StoreError> {
    if size <= MAX_RECORD_BYTES {
        return Ok(());
    }
    Err(StoreError::TooLarge {
        key: key.clone(),
        size,
        limit: MAX_RECORD_BYTES,
    })
}
