//! Rules for metadata.

use super::{Cause, Problems, text};
use crate::{Metadata, StringMap};

/// Labels, annotations and finalizers that begin so are the server's own: clients see them and can
/// select by them, but do not set, change or remove them.
pub const RESERVED_PREFIX: &str = "dormouse.dev/";

const MAX_LABELS: usize = 128;
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
const MAX_FINALIZERS: usize = 16;
const MAX_OWNERS: usize = 16;

/// Checks metadata, and its change where there is a stored one.
pub fn metadata(new: &Metadata, old: Option<&Metadata>, problems: &mut Problems) {
    let nothing = StringMap::new();
    pairs(
        "metadata.labels",
        &new.labels,
        old.map_or(&nothing, |o| &o.labels),
        problems,
    );
    pairs(
        "metadata.annotations",
        &new.annotations,
        old.map_or(&nothing, |o| &o.annotations),
        problems,
    );
    problems.at_most("metadata.labels", new.labels.len(), MAX_LABELS);
    for (key, value) in new.labels.iter() {
        if !text::is_label_value(value) {
            problems.add(
                format!("metadata.labels.{key}"),
                Cause::Invalid,
                format!("{value:?} is not a label's value"),
                "use at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
            );
        }
    }
    let annotated: usize = new.annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
    if annotated > MAX_ANNOTATION_BYTES {
        problems.add(
            "metadata.annotations",
            Cause::TooLong,
            format!("{annotated} bytes in all"),
            format!("use at most {MAX_ANNOTATION_BYTES}"),
        );
    }
    finalizers(new, old, problems);
    owners(new, problems);
}

fn pairs(field: &str, new: &StringMap, old: &StringMap, problems: &mut Problems) {
    for (key, value) in new.iter() {
        if !text::is_label_key(key) {
            problems.add(
                format!("{field}.{key}"),
                Cause::Invalid,
                format!("{key:?} is not a key"),
                "write it as [domain/]name, the name of at most 63 letters, digits, '-', '_' and '.'",
            );
        }
        if key.starts_with(RESERVED_PREFIX) && old.get(key) != Some(value) {
            problems.add(
                format!("{field}.{key}"),
                Cause::Forbidden,
                format!("keys under {RESERVED_PREFIX} are set by the server"),
                "use another prefix",
            );
        }
    }
    for (key, _) in old.iter() {
        if key.starts_with(RESERVED_PREFIX) && !new.contains_key(key) {
            problems.add(
                format!("{field}.{key}"),
                Cause::Forbidden,
                format!("keys under {RESERVED_PREFIX} are removed by the server"),
                "leave it",
            );
        }
    }
}

fn finalizers(new: &Metadata, old: Option<&Metadata>, problems: &mut Problems) {
    const FIELD: &str = "metadata.finalizers";
    problems.at_most(FIELD, new.finalizers.len(), MAX_FINALIZERS);
    for (i, finalizer) in new.finalizers.iter().enumerate() {
        let field = format!("{FIELD}[{i}]");
        if !finalizer.contains('/') || !text::is_label_key(finalizer) {
            problems.add(
                field,
                Cause::Invalid,
                format!("{finalizer:?} is not a finalizer"),
                "write it as domain/name",
            );
        } else if new.finalizers[..i].contains(finalizer) {
            problems.add(
                field,
                Cause::Duplicate,
                format!("{finalizer:?}"),
                "name each once",
            );
        } else if finalizer.starts_with(RESERVED_PREFIX)
            && !old.is_some_and(|o| o.has_finalizer(finalizer))
        {
            problems.add(
                field,
                Cause::Forbidden,
                format!("finalizers under {RESERVED_PREFIX} are set by the server"),
                "use another prefix",
            );
        }
    }
    for held in old.iter().flat_map(|o| &o.finalizers) {
        if held.starts_with(RESERVED_PREFIX) && !new.has_finalizer(held) {
            problems.add(
                FIELD,
                Cause::Forbidden,
                format!("{held:?} is removed by the server once nothing is left to clean up"),
                "leave it, and delete the object to have it cleaned up",
            );
        }
    }
}

fn owners(new: &Metadata, problems: &mut Problems) {
    const FIELD: &str = "metadata.ownerReferences";
    problems.at_most(FIELD, new.owner_references.len(), MAX_OWNERS);
    for (i, owner) in new.owner_references.iter().enumerate() {
        for (name, value) in [("apiVersion", &owner.api_version), ("kind", &owner.kind)] {
            if value.is_empty() {
                problems.add(
                    format!("{FIELD}[{i}].{name}"),
                    Cause::Required,
                    "it is empty",
                    "name the owner",
                );
            }
        }
        if owner.controller && new.owner_references[..i].iter().any(|o| o.controller) {
            problems.add(
                format!("{FIELD}[{i}].controller"),
                Cause::Invalid,
                "another owner is the controller already",
                "mark one",
            );
        }
    }
}

/// Brings back the server's own labels, annotations and finalizers that a manifest does not mention.
pub fn keep_reserved(old: &Metadata, new: &mut Metadata) {
    let keep = |old: &StringMap, new: &mut StringMap| {
        for (key, value) in old.iter() {
            if key.starts_with(RESERVED_PREFIX) && !new.contains_key(key) {
                new.insert(key, value);
            }
        }
    };
    keep(&old.labels, &mut new.labels);
    keep(&old.annotations, &mut new.annotations);
    for finalizer in &old.finalizers {
        if finalizer.starts_with(RESERVED_PREFIX) && !new.has_finalizer(finalizer) {
            new.finalizers.push(finalizer.clone());
        }
    }
}
