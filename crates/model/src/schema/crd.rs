//! CustomResourceDefinitions.

use serde_json::{Value, json};

use crate::{
    kinds::KindInfo,
    meta::{API_VERSION, GROUP},
};

/// The definition by which a Kubernetes API server serves a kind.
#[must_use]
pub fn crd(info: &KindInfo) -> Value {
    let columns: Vec<Value> = info
        .columns
        .iter()
        .map(|column| {
            let mut value = json!({
                "name": column.name,
                "type": column.kind.as_str(),
                "jsonPath": column.path,
                "description": column.description,
            });
            if column.wide {
                value["priority"] = 1.into();
            }
            value
        })
        .collect();
    let mut version = json!({
        "name": API_VERSION,
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": super::object(info, &json!({"type": "object"}))},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    });
    if !info.selectable.is_empty() {
        version["selectableFields"] = info
            .selectable
            .iter()
            .map(|path| json!({"jsonPath": format!(".{path}")}))
            .collect();
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{GROUP}", info.plural)},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": info.kind.0,
                "listKind": info.list_kind(),
                "plural": info.plural,
                "singular": info.singular,
                "shortNames": info.short_names,
                "categories": info.categories,
            },
            "scope": info.scope.as_str(),
            "versions": [version],
        },
    })
}
