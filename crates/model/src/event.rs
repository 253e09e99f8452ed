//! An Event: something that happened to an object, for people to read.
//!
//! Events are data, not log lines: the same thing happening again raises a count, and each object
//! keeps a bounded number of them. They are stored as records beside the objects they speak of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    KindName, Name, Namespace, Timestamp, Uid,
    meta::{Object, Spec},
};

/// An event.
pub type Event = Object<EventSpec>;

/// Most events kept for one object; the one seen longest ago makes room.
pub const MAX_EVENTS_PER_OBJECT: usize = 16;
/// Label on each event, with the uid of the object it speaks of.
pub const ABOUT_LABEL: &str = "dormouse.dev/about";

/// What happened, to what, how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSpec {
    /// What it speaks of.
    pub about: About,
    /// Whether a person should look.
    pub severity: Severity,
    /// One word, as `Paused`.
    pub reason: Box<str>,
    /// A sentence.
    pub message: Box<str>,
    /// How often it was seen.
    pub count: u32,
    /// When it was first seen.
    pub first_seen: Timestamp,
    /// When it was last seen.
    pub last_seen: Timestamp,
}

/// The object an event speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Its kind.
    pub kind: Box<str>,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Its name.
    pub name: Name,
    /// Its identity.
    #[schemars(with = "String")]
    pub uid: Uid,
}

/// Whether a person should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Something is wrong.
    Warning,
}

/// Something that is wrong with an object, as the answer to a request for that object says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// One word.
    pub reason: Box<str>,
    /// A sentence.
    pub message: Box<str>,
    /// How often it was seen.
    pub count: u32,
    /// When it was last seen.
    pub last_seen: Timestamp,
}

/// Events have nothing to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoStatus {}

impl Spec for EventSpec {
    type Status = NoStatus;
    const KIND: KindName = KindName("Event");
}
