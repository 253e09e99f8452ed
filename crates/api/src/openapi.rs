//! The OpenAPI documents, made once.

use std::sync::OnceLock;

use axum::{
    extract::{Path, State},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use model::{kinds::Scope, meta::GROUP_VERSION, schema};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::{discovery, refusal::Refusal, render::json_response, resource_api::Api};

struct Document {
    text: String,
    hash: String,
}

impl Document {
    fn new(value: &Value) -> Self {
        let text = value.to_string();
        let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&text));
        Self { text, hash }
    }

    fn respond(&self, headers: &HeaderMap) -> Response {
        let tag = format!("\"{}\"", self.hash);
        let seen = headers
            .get(header::IF_NONE_MATCH)
            .is_some_and(|v| v.as_bytes() == tag.as_bytes());
        let mut response = if seen {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            self.text.clone().into_response()
        };
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }
}

fn kinds_document() -> &'static Document {
    static DOCUMENT: OnceLock<Document> = OnceLock::new();
    DOCUMENT.get_or_init(|| Document::new(&schema::openapi_v3()))
}

fn core_document() -> &'static Document {
    static DOCUMENT: OnceLock<Document> = OnceLock::new();
    DOCUMENT.get_or_init(|| Document::new(&core()))
}

/// `/openapi/v3`: where the documents are.
pub(crate) async fn index() -> Response {
    let path = |of: &str, document: &Document| json!({"serverRelativeURL": format!("/openapi/v3/{of}?hash={}", document.hash)});
    let kinds = format!("apis/{GROUP_VERSION}");
    json_response(&json!({
        "paths": {
            "api/v1": path("api/v1", core_document()),
            kinds.as_str(): path(&kinds, kinds_document()),
        },
    }))
}

/// `/openapi/v3/apis/dormouse.dev/v1alpha1`.
pub(crate) async fn of_kinds(headers: HeaderMap) -> Response {
    kinds_document().respond(&headers)
}

/// `/openapi/v3/api/v1`.
pub(crate) async fn of_core(headers: HeaderMap) -> Response {
    core_document().respond(&headers)
}

/// `/openapi/v3` of a catalogue.
pub(crate) async fn catalogue_index(State(api): State<Api>) -> Response {
    let mut paths = Map::new();
    for (group, versions) in discovery::catalogue_versions(&api) {
        for version in versions {
            let of = match group {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            };
            let url = json!({"serverRelativeURL": format!("/openapi/v3/{of}")});
            paths.insert(of, url);
        }
    }
    json_response(&json!({"paths": paths}))
}

/// The document of one group of a catalogue: that there are these kinds, and that the server checks
/// their fields. Their schemas are not told.
pub(crate) async fn of_catalogue(
    State(api): State<Api>,
    Path(of): Path<String>,
) -> Result<Response, Refusal> {
    let mut paths = Map::new();
    for collection in api.catalogue.iter().flat_map(|catalogue| catalogue.all()) {
        let root = match collection.group {
            "" => format!("api/{}", collection.version),
            group => format!("apis/{group}/{}", collection.version),
        };
        if root != of {
            continue;
        }
        let within = match collection.scope {
            Scope::Namespaced => "/namespaces/{namespace}",
            Scope::Cluster => "",
        };
        let operation = json!({
            "parameters": [{
                "name": "fieldValidation",
                "in": "query",
                "schema": {"type": "string"},
            }],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": {
                "group": collection.group,
                "version": collection.version,
                "kind": collection.kind,
            },
        });
        let all = format!("/{root}{within}/{}", collection.plural);
        paths.insert(
            format!("{all}/{{name}}"),
            json!({"patch": operation, "put": operation}),
        );
        paths.insert(all, json!({"post": operation}));
    }
    if paths.is_empty() {
        return Err(Refusal::no_such_path());
    }
    Ok(json_response(&json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": {}},
    })))
}

/// What there is of the core group.
fn core() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let gvk = |kind: &str| json!({"group": "", "version": "v1", "kind": kind});
    let component = |kind: &str| format!("io.k8s.api.core.v1.{kind}");
    let read = |kind: &str, action: &str| {
        json!({"get": {
            "operationId": format!("{action}CoreV1{kind}"),
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{}", component(kind))}}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk(kind),
        }})
    };
    let metadata = json!({"type": "object", "description": "What tells it from others.", "properties": {
        "name": text("Its name."), "namespace": text("Its namespace."), "uid": text("Its identity."),
    }});
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Dormouse", "version": "v1"},
        "paths": {
            "/api/v1/events": read("Event", "list"),
            "/api/v1/namespaces/{namespace}/events": read("Event", "list"),
            "/api/v1/namespaces/{namespace}/events/{name}": read("Event", "get"),
            "/api/v1/namespaces": read("Namespace", "list"),
            "/api/v1/namespaces/{name}": read("Namespace", "get"),
        },
        "components": {"schemas": {
            component("Event"): {
                "type": "object",
                "description": "Something that happened to an object. Read only.",
                "properties": {
                    "apiVersion": text("Always v1."),
                    "kind": text("Always Event."),
                    "metadata": metadata,
                    "involvedObject": {"type": "object", "description": "What it speaks of.", "properties": {
                        "apiVersion": text("Its version."), "kind": text("Its kind."), "namespace": text("Its namespace."),
                        "name": text("Its name."), "uid": text("Its identity."),
                    }},
                    "reason": text("One word."),
                    "message": text("A sentence."),
                    "type": text("Normal or Warning."),
                    "count": {"type": "integer", "format": "int32", "description": "How often it was seen."},
                    "firstTimestamp": {"type": "string", "format": "date-time", "description": "When it was first seen."},
                    "lastTimestamp": {"type": "string", "format": "date-time", "description": "When it was last seen."},
                },
                "x-kubernetes-group-version-kind": [gvk("Event")],
            },
            component("Namespace"): {
                "type": "object",
                "description": "A team. It is there as soon as something is in it. Read only.",
                "properties": {"apiVersion": text("Always v1."), "kind": text("Always Namespace."), "metadata": metadata},
                "x-kubernetes-group-version-kind": [gvk("Namespace")],
            },
        }},
    })
}
