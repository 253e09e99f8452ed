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
