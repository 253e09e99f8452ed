//! What must be the same in two recordings.

use serde_json::{Map, Value, json};

/// Fields of metadata that clients go by.
const METADATA: [&str; 11] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "generation",
    "uid",
    "resourceVersion",
    "deletionTimestamp",
    "continue",
];

/// What the second recording says otherwise than the first.
#[must_use]
pub fn differences(expected: &Value, actual: &Value) -> Vec<String> {
    let steps = |recording: &Value| recording["steps"].as_array().cloned().unwrap_or_default();
    let (expected, actual) = (steps(expected), steps(actual));
    let mut found = Vec::new();
    if expected.len() != actual.len() {
        found.push(format!(
            "{} steps were recorded, {} replayed: record again",
            expected.len(),
            actual.len()
        ));
    }
    for (expected, actual) in expected.iter().zip(&actual) {
        let does = expected["does"].as_str().unwrap_or_default();
        if expected["status"] != actual["status"] {
            found.push(format!(
                "{does}: status {} became {}: {}",
                expected["status"], actual["status"], actual["answers"]
            ));
        }
        let shown = |step: &Value| -> Vec<Value> {
            let answers = step["answers"].as_array().into_iter().flatten();
            answers.map(what_matters).collect()
        };
        let (expected, actual) = (shown(expected), shown(actual));
        if expected != actual {
            found.push(format!(
                "{does}:\n  expected {}\n  found    {}",
                json!(expected),
                json!(actual)
            ));
        }
    }
    found
}

/// What clients go by of an answer.
fn what_matters(answer: &Value) -> Value {
    // An event of a watch.
    if answer.get("type").is_some() && answer.get("object").is_some() {
        return json!({"type": answer["type"], "object": what_matters(&answer["object"])});
    }
    if let Some(items) = answer.get("items").and_then(Value::as_array) {
        return json!({
            "kind": answer["kind"],
            "metadata": metadata(&answer["metadata"]),
            "items": items.iter().map(what_matters).collect::<Vec<_>>(),
        });
    }
    if answer["kind"] == "Status" {
        let details = &answer["details"];
        return json!({
            "status": answer["status"],
            "reason": answer["reason"],
            "code": answer["code"],
            "kind": details["kind"],
            "name": details["name"],
            "group": details["group"],
            "fields": fields_of(details),
        });
    }
    let mut shown = json!({
        "apiVersion": answer["apiVersion"],
        "kind": answer["kind"],
        "metadata": metadata(&answer["metadata"]),
    });
    match answer["kind"].as_str() {
        Some("Pod") => {
            shown["image"] = answer["spec"]["containers"][0]["image"].clone();
            shown["policy"] = answer["spec"]["restartPolicy"].clone();
            shown["phase"] = answer["status"]["phase"].clone();
        }
        Some("Namespace") => shown["phase"] = answer["status"]["phase"].clone(),
        Some("CustomResourceDefinition" | "Event") => {}
        Some(_) | None => {
            for half in ["spec", "status", "data", "type", "immutable"] {
                shown[half] = answer[half].clone();
            }
        }
    }
    shown
}

/// Which fields a refusal names, in order; what it says of them is for people.
fn fields_of(details: &Value) -> Vec<Value> {
    let causes = details["causes"].as_array().into_iter().flatten();
    let mut fields: Vec<String> = causes
        .filter_map(|cause| cause["field"].as_str().map(str::to_owned))
        .filter(|field| !field.is_empty() && !field.starts_with("metadata."))
        .collect();
    fields.sort();
    fields.dedup();
    fields.into_iter().map(Value::from).collect()
}

fn metadata(meta: &Value) -> Value {
    let mut shown = Map::new();
    for name in METADATA {
        if let Some(value) = meta.get(name).filter(|value| !value.is_null()) {
            shown.insert(name.to_owned(), value.clone());
        }
    }
    shown.into()
}
