//! Merging objects whose lists have keys.
//!
//! Built-in kinds of Kubernetes say of some lists by which field their items are told apart. Items of
//! such lists are merged one by one; other lists are replaced as a whole.

use serde_json::{Map, Value};

/// The field by which items of a list are told apart.
pub(crate) fn key_of(list: &str) -> Option<&'static str> {
    match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        "volumeDevices" => Some("devicePath"),
        "conditions" => Some("type"),
        "ownerReferences" => Some("uid"),
        "hostAliases" | "podIPs" | "hostIPs" => Some("ip"),
        "topologySpreadConstraints" => Some("topologyKey"),
        _ => None,
    }
}

fn by_key<'v>(items: &'v [Value], key: &str, wanted: &Value) -> Option<(usize, &'v Value)> {
    let wanted = wanted.get(key)?;
    items
        .iter()
        .enumerate()
        .find(|(_, item)| item.get(key) == Some(wanted))
}

fn keyed(list: &str, items: &[Value]) -> Option<&'static str> {
    let key = key_of(list)?;
    items
        .iter()
        .all(|item| item.get(key).is_some())
        .then_some(key)
}

/// Applies a strategic merge patch.
pub(crate) fn merge_strategic(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if changes.get("$patch").is_some_and(|how| how == "replace") {
        let mut whole = changes.clone();
        whole.remove("$patch");
        *object = whole.into();
        return;
    }
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(fields) = object else {
        return;
    };
    for (name, change) in changes {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (fields.get_mut(list), change)
            {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        // Orders and retained keys are hints for lists and unions that are not looked at here.
        if name.starts_with('$') {
            continue;
        }
        match change {
            Value::Null => {
                fields.remove(name);
            }
            Value::Object(_) => {
                let slot = fields.entry(name.clone()).or_insert(Value::Null);
                merge_strategic(slot, change);
            }
            Value::Array(changed) => {
                let slot = fields
                    .entry(name.clone())
                    .or_insert(Value::Array(Vec::new()));
                merge_list(name, slot, changed);
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                fields.insert(name.clone(), change.clone());
            }
        }
    }
}

fn merge_list(name: &str, slot: &mut Value, changed: &[Value]) {
    let (Some(key), Value::Array(items)) = (keyed(name, changed), &mut *slot) else {
        if name == "finalizers"
            && let Value::Array(items) = slot
        {
            let new = changed.iter().filter(|f| !items.contains(f)).cloned();
            let new: Vec<Value> = new.collect();
            items.extend(new);
            return;
        }
        *slot = changed.to_vec().into();
        return;
    };
    for change in changed {
        let at = by_key(items, key, change).map(|(at, _)| at);
        let deletes = change.get("$patch").is_some_and(|how| how == "delete");
        match (at, deletes) {
            (Some(at), true) => {
                items.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => merge_strategic(&mut items[at], change),
            (None, false) => {
                let mut item = Value::Null;
                merge_strategic(&mut item, change);
                items.push(item);
            }
        }
    }
}

/// Puts what is wanted over what is.
pub(crate) fn merge_applied(object: &mut Value, wanted: &Value) {
    merge_named("", object, wanted);
}

fn merge_named(name: &str, object: &mut Value, wanted: &Value) {
    match (&mut *object, wanted) {
        (Value::Object(fields), Value::Object(wishes)) => {
            for (name, wish) in wishes {
                let slot = fields.entry(name.clone()).or_insert(Value::Null);
                merge_named(name, slot, wish);
            }
        }
        (Value::Array(items), Value::Array(wishes)) if keyed(name, wishes).is_some() => {
            let key = keyed(name, wishes).unwrap_or_default();
            for wish in wishes {
                match by_key(items, key, wish).map(|(at, _)| at) {
                    Some(at) => merge_named("", &mut items[at], wish),
                    None => items.push(wish.clone()),
                }
            }
        }
        (_, _) => *object = wanted.clone(),
    }
}

/// The fields that an object sets, in the form of `fieldsV1`.
pub(crate) fn field_set(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields
            .iter()
            .map(|(name, field)| (format!("f:{name}"), field_set(name, field)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) if keyed(name, items).is_some() => {
            let key = keyed(name, items).unwrap_or_default();
            let each = items.iter().map(|item| {
                let by = serde_json::json!({key: item[key]});
                (format!("k:{by}"), field_set("", item))
            });
            each.collect::<Map<_, _>>().into()
        }
        _ => Value::Object(Map::new()),
    }
}

/// Removes from an object the fields of `had` that are not in `has`, unless `others` have them.
pub(crate) fn remove_dropped(object: &mut Value, had: &Value, has: &Value, others: &[&Value]) {
    let Value::Object(had) = had else { return };
    for (step, below) in had {
        let inner: Vec<&Value> = others.iter().filter_map(|o| o.get(step)).collect();
        let gone = has.get(step).is_none() && inner.is_empty();
        if let Some(name) = step.strip_prefix("f:") {
            let Value::Object(fields) = &mut *object else {
                return;
            };
            let leaf = below.as_object().is_none_or(Map::is_empty);
            if gone && leaf {
                fields.remove(name);
            } else if let Some(field) = fields.get_mut(name) {
                remove_dropped(field, below, has.get(step).unwrap_or(&Value::Null), &inner);
                if gone && is_empty(field) {
                    fields.remove(name);
                }
            }
        } else if let Some(by) = step.strip_prefix("k:") {
            let (Value::Array(items), Ok(Value::Object(by))) =
                (&mut *object, serde_json::from_str(by))
            else {
                continue;
            };
            let at = items
                .iter()
                .position(|item| by.iter().all(|(key, value)| item.get(key) == Some(value)));
            match at {
                Some(at) if gone => {
                    items.remove(at);
                }
                Some(at) => {
                    let has = has.get(step).unwrap_or(&Value::Null);
                    remove_dropped(&mut items[at], below, has, &inner);
                }
                None => {}
            }
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The leaves that two sets of fields have in common, as paths.
pub(crate) fn common(a: &Value, b: &Value, at: &str, found: &mut Vec<String>) {
    let (Value::Object(a), Value::Object(b)) = (a, b) else {
        return;
    };
    for (step, below) in a {
        let Some(other) = b.get(step) else { continue };
        let name = step.get(2..).unwrap_or_default();
        let path = match step.starts_with("k:") {
            true => format!("{at}[{name}]"),
            false => format!("{at}.{name}"),
        };
        let leaf = |v: &Value| v.as_object().is_none_or(Map::is_empty);
        if leaf(below) || leaf(other) {
            found.push(path);
        } else {
            common(below, other, &path, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_are_merged_by_name_and_other_lists_replaced() {
        let mut pod = json!({"spec": {"containers": [{"name": "a", "image": "1", "args": ["x", "y"]}, {"name": "b"}]}});
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [
                {"name": "a", "image": "2", "args": ["z"]},
                {"name": "b", "$patch": "delete"},
                {"name": "c", "image": "3"},
            ],
        }});
        merge_strategic(&mut pod, &patch);
        assert_eq!(
            pod,
            json!({"spec": {"containers": [
                {"name": "a", "image": "2", "args": ["z"]},
                {"name": "c", "image": "3"},
            ]}})
        );
        merge_strategic(&mut pod, &json!({"spec": null}));
        assert_eq!(pod, json!({}));
    }

    #[test]
    fn what_a_manager_no_longer_wants_goes_unless_another_wants_it() {
        let mut object = json!({"spec": {"a": 1, "b": 2, "c": {"d": 3}, "containers": [{"name": "x"}, {"name": "y"}]}});
        let had = field_set("", &object);
        let has = field_set(
            "",
            &json!({"spec": {"a": 1, "containers": [{"name": "y"}]}}),
        );
        let others = field_set("", &json!({"spec": {"b": 2}}));
        remove_dropped(&mut object, &had, &has, &[&others]);
        assert_eq!(
            object,
            json!({"spec": {"a": 1, "b": 2, "containers": [{"name": "y"}]}})
        );
        let mut found = Vec::new();
        common(&has, &had, "", &mut found);
        assert_eq!(
            found,
            [".spec.a", ".spec.containers[{\"name\":\"y\"}].name"]
        );
    }
}
