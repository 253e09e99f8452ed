//! Partial changes: merge patches and JSON patches.
//!
//! A patch is applied to the record as it is, checked as a replacement would be, and written if
//! nobody else was first; if somebody was, it is applied again. A patch that names a version means
//! that version and is not.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use json_patch::{PatchErrorKind, PatchOperation};
use model::kinds::{Omission, PatchType};
use serde_json::Value;

use crate::{
    body::{self, MAX_DEPTH, RawBody},
    collection::Collection,
    lists,
    negotiate::Accept,
    params::Params,
    place::Place,
    refusal::Refusal,
    render::Renderer,
    resource_api::Api,
    submission::Submission,
    write::{self, Part, Update},
};

/// The most operations of one JSON patch.
const MAX_OPERATIONS: usize = 1000;

pub(crate) async fn patch(
    api: State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    patch_part(api, place, params, accept, body, Part::Main).await
}

pub(crate) async fn patch_status(
    api: State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    patch_part(api, place, params, accept, body, Part::Status).await
}

/// A parsed patch.
pub(crate) enum Patch {
    Merge(Value),
    Json(Vec<PatchOperation>),
    /// As built-in kinds of Kubernetes take it: lists are merged by the keys of their items.
    Strategic(Value),
    /// What one manager wants to be so.
    Apply(Value),
}

async fn patch_part(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
    part: Part,
) -> Result<Response, Refusal> {
    let info = place.writable()?;
    let options = params.write_options()?;
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let (patch, duplicates) = parse(&body, info.patches)?;
    let key = place.key()?;
    let shared = Arc::clone(&api);
    let written = api
        .outlive(async move {
            let mut attempt = 1;
            loop {
                let Some(current) = shared.store.get(&key).await? else {
                    return Err(Refusal::not_found(place.served.about(key.name.as_str())));
                };
                let mut object = place.served.to_value(&current)?;
                patch.apply(&mut object, shared.limits.body_bytes)?;
                let submission = Submission::new(object, &place, info)?;
                submission.ensure_is(&key, current.uid(), place.served)?;
                // A version that is not the record's own was named by the patch; no later look will
                // find it.
                let named = submission.version.is_some_and(|v| v != current.version());
                let update = Update {
                    info,
                    part,
                    current,
                    options,
                    omission: Omission::Remove,
                };
                match update.apply(&shared, submission, &duplicates).await {
                    Err(refusal)
                        if refusal.is_conflict()
                            && !named
                            && attempt < shared.limits.patch_attempts =>
                    {
                        attempt += 1;
                    }
                    result => return result,
                }
            }
        })
        .await?;
    write::respond(&renderer, &written, options, StatusCode::OK)
}

fn parse(body: &RawBody, known: &[PatchType]) -> Result<(Patch, Vec<String>), Refusal> {
    let media = body.media.as_deref().unwrap_or_default();
    let kind = known.iter().find(|kind| kind.media_type() == media);
    let Some(kind) = kind else {
        let names: Vec<&str> = known.iter().map(|k| k.media_type()).collect();
        let names = names.join(" or ");
        return Err(Refusal::unsupported_media(match media {
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => format!(
                "server-side apply is not supported yet: use client-side apply (kubectl apply without --server-side), or send {names}"
            ),
            "application/strategic-merge-patch+json" => format!(
                "strategic merge patches are not supported for custom resources: send {names} (kubectl patch --type=merge)"
            ),
            _ => format!("the body of type {media:?} is not a patch: send {names}"),
        }));
    };
    of_type(*kind, &body.bytes)
}

/// Any patch that a collection takes.
pub(crate) fn parse_any(body: &RawBody, collection: &Collection) -> Result<Patch, Refusal> {
    match body.media.as_deref().unwrap_or_default() {
        "application/merge-patch+json" => Ok(of_type(PatchType::Merge, &body.bytes)?.0),
        "application/json-patch+json" => Ok(of_type(PatchType::Json, &body.bytes)?.0),
        "application/strategic-merge-patch+json" if collection.strategic => {
            Ok(Patch::Strategic(body::parse_json(&body.bytes)?.value))
        }
        "application/apply-patch+yaml" => Ok(Patch::Apply(body::parse_yaml(&body.bytes)?.value)),
        media => Err(Refusal::unsupported_media(format!(
            "the body of type {media:?} is not a patch that {} takes",
            collection.plural
        ))),
    }
}

fn of_type(kind: PatchType, bytes: &[u8]) -> Result<(Patch, Vec<String>), Refusal> {
    let document = body::parse_json(bytes)?;
    let patch = match kind {
        PatchType::Merge if document.value.is_object() => Patch::Merge(document.value),
        PatchType::Merge => return Err(Refusal::bad_field(".", "a merge patch is an object")),
        PatchType::Json => {
            let operations: Vec<PatchOperation> = serde_json::from_value(document.value).map_err(|e| {
                Refusal::bad_field(".", format!("a JSON patch is a list of operations, as [{{\"op\":\"replace\",\"path\":\"/spec/…\",\"value\":…}}]: {e}"))
            })?;
            if operations.len() > MAX_OPERATIONS {
                return Err(Refusal::bad_field(
                    ".",
                    format!(
                        "{} operations: use at most {MAX_OPERATIONS}",
                        operations.len()
                    ),
                ));
            }
            Patch::Json(operations)
        }
    };
    Ok((patch, document.duplicates))
}

impl Patch {
    pub(crate) fn apply(&self, object: &mut Value, max_bytes: usize) -> Result<(), Refusal> {
        match self {
            Self::Merge(patch) => json_patch::merge(object, patch),
            Self::Strategic(patch) => lists::merge_strategic(object, patch),
            // Whose it is decides what becomes of the rest: see `apply`.
            Self::Apply(wanted) => lists::merge_applied(object, wanted),
            Self::Json(operations) => {
                let mut copied = 0;
                for (i, operation) in operations.iter().enumerate() {
                    bounded(i, operation, object, &mut copied, max_bytes)?;
                    json_patch::patch(object, std::slice::from_ref(operation)).map_err(|e| {
                        let field = format!("[{i}].path");
                        let path = operation.path();
                        match e.kind {
                            PatchErrorKind::TestFailed => Refusal::invalid_option(
                                &field,
                                format!("the test of {path} failed: read the object again"),
                            ),
                            _ => Refusal::invalid_option(&field, format!("{path}: {}", e.kind)),
                        }
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Refuses an operation that would nest deeper, or copy more, than any honest patch: a few hundred
/// bytes of copies of copies could fill the memory or the stack.
fn bounded(
    index: usize,
    operation: &PatchOperation,
    object: &Value,
    copied: &mut usize,
    max_bytes: usize,
) -> Result<(), Refusal> {
    let (value, copies) = match operation {
        PatchOperation::Add(op) => (Some(&op.value), false),
        PatchOperation::Replace(op) => (Some(&op.value), false),
        PatchOperation::Move(op) => (object.pointer(op.from.as_str()), false),
        PatchOperation::Copy(op) => (object.pointer(op.from.as_str()), true),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, false),
    };
    let Some(value) = value else {
        return Ok(());
    };
    let (depth, bytes) = measure(value);
    if copies {
        *copied += bytes;
    }
    let at = operation.path().as_str().matches('/').count();
    if at + depth > MAX_DEPTH {
        return Err(Refusal::bad_field(
            format!("[{index}].path"),
            format!("nests deeper than {MAX_DEPTH}"),
        ));
    }
    if *copied > max_bytes {
        return Err(Refusal::bad_field(
            format!("[{index}].from"),
            format!("copies more than {max_bytes} bytes in all"),
        ));
    }
    Ok(())
}

/// How deep a value is, and about how long its text. The depth is bounded, so this may recurse.
fn measure(value: &Value) -> (usize, usize) {
    let within = |parts: &mut dyn Iterator<Item = (usize, usize)>| {
        parts.fold((1, 2), |(depth, bytes), (d, b)| {
            (depth.max(d + 1), bytes + b + 1)
        })
    };
    match value {
        Value::Object(fields) => within(&mut fields.iter().map(|(name, field)| {
            let (depth, bytes) = measure(field);
            (depth, bytes + name.len() + 3)
        })),
        Value::Array(items) => within(&mut items.iter().map(measure)),
        Value::String(text) => (0, text.len() + 2),
        Value::Null | Value::Bool(_) | Value::Number(_) => (0, 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(operations: Value, object: &mut Value) -> Result<(), Refusal> {
        Patch::Json(serde_json::from_value(operations).unwrap()).apply(object, 10_000)
    }

    #[test]
    fn copies_of_copies_and_deep_nests_are_refused() {
        let mut object = json!({"a": {"x": "y".repeat(100)}});
        let copies: Vec<Value> = (0..40)
            .map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/c{i}")}))
            .collect();
        assert!(apply(copies.into(), &mut object).is_err());
        let mut object = json!({"a": {}});
        let deeper: Vec<Value> = (0..200)
            .map(|_| json!({"op": "add", "path": "/a", "value": {"a": {}}}))
            .collect();
        assert!(apply(deeper.into(), &mut object).is_ok());
        let deep = json!([{"op": "add", "path": "/a".repeat(200), "value": 1}]);
        assert!(apply(deep, &mut object).is_err());
        let mut nested = json!({"a": {}});
        let moves: Vec<Value> = (0..200)
            .flat_map(|_| {
                [
                    json!({"op": "copy", "from": "/a", "path": "/b"}),
                    json!({"op": "replace", "path": "/a", "value": {}}),
                    json!({"op": "move", "from": "/b", "path": "/a/a"}),
                ]
            })
            .collect();
        assert!(apply(moves.into(), &mut nested).is_err());
    }
}
