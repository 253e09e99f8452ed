//! JSON text to typed values and back.
//!
//! Mixed versions run side by side, so a decoder must not drop what it does not know. Decoding
//! notes every field the types ignore in a [`Residue`]; encoding lays it back where it was. The
//! same notes name the unknown fields to a client that asked for strict validation.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;

/// Fields that the types of this version do not know, by path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residue(Option<Box<[(FieldPath, Value)]>>);

/// Steps from a value's root to one of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(Box<[Step]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(Box<str>),
    Item(usize),
}

impl std::fmt::Display for FieldPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if i == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item(n) => write!(f, "[{n}]")?,
            }
        }
        Ok(())
    }
}

impl Residue {
    /// Paths of the unknown fields.
    pub fn fields(&self) -> impl Iterator<Item = &FieldPath> {
        self.0.iter().flatten().map(|(path, _)| path)
    }

    /// Whether every field was known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Forgets the fields whose path `other` does not have, and answers their paths.
    pub fn keep_only_those_of(&mut self, other: &Self) -> Vec<FieldPath> {
        let (kept, dropped): (Vec<_>, Vec<_>) = self
            .0
            .take()
            .into_iter()
            .flatten()
            .partition(|(path, _)| other.fields().any(|known| known == path));
        self.0 = (!kept.is_empty()).then(|| kept.into());
        dropped.into_iter().map(|(path, _)| path).collect()
    }

    fn restore_into(&self, value: &mut Value) {
        for (path, unknown) in self.0.iter().flatten() {
            lay_back(value, &path.0, unknown);
        }
    }
}

/// Puts one unknown field back. A list that has become shorter loses those of the items that are
/// gone; a field that is known by now keeps its known value.
fn lay_back(into: &mut Value, path: &[Step], unknown: &Value) {
    match (path, into) {
        ([Step::Field(last)], Value::Object(fields)) => {
            fields.entry(&**last).or_insert_with(|| unknown.clone());
        }
        ([Step::Field(name), rest @ ..], Value::Object(fields)) => {
            // The parent may have been left out as empty; it comes back with what it held.
            let parent = fields
                .entry(&**name)
                .or_insert_with(|| Value::Object(Default::default()));
            lay_back(parent, rest, unknown);
        }
        ([Step::Item(n), rest @ ..], Value::Array(items)) => {
            if let Some(item) = items.get_mut(*n) {
                lay_back(item, rest, unknown);
            }
        }
        // The value changed its shape: there is no place left to put the field.
        (_, _) => {}
    }
}

/// The JSON does not describe the type.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field}: {message}")]
pub struct DecodeError {
    /// Path of the offending field; `.` for the whole.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

/// Decodes JSON text, noting the fields its type does not know.
///
/// # Errors
/// If a field has the wrong type or a required one is missing, by its path.
pub fn decode<T: DeserializeOwned>(json: &str) -> Result<(T, Residue), DecodeError> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(field_path(&path));
    let mut track = serde_path_to_error::Track::new();
    let mut text = serde_json::Deserializer::from_str(json);
    let tracked = serde_path_to_error::Deserializer::new(&mut text, &mut track);
    let typed = match serde_ignored::deserialize(tracked, &mut note) {
        Ok(typed) => typed,
        Err(error) => {
            return Err(DecodeError {
                field: track.path().to_string(),
                message: error.to_string(),
            });
        }
    };
    text.end().map_err(|e| DecodeError {
        field: ".".into(),
        message: e.to_string(),
    })?;
    if unknown.is_empty() {
        return Ok((typed, Residue::default()));
    }
    // Rare: some newer version wrote this. Only then is the text read a second time.
    let whole: Value = serde_json::from_str(json).map_err(|e| DecodeError {
        field: ".".into(),
        message: e.to_string(),
    })?;
    let unknown = unknown
        .into_iter()
        .filter_map(|path| follow(&whole, &path).cloned().map(|value| (path, value)))
        .collect();
    Ok((typed, Residue(Some(unknown))))
}

/// Encodes a typed value as JSON text, laying back the fields its type did not know.
///
/// # Panics
/// If the type cannot be JSON (a map with keys that are not strings): none of ours is such.
pub fn encode<T: Serialize>(typed: &T, residue: &Residue) -> String {
    const VALID: &str = "model types are always valid JSON";
    if residue.is_empty() {
        return serde_json::to_string(typed).expect(VALID);
    }
    let mut value = serde_json::to_value(typed).expect(VALID);
    residue.restore_into(&mut value);
    value.to_string()
}

fn field_path(path: &serde_ignored::Path<'_>) -> FieldPath {
    fn walk(path: &serde_ignored::Path<'_>, steps: &mut Vec<Step>) {
        use serde_ignored::Path;
        match path {
            Path::Root => {}
            Path::Seq { parent, index } => {
                walk(parent, steps);
                steps.push(Step::Item(*index));
            }
            Path::Map { parent, key } => {
                walk(parent, steps);
                steps.push(Step::Field(key.as_str().into()));
            }
            Path::Some { parent }
            | Path::NewtypeStruct { parent }
            | Path::NewtypeVariant { parent } => walk(parent, steps),
        }
    }
    let mut steps = Vec::new();
    walk(path, &mut steps);
    FieldPath(steps.into())
}

fn follow<'v>(value: &'v Value, path: &FieldPath) -> Option<&'v Value> {
    path.0.iter().try_fold(value, |at, step| match step {
        Step::Field(name) => at.get(&**name),
        Step::Item(n) => at.get(*n),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Outer {
        size: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inner: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        name: String,
    }

    #[test]
    fn fields_of_a_newer_version_survive_a_read_modify_write() {
        let json = r#"{"size":1,"colour":"red","inner":{"name":"a","deep":{"x":[1]}},"list":[{"name":"b"},{"name":"c","tag":7}]}"#;
        let (mut outer, residue) = decode::<Outer>(json).unwrap();
        let named: Vec<_> = residue.fields().map(ToString::to_string).collect();
        assert_eq!(named, ["colour", "inner.deep", "list[1].tag"]);
        outer.size = 2;
        let back: Value = serde_json::from_str(&encode(&outer, &residue)).unwrap();
        let mut expected: Value = serde_json::from_str(json).unwrap();
        expected["size"] = 2.into();
        assert_eq!(back, expected);
    }

    #[test]
    fn unknown_fields_of_vanished_list_items_go_with_them() {
        let json = r#"{"size":1,"list":[{"name":"b","tag":7}]}"#;
        let (mut outer, residue) = decode::<Outer>(json).unwrap();
        outer.list.clear();
        assert_eq!(encode(&outer, &residue), r#"{"list":[],"size":1}"#);
    }

    #[test]
    fn errors_name_the_field() {
        let error = decode::<Outer>(r#"{"size":1,"list":[{"name":5}]}"#).unwrap_err();
        assert_eq!(error.field, "list[0].name");
        assert!(error.message.contains("invalid type"), "{}", error.message);
        let error = decode::<Outer>(r#"{"size":1} trailing"#).unwrap_err();
        assert_eq!(error.field, ".");
    }
}
