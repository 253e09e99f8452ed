//! Structural schemas: the subset of JSON schema that Kubernetes takes for custom resources.
//!
//! Every node has one type and lists its fields; no references, no alternatives, no nulls. That
//! is what lets an API server prune, default and explain objects without knowing their types.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Brings a schema that `schemars` derived, with all subschemas inline, into structural form.
///
/// Alternatives that only say "or null" vanish, because an absent field says the same. Those of an
/// enum of plain words become `enum`, and what their doc comments say moves to the description.
/// Anything else is left as it is, for [`violations`] to find.
#[must_use]
pub fn normalise(schema: Value) -> Value {
    let Value::Object(mut node) = schema else {
        return schema;
    };
    for noise in [
        "$schema",
        "$defs",
        "definitions",
        "title",
        "nullable",
        "examples",
    ] {
        node.remove(noise);
    }
    if let Some(Value::Array(types)) = node.get("type") {
        let mut types: Vec<Value> = types.iter().filter(|t| *t != "null").cloned().collect();
        if types.len() == 1 {
            node.insert("type".into(), types.remove(0));
        }
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(choices)) = node.remove(word) {
            merge_choices(&mut node, word, choices);
        }
    }
    if let Some(Value::Array(values)) = node.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    if let Some(word) = node.remove("const") {
        node.insert("enum".into(), Value::Array(vec![word]));
    }
    portable_number(&mut node);
    meaningful_default(&mut node);
    for (key, value) in &mut node {
        match key.as_str() {
            "properties" => {
                if let Value::Object(fields) = value {
                    for field in fields.values_mut() {
                        *field = normalise(field.take());
                    }
                }
            }
            "items" | "additionalProperties" => *value = normalise(value.take()),
            _ => {}
        }
    }
    lists_with_keys(&mut node);
    Value::Object(node)
}

fn merge_choices(node: &mut Map<String, Value>, word: &str, choices: Vec<Value>) {
    let choices: Vec<Value> = choices
        .into_iter()
        .filter(|c| c.get("type").is_none_or(|t| t != "null"))
        .collect();
    if let [only] = choices.as_slice() {
        if let Value::Object(only) = normalise(only.clone()) {
            for (key, value) in only {
                // The field's own description says more than that of its type.
                node.entry(key).or_insert(value);
            }
        }
        return;
    }
    let Some((values, docs)) = plain_words(&choices) else {
        node.insert(word.into(), Value::Array(choices));
        return;
    };
    node.insert("type".into(), "string".into());
    node.insert("enum".into(), values.into());
    if !docs.is_empty() {
        let about = node.get("description").and_then(Value::as_str);
        let text = format!("{}\n\nOne of:\n{docs}", about.unwrap_or_default());
        node.insert("description".into(), text.trim().into());
    }
}

/// The words of an enum whose variants are all plain, and a line on each.
fn plain_words(choices: &[Value]) -> Option<(Vec<Value>, String)> {
    let mut words = Vec::new();
    let mut docs = String::new();
    for choice in choices {
        let about = choice.get("description").and_then(Value::as_str);
        match (choice.get("const"), choice.get("enum")) {
            (Some(word @ Value::String(text)), _) => {
                words.push(word.clone());
                if let Some(about) = about {
                    docs.push_str(&format!("- {text}: {about}\n"));
                }
            }
            (None, Some(Value::Array(several))) if several.iter().all(Value::is_string) => {
                words.extend(several.iter().cloned());
            }
            (_, _) => return None,
        }
    }
    Some((words, docs.trim_end().to_owned()))
}

/// OpenAPI knows only signed integers; the bounds of unsigned ones are spelled out.
fn portable_number(node: &mut Map<String, Value>) {
    let Some(Value::String(format)) = node.get("format") else {
        return;
    };
    let (portable, max) = match format.as_str() {
        "uint8" => ("int32", Some(u64::from(u8::MAX))),
        "uint16" => ("int32", Some(u64::from(u16::MAX))),
        "uint32" => ("int64", Some(u64::from(u32::MAX))),
        "uint" | "uint64" => ("int64", None),
        "int" => ("int64", None),
        _ => return,
    };
    node.insert("format".into(), portable.into());
    if let Some(max) = max {
        node.entry("maximum").or_insert(max.into());
    }
}

/// A default that is what absence means anyway would only add noise to every stored object.
fn meaningful_default(node: &mut Map<String, Value>) {
    let keep = match node.get("default") {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::Bool(on)) => *on,
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => false,
    };
    if !keep {
        node.remove("default");
    }
}

/// Lists that are maps in truth say by which field, so that patches can merge them.
fn lists_with_keys(node: &mut Map<String, Value>) {
    let Some(Value::Object(fields)) = node.get_mut("properties") else {
        return;
    };
    for (name, key) in [("conditions", "type"), ("containers", "name")] {
        if let Some(Value::Object(list)) = fields.get_mut(name)
            && list.get("type").is_some_and(|t| t == "array")
        {
            list.insert("x-kubernetes-list-type".into(), "map".into());
            list.insert("x-kubernetes-list-map-keys".into(), vec![key].into());
        }
    }
}

/// Removes every `default`: observed fields are never filled in by anybody else.
pub fn without_defaults(schema: &mut Value) {
    match schema {
        Value::Object(node) => {
            // Fields may be called `type` and `default`; only the keyword goes.
            if node.get("type").is_some_and(Value::is_string) {
                node.remove("default");
            }
            node.values_mut().for_each(without_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(without_defaults),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Everything in a schema that an API server would not take as structural, by JSON path.
///
/// The rules are those of `apiextensions.k8s.io/v1`: each node has exactly one type out of the
/// known ones; `properties` and `additionalProperties` exclude each other and belong to objects,
/// `items` is one schema and belongs to arrays; required fields exist; no references, no
/// alternatives, no nulls; enums are of plain strings; formats are known; `metadata` at the root is
/// not described beyond its type.
#[must_use]
pub fn violations(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if schema.get("type") != Some(&Value::from("object")) {
        found.push("$: the root is not of type object".into());
    }
    if let Some(Value::Object(metadata)) = schema.pointer("/properties/metadata")
        && metadata.keys().any(|k| k != "type" && k != "description")
    {
        found.push("$.metadata: only the type of metadata may be said".into());
    }
    check(schema, "$", &mut found);
    found
}

const TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];
const FORMATS: [&str; 6] = ["date-time", "int32", "int64", "double", "float", "byte"];

fn check(schema: &Value, at: &str, found: &mut Vec<String>) {
    let mut say = |what: String| found.push(format!("{at}: {what}"));
    let Value::Object(node) = schema else {
        return say("a schema is an object".into());
    };
    let kind = match node.get("type") {
        Some(Value::String(kind)) if TYPES.contains(&kind.as_str()) => kind.as_str(),
        other => return say(format!("has no single known type, but {other:?}")),
    };
    let allowed_here: BTreeMap<&str, &str> = [
        ("properties", "object"),
        ("required", "object"),
        ("additionalProperties", "object"),
        ("maxProperties", "object"),
        ("minProperties", "object"),
        ("items", "array"),
        ("maxItems", "array"),
        ("minItems", "array"),
        ("x-kubernetes-list-type", "array"),
        ("x-kubernetes-list-map-keys", "array"),
        ("pattern", "string"),
        ("minLength", "string"),
        ("maxLength", "string"),
    ]
    .into();
    for (word, value) in node {
        match (word.as_str(), allowed_here.get(word.as_str())) {
            (_, Some(only)) if *only != kind => say(format!("{word} on a {kind}")),
            ("type" | "description" | "minimum" | "maximum", _) | (_, Some(_)) => {}
            ("default", _) if !value.is_null() => {}
            ("x-kubernetes-validations", _) if value.is_array() => {}
            ("format", _) if FORMATS.iter().any(|f| value == f) => {}
            ("enum", _) => {
                let plain = kind == "string"
                    && value.as_array().is_some_and(|words| {
                        !words.is_empty() && words.iter().all(Value::is_string)
                    });
                if !plain {
                    say("an enum is a list of plain strings".into());
                }
            }
            (_, _) => say(format!(
                "{word}: {value} has no place in a structural schema"
            )),
        }
    }
    if node.contains_key("properties") && node.contains_key("additionalProperties") {
        say("properties and additionalProperties exclude each other".into());
    }
    if kind == "object"
        && !node.contains_key("properties")
        && !node.contains_key("additionalProperties")
        && at != "$.metadata"
    {
        say("an object lists its fields or says what its values are".into());
    }
    if kind == "array" && !node.contains_key("items") {
        say("an array says what its items are".into());
    }
    let fields = node.get("properties").and_then(Value::as_object);
    for name in node
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if !name
            .as_str()
            .is_some_and(|name| fields.is_some_and(|f| f.contains_key(name)))
        {
            say(format!("required {name} is not a field"));
        }
    }
    if let Some(Value::Array(keys)) = node.get("x-kubernetes-list-map-keys") {
        let required = node.get("items").and_then(|i| i.get("required"));
        for key in keys {
            if !required
                .and_then(Value::as_array)
                .is_some_and(|r| r.contains(key))
            {
                say(format!("list key {key} is not required of the items"));
            }
        }
    }
    for (name, field) in fields.into_iter().flatten() {
        check(field, &format!("{at}.{name}"), found);
    }
    if let Some(items) = node.get("items") {
        check(items, &format!("{at}[]"), found);
    }
    if let Some(values) = node.get("additionalProperties") {
        check(values, &format!("{at}{{}}"), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_become_an_enum_that_explains_itself() {
        let derived = json!({
            "description": "Awake or asleep.",
            "oneOf": [
                {"type": "string", "const": "Running", "description": "Awake."},
                {"type": "string", "const": "Paused", "description": "Asleep."},
            ],
        });
        let expected = json!({
            "type": "string",
            "enum": ["Running", "Paused"],
            "description": "Awake or asleep.\n\nOne of:\n- Running: Awake.\n- Paused: Asleep.",
        });
        assert_eq!(normalise(derived), expected);
    }

    #[test]
    fn or_null_is_the_same_as_absent() {
        let derived = json!({
            "description": "The field.",
            "anyOf": [{"type": "object", "description": "The type.", "properties": {"a": {"type": ["string", "null"]}}}, {"type": "null"}],
            "default": null,
        });
        let expected = json!({
            "type": "object",
            "description": "The field.",
            "properties": {"a": {"type": "string"}},
        });
        assert_eq!(normalise(derived), expected);
    }

    #[test]
    fn each_structural_rule_can_be_broken_and_is_then_named() {
        let wrap = |field: Value| json!({"type": "object", "properties": {"f": field}});
        let table = [
            (json!({"type": ["string", "null"]}), "no single known type"),
            (json!({"description": "untyped"}), "no single known type"),
            (json!({"$ref": "#/x", "type": "string"}), "$ref"),
            (
                json!({"type": "object", "properties": {}, "oneOf": []}),
                "oneOf",
            ),
            (json!({"type": "string", "nullable": true}), "nullable"),
            (json!({"type": "string", "enum": ["a", 1]}), "plain strings"),
            (json!({"type": "integer", "enum": [1]}), "plain strings"),
            (json!({"type": "integer", "format": "uint32"}), "format"),
            (json!({"type": "array"}), "what its items are"),
            (json!({"type": "object"}), "lists its fields"),
            (
                json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}),
                "exclude",
            ),
            (
                json!({"type": "object", "properties": {}, "required": ["x"]}),
                "not a field",
            ),
            (
                json!({"type": "string", "items": {"type": "string"}}),
                "items on a string",
            ),
            (json!({"type": "string", "default": null}), "default"),
            (
                json!({"type": "array", "items": {"type": "object", "properties": {}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
                "list key",
            ),
        ];
        for (field, expected) in table {
            let found = violations(&wrap(field.clone()));
            assert!(
                found
                    .iter()
                    .any(|f| f.starts_with("$.f") && f.contains(expected)),
                "{field}: {found:?}"
            );
        }
        assert_eq!(violations(&wrap(json!({"type": "string"}))), [""; 0]);
    }
}
