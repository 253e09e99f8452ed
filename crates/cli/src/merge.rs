//! The three-way merge of `apply`: from what was applied last, what is wanted now and what the
//! server has, to a merge patch. What the last apply set and this one does not is removed; what is
//! wanted is set; what others set stays. This is what kubectl computes for custom resources, so the
//! two tools can be mixed on one object.

use serde_json::{Map, Value};

/// Where the last applied object is remembered, as kubectl does.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The wanted object with itself remembered in the annotation.
pub(crate) fn remember(object: &Value) -> Value {
    let mut bare = object.clone();
    let annotations = annotations(&mut bare);
    annotations.remove(LAST_APPLIED);
    // The exact text of kubectl, so that neither tool sees a change in the other's work: sorted
    // keys, no spaces, the escapes of Go's encoder, a newline.
    let text = format!("{bare}\n")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    let mut object = bare;
    self::annotations(&mut object).insert(LAST_APPLIED.to_owned(), text.into());
    object
}

fn annotations(object: &mut Value) -> &mut Map<String, Value> {
    let annotations = &mut object["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    match annotations {
        Value::Object(map) => map,
        _ => unreachable!("it was just made an object"),
    }
}

/// What was applied last, as far as the server's object remembers.
pub(crate) fn last_applied(current: &Value) -> Value {
    current["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// The patch that brings `current` to `wanted`; `None` if it is there already.
pub(crate) fn patch(last: &Value, wanted: &Value, current: &Value) -> Option<Value> {
    let mut patch = Map::new();
    if let (Value::Object(wanted), Value::Object(current)) = (wanted, current) {
        set(wanted, current, &mut patch);
        if let Value::Object(last) = last {
            remove(last, wanted, current, &mut patch);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Adds what is wanted and not so.
fn set(wanted: &Map<String, Value>, current: &Map<String, Value>, patch: &mut Map<String, Value>) {
    for (key, want) in wanted {
        match (want, current.get(key)) {
            (Value::Null, None) => {}
            (Value::Object(want), Some(Value::Object(have))) => {
                let mut inner = Map::new();
                set(want, have, &mut inner);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (want, Some(have)) if want == have => {}
            (want, _) => {
                patch.insert(key.clone(), want.clone());
            }
        }
    }
}

/// Adds nulls for what the last apply set, this one does not mention, and is still there.
fn remove(
    last: &Map<String, Value>,
    wanted: &Map<String, Value>,
    current: &Map<String, Value>,
    patch: &mut Map<String, Value>,
) {
    for (key, before) in last {
        match (before, wanted.get(key), current.get(key)) {
            (_, None, Some(_)) => {
                patch.insert(key.clone(), Value::Null);
            }
            (Value::Object(before), Some(Value::Object(want)), Some(Value::Object(have))) => {
                // What is to be set at this place may be there already.
                let mut inner = match patch.remove(key) {
                    Some(Value::Object(inner)) => inner,
                    Some(_) | None => Map::new(),
                };
                remove(before, want, have, &mut inner);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (_, None, None) | (_, Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_applied_and_is_gone_is_removed_and_what_others_set_stays() {
        let last = json!({"spec": {"a": 1, "b": 2, "map": {"x": 1, "y": 2}}});
        let wanted = json!({"spec": {"a": 1, "c": 3, "map": {"x": 9}}});
        let current =
            json!({"spec": {"a": 1, "b": 2, "other": true, "map": {"x": 1, "y": 2, "z": 3}}});
        let expected = json!({"spec": {"b": null, "c": 3, "map": {"x": 9, "y": null}}});
        assert_eq!(patch(&last, &wanted, &current), Some(expected));
    }

    #[test]
    fn an_object_as_wanted_needs_no_patch() {
        let wanted = json!({"spec": {"a": 1, "list": [1, 2]}});
        let current = json!({"spec": {"a": 1, "list": [1, 2], "defaulted": "x"}, "status": {}});
        assert_eq!(patch(&Value::Null, &wanted, &current), None);
        // Gone from the file and from the server: nothing to do.
        let last = json!({"spec": {"b": 1, "deep": {"c": 1}}});
        assert_eq!(patch(&last, &wanted, &current), None);
    }

    #[test]
    fn an_explicit_null_removes_and_a_changed_type_replaces() {
        let current = json!({"a": 1, "b": {"x": 1}});
        let wanted = json!({"a": null, "b": [1], "c": null});
        assert_eq!(
            patch(&Value::Null, &wanted, &current),
            Some(json!({"a": null, "b": [1]}))
        );
    }

    #[test]
    fn what_is_remembered_reads_like_kubectl_wrote_it() {
        let object = json!({"kind": "K", "metadata": {"name": "n"}, "spec": {"cmd": "a && b <c>"}});
        let object = remember(&object);
        let text = object["metadata"]["annotations"][LAST_APPLIED]
            .as_str()
            .unwrap();
        assert_eq!(
            text,
            "{\"kind\":\"K\",\"metadata\":{\"annotations\":{},\"name\":\"n\"},\"spec\":{\"cmd\":\"a \\u0026\\u0026 b \\u003cc\\u003e\"}}\n"
        );
        assert_eq!(last_applied(&object)["spec"]["cmd"], "a && b <c>");
        assert_eq!(remember(&object), object, "remembering is idempotent");
    }
}
