//! Structural schemas, as an API server uses them for custom resources: fields that are not named
//! are dropped, defaults are filled in, and what is left must fit.
//!
//! Rules in CEL (`x-kubernetes-validations`) are not evaluated.

use model::validate::{Cause, Problem};
use regex::Regex;
use serde_json::{Map, Value};

const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

/// Drops what the schema does not name, and fills in defaults. Says what it dropped.
pub(crate) fn complete(value: &mut Value, schema: &Value, at: &str, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let known = schema.get("properties").and_then(Value::as_object);
            let others = schema.get("additionalProperties");
            let open =
                schema.get(OPEN).is_some_and(|v| v == true) || others.is_some_and(|v| *v != false);
            let empty = Map::new();
            let known = known.unwrap_or(&empty);
            if !open {
                fields.retain(|name, _| {
                    let stays = known.contains_key(name);
                    if !stays {
                        dropped.push(join(at, name));
                    }
                    stays
                });
            }
            for (name, schema) in known {
                let nullable = schema.get("nullable").is_some_and(|v| v == true);
                let default = schema.get("default");
                // A null where none may be means the default, or nothing.
                if fields.get(name).is_some_and(Value::is_null) && !nullable {
                    fields.remove(name);
                }
                if let (Some(default), None) = (default, fields.get(name)) {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    complete(field, schema, &join(at, name), dropped);
                }
            }
            if let Some(schema) = others.filter(|v| v.is_object()) {
                for (name, field) in fields {
                    if !known.contains_key(name) {
                        complete(field, schema, &join(at, name), dropped);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for (i, item) in items.iter_mut().enumerate() {
                    complete(item, schema, &format!("{at}[{i}]"), dropped);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Finds what does not fit.
pub(crate) fn check(value: &Value, schema: &Value, at: &str, problems: &mut Vec<Problem>) {
    let int_or_string = schema
        .get("x-kubernetes-int-or-string")
        .is_some_and(|v| v == true);
    let fits = match schema.get("type").and_then(Value::as_str) {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        Some(_) | None => !int_or_string || value.is_string() || value.is_i64(),
    };
    let nullable = schema.get("nullable").is_some_and(|v| v == true);
    if value.is_null() && nullable {
        return;
    }
    if !fits {
        let expected = schema["type"].as_str().unwrap_or("integer or string");
        problems.push(invalid(at, format!("must be of type {expected}")));
        return;
    }
    if let Some(Value::Array(words)) = schema.get("enum")
        && !words.contains(value)
    {
        problems.push(invalid(at, format!("Unsupported value: {value}")));
    }
    match value {
        Value::Object(fields) => check_fields(fields, schema, at, problems),
        Value::Array(items) => {
            within(
                schema,
                ("minItems", "maxItems"),
                items.len() as f64,
                at,
                problems,
            );
            if let Some(schema) = schema.get("items") {
                for (i, item) in items.iter().enumerate() {
                    check(item, schema, &format!("{at}[{i}]"), problems);
                }
            }
        }
        Value::String(text) => {
            let length = text.chars().count() as f64;
            within(schema, ("minLength", "maxLength"), length, at, problems);
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
                && Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))
            {
                problems.push(invalid(at, format!("{text:?} should match {pattern:?}")));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            within(schema, ("minimum", "maximum"), number, at, problems);
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_fields(
    fields: &Map<String, Value>,
    schema: &Value,
    at: &str,
    problems: &mut Vec<Problem>,
) {
    let needed = schema.get("required").and_then(Value::as_array);
    for name in needed.into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            problems.push(Problem {
                field: join(at, name),
                cause: Cause::Required,
                reason: "it is missing".into(),
                remedy: "set it".into(),
            });
        }
    }
    within(
        schema,
        ("minProperties", "maxProperties"),
        fields.len() as f64,
        at,
        problems,
    );
    let known = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties").filter(|v| v.is_object());
    for (name, field) in fields {
        let named = known.and_then(|known| known.get(name));
        if let Some(schema) = named.or(others) {
            check(field, schema, &join(at, name), problems);
        }
    }
}

fn join(at: &str, name: &str) -> String {
    match at {
        "" => name.to_owned(),
        at => format!("{at}.{name}"),
    }
}

fn within(
    schema: &Value,
    (least, most): (&str, &str),
    value: f64,
    at: &str,
    problems: &mut Vec<Problem>,
) {
    let bound = |word: &str| schema.get(word).and_then(Value::as_f64);
    if bound(least).is_some_and(|least| value < least) {
        problems.push(invalid(at, format!("{value} is below {least}")));
    }
    if bound(most).is_some_and(|most| value > most) {
        problems.push(invalid(at, format!("{value} is above {most}")));
    }
}

fn invalid(at: &str, reason: String) -> Problem {
    Problem {
        field: at.to_owned(),
        cause: Cause::Invalid,
        reason,
        remedy: "see the schema".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_named_goes_and_what_is_left_must_fit() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "integer", "minimum": 1},
            "b": {"type": "string", "default": "x", "pattern": "^[a-z]+$"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
        }});
        let mut value = json!({"a": 0, "z": 1, "labels": {"any": 1}, "open": {"thing": 1}, "list": [{"k": "v", "q": 1}]});
        let mut dropped = Vec::new();
        complete(&mut value, &schema, "", &mut dropped);
        assert_eq!(dropped, ["z", "list[0].q"]);
        assert_eq!(
            value,
            json!({"a": 0, "b": "x", "labels": {"any": 1}, "open": {"thing": 1}, "list": [{"k": "v"}]})
        );
        let mut problems = Vec::new();
        check(&value, &schema, "spec", &mut problems);
        let fields: Vec<&str> = problems.iter().map(|p| p.field.as_str()).collect();
        assert_eq!(fields, ["spec.a", "spec.labels.any"]);
    }
}
