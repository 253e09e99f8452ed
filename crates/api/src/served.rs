//! What is served: the kinds of the registry, events in the shape of core/v1, and collections that
//! are data.

use std::borrow::Cow;

use model::{
    KindName, Spec as _,
    event::{ABOUT_LABEL, EventSpec, Severity},
    kinds::{Column, ColumnType, KindInfo, Scope},
    meta::{GROUP, GROUP_VERSION},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use store::{Record, StoreError};

use crate::{collection::Collection, object, refusal::About, selector::Index};

/// A collection that can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served {
    /// A kind of the registry.
    Kind(&'static KindInfo),
    /// Events, read only.
    Events,
    /// A collection of a catalogue.
    Foreign(&'static Collection),
}

const EVENT_COLUMNS: &[Column] = &[
    event_column(
        "Last Seen",
        ColumnType::Date,
        ".lastTimestamp",
        false,
        "Time since it was last seen.",
    ),
    event_column(
        "Type",
        ColumnType::String,
        ".type",
        false,
        "Normal or Warning.",
    ),
    event_column("Reason", ColumnType::String, ".reason", false, "One word."),
    event_column(
        "Object",
        ColumnType::String,
        ".involvedObject.fieldPath",
        false,
        "What it speaks of.",
    ),
    event_column(
        "Message",
        ColumnType::String,
        ".message",
        false,
        "A sentence.",
    ),
    event_column(
        "First Seen",
        ColumnType::Date,
        ".firstTimestamp",
        true,
        "Time since it was first seen.",
    ),
    event_column(
        "Count",
        ColumnType::Integer,
        ".count",
        true,
        "How often it was seen.",
    ),
    event_column(
        "Name",
        ColumnType::String,
        ".metadata.name",
        true,
        "The name of the event.",
    ),
];

const fn event_column(
    name: &'static str,
    kind: ColumnType,
    path: &'static str,
    wide: bool,
    description: &'static str,
) -> Column {
    Column {
        name,
        kind,
        path,
        wide,
        description,
    }
}

/// Fields every kind can be selected by.
const OF_ALL: [&str; 2] = ["metadata.name", "metadata.namespace"];
const OF_EVENTS: [&str; 7] = [
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "reason",
    "type",
];

/// An object as clients see it, without copying its halves.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'r> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'r model::Metadata,
    spec: &'r RawValue,
    status: &'r RawValue,
}

impl Served {
    /// The kind under which records are stored.
    pub(crate) fn kind(self) -> KindName {
        match self {
            Self::Kind(info) => info.kind,
            Self::Events => EventSpec::KIND,
            Self::Foreign(collection) => collection.stored_as,
        }
    }

    /// `kind` of its objects.
    pub(crate) fn shown_kind(self) -> &'static str {
        match self {
            Self::Kind(_) | Self::Events => self.kind().0,
            Self::Foreign(collection) => collection.kind,
        }
    }

    pub(crate) const fn scope(self) -> Scope {
        match self {
            Self::Kind(info) => info.scope,
            Self::Events => Scope::Namespaced,
            Self::Foreign(collection) => collection.scope,
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Kind(_) => GROUP_VERSION,
            Self::Events => "v1",
            Self::Foreign(collection) => collection.api_version,
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Kind(info) => info.plural,
            Self::Events => "events",
            Self::Foreign(collection) => collection.plural,
        }
    }

    pub(crate) fn list_kind(self) -> String {
        format!("{}List", self.shown_kind())
    }

    pub(crate) fn about(self, name: impl Into<String>) -> About {
        About {
            group: match self {
                Self::Kind(_) => GROUP,
                Self::Events => "",
                Self::Foreign(collection) => collection.group,
            },
            plural: self.plural(),
            kind: self.shown_kind(),
            name: name.into(),
        }
    }

    /// Whether a deletion is answered with what was deleted.
    pub(crate) const fn shows_deleted(self) -> bool {
        match self {
            Self::Kind(_) | Self::Events => false,
            Self::Foreign(collection) => collection.shows_deleted,
        }
    }

    /// Columns of a table, after the name where there is one.
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            Self::Kind(info) => info.columns,
            Self::Events => EVENT_COLUMNS,
            Self::Foreign(collection) => collection.columns,
        }
    }

    /// Whether tables begin with the name.
    pub(crate) const fn has_name_column(self) -> bool {
        matches!(self, Self::Kind(_) | Self::Foreign(_))
    }

    pub(crate) fn selectable(self) -> Vec<&'static str> {
        let own: &[&str] = match self {
            Self::Kind(info) => info.selectable,
            Self::Events => &OF_EVENTS,
            Self::Foreign(collection) => collection.selectable,
        };
        OF_ALL.iter().chain(own).copied().collect()
    }

    pub(crate) fn is_selectable(self, path: &str) -> bool {
        self.selectable().contains(&path)
    }

    /// How a store finds records by this field, if it can.
    pub(crate) fn index(self, path: &str) -> Option<Index> {
        match self {
            Self::Kind(info) => info.selectable.contains(&path).then_some(Index::Field),
            Self::Events => (path == "involvedObject.uid").then_some(Index::Label(ABOUT_LABEL)),
            Self::Foreign(collection) => collection
                .selectable
                .contains(&path)
                .then_some(Index::Field),
        }
    }

    /// The value of a selectable field.
    pub(crate) fn field<'r>(self, record: &'r Record, path: &str) -> Option<Cow<'r, str>> {
        match (path, self) {
            ("metadata.name", _) => Some(record.meta.name.as_str().into()),
            ("metadata.namespace", _) => record.meta.namespace.as_ref().map(|n| n.as_str().into()),
            (_, Self::Kind(_) | Self::Foreign(_)) => record.fields.get(path).map(Into::into),
            (_, Self::Events) => {
                let event = self.to_value(record).ok()?;
                let found = path.split('.').try_fold(&event, |at, step| at.get(step))?;
                found.as_str().map(|text| Cow::Owned(text.to_owned()))
            }
        }
    }

    /// A record as JSON text.
    pub(crate) fn to_text(self, record: &Record) -> Result<String, StoreError> {
        let Self::Kind(info) = self else {
            return Ok(self.to_value(record)?.to_string());
        };
        let raw = |half: &'static str, text| {
            serde_json::from_str::<&RawValue>(text).map_err(|e| undecodable(record, half, &e))
        };
        let wire = Wire {
            api_version: GROUP_VERSION,
            kind: info.kind.0,
            metadata: &record.meta,
            spec: raw("spec", &record.spec)?,
            status: raw("status", &record.status)?,
        };
        serde_json::to_string(&wire).map_err(|e| undecodable(record, "metadata", &e))
    }

    /// A record as JSON text, as it stands in a list: Kubernetes does not repeat there what its
    /// built-in kinds are.
    pub(crate) fn to_item(self, record: &Record) -> Result<String, StoreError> {
        match self {
            Self::Foreign(collection) if collection.strategic => {
                let mut object = self.to_value(record)?;
                if let Value::Object(fields) = &mut object {
                    fields.remove("apiVersion");
                    fields.remove("kind");
                }
                Ok(object.to_string())
            }
            Self::Kind(_) | Self::Events | Self::Foreign(_) => self.to_text(record),
        }
    }

    /// A record as a JSON value.
    pub(crate) fn to_value(self, record: &Record) -> Result<Value, StoreError> {
        match self {
            Self::Kind(info) => {
                let half = |half: &'static str, text: &str| {
                    serde_json::from_str::<Value>(text).map_err(|e| undecodable(record, half, &e))
                };
                Ok(json!({
                    "apiVersion": GROUP_VERSION,
                    "kind": info.kind.0,
                    "metadata": record.meta,
                    "spec": half("spec", &record.spec)?,
                    "status": half("status", &record.status)?,
                }))
            }
            Self::Events => event(record),
            Self::Foreign(collection) => object::to_value(collection, record),
        }
    }

    /// The metadata of a record, as it is shown.
    pub(crate) fn metadata(self, record: &Record) -> Value {
        match self {
            Self::Kind(_) | Self::Events => json!(record.meta),
            Self::Foreign(collection) => object::metadata_value(collection, record),
        }
    }
}

pub(crate) fn undecodable(
    record: &Record,
    half: &'static str,
    error: &serde_json::Error,
) -> StoreError {
    StoreError::Undecodable {
        key: record.key(),
        source: model::codec::DecodeError {
            field: half.into(),
            message: error.to_string(),
        },
    }
}

/// An event in the shape of core/v1, which `kubectl describe` reads.
fn event(record: &Record) -> Result<Value, StoreError> {
    let event = record.decode::<EventSpec>()?;
    let about = &event.spec.about;
    let mut involved = json!({
        "apiVersion": GROUP_VERSION,
        "kind": about.kind,
        "name": about.name,
        "uid": about.uid,
    });
    if let Some(namespace) = &about.namespace {
        involved["namespace"] = namespace.as_str().into();
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": event.metadata,
        "involvedObject": involved,
        "reason": event.spec.reason,
        "message": event.spec.message,
        "type": match event.spec.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        },
        "count": event.spec.count,
        "firstTimestamp": event.spec.first_seen,
        "lastTimestamp": event.spec.last_seen,
        "source": {"component": "dormouse"},
        "reportingComponent": "dormouse",
        "reportingInstance": "",
    }))
}
