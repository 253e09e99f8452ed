//! CustomResourceDefinitions.

use serde_json::{Value, json};

use crate::{
    kinds::KindInfo,
    meta::{API_VERSION, GROUP},
};

/// Says which version of the product a definition is of: it is not replaced by an older one.
pub const VERSION_ANNOTATION: &str = "dormouse.dev/version";
/// The version of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Names stand in host names. Kubernetes would take more.
const NAME_RULE: &str = "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')";
const NAME_MESSAGE: &str = "metadata.name is not a valid name: use 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit";

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
    let mut schema = super::object(info, &json!({"type": "object"}));
    schema["x-kubernetes-validations"] = json!([{
        "rule": NAME_RULE,
        "message": NAME_MESSAGE,
    }]);
    if !info.cel.is_empty() {
        let rules = info
            .cel
            .iter()
            .map(|cel| json!({"rule": cel.rule, "fieldPath": cel.field, "message": cel.message}));
        schema["properties"]["spec"]["x-kubernetes-validations"] = rules.collect();
    }
    let mut version = json!({
        "name": API_VERSION,
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": schema},
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
        "metadata": {
            "name": format!("{}.{GROUP}", info.plural),
            "annotations": {VERSION_ANNOTATION: VERSION},
        },
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
