//! What a client sent for an object, taken apart.

use std::sync::OnceLock;

use model::{
    Key, Metadata, Name, Version, codec,
    kinds::{self, KindInfo, Misfit},
    meta::GROUP_VERSION,
    validate::{Cause, Problem},
};
use serde_json::{Map, Value};
use store::StoreError;

use crate::{
    place::Place,
    refusal::{MAX_NAMED, Refusal},
    served::Served,
};

/// A client's object.
#[derive(Debug)]
pub(crate) struct Submission {
    /// Without what the server owns.
    pub(crate) metadata: Map<String, Value>,
    pub(crate) name: Option<String>,
    pub(crate) generate_name: Option<String>,
    /// The identity the client believes it has, if it says so.
    pub(crate) uid: Option<String>,
    /// The version the client read, if it says so.
    pub(crate) version: Option<Version>,
    pub(crate) spec: Option<Value>,
    pub(crate) status: Option<Value>,
    /// Unknown fields outside of spec and status.
    pub(crate) unknown: Vec<String>,
}

/// Fields of metadata that Kubernetes has and that mean nothing here, or are the server's to set.
const NOT_FOR_CLIENTS: [&str; 6] = [
    "managedFields",
    "selfLink",
    "deletionGracePeriodSeconds",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
];

impl Submission {
    /// Takes an object apart that is meant for a place.
    pub(crate) fn new(value: Value, place: &Place, info: &KindInfo) -> Result<Self, Refusal> {
        let Value::Object(mut object) = value else {
            return Err(Refusal::bad_field(
                ".",
                format!("the body is not an object: send a {}", info.kind),
            ));
        };
        for (field, expected) in [("apiVersion", GROUP_VERSION), ("kind", info.kind.0)] {
            match object.remove(field) {
                Some(Value::String(given)) if given == expected => {}
                Some(given) => {
                    return Err(Refusal::bad_field(
                        field,
                        format!("{given} does not fit this path: use {expected:?}"),
                    ));
                }
                None => {
                    return Err(Refusal::bad_field(
                        field,
                        format!("it is missing: use {expected:?}"),
                    ));
                }
            }
        }
        let mut metadata = match object.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err(Refusal::bad_field("metadata", "it is not an object")),
        };
        metadata
            .retain(|field, value| !value.is_null() && !NOT_FOR_CLIENTS.contains(&field.as_str()));
        let name = take_text(&mut metadata, "name")?;
        let generate_name = take_text(&mut metadata, "generateName")?;
        let uid = take_text(&mut metadata, "uid")?;
        let version = take_text(&mut metadata, "resourceVersion")?
            .filter(|text| text != "0")
            .map(|text| {
                text.parse()
                    .map_err(|e| Refusal::bad_field("metadata.resourceVersion", format!("{e}")))
            })
            .transpose()?;
        let namespace = take_text(&mut metadata, "namespace")?;
        if let Some(namespace) = namespace
            && Some(namespace.as_str()) != place.namespace.as_ref().map(AsRef::as_ref)
        {
            return Err(Refusal::bad_field(
                "metadata.namespace",
                match &place.namespace {
                    Some(here) => format!(
                        "the namespace of the provided object does not match the namespace sent on the request: use {here:?}"
                    ),
                    None => format!("{} does not belong to a namespace: leave it out", info.kind),
                },
            ));
        }
        let mut half = |field: &str, schema: &Value| {
            let mut value = object.remove(field).filter(|v| !v.is_null());
            if let Some(value) = &mut value {
                drop_nulls(value, schema);
            }
            value
        };
        let schemas = schemas(info);
        let (spec, status) = (half("spec", &schemas.0), half("status", &schemas.1));
        Ok(Self {
            metadata,
            name,
            generate_name,
            uid,
            version,
            spec,
            status,
            unknown: object.into_iter().map(|(field, _)| field).collect(),
        })
    }

    /// The metadata of the object at a key. Fields it does not know are noted.
    pub(crate) fn take_metadata(&mut self, key: &Key) -> Result<Metadata, Refusal> {
        let mut fields = std::mem::take(&mut self.metadata);
        fields.insert("name".into(), key.name.as_str().into());
        if let Some(namespace) = &key.namespace {
            fields.insert("namespace".into(), namespace.as_str().into());
        }
        // As in the halves.
        let owners = fields.get("ownerReferences").and_then(Value::as_array);
        if let Some(i) = owners.and_then(|all| all.iter().position(Value::is_array)) {
            return Err(Refusal::bad_field(
                format!("metadata.ownerReferences[{i}]"),
                "it is a list, not an object",
            ));
        }
        let (metadata, residue) = codec::decode::<Metadata>(&Value::Object(fields).to_string())
            .map_err(|e| wrong_type("metadata", &e))?;
        self.unknown
            .extend(residue.fields().map(|field| format!("metadata.{field}")));
        Ok(metadata)
    }

    /// The spec as text.
    pub(crate) fn spec_text(&self, served: Served) -> Result<String, Refusal> {
        self.half_text("spec", self.spec.as_ref(), served)
    }

    /// The status as text; none is an empty one.
    pub(crate) fn status_text(&self, served: Served) -> Result<String, Refusal> {
        let empty = Value::Object(Map::new());
        self.half_text(
            "status",
            Some(self.status.as_ref().unwrap_or(&empty)),
            served,
        )
    }

    /// A half as text, if everything required is there.
    fn half_text(
        &self,
        half: &str,
        value: Option<&Value>,
        served: Served,
    ) -> Result<String, Refusal> {
        let mut missing = Vec::new();
        match (value, served) {
            (Some(value @ Value::Object(_)), Served::Kind(info)) => {
                let (spec, status) = schemas(info);
                let schema = if half == "spec" { spec } else { status };
                if let Some(field) = find_list_for_object(value, schema, half) {
                    return Err(Refusal::bad_field(field, "it is a list, not an object"));
                }
                find_missing(value, schema, half, &mut missing);
                if missing.is_empty() {
                    return Ok(value.to_string());
                }
            }
            (Some(_), _) => return Err(Refusal::bad_field(half, "it is not an object")),
            (None, _) => missing.push(required(half.to_owned())),
        }
        let name = self.name.as_deref().or(self.generate_name.as_deref());
        Err(Refusal::invalid(
            served.about(name.unwrap_or_default()),
            &missing,
        ))
    }

    /// Refuses an object that has another name than its path, or is meant for another of its name.
    pub(crate) fn ensure_is(
        &self,
        key: &Key,
        uid: model::Uid,
        served: Served,
    ) -> Result<(), Refusal> {
        if self.name.as_deref() != Some(key.name.as_str()) {
            return Err(Refusal::bad_field(
                "metadata.name",
                format!(
                    "the name of the object ({}) does not match the name on the URL ({}): use the latter",
                    self.name.as_deref().unwrap_or_default(),
                    key.name
                ),
            ));
        }
        match &self.uid {
            Some(expected) if *expected != uid.to_string() => Err(Refusal::conflict(
                served.about(key.name.as_str()),
                &format!(
                    "Precondition failed: metadata.uid: UID in precondition: {expected}, UID in object meta: {uid}: the object you mean is gone"
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// A value that does not fit the type of its field.
pub(crate) fn wrong_type(within: &str, error: &codec::DecodeError) -> Refusal {
    let field = match error.field.as_str() {
        "." => within.to_owned(),
        field if within.is_empty() => field.to_owned(),
        field => format!("{within}.{field}"),
    };
    // Positions are those in a text that the client never saw.
    let message = error.message.split(" at line ").next().unwrap_or_default();
    Refusal::bad_field(
        field,
        format!("{message}: see `kubectl explain` for what it takes"),
    )
}

/// JSON that does not fit the types: the client's fault, or ours.
pub(crate) fn misfit(key: &Key, misfit: Misfit) -> Refusal {
    match misfit {
        Misfit::Sent(error) => wrong_type("", &error),
        Misfit::Stored(source) => StoreError::Undecodable {
            key: key.clone(),
            source,
        }
        .into(),
    }
}

/// A name for an object that only has the beginning of one.
pub(crate) fn generated_name(prefix: &str, random: u64) -> String {
    // As in Kubernetes: no vowels, so no words; nothing that looks like something else.
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    const LONGEST_PREFIX: usize = 58;
    let mut name: String = prefix.chars().take(LONGEST_PREFIX).collect();
    let mut random = random;
    for _ in 0..5 {
        name.push(char::from(LETTERS[(random % 27) as usize]));
        random /= 27;
    }
    name
}

/// The name a new object gets.
pub(crate) fn new_name(text: &str, served: Served) -> Result<Name, Refusal> {
    Name::new(text).map_err(|e| {
        let problem = Problem {
            field: "metadata.name".into(),
            cause: Cause::Invalid,
            reason: format!("{text:?}"),
            remedy: e.to_string(),
        };
        Refusal::invalid(served.about(text), &[problem])
    })
}

fn take_text(fields: &mut Map<String, Value>, field: &str) -> Result<Option<String>, Refusal> {
    match fields.remove(field) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Refusal::bad_field(
            format!("metadata.{field}"),
            "it is not a string",
        )),
    }
}

/// Removes fields that are null: to say that a field has no value is to leave it out. In free maps
/// a null is a value of the wrong type, and stays for the decoder to name.
fn drop_nulls(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let Some(Value::Object(known)) = schema.get("properties") else {
                return;
            };
            fields.retain(|name, field| !(field.is_null() && known.contains_key(name)));
            for (name, field) in fields {
                if let Some(schema) = known.get(name) {
                    drop_nulls(field, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| drop_nulls(item, schema));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Finds a list where an object belongs: the decoder would take its items for the fields, in order.
fn find_list_for_object(value: &Value, schema: &Value, at: &str) -> Option<String> {
    let known = schema.get("properties").and_then(Value::as_object);
    match (value, known, schema.get("items")) {
        (Value::Array(_), Some(_), _) => Some(at.to_owned()),
        (Value::Array(items), None, Some(schema)) => items
            .iter()
            .enumerate()
            .find_map(|(i, item)| find_list_for_object(item, schema, &format!("{at}[{i}]"))),
        (Value::Object(fields), Some(known), _) => fields.iter().find_map(|(name, field)| {
            find_list_for_object(field, known.get(name)?, &format!("{at}.{name}"))
        }),
        (_, _, _) => None,
    }
}

/// Finds the required fields that are not there.
fn find_missing(value: &Value, schema: &Value, at: &str, missing: &mut Vec<Problem>) {
    if missing.len() >= MAX_NAMED {
        return;
    }
    match (value, schema.get("items")) {
        (Value::Object(fields), _) => {
            let wanted = schema.get("required").and_then(Value::as_array);
            for name in wanted.into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    missing.push(required(format!("{at}.{name}")));
                }
            }
            let known = schema.get("properties").and_then(Value::as_object);
            for (name, schema) in known.into_iter().flatten() {
                if let Some(field) = fields.get(name) {
                    find_missing(field, schema, &format!("{at}.{name}"), missing);
                }
            }
        }
        (Value::Array(items), Some(schema)) => {
            for (i, item) in items.iter().enumerate() {
                find_missing(item, schema, &format!("{at}[{i}]"), missing);
            }
        }
        (_, _) => {}
    }
}

fn required(field: String) -> Problem {
    Problem {
        field,
        cause: Cause::Required,
        reason: "it is missing".into(),
        remedy: "set it; see `kubectl explain`".into(),
    }
}

/// The schemas of both halves of a kind, made once.
fn schemas(info: &KindInfo) -> &'static (Value, Value) {
    static ALL: OnceLock<Vec<(&'static str, (Value, Value))>> = OnceLock::new();
    static NONE: (Value, Value) = (Value::Null, Value::Null);
    let all = ALL.get_or_init(|| {
        let each = kinds::ALL.iter();
        each.map(|i| (i.kind.0, (i.spec_schema(), i.status_schema())))
            .collect()
    });
    all.iter()
        .find(|(kind, _)| *kind == info.kind.0)
        .map_or(&NONE, |(_, schemas)| schemas)
}
