//! Jobs.

use model::validate::Problem;
use serde_json::{Value, json};

use super::{forbidden, pod};

pub(crate) fn create(new: &mut Value) -> Vec<Problem> {
    let name = new["metadata"]["name"].clone();
    let spec = &mut new["spec"];
    for (field, value) in [
        ("backoffLimit", json!(6)),
        ("completions", json!(1)),
        ("parallelism", json!(1)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
    ] {
        if spec[field].is_null() {
            spec[field] = value;
        }
    }
    let policy = spec["template"]["spec"]["restartPolicy"].clone();
    pod::complete_spec(&mut spec["template"]["spec"]);
    spec["template"]["metadata"]["labels"]["job-name"] = name.clone();
    spec["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] = name;
    new["status"] = json!({});
    if policy == "Never" || policy == "OnFailure" {
        Vec::new()
    } else {
        vec![forbidden(
            "spec.template.spec.restartPolicy",
            "Required value: valid values: \"OnFailure\", \"Never\"",
        )]
    }
}

pub(crate) fn update(old: &Value, new: &Value) -> Vec<Problem> {
    if old["spec"]["template"] == new["spec"]["template"] {
        Vec::new()
    } else {
        vec![forbidden("spec.template", "field is immutable")]
    }
}

/// The Pod of a Job, ready to be created.
pub(crate) fn template_of(job: &Value) -> Value {
    let meta = &job["metadata"];
    let template = &job["spec"]["template"];
    let name = meta["name"].as_str().unwrap_or_default();
    let mut labels = template["metadata"]["labels"].clone();
    for label in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        labels[label] = meta["uid"].clone();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("{name}-"),
            "labels": labels,
            "annotations": template["metadata"]["annotations"],
            "finalizers": [],
            "ownerReferences": [{
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name,
                "uid": meta["uid"],
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    })
}
