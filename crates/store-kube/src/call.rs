//! Requests, and reading one object.

use std::sync::Arc;

use cluster_kube::{ClusterError, Reason};
use http::{Method, Request, header::CONTENT_TYPE};
use model::Key;
use store::{Record, StoreError};

use crate::{
    KubeStore,
    error::{self, Does},
    kinds::Kind,
    wire,
};

/// A request to an API server.
pub(crate) fn request(
    method: Method,
    path: &str,
    query: &[(&str, &str)],
    body: Vec<u8>,
) -> Result<Request<Vec<u8>>, ClusterError> {
    let mut uri = path.to_owned();
    if !query.is_empty() {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        pairs.extend_pairs(query);
        uri = format!("{uri}?{}", pairs.finish());
    }
    let mut request = Request::builder().method(method).uri(uri);
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(body);
    request.map_err(|e| ClusterError::Call(kube::Error::HttpError(e)))
}

impl KubeStore {
    /// Sends a request and answers the text that came back.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<String, ClusterError> {
        let request = request(method, path, query, body)?;
        let client = self.cluster.client();
        client
            .request_text(request)
            .await
            .map_err(ClusterError::from)
    }

    pub(crate) async fn read(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        let kind = self.kinds.find(key.kind)?;
        let path = kind.object(key);
        match self.send(Method::GET, &path, &[], Vec::new()).await {
            Ok(text) => decode(kind, key, &text).map(Some),
            Err(e) if e.reason() == Some(Reason::NotFound) => {
                self.is_served(kind, &e)?;
                Ok(None)
            }
            Err(e) => Err(error::unavailable(&e, Does::Read)),
        }
    }

    /// Tells an object that is not there from a kind that is not: an API server that does not know
    /// the definition must not look like an empty store.
    pub(crate) fn is_served(
        &self,
        kind: &Kind,
        not_found: &ClusterError,
    ) -> Result<(), StoreError> {
        let details = not_found.status().and_then(|s| s.details.as_ref());
        if details.is_some_and(|d| !d.kind.is_empty() && !d.name.is_empty()) {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            outcome: store::Outcome::NotApplied,
            reason: format!(
                "the cluster does not serve {}.{}: install the definitions of this version",
                kind.info.plural, kind.api_version
            )
            .into(),
        })
    }
}

/// The record in an answer.
pub(crate) fn decode(kind: &Kind, key: &Key, text: &str) -> Result<Arc<Record>, StoreError> {
    wire::record(kind, text).map_err(|source| StoreError::Undecodable {
        key: key.clone(),
        source,
    })
}
