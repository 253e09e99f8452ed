//! The registry of kinds: what the API, the CRDs and the tools need to know of each, as data.
//!
//! A kind is a row of [`ALL`]. Nothing else in the product has a list of them; what differs
//! between them is a field of [`KindInfo`], and what needs their types goes through its function
//! pointers.

mod columns;
mod submit;

use serde_json::Value;

use crate::{
    KindName,
    api_key::ApiKeySpec,
    claim::ClaimSpec,
    codec::{self, Residue},
    event::EventSpec,
    meta::Spec,
    pool::PoolSpec,
    record::RecordSpec,
    sandbox::SandboxSpec,
    schema,
    snapshot::SnapshotSpec,
    team::TeamSpec,
    template::TemplateSpec,
    validate::{CelRule, Rules},
};

pub use columns::{Column, ColumnType};
pub use submit::{Checked, Minting, Misfit, Omission, Stored};

/// Whether objects of a kind belong to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each belongs to a namespace (team).
    Namespaced,
    /// They belong to the whole installation.
    Cluster,
}

impl Scope {
    /// The name, as CRDs spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespaced => "Namespaced",
            Self::Cluster => "Cluster",
        }
    }
}

/// Ways to describe a partial change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 7386: the new values; null removes.
    Merge,
    /// RFC 6902: a list of operations.
    Json,
}

impl PatchType {
    /// The media type of such a patch.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

/// What there is to know of a kind.
#[derive(Debug)]
pub struct KindInfo {
    /// Its name, as in `kind: Sandbox`.
    pub kind: KindName,
    /// Its name in paths.
    pub plural: &'static str,
    /// Its name on the command line.
    pub singular: &'static str,
    /// Shorter names on the command line.
    pub short_names: &'static [&'static str],
    /// Groups of kinds it is listed with.
    pub categories: &'static [&'static str],
    /// A sentence on what it is.
    pub description: &'static str,
    /// Whether its objects belong to a namespace.
    pub scope: Scope,
    /// Fields by which its objects can be selected, as dotted paths.
    pub selectable: &'static [&'static str],
    /// Those of them of which no two objects may have the same value.
    pub unique: &'static [&'static str],
    /// Rules that an API server of Kubernetes checks itself.
    pub cel: &'static [CelRule],
    /// What tables show of its objects, after the name.
    pub columns: &'static [Column],
    /// Patches its objects take.
    pub patches: &'static [PatchType],
    types: Types,
}

/// What needs the types of a kind, as functions that do not show them.
#[derive(Debug)]
struct Types {
    spec_schema: fn() -> Value,
    status_schema: fn() -> Value,
    default_status: fn() -> String,
    create: submit::CreateFn,
    replace: submit::ReplaceFn,
    observe: submit::ObserveFn,
}

impl KindInfo {
    /// The name of a list of its objects.
    #[must_use]
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// The structural schema of the intent half.
    #[must_use]
    pub fn spec_schema(&self) -> Value {
        (self.types.spec_schema)()
    }

    /// The structural schema of the observed half.
    #[must_use]
    pub fn status_schema(&self) -> Value {
        (self.types.status_schema)()
    }

    /// The observed half of an object of which nothing was observed yet, as JSON text.
    #[must_use]
    pub fn default_status(&self) -> String {
        (self.types.default_status)()
    }

    /// Checks a new object of this kind: types, then completion, then rules.
    ///
    /// # Errors
    /// If it does not fit its types. Broken rules are in [`Checked::problems`].
    pub fn check_new(
        &self,
        metadata: crate::Metadata,
        spec: &str,
        minting: &Minting,
    ) -> Result<Checked, Misfit> {
        (self.types.create)(metadata, spec, minting)
    }

    /// Checks a new spec half for a stored object.
    ///
    /// # Errors
    /// If it does not fit its types. Broken rules are in [`Checked::problems`].
    pub fn check_replacement(
        &self,
        stored: Stored<'_>,
        metadata: crate::Metadata,
        spec: &str,
        omission: Omission,
    ) -> Result<Checked, Misfit> {
        (self.types.replace)(stored, metadata, spec, omission)
    }

    /// Checks a new status half for a stored object.
    ///
    /// # Errors
    /// If it does not fit its types.
    pub fn check_status(&self, stored: Stored<'_>, status: &str) -> Result<Checked, Misfit> {
        (self.types.observe)(stored, status)
    }
}

fn default_status<S: Rules>() -> String {
    codec::encode(&S::Status::default(), &Residue::default())
}

const fn row<S: Rules>(
    names: (&'static str, &'static str, &'static [&'static str]),
    scope: Scope,
    description: &'static str,
    columns: &'static [Column],
) -> KindInfo {
    KindInfo {
        kind: S::KIND,
        plural: names.0,
        singular: names.1,
        short_names: names.2,
        categories: &["dormouse"],
        description,
        scope,
        selectable: <S as Spec>::SELECTABLE,
        unique: S::UNIQUE,
        cel: S::CEL,
        columns,
        patches: &[PatchType::Merge, PatchType::Json],
        types: Types {
            spec_schema: schema::of::<S>,
            status_schema: schema::of::<S::Status>,
            default_status: default_status::<S>,
            create: submit::create::<S>,
            replace: submit::replace::<S>,
            observe: submit::observe::<S>,
        },
    }
}

/// Every kind.
pub static ALL: [KindInfo; 8] = [
    row::<SandboxSpec>(
        ("sandboxes", "sandbox", &["sbx"]),
        Scope::Namespaced,
        "A Sandbox is one isolated Linux environment.",
        columns::SANDBOX,
    ),
    row::<PoolSpec>(
        ("sandboxpools", "sandboxpool", &["sbp"]),
        Scope::Namespaced,
        "A SandboxPool keeps sandboxes ready, so that a claim takes milliseconds.",
        columns::POOL,
    ),
    row::<ClaimSpec>(
        ("sandboxclaims", "sandboxclaim", &["sbc"]),
        Scope::Namespaced,
        "A SandboxClaim asks a pool for sandboxes.",
        columns::CLAIM,
    ),
    row::<SnapshotSpec>(
        ("sandboxsnapshots", "sandboxsnapshot", &["sbs"]),
        Scope::Namespaced,
        "A SandboxSnapshot keeps the files of a sandbox.",
        columns::SNAPSHOT,
    ),
    row::<TemplateSpec>(
        ("sandboxtemplates", "sandboxtemplate", &["sbt"]),
        Scope::Cluster,
        "A SandboxTemplate says what sandboxes are made from.",
        columns::TEMPLATE,
    ),
    row::<RecordSpec>(
        ("sandboxrecords", "sandboxrecord", &["sbr"]),
        Scope::Namespaced,
        "A SandboxRecord is what a sandbox was to one owner, once that is over.",
        columns::RECORD,
    ),
    row::<TeamSpec>(
        ("teams", "team", &["tm"]),
        Scope::Cluster,
        "A Team shares a namespace of its own name, and what it may use.",
        columns::TEAM,
    ),
    row::<ApiKeySpec>(
        ("apikeys", "apikey", &["ak"]),
        Scope::Namespaced,
        "An ApiKey lets the programs of a team in. Only a hash of it is kept.",
        columns::API_KEY,
    ),
];

/// Events: stored like the rest, but served to clients as those of Kubernetes, and written by
/// control only.
pub static EVENT: KindInfo = row::<EventSpec>(
    ("sandboxevents", "sandboxevent", &["sbe"]),
    Scope::Namespaced,
    "An Event is something that happened to an object, for people to read.",
    columns::EVENT,
);

/// Every kind that a store keeps.
pub fn stored() -> impl Iterator<Item = &'static KindInfo> {
    ALL.iter().chain([&EVENT])
}

/// The kind of this name, as in `kind: Sandbox`.
#[must_use]
pub fn find(kind: &str) -> Option<&'static KindInfo> {
    ALL.iter().find(|info| info.kind.0 == kind)
}

/// The kind whose objects are found under this word in paths.
#[must_use]
pub fn find_plural(plural: &str) -> Option<&'static KindInfo> {
    ALL.iter().find(|info| info.plural == plural)
}

/// The kind that a person means by this word: plural, singular or short, in any case.
#[must_use]
pub fn find_word(word: &str) -> Option<&'static KindInfo> {
    ALL.iter().find(|info| {
        [info.plural, info.singular]
            .iter()
            .chain(info.short_names)
            .any(|name| name.eq_ignore_ascii_case(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_kinds_answer_to_the_same_word() {
        let mut words: Vec<&str> = ALL
            .iter()
            .flat_map(|i| {
                [i.plural, i.singular]
                    .into_iter()
                    .chain(i.short_names.iter().copied())
            })
            .collect();
        words.sort_unstable();
        let all = words.len();
        words.dedup();
        assert_eq!(words.len(), all);
        assert_eq!(find("Sandbox").map(|i| i.plural), Some("sandboxes"));
        assert_eq!(
            find_plural("sandboxtemplates").map(|i| i.scope),
            Some(Scope::Cluster)
        );
        assert_eq!(find_word("SBX").map(|i| i.kind.0), Some("Sandbox"));
        assert!(find_word("pods").is_none());
    }
}
