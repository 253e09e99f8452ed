//! What no two clusters say alike, as symbols.

use std::collections::BTreeMap;

use serde_json::Value;

/// The symbols of one recording.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    uids: BTreeMap<String, usize>,
    versions: BTreeMap<String, usize>,
}

const TIMES: [&str; 9] = [
    "creationTimestamp",
    "deletionTimestamp",
    "lastTransitionTime",
    "time",
    "startTime",
    "completionTime",
    "startedAt",
    "finishedAt",
    "lastProbeTime",
];

/// Where something is, and which container it was.
const PLACES: [&str; 5] = ["podIP", "hostIP", "ip", "nodeName", "containerID"];

impl Symbols {
    /// The same answer, with symbols.
    pub(super) fn replace(&mut self, mut value: Value) -> Value {
        let list = value.get("items").is_some();
        let bookmark = value.get("type").is_some_and(|t| t == "BOOKMARK");
        // Of lists and bookmarks the version is that of the moment, and other things happen too.
        let of_moment = match (list, bookmark) {
            (true, _) => value.pointer_mut("/metadata/resourceVersion"),
            (_, true) => value.pointer_mut("/object/metadata/resourceVersion"),
            (false, false) => None,
        };
        if let Some(version) = of_moment {
            *version = "<moment>".into();
        }
        self.walk(&mut value);
        value
    }

    fn walk(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("managedFields");
                for (name, field) in fields {
                    match (name.as_str(), &mut *field) {
                        ("uid", Value::String(uid)) if !uid.starts_with('<') => {
                            *uid = symbol("uid", &mut self.uids, uid);
                        }
                        ("resourceVersion", Value::String(version))
                            if !version.is_empty() && !version.starts_with('<') =>
                        {
                            *version = symbol("version", &mut self.versions, version);
                        }
                        ("continue", Value::String(token)) if !token.is_empty() => {
                            *token = "<continue>".into();
                        }
                        (name, Value::String(time)) if TIMES.contains(&name) => {
                            *time = "<time>".into();
                        }
                        (name, Value::String(place)) if PLACES.contains(&name) => {
                            *place = "<place>".into();
                        }
                        (_, field) => self.walk(field),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.walk(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

fn symbol(what: &str, known: &mut BTreeMap<String, usize>, text: &str) -> String {
    let next = known.len() + 1;
    let number = known.entry(text.to_owned()).or_insert(next);
    format!("<{what} {number}>")
}
