//! Deleting.
//!
//! An API server that removed something says that it did, not at which version. Whoever waits for the
//! removal to be seen needs the version, so it is looked up: by a watch of that one object, from a
//! moment before.

use std::{sync::Arc, time::Duration};

use cluster_kube::Reason;
use http::Method;
use model::{Key, Version};
use serde::Deserialize;
use serde_json::json;
use store::{Deletion, Outcome, Precondition, Record, StoreError, WatchEvent};

use crate::{
    KubeStore,
    call::decode,
    error::{self, Does},
    kinds::Kind,
    list::Page,
    watch::Stream,
    wire::{self, Expected},
};

/// How long a removal that has happened is waited for.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// Whether an answer is the object, or only that it is gone.
#[derive(Deserialize)]
struct Answer {
    kind: String,
}

impl KubeStore {
    pub(crate) async fn remove(
        &self,
        key: &Key,
        only_if: Precondition,
    ) -> Result<Deletion, StoreError> {
        let kind = self.kinds.find(key.kind)?;
        let before = self.newest_version(kind, key).await?;
        let expected = Expected {
            uid: only_if.uid,
            version: only_if.version,
        };
        let mut preconditions = serde_json::Map::new();
        if let Some(uid) = only_if.uid {
            preconditions.insert("uid".into(), uid.to_string().into());
        }
        if let Some(version) = only_if.version {
            preconditions.insert("resourceVersion".into(), version.to_string().into());
        }
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        });
        let body = body.to_string().into_bytes();
        let text = match self
            .send(Method::DELETE, &kind.object(key), &[], body)
            .await
        {
            Ok(text) => text,
            Err(e) if e.reason() == Some(Reason::Conflict) => {
                return Err(self.why_not(key, expected).await);
            }
            Err(e) if e.reason() == Some(Reason::NotFound) => {
                self.is_served(kind, &e)?;
                return Err(StoreError::NotFound(key.clone()));
            }
            Err(e) => return Err(error::unavailable(&e, Does::Write)),
        };
        let answer: Answer =
            serde_json::from_str(&text).map_err(|e| error::garbled(e, Does::Write))?;
        if answer.kind == kind.info.kind.0 {
            let record = decode(kind, key, &text)?;
            if !record.meta.finalizers.is_empty() {
                return Ok(Deletion::Marked(record));
            }
        }
        let last = self.removal(kind, key, before).await?;
        Ok(Deletion::Removed(last))
    }

    /// A version that is not older than what is at a key now, and young enough to watch from.
    pub(crate) async fn newest_version(
        &self,
        kind: &Kind,
        key: &Key,
    ) -> Result<Version, StoreError> {
        let only = format!("metadata.name={}", key.name);
        let path = kind.collection(key.namespace.as_ref());
        let query = [("fieldSelector", only.as_str())];
        let text = self.send(Method::GET, &path, &query, Vec::new()).await;
        let text = match text {
            Ok(text) => text,
            Err(e) if e.reason() == Some(Reason::NotFound) => {
                self.is_served(kind, &e)?;
                return Err(StoreError::NotFound(key.clone()));
            }
            Err(e) => return Err(error::unavailable(&e, Does::Read)),
        };
        let page: Page<'_> =
            serde_json::from_str(&text).map_err(|e| error::garbled(e, Does::Read))?;
        wire::version(&page.metadata.resource_version)
            .ok_or_else(|| error::garbled("its list has no version", Does::Read))
    }

    /// The last content of what was removed after a version, at the version of the removal.
    pub(crate) async fn removal(
        &self,
        kind: &Kind,
        key: &Key,
        after: Version,
    ) -> Result<Arc<Record>, StoreError> {
        let seen = tokio::time::timeout(SEEN_WITHIN, self.watch_removal(kind, key, after)).await;
        match seen {
            Ok(Ok(last)) => Ok(last),
            // It is gone all the same. Who needs to know more must look.
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable {
                outcome: Outcome::Unknown,
                reason: format!("{key} was removed, and its removal not seen").into(),
            }),
        }
    }

    async fn watch_removal(
        &self,
        kind: &Kind,
        key: &Key,
        after: Version,
    ) -> Result<Arc<Record>, StoreError> {
        let only = format!("metadata.name={}", key.name);
        let mut stream = Stream::open(
            self,
            &kind.collection(key.namespace.as_ref()),
            after,
            SEEN_WITHIN,
            &[("fieldSelector", &only)],
        )
        .await?;
        loop {
            match stream.next(kind).await? {
                Some(WatchEvent::Removed { record }) => return Ok(record),
                Some(WatchEvent::Put { .. } | WatchEvent::Bookmark(_)) => {}
                None => return Err(StoreError::Expired { after }),
            }
        }
    }
}
