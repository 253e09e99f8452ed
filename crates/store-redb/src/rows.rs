//! How records become rows.
//!
//! | Table | Key | Value |
//! |---|---|---|
//! | `records` | kind ␀ namespace ␀ name | a record, framed as below |
//! | `index` | `f` or `l`, kind, path or label, value (each with its length), namespace ␀ name | nothing |
//! | `meta` | `format`, `version` | a number |
//!
//! Names and namespaces are DNS labels and hold no ␀, so rows of one kind, and index rows of one
//! value, are in the order of namespace and name: pages of a listing are ranges.
//!
//! A record is a format byte, the lengths of metadata, spec and status, and then these three and
//! the selectable fields. Spec and status are copied, never parsed: a change of one half costs the
//! same whatever the other holds. The kind is in the key only, and a kind is always named by whoever
//! reads; rows of kinds that this version does not know are never looked at and never lost.

use std::sync::Arc;

use model::{
    Generation, Key, KindName, Metadata, Name, Namespace, StringMap, Timestamp, Uid, Version,
    codec::DecodeError, meta::OwnerReference,
};
use redb::TableDefinition;
use serde::Deserialize;
use store::Record;

/// The records.
pub(crate) const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
/// Which records have a value in a selectable field or label.
pub(crate) const INDEX: TableDefinition<'_, &[u8], ()> = TableDefinition::new("index");
/// The store itself.
pub(crate) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The row of `meta` that holds the last version.
pub(crate) const VERSION: &str = "version";
/// The row of `meta` that holds the format of these rows.
pub(crate) const FORMAT: &str = "format";

/// The layout of a record's value.
const FRAMING: u8 = 1;
const HEAD: usize = 1 + 3 * 4;

/// The key of a record's row.
pub(crate) fn record_key(key: &Key) -> Vec<u8> {
    let mut row = kind_prefix(key.kind);
    push_place(&mut row, key.namespace.as_ref(), &key.name);
    row
}

/// The key that a row's key stands for, if it is one.
pub(crate) fn key_of(kind: KindName, row: &[u8]) -> Option<Key> {
    let place = std::str::from_utf8(row.strip_prefix(kind_prefix(kind).as_slice())?).ok()?;
    let (namespace, name) = place.split_once('\0')?;
    let namespace = match namespace {
        "" => None,
        namespace => Some(Namespace::new(namespace).ok()?),
    };
    Some(Key {
        kind,
        namespace,
        name: Name::new(name).ok()?,
    })
}

/// What the keys of all records of a kind begin with.
pub(crate) fn kind_prefix(kind: KindName) -> Vec<u8> {
    let mut row = Vec::with_capacity(kind.0.len() + 48);
    row.extend_from_slice(kind.0.as_bytes());
    row.push(0);
    row
}

/// Namespace and name, in their order.
pub(crate) fn push_place(row: &mut Vec<u8>, namespace: Option<&Namespace>, name: &Name) {
    push_namespace(row, namespace);
    row.extend_from_slice(name.as_str().as_bytes());
}

/// What the places in a namespace begin with.
pub(crate) fn push_namespace(row: &mut Vec<u8>, namespace: Option<&Namespace>) {
    row.extend_from_slice(namespace.map_or("", Namespace::as_str).as_bytes());
    row.push(0);
}

/// What an index row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Indexed {
    /// A selectable field.
    Field = b'f' as isize,
    /// A label.
    Label = b'l' as isize,
}

/// What the index rows of one value begin with; a place follows.
pub(crate) fn index_prefix(of: Indexed, kind: KindName, path: &str, value: &str) -> Vec<u8> {
    let mut row = Vec::with_capacity(13 + kind.0.len() + path.len() + value.len() + 48);
    row.push(of as u8);
    for part in [kind.0, path, value] {
        // Lengths keep a value from being the beginning of another. A record is far below 4 GiB.
        row.extend_from_slice(&(part.len() as u32).to_be_bytes());
        row.extend_from_slice(part.as_bytes());
    }
    row
}

/// The index rows of one record.
pub(crate) fn index_rows(record: &Record) -> impl Iterator<Item = (Indexed, &str, &str)> {
    let fields = record.fields.iter().map(|(k, v)| (Indexed::Field, k, v));
    let labels = record
        .meta
        .labels
        .iter()
        .map(|(k, v)| (Indexed::Label, k, v));
    fields.chain(labels)
}

/// A record's value.
pub(crate) fn encode(record: &Record) -> Vec<u8> {
    let mut row = Vec::with_capacity(HEAD + 768 + record.spec.len() + record.status.len());
    row.resize(HEAD, 0);
    // Writing to a vector cannot fail, and neither type has keys that are not strings.
    let _ = serde_json::to_writer(&mut row, &record.meta);
    let lengths = [row.len() - HEAD, record.spec.len(), record.status.len()];
    row[0] = FRAMING;
    for (slot, length) in row[1..HEAD].chunks_exact_mut(4).zip(lengths) {
        // Records are limited to far less than 4 GiB.
        slot.copy_from_slice(&(length as u32).to_le_bytes());
    }
    row.extend_from_slice(record.spec.as_bytes());
    row.extend_from_slice(record.status.as_bytes());
    let _ = serde_json::to_writer(&mut row, &record.fields);
    row
}

/// Reads a record's value.
pub(crate) fn decode(kind: KindName, row: &[u8]) -> Result<Record, DecodeError> {
    let (framing, rest) = row.split_first().ok_or_else(|| bad("record", "is empty"))?;
    if *framing != FRAMING {
        let problem = format!("has framing {framing}, which this version does not know");
        return Err(bad("record", problem));
    }
    let mut lengths = [0usize; 3];
    for (i, length) in lengths.iter_mut().enumerate() {
        let bytes = rest.get(i * 4..i * 4 + 4).ok_or_else(cut)?;
        let bytes: [u8; 4] = bytes.try_into().map_err(|_| cut())?;
        *length = u32::from_le_bytes(bytes) as usize;
    }
    let rest = rest.get(HEAD - 1..).ok_or_else(cut)?;
    let (meta, rest) = rest.split_at_checked(lengths[0]).ok_or_else(cut)?;
    let (spec, rest) = rest.split_at_checked(lengths[1]).ok_or_else(cut)?;
    let (status, fields) = rest.split_at_checked(lengths[2]).ok_or_else(cut)?;
    let meta = decode_metadata(meta)?;
    if meta.uid.is_none() || meta.resource_version.is_none() {
        return Err(bad("metadata", "lacks uid or version"));
    }
    let fields: StringMap =
        serde_json::from_slice(fields).map_err(|e| bad("fields", e.to_string()))?;
    Ok(Record {
        kind,
        meta,
        spec: text("spec", spec)?,
        status: text("status", status)?,
        fields,
    })
}

/// The metadata that this version knows, and nothing else. [`Metadata`] keeps unknown fields, for
/// which serde reads everything into a tree first; that is most of the time a read takes, and hardly
/// any record has such fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KnownMetadata {
    name: Name,
    #[serde(default)]
    namespace: Option<Namespace>,
    #[serde(default)]
    uid: Option<Uid>,
    #[serde(default)]
    resource_version: Option<Version>,
    #[serde(default)]
    generation: Generation,
    #[serde(default)]
    creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    finalizers: Vec<Box<str>>,
    #[serde(default)]
    labels: StringMap,
    #[serde(default)]
    annotations: StringMap,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

fn decode_metadata(json: &[u8]) -> Result<Metadata, DecodeError> {
    // A field that is unknown here sends the record to the type that keeps it.
    let Ok(known) = serde_json::from_slice::<KnownMetadata>(json) else {
        return serde_json::from_slice(json).map_err(|e| bad("metadata", e.to_string()));
    };
    let mut meta = Metadata::new(known.namespace, known.name);
    meta.uid = known.uid;
    meta.resource_version = known.resource_version;
    meta.generation = known.generation;
    meta.creation_timestamp = known.creation_timestamp;
    meta.deletion_timestamp = known.deletion_timestamp;
    meta.finalizers = known.finalizers;
    meta.labels = known.labels;
    meta.annotations = known.annotations;
    meta.owner_references = known.owner_references;
    Ok(meta)
}

fn text(half: &str, bytes: &[u8]) -> Result<Arc<str>, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|e| bad(half, e.to_string()))?;
    Ok(text.into())
}

fn cut() -> DecodeError {
    bad("record", "is cut short")
}

fn bad(field: &str, message: impl Into<String>) -> DecodeError {
    DecodeError {
        field: field.into(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut meta = Metadata::new(Namespace::new("team").ok(), Name::new("box").unwrap());
        meta.uid = Some(Uid::from_random(7));
        meta.resource_version = Some(Version::from_u64(9));
        meta.generation = Generation(3);
        meta.creation_timestamp = Some(Timestamp::from_micros(1_700_000_000_000_001));
        meta.labels.insert("a", "ä\0b");
        meta.unknown
            .insert("managedFields".into(), serde_json::json!([{"x": 1}]));
        Record {
            kind: KindName("Sandbox"),
            meta,
            spec: r#"{"later":true}"#.into(),
            status: "{}".into(),
            fields: [("status.phase", "Running")].into_iter().collect(),
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let record = record();
        assert_eq!(decode(record.kind, &encode(&record)), Ok(record));
    }

    #[test]
    fn the_fast_way_to_read_metadata_reads_all_of_it() {
        let mut record = record();
        let uid = Uid::from_random(8);
        record.meta.unknown.clear();
        record.meta.deletion_timestamp = Some(Timestamp::from_micros(5));
        record.meta.finalizers = vec!["f".into()];
        record.meta.annotations.insert("b", "c");
        record.meta.owner_references = vec![OwnerReference {
            api_version: "dormouse.dev/v1alpha1".into(),
            kind: "SandboxPool".into(),
            name: Name::new("pool").unwrap(),
            uid,
            controller: true,
            block_owner_deletion: false,
        }];
        let json = serde_json::to_vec(&record.meta).unwrap();
        assert!(serde_json::from_slice::<KnownMetadata>(&json).is_ok());
        assert_eq!(decode(record.kind, &encode(&record)), Ok(record));
    }

    #[test]
    fn a_row_cut_anywhere_is_refused_not_misread() {
        let record = record();
        let whole = encode(&record);
        for end in 0..whole.len() {
            assert!(decode(record.kind, &whole[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_row_of_a_later_framing_is_refused_by_number() {
        let mut row = encode(&record());
        row[0] = 2;
        let error = decode(KindName("Sandbox"), &row).unwrap_err();
        assert!(error.message.contains("framing 2"), "{error}");
    }

    #[test]
    fn rows_are_in_the_order_of_namespace_and_name() {
        let place = |namespace: Option<&str>, name: &str| {
            let namespace = namespace.map(|n| Namespace::new(n).unwrap());
            let name = Name::new(name).unwrap();
            let mut row = Vec::new();
            push_place(&mut row, namespace.as_ref(), &name);
            ((namespace, name), row)
        };
        let mut places = [
            place(Some("a-b"), "a"),
            place(Some("a"), "z"),
            place(None, "z"),
            place(Some("a"), "z-1"),
            place(Some("ab"), "0"),
        ];
        places.sort_by(|a, b| a.1.cmp(&b.1));
        assert!(places.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn no_value_is_the_beginning_of_another_in_the_index() {
        let kind = KindName("K");
        let short = index_prefix(Indexed::Label, kind, "a", "b");
        let long = index_prefix(Indexed::Label, kind, "a", "bc");
        assert!(!long.starts_with(&short));
        let other = index_prefix(Indexed::Field, kind, "a", "b");
        assert!(!other.starts_with(&short));
    }
}
