//! Newtypes for every id and version.
//!
//! Ids are opaque: nothing in the product parses one to learn something. What has rules (names,
//! namespaces) is checked once, where it enters, and the type remembers that it was.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Position in a store's one increasing sequence of changes.
///
/// A version is (incarnation, sequence) packed into one integer so that it orders, and prints,
/// as Kubernetes clients expect of a `resourceVersion`. Restoring a backup starts a new
/// incarnation, which is newer than everything any reader saw of the old one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(u64);

/// Which life of a store a version belongs to. Raised by restoring a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u16);

const SEQUENCE_BITS: u32 = 48;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

impl Version {
    /// Before the first change of any store.
    pub const ZERO: Version = Version(0);

    /// The version with this sequence number in this incarnation.
    ///
    /// # Panics
    /// If `sequence` needs more than 48 bits: at a million changes a second, in nine years.
    #[must_use]
    pub fn new(incarnation: Incarnation, sequence: u64) -> Self {
        assert!(
            sequence <= SEQUENCE_MASK,
            "the store's sequence is exhausted"
        );
        Self((u64::from(incarnation.0) << SEQUENCE_BITS) | sequence)
    }

    /// The incarnation this version was written in.
    #[must_use]
    pub const fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> SEQUENCE_BITS) as u16)
    }

    /// The position within its incarnation.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & SEQUENCE_MASK
    }

    /// The next version of the same incarnation.
    #[must_use]
    pub fn next(self) -> Self {
        Self::new(self.incarnation(), self.sequence() + 1)
    }

    /// The packed form, for storage.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Reads the packed form.
    #[must_use]
    pub const fn from_u64(packed: u64) -> Self {
        Self(packed)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation().0 {
            0 => write!(f, "v{}", self.sequence()),
            n => write!(f, "v{n}:{}", self.sequence()),
        }
    }
}

impl FromStr for Version {
    type Err = InvalidId;
    fn from_str(s: &str) -> Result<Self, InvalidId> {
        s.parse()
            .map(Self)
            .map_err(|_| InvalidId::Version(s.into()))
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Identity of one object for its whole life; never reused, unlike its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(u128);

impl Uid {
    /// A uid made of 128 random bits, printed as a version-4 UUID.
    #[must_use]
    pub const fn from_random(bits: u128) -> Self {
        // The four version bits and two variant bits of RFC 9562.
        Self((bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62))
    }

    /// The 128 bits, for storage.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            v >> 96,
            (v >> 80) & 0xffff,
            (v >> 64) & 0xffff,
            (v >> 48) & 0xffff,
            v & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uid {
    type Err = InvalidId;
    fn from_str(s: &str) -> Result<Self, InvalidId> {
        let bad = || InvalidId::Uid(s.into());
        let groups: Vec<&str> = s.split('-').collect();
        if groups.iter().map(|g| g.len()).ne([8, 4, 4, 4, 12]) {
            return Err(bad());
        }
        let hex = groups.concat();
        if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        u128::from_str_radix(&hex, 16).map(Self).map_err(|_| bad())
    }
}

impl Serialize for Uid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Counts changes of an object's spec.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// Counts the deliveries of one sandbox: each claim raises it and mints a new [`SandboxId`].
///
/// Routes, pooled connections and tokens are fenced by (uid, epoch), so nothing of the last
/// owner's can reach the next.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch of the next delivery.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Counts the operations begun on one object, so that a late effect of an older one is refused.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct OperationId(pub u64);

impl OperationId {
    /// The id of the operation begun after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What is wrong with a piece of text that should have been an id.
#[derive(Debug, Error, PartialEq, Eq, Clone)]
pub enum InvalidId {
    /// Not a DNS label.
    #[error(
        "{0:?} is not a valid name: use 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit"
    )]
    Name(Box<str>),
    /// Not a sandbox id.
    #[error(
        "{0:?} is not a sandbox id: use 1 to 57 of a-z, 0-9 and '-', starting and ending with a letter or digit"
    )]
    SandboxId(Box<str>),
    /// Not a uid.
    #[error("{0:?} is not a uid: write it as 8-4-4-4-12 hexadecimal digits")]
    Uid(Box<str>),
    /// Not a version.
    #[error("{0:?} is not a resourceVersion: use the number a read returned")]
    Version(Box<str>),
    /// Not a digest.
    #[error("{0:?} is not a digest: write it as sha256: and 64 hexadecimal digits")]
    Digest(Box<str>),
}

const MAX_LABEL: usize = 63;
/// A host's first label is `{port}-{id}` with up to five digits of port: 63 − 6.
const MAX_SANDBOX_ID: usize = MAX_LABEL - 6;

fn is_dns_label(s: &str, max: usize) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = s.as_bytes();
    bytes.len() <= max
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|b| edge(b) || *b == b'-')
}

fn is_sha256(s: &str) -> bool {
    s.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// A checked, cheaply cloned piece of text.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $check:expr, $error:path, $schema:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text and takes it.
            ///
            /// # Errors
            /// If the text breaks the rule of this id; the message says which and how to mend it.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
                let text = text.as_ref();
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.into())) } else { Err($error(text.into())) }
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(s: &str) -> Result<Self, InvalidId> {
                Self::new(s)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

text_id!(
    /// An object's name: a DNS label, so that it can stand in a host name.
    Name,
    |s| is_dns_label(s, MAX_LABEL),
    InvalidId::Name,
    schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
);
text_id!(
    /// The tenant (team) an object belongs to; a DNS label.
    Namespace,
    |s| is_dns_label(s, MAX_LABEL),
    InvalidId::Name,
    schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
);
text_id!(
    /// What a client calls its sandbox: minted for one delivery, never parsed.
    SandboxId,
    |s| is_dns_label(s, MAX_SANDBOX_ID),
    InvalidId::SandboxId,
    schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": 57, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
);
text_id!(
    /// Content address of an image, layer or snapshot.
    Digest,
    is_sha256,
    InvalidId::Digest,
    schemars::json_schema!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})
);

impl Name {
    /// A name that another system gave: Kubernetes names some kinds with dots and colons. Anything
    /// that can stand in a path by itself.
    ///
    /// # Errors
    /// If it cannot.
    pub fn foreign(text: impl AsRef<str>) -> Result<Self, InvalidId> {
        let text = text.as_ref();
        let fits = (1..=253).contains(&text.len())
            && !matches!(text, "." | "..")
            && text
                .bytes()
                .all(|b| b.is_ascii_graphic() && b != b'/' && b != b'%');
        if fits {
            Ok(Self(text.into()))
        } else {
            Err(InvalidId::Name(text.into()))
        }
    }
}

impl Digest {
    /// The address of content whose SHA-256 is this.
    #[must_use]
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("sha256:{hex}").into())
    }
}

impl SandboxId {
    /// An id minted from 100 random bits: twenty lower-case letters and digits.
    #[must_use]
    pub fn from_random(bits: u128) -> Self {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let text: String = (0..20)
            .map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31]))
            .collect();
        Self(text.into())
    }
}

/// Name of a kind of record, as in `kind: Sandbox`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName(pub &'static str);

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// Where an object is found: kind, namespace (none for cluster-wide kinds) and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind.
    pub kind: KindName,
    /// The namespace; `None` for kinds that belong to the whole installation.
    pub namespace: Option<Namespace>,
    /// The name, unique within kind and namespace.
    pub name: Name,
}

impl Key {
    /// The key of a namespaced object.
    #[must_use]
    pub const fn namespaced(kind: KindName, namespace: Namespace, name: Name) -> Self {
        Self {
            kind,
            namespace: Some(namespace),
            name,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_store_is_newer_than_everything_before() {
        let old = Version::new(Incarnation(1), 900);
        let restored = Version::new(Incarnation(2), 100);
        assert!(restored > old);
        assert_eq!(restored.to_string().parse(), Ok(restored));
        assert_eq!(restored.next().sequence(), 101);
        assert_eq!(restored.next().incarnation(), Incarnation(2));
    }

    #[test]
    fn uids_print_and_parse_as_version_4_uuids() {
        let uid = Uid::from_random(u128::MAX);
        assert_eq!(uid.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uid.to_string().parse(), Ok(uid));
        for bad in [
            "",
            "ffffffff",
            "ffffffff-ffff-4fff-bfff-fffffffffff",
            "+fffffff-ffff-4fff-bfff-ffffffffffff",
        ] {
            assert!(bad.parse::<Uid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_follow_dns_label_rules() {
        for good in ["a", "0", "a-b", &"x".repeat(63)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a_b",
            "ä",
            "a/b",
            "..",
            &"x".repeat(64),
        ] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
        for good in ["a.b", "system:node", "a_b", &"x".repeat(253)] {
            assert!(Name::foreign(good).is_ok(), "{good}");
        }
        for bad in ["", "..", "a/b", "a%2fb", "a b", "ä", &"x".repeat(254)] {
            assert!(Name::foreign(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sandbox_id_leaves_room_for_the_port_in_a_host_label() {
        let longest = SandboxId::new("x".repeat(57)).unwrap();
        assert!(format!("65535-{longest}").len() <= MAX_LABEL);
        assert!(SandboxId::new("x".repeat(58)).is_err());
        assert_eq!(SandboxId::from_random(u128::MAX).as_str().len(), 20);
    }
}
