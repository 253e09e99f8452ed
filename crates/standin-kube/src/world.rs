//! What controllers and the kubelet see of the API server: themselves as clients of it, without a
//! network in between and without its faults.

use std::{net::IpAddr, sync::Arc};

use api::Collection;
use axum::{Router, body::Body};
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use kit::{Clock, Entropy, Tasks};
use model::{Key, Timestamp};
use serde_json::{Value, json};
use store::{Query, memory::MemoryStore};
use tower::ServiceExt as _;

use crate::catalogue::Kinds;

/// The server from within.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) tasks: Tasks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) router: Router,
    pub(crate) token: String,
    /// The address of the only node.
    pub(crate) node: IpAddr,
    /// How the addresses of Pods begin.
    pub(crate) pods: Vec<u8>,
}

impl World {
    /// The time, as objects carry it.
    pub(crate) fn now(&self) -> String {
        let text = Timestamp::from_micros(self.clock.wall_micros()).to_string();
        format!("{}Z", text.get(..19).unwrap_or(&text))
    }

    /// The objects of a collection, in a namespace or in all.
    pub(crate) async fn list(
        &self,
        collection: &Collection,
        namespace: Option<&model::Namespace>,
    ) -> Vec<Value> {
        use store::Store as _;
        let mut query = Query::kind(collection.stored_as);
        query.namespace = namespace.cloned();
        let found = self.store.list(&query).await;
        let records = found.map(|listing| listing.records).unwrap_or_default();
        records
            .iter()
            .filter_map(|record| collection.object(record).ok())
            .collect()
    }

    /// An object, if it is there.
    pub(crate) async fn get(&self, collection: &Collection, key: &Key) -> Option<Value> {
        use store::Store as _;
        let record = self.store.get(key).await.ok()??;
        collection.object(&record).ok()
    }

    /// Changes an object, or its status, by a merge patch.
    pub(crate) async fn patch(
        &self,
        collection: &Collection,
        key: &Key,
        status: bool,
        patch: &Value,
    ) -> StatusCode {
        let mut path = path_of(collection, key);
        if status {
            path.push_str("/status");
        }
        let media = "application/merge-patch+json";
        self.call(Method::PATCH, &path, media, patch).await.0
    }

    /// Creates an object.
    pub(crate) async fn create(
        &self,
        collection: &Collection,
        namespace: Option<&str>,
        object: &Value,
    ) -> (StatusCode, Value) {
        let path = collection_path(collection, namespace);
        self.call(Method::POST, &path, "application/json", object)
            .await
    }

    /// Deletes exactly this object, as any client would.
    pub(crate) async fn delete(&self, collection: &Collection, key: &Key, uid: &str) {
        let options = json!({"preconditions": {"uid": uid}});
        let path = path_of(collection, key);
        // Whoever was first, it is gone.
        let _ = self
            .call(Method::DELETE, &path, "application/json", &options)
            .await;
    }

    /// Tells of something that happened to an object.
    pub(crate) async fn event(&self, about: &Value, kind: &str, reason: &str, message: &str) {
        let meta = &about["metadata"];
        let namespace = meta["namespace"].as_str().unwrap_or("default");
        let name = meta["name"].as_str().unwrap_or_default();
        let now = self.now();
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": format!("{name}.")},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": namespace,
                "name": name,
                "uid": meta["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kubelet"},
            "reportingComponent": "kubelet",
            "reportingInstance": "",
        });
        let path = format!("/api/v1/namespaces/{namespace}/events");
        // A namespace that is going takes none.
        let _ = self
            .call(Method::POST, &path, "application/json", &event)
            .await;
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let failed = (StatusCode::INTERNAL_SERVER_ERROR, Value::Null);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, media)
            .body(Body::from(body.to_string()));
        let Ok(request) = request else {
            return failed;
        };
        let Ok(response) = self.router.clone().oneshot(request).await;
        let code = response.status();
        let bytes = response.into_body().collect().await.map(|b| b.to_bytes());
        let value = bytes
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        (code, value)
    }
}

/// The path of a collection.
pub(crate) fn collection_path(collection: &Collection, namespace: Option<&str>) -> String {
    let root = match collection.group {
        "" => format!("/api/{}", collection.version),
        group => format!("/apis/{group}/{}", collection.version),
    };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", collection.plural),
        None => format!("{root}/{}", collection.plural),
    }
}

fn path_of(collection: &Collection, key: &Key) -> String {
    let within = key.namespace.as_ref().map(AsRef::as_ref);
    format!("{}/{}", collection_path(collection, within), key.name)
}
