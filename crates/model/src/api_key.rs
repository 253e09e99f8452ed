//! An ApiKey: what a team's programs show to be let in.
//!
//! The record holds a hash, from which nobody gets back to the key, and a few of its characters,
//! by which its owner tells it from others. Deleting the record revokes the key. When it was made
//! is in the metadata.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    KindName, StringMap, limits,
    meta::{Condition, Object, Spec, is_default},
    team::Quotas,
};

/// A key.
pub type ApiKey = Object<ApiKeySpec>;

/// What every key begins with.
pub const KEY_PREFIX: &str = "e2b_";
/// How many hexadecimal digits follow.
pub const KEY_DIGITS: usize = 40;
/// How many of them, from the first on, a record may show.
pub const SHOWN_FIRST: usize = 2;
/// How many of them, up to the last, a record may show.
pub const SHOWN_LAST: usize = 4;

/// What a key is, and what it may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeySpec {
    /// What people call it.
    #[schemars(length(max = limits::TITLE))]
    pub display_name: Box<str>,
    /// SHA-256 of the key.
    pub hash: KeyHash,
    /// What people may see of the key.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask: Mask,
    /// The person who uses it; what is made with it is that person's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::PERSON))]
    pub user: Option<Box<str>>,
    /// The most that may be had with this key at a time, within what its team may have.
    #[serde(default, skip_serializing_if = "is_default")]
    pub quotas: Quotas,
}

impl Spec for ApiKeySpec {
    type Status = ApiKeyStatus;
    const KIND: KindName = KindName("ApiKey");
    const SELECTABLE: &'static [&'static str] = &["spec.hash", "spec.user"];

    fn fields(object: &Object<Self>) -> StringMap {
        let user = object.spec.user.as_deref();
        [
            Some(("spec.hash", object.spec.hash.as_str())),
            user.map(|user| ("spec.user", user)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// A SHA-256 in lower-case hexadecimal digits. It is not shown where records are logged.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyHash(Box<str>);

impl KeyHash {
    /// This hash.
    #[must_use]
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        // Every request passes here: no formatting of each byte.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits: String = hash
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|half| char::from(DIGITS[usize::from(half)]))
            .collect();
        Self(digits.into())
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

impl JsonSchema for KeyHash {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeyHash".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
    }
}

/// The few characters of a key that people may see: its first two digits and its last four.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Mask {
    /// Its first digits.
    #[serde(skip_serializing_if = "str::is_empty")]
    #[schemars(length(max = SHOWN_FIRST))]
    pub first: Box<str>,
    /// Its last digits.
    #[serde(skip_serializing_if = "str::is_empty")]
    #[schemars(length(max = SHOWN_LAST))]
    pub last: Box<str>,
}

/// What is observed of a key. The server writes nothing here yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiKeyStatus {
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
