//! Pods.

use model::validate::{Cause, Problem};
use serde_json::{Value, json};

use super::forbidden;

pub(crate) fn create(new: &mut Value) -> Vec<Problem> {
    let spec = &mut new["spec"];
    complete_spec(spec);
    let no_containers = spec["containers"].as_array().is_none_or(Vec::is_empty);
    new["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
    let mut problems = Vec::new();
    if no_containers {
        problems.push(required("spec.containers"));
    }
    for (i, container) in new["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        if container["name"].as_str().is_none_or(str::is_empty) {
            problems.push(required(&format!("spec.containers[{i}].name")));
        }
        if container["image"].as_str().is_none_or(str::is_empty) {
            problems.push(required(&format!("spec.containers[{i}].image")));
        }
    }
    problems
}

fn required(field: &str) -> Problem {
    Problem {
        field: field.to_owned(),
        cause: Cause::Required,
        reason: "it is missing".into(),
        remedy: "set it".into(),
    }
}

/// What an API server fills in of the spec of a Pod, and of a template of one.
pub(crate) fn complete_spec(spec: &mut Value) {
    let defaults = [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("securityContext", json!({})),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
    ];
    for (field, value) in defaults {
        if spec[field].is_null() {
            spec[field] = value;
        }
    }
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let image = container["image"].as_str().unwrap_or_default();
            let name = image.rsplit('/').next().unwrap_or_default();
            let latest = !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
            let policy = if latest { "Always" } else { "IfNotPresent" };
            let defaults = [
                ("imagePullPolicy", json!(policy)),
                ("terminationMessagePath", json!("/dev/termination-log")),
                ("terminationMessagePolicy", json!("File")),
                ("resources", json!({})),
            ];
            for (field, value) in defaults {
                if container[field].is_null() {
                    container[field] = value;
                }
            }
        }
    }
    // Reading a missing field of a value that is indexed for writing leaves a null behind.
    if let Value::Object(fields) = spec {
        fields.retain(|_, value| !value.is_null());
    }
}

/// Of a Pod that is there only images, a shorter life and more tolerations can be wanted.
pub(crate) fn update(old: &Value, new: &mut Value) -> Vec<Problem> {
    complete_spec(&mut new["spec"]);
    let (old, new) = (&old["spec"], &new["spec"]);
    let plain = |spec: &Value| {
        let mut spec = spec.clone();
        if let Value::Object(fields) = &mut spec {
            for field in [
                "activeDeadlineSeconds",
                "tolerations",
                "terminationGracePeriodSeconds",
            ] {
                fields.remove(field);
            }
        }
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        if let Value::Object(fields) = &mut spec {
            fields.retain(|_, value| !value.is_null());
        }
        spec
    };
    if plain(old) == plain(new) {
        return Vec::new();
    }
    vec![forbidden(
        "spec",
        "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
    )]
}

/// The seconds that a Pod gets to end by itself. One that runs nowhere, or is over, gets none.
pub(crate) fn grace(pod: &Value, asked: Option<u64>) -> u64 {
    let runs = pod["spec"]["nodeName"].is_string()
        && !matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
    if !runs {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    asked.or(own).unwrap_or(30)
}
