//! Rules for what clients may ask, beyond types. Pure; each problem names its field and a remedy.
//!
//! The rules guard the edge only. What control writes to a store does not pass here.

mod claim;
mod event;
mod hook;
mod metadata;
mod pool;
mod record;
mod sandbox;
mod snapshot;
mod template;
mod tenancy;
mod text;

use std::fmt;

use crate::{kinds::Minting, meta::Object, meta::Spec};

pub use metadata::{RESERVED_PREFIX, keep_reserved, metadata};
pub use snapshot::is_alias;
pub use text::{is_image_reference, is_label_key, is_label_value};

/// A rule that a field breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's path.
    pub field: String,
    /// What kind of problem.
    pub cause: Cause,
    /// What is wrong.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}: {}: {}",
            self.field, self.cause, self.reason, self.remedy
        )
    }
}

/// What kind of problem a field has, in the words of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The value is wrong.
    Invalid,
    /// There is no value.
    Required,
    /// Clients may not set or change it.
    Forbidden,
    /// There is too much of it.
    TooLong,
    /// It is there twice.
    Duplicate,
}

impl Cause {
    /// The word for machines.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::Duplicate => "FieldValueDuplicate",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::Duplicate => "Duplicate value",
        })
    }
}

/// Problems found so far.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

/// More than this many are not worth reading; a hostile body could make thousands.
const MAX_PROBLEMS: usize = 64;

impl Problems {
    /// Adds one.
    pub fn add(
        &mut self,
        field: impl Into<String>,
        cause: Cause,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push(Problem {
                field: field.into(),
                cause,
                reason: reason.into(),
                remedy: remedy.into(),
            });
        }
    }

    /// Leaves out those that are among others.
    pub fn forget(&mut self, others: &Self) {
        self.0.retain(|problem| !others.0.contains(problem));
    }

    /// The problems, in the order they were found.
    #[must_use]
    pub fn into_vec(self) -> Vec<Problem> {
        self.0
    }

    /// Whether a number is within bounds.
    fn bounds(&mut self, field: impl Into<String>, value: u64, min: u64, max: u64) {
        if value < min || value > max {
            self.add(
                field,
                Cause::Invalid,
                value.to_string(),
                format!("use {min} to {max}"),
            );
        }
    }

    /// Whether a list is short enough.
    fn at_most(&mut self, field: impl Into<String>, count: usize, max: usize) {
        if count > max {
            self.add(
                field,
                Cause::TooLong,
                format!("{count} entries"),
                format!("use at most {max}"),
            );
        }
    }

    /// A field that may not change.
    fn immutable<T: PartialEq>(&mut self, field: &str, old: &T, new: &T, remedy: &str) {
        if old != new {
            self.add(field, Cause::Forbidden, "it cannot be changed", remedy);
        }
    }
}

/// A rule that a Kubernetes API server checks itself, in its Common Expression Language.
///
/// Such a rule binds everybody, control too, so only what always holds is one. Whatever it refuses
/// [`Rules::check`] or [`Rules::check_change`] refuses as well.
#[derive(Clone, Copy, Debug)]
pub struct CelRule {
    /// The expression; `self` is the spec, `oldSelf` the spec before a change.
    pub rule: &'static str,
    /// The field it is about, from the spec on.
    pub field: &'static str,
    /// What is wrong, and what to do about it.
    pub message: &'static str,
}

impl CelRule {
    const fn new(field: &'static str, rule: &'static str, message: &'static str) -> Self {
        Self {
            rule,
            field,
            message,
        }
    }
}

/// The rules of a kind.
pub trait Rules: Spec {
    /// Selectable fields of which no two objects of the kind may have the same value.
    const UNIQUE: &'static [&'static str] = &[];

    /// Those of the rules that an API server of Kubernetes checks too.
    const CEL: &'static [CelRule] = &[];

    /// Fills in what the server gives to a new object.
    fn complete(_object: &mut Object<Self>, _minting: &Minting) {}

    /// Brings back what the server gave and a client's manifest does not mention.
    fn keep(_old: &Object<Self>, _new: &mut Object<Self>) {}

    /// Checks an object by itself.
    fn check(object: &Object<Self>, problems: &mut Problems);

    /// Checks a change.
    fn check_change(_old: &Object<Self>, _new: &Object<Self>, _problems: &mut Problems) {}
}

#[cfg(test)]
mod tests;
