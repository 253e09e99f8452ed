//! JSON schemas of the kinds, and the documents built from them.
//!
//! There is one source: the types and their doc comments. From it come the schema of each half of
//! a kind, its CustomResourceDefinition ([`crd`]) and the OpenAPI document of the whole group
//! ([`openapi_v3`]). Kubernetes takes only *structural* schemas; [`structural`] brings what
//! `schemars` derives into that form and can tell whether something is in it.

pub mod structural;

mod crd;
mod openapi;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

pub use crd::{VERSION, VERSION_ANNOTATION, crd};
pub use openapi::openapi_v3;

use crate::{kinds::KindInfo, meta::GROUP_VERSION};

/// The structural schema of a type.
#[must_use]
pub fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    structural::normalise(
        settings
            .into_generator()
            .into_root_schema_for::<T>()
            .to_value(),
    )
}

/// The structural schema of a whole object, with `metadata` described by `metadata`.
#[must_use]
pub fn object(info: &KindInfo, metadata: &Value) -> Value {
    let kind = info.kind.0;
    let mut spec = info.spec_schema();
    let mut status = info.status_schema();
    spec["description"] = format!("What is wanted of a {kind}.").into();
    status["description"] = format!("What is observed of a {kind}. Written by the server.").into();
    structural::without_defaults(&mut status);
    if status.get("properties").is_none() {
        // A kind of which nothing is observed.
        status["properties"] = json!({});
    }
    json!({
        "description": info.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": format!("Always {GROUP_VERSION}.")},
            "kind": {"type": "string", "description": format!("Always {kind}.")},
            "metadata": metadata,
            "spec": spec,
            "status": status,
        },
    })
}
