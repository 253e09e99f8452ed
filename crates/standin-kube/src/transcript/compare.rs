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
            // Bookmarks come when they come, but for the one that says that all was told.
            let timely = |answer: &&Value| {
                answer["type"] != "BOOKMARK"
                    || answer["object"]["metadata"]["annotations"].is_object()
            };
            answers.filter(timely).map(what_matters).collect()
        };
        let (expected, mut actual) = (shown(expected), shown(actual));
        for (expected, actual) in expected.iter().zip(&mut actual) {
            forgive(expected, actual);
        }
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

/// Where a real server says nothing that a client could go by, more may be said: its unknown paths
/// are answered in plain text, and not all its refusals name fields.
fn forgive(expected: &Value, actual: &mut Value) {
    if expected.is_null() && actual["reason"] == "NotFound" {
        *actual = Value::Null;
    }
    if expected["fields"].as_array().is_some_and(Vec::is_empty) {
        actual["fields"] = json!([]);
    }
}

/// What clients go by of an answer.
fn what_matters(answer: &Value) -> Value {
    if answer.is_null() {
        return Value::Null;
    }
    // An event of a watch.
    if answer.get("type").is_some() && answer.get("object").is_some() {
        return json!({"type": answer["type"], "object": what_matters(&answer["object"])});
    }
    if let Some(items) = answer.get("items").and_then(Value::as_array) {
        let kind = answer["kind"].as_str().unwrap_or_default();
        let kind = kind.strip_suffix("List").unwrap_or_default();
        return json!({
            "kind": answer["kind"],
            "metadata": metadata(&answer["metadata"]),
            "items": items.iter().map(|item| object(item, kind)).collect::<Vec<_>>(),
        });
    }
    if answer["kind"] == "Status" {
        let details = &answer["details"];
        if answer["reason"] == "Conflict" {
            // What such a refusal says of its object depends on where in the server it was made.
            return json!({
                "status": answer["status"],
                "reason": answer["reason"],
                "code": answer["code"],
                "fields": fields_of(details),
            });
        }
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
    object(answer, answer["kind"].as_str().unwrap_or_default())
}

fn object(answer: &Value, kind: &str) -> Value {
    let mut shown = json!({
        "apiVersion": answer["apiVersion"],
        "kind": answer["kind"],
        "metadata": metadata(&answer["metadata"]),
    });
    match kind {
        "Pod" => {
            shown["image"] = answer["spec"]["containers"][0]["image"].clone();
            shown["policy"] = answer["spec"]["restartPolicy"].clone();
            shown["phase"] = answer["status"]["phase"].clone();
            if let (Some(made), Value::Object(meta)) = (
                answer["metadata"].get("generateName"),
                &mut shown["metadata"],
            ) {
                // What a controller made is named by it, and labelled as it likes.
                meta.insert("name".into(), made.clone());
                meta.remove("labels");
                meta.remove("finalizers");
            }
        }
        "Namespace" => shown["phase"] = answer["status"]["phase"].clone(),
        "Job" => {
            let conditions = answer["status"]["conditions"].as_array();
            let conditions = conditions.into_iter().flatten();
            shown["conditions"] = conditions.map(|c| c["type"].clone()).collect();
            shown["succeeded"] = answer["status"]["succeeded"].clone();
            shown["failed"] = answer["status"]["failed"].clone();
            // How its controller knows its Pods again is its own.
            if let Value::Object(meta) = &mut shown["metadata"] {
                meta.remove("finalizers");
                meta.remove("labels");
            }
        }
        // How its controllers go about it is theirs.
        "CustomResourceDefinition" => {
            if let Value::Object(meta) = &mut shown["metadata"] {
                meta.remove("finalizers");
                meta.remove("generation");
            }
        }
        _ => {
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
        let said = |value: &&Value| !value.is_null() && **value != "";
        if let Some(value) = meta.get(name).filter(said) {
            shown.insert(name.to_owned(), value.clone());
        }
    }
    shown.into()
}
