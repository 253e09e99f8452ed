//! From what a client sent to what a store takes, for any kind.

use thiserror::Error;

use crate::{
    Metadata, SandboxId, StringMap, Timestamp,
    codec::DecodeError,
    meta::{Object, Unknown},
    validate::{self, Problem, Problems, Rules},
};

/// What completing a new object takes: pure code has no clock and no randomness.
#[derive(Clone, Debug)]
pub struct Minting {
    /// The wall clock.
    pub now: Timestamp,
    /// An id for a sandbox, should one be needed.
    pub sandbox_id: SandboxId,
}

/// What is stored now, as text.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Who it is.
    pub metadata: &'a Metadata,
    /// Its intent half.
    pub spec: &'a str,
    /// Its observed half.
    pub status: &'a str,
}

/// What it means that a client left out something the server had put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Nothing: a manifest describes what the client cares about. It stays.
    Keep,
    /// A wish to remove it: a patch says only what changes.
    Remove,
}

/// A submission that fits its types, with all that is wrong with it otherwise.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Who it is.
    pub metadata: Metadata,
    /// The intent half, in canonical form.
    pub spec: String,
    /// The observed half, in canonical form.
    pub status: String,
    /// Values of the selectable fields.
    pub fields: StringMap,
    /// Fields that are not known and were not stored before, by path. They are left out above.
    pub unknown: Vec<String>,
    /// Rules that it breaks. If there are any, it must not be stored.
    pub problems: Vec<Problem>,
}

/// JSON that does not fit the types of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// What the client sent.
    #[error("{0}")]
    Sent(DecodeError),
    /// What is stored: a newer version changed the type of a field, or the record is damaged.
    #[error("the stored object cannot be read: {0}")]
    Stored(DecodeError),
}

pub(super) type CreateFn = fn(Metadata, &str, &Minting) -> Result<Checked, Misfit>;
pub(super) type ReplaceFn = fn(Stored<'_>, Metadata, &str, Omission) -> Result<Checked, Misfit>;
pub(super) type ObserveFn = fn(Stored<'_>, &str) -> Result<Checked, Misfit>;

pub(super) fn create<S: Rules>(
    metadata: Metadata,
    spec: &str,
    minting: &Minting,
) -> Result<Checked, Misfit> {
    let mut object = Object::<S>::decode(metadata, spec, "{}").map_err(Misfit::Sent)?;
    let unknown = drop_new_unknown(&mut object, None);
    S::complete(&mut object, minting);
    let mut problems = Problems::default();
    validate::metadata(&object.metadata, None, &mut problems);
    S::check(&object, &mut problems);
    Ok(checked(object, unknown, problems))
}

pub(super) fn replace<S: Rules>(
    stored: Stored<'_>,
    metadata: Metadata,
    spec: &str,
    omission: Omission,
) -> Result<Checked, Misfit> {
    let old = read::<S>(stored)?;
    let mut new = Object::<S>::decode(metadata, spec, stored.status).map_err(Misfit::Sent)?;
    let unknown = drop_new_unknown(&mut new, Some(&old));
    if omission == Omission::Keep {
        validate::keep_reserved(&old.metadata, &mut new.metadata);
        S::keep(&old, &mut new);
    }
    let mut problems = Problems::default();
    validate::metadata(&new.metadata, Some(&old.metadata), &mut problems);
    let mut before = Problems::default();
    S::check(&old, &mut before);
    S::check(&new, &mut problems);
    // What was stored under other rules, or by control, must not stand in the way of a change
    // that has nothing to do with it.
    problems.forget(&before);
    S::check_change(&old, &new, &mut problems);
    Ok(checked(new, unknown, problems))
}

pub(super) fn observe<S: Rules>(stored: Stored<'_>, status: &str) -> Result<Checked, Misfit> {
    let old = read::<S>(stored)?;
    let mut new =
        Object::<S>::decode(stored.metadata.clone(), stored.spec, status).map_err(Misfit::Sent)?;
    let unknown = drop_new_unknown(&mut new, Some(&old));
    Ok(checked(new, unknown, Problems::default()))
}

fn read<S: Rules>(stored: Stored<'_>) -> Result<Object<S>, Misfit> {
    Object::decode(stored.metadata.clone(), stored.spec, stored.status).map_err(Misfit::Stored)
}

fn checked<S: Rules>(object: Object<S>, unknown: Vec<String>, problems: Problems) -> Checked {
    Checked {
        spec: object.encode_spec(),
        status: object.encode_status(),
        fields: S::fields(&object),
        metadata: object.metadata,
        unknown,
        problems: problems.into_vec(),
    }
}

/// Takes out the unknown fields that a client brings, and names them. Those that are stored
/// already were put there by a newer version of the product and stay, whoever sends them along.
fn drop_new_unknown<S: Rules>(object: &mut Object<S>, stored: Option<&Object<S>>) -> Vec<String> {
    let mut named = Vec::new();
    object.metadata.unknown.retain(|field, _| {
        let keep = stored.is_some_and(|s| s.metadata.unknown.contains_key(field));
        if !keep {
            named.push(format!("metadata.{field}"));
        }
        keep
    });
    let Some(mut unknown) = object.unknown.take() else {
        return named;
    };
    let nothing = Unknown::default();
    let stored = stored
        .and_then(|s| s.unknown.as_deref())
        .unwrap_or(&nothing);
    for (half, residue, stored) in [
        ("spec", &mut unknown.spec, &stored.spec),
        ("status", &mut unknown.status, &stored.status),
    ] {
        let dropped = residue.keep_only_those_of(stored);
        named.extend(dropped.iter().map(|path| format!("{half}.{path}")));
    }
    object.unknown = (*unknown != nothing).then_some(unknown);
    named
}
