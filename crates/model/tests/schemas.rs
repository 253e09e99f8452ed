//! The generated documents: structural, and stable.
//!
//! The files under `tests/snapshots` are what users and other tools see. When a change of them is
//! meant, run with `UPDATE_SNAPSHOTS=1` and commit the difference with the change that caused it.

use std::{collections::BTreeSet, path::PathBuf};

use model::{kinds, schema};
use serde_json::Value;

fn matches_snapshot(name: &str, value: &Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name);
    let text = serde_json::to_string_pretty(value).expect("JSON") + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        #[expect(clippy::disallowed_methods, reason = "a snapshot is not state")]
        std::fs::write(&path, &text).expect("write a snapshot");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{name} changed. If that is meant, run with UPDATE_SNAPSHOTS=1 and commit it. Now:\n{text}"
    );
}

#[test]
fn every_schema_is_structural() {
    for info in kinds::stored() {
        let crd = schema::crd(info);
        let whole = crd
            .pointer("/spec/versions/0/schema/openAPIV3Schema")
            .unwrap();
        assert_eq!(
            schema::structural::violations(whole),
            [""; 0],
            "{}",
            info.kind
        );
    }
}

#[test]
fn every_field_is_explained() {
    fn walk(at: &str, schema: &Value, mute: &mut Vec<String>) {
        if schema
            .get("description")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty)
        {
            mute.push(at.to_owned());
        }
        let fields = schema.get("properties").and_then(Value::as_object);
        for (name, field) in fields.into_iter().flatten() {
            walk(&format!("{at}.{name}"), field, mute);
        }
        if let Some(items) = schema.get("items").filter(|i| i["type"] == "object") {
            walk(&format!("{at}[]"), items, mute);
        }
    }
    let mut mute = Vec::new();
    for info in kinds::stored() {
        walk(
            &format!("{}.spec", info.kind),
            &info.spec_schema(),
            &mut mute,
        );
        walk(
            &format!("{}.status", info.kind),
            &info.status_schema(),
            &mut mute,
        );
    }
    assert_eq!(mute, [""; 0]);
}

#[test]
fn columns_and_selectable_fields_point_at_fields_that_exist() {
    for info in kinds::stored() {
        let crd = schema::crd(info);
        let whole = crd
            .pointer("/spec/versions/0/schema/openAPIV3Schema")
            .unwrap();
        let columns = info.columns.iter().map(|c| c.path.trim_start_matches('.'));
        for path in columns.chain(info.selectable.iter().copied()) {
            if path.starts_with("metadata.") {
                continue;
            }
            let pointer = path.replace('.', "/properties/");
            let found = whole.pointer(&format!("/properties/{pointer}"));
            let kind = found.and_then(|f| f["type"].as_str());
            assert!(
                matches!(kind, Some("string" | "integer" | "boolean")),
                "{} {path}: {kind:?}",
                info.kind
            );
        }
    }
}

#[test]
fn custom_resource_definitions_are_stable() {
    for info in kinds::stored() {
        matches_snapshot(&format!("crd-{}.json", info.plural), &schema::crd(info));
    }
}

#[test]
fn the_openapi_document_is_stable_and_refers_only_to_what_it_has() {
    let document = schema::openapi_v3();
    let has: BTreeSet<&str> = document
        .pointer("/components/schemas")
        .and_then(Value::as_object)
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let text = document.to_string();
    for used in text.split("\"#/components/schemas/").skip(1) {
        let name = used.split('"').next().unwrap();
        assert!(has.contains(name), "{name}");
    }
    matches_snapshot("openapi-v3.json", &document);
}

#[test]
fn every_text_that_users_write_is_bounded() {
    /// What only our own processes write: a delivery that was given back, who holds a lease, a build.
    const OURS: [&str; 3] = [
        "Sandbox.spec.givenBack.",
        "Sandbox.spec.lease.holder",
        "SandboxTemplate.spec.build.id",
    ];
    fn walk(at: &str, schema: &Value, unbounded: &mut Vec<String>) {
        let bounds = ["maxLength", "pattern", "enum", "format"];
        if schema["type"] == "string" && bounds.iter().all(|word| schema.get(word).is_none()) {
            unbounded.push(at.to_owned());
        }
        let fields = schema.get("properties").and_then(Value::as_object);
        for (name, field) in fields.into_iter().flatten() {
            walk(&format!("{at}.{name}"), field, unbounded);
        }
        for inside in ["items", "additionalProperties"] {
            if let Some(inside) = schema.get(inside) {
                walk(&format!("{at}[]"), inside, unbounded);
            }
        }
    }
    let mut unbounded = Vec::new();
    // Records of what was, and events, are written by control.
    let by_users = |kind: &str| !["SandboxRecord", "Event"].contains(&kind);
    for info in kinds::stored().filter(|info| by_users(info.kind.0)) {
        walk(
            &format!("{}.spec", info.kind),
            &info.spec_schema(),
            &mut unbounded,
        );
    }
    unbounded.retain(|at| !OURS.iter().any(|ours| at.starts_with(ours)));
    assert_eq!(unbounded, [""; 0]);
}
