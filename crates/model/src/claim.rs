//! A SandboxClaim: asking a pool for sandboxes declaratively.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Generation, KindName, Name, StringMap, Timestamp,
    event::Warning,
    limits,
    meta::{Condition, Object, Spec, is_default},
    sandbox::{NetworkPolicy, Timeouts},
};

/// A declarative claim.
pub type SandboxClaim = Object<ClaimSpec>;

/// What is asked of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// The pool, in the claim's own namespace.
    pub pool: Name,
    /// How many sandboxes.
    #[serde(default = "one")]
    pub count: u32,
    /// Environment of each.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::VARIABLE }>)]
    pub env: StringMap,
    /// Images by container, where they differ from the pool's.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::PINNED_IMAGE }>)]
    pub images: StringMap,
    /// Metadata of each.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::PAIRS }>)]
    pub metadata: StringMap,
    /// What each may reach, and who may reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Box<NetworkPolicy>>,
    /// Timeouts of each, in place of the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Seconds to wait for members before the claim ends with what it has.
    #[serde(default = "one_minute")]
    pub timeout_seconds: u32,
    /// Seconds to keep the claim after it completed; absent means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u32>,
}

impl ClaimSpec {
    /// A claim for one member of a pool, with everything else as it is unless said otherwise.
    #[must_use]
    pub fn new(pool: Name) -> Self {
        Self {
            pool,
            count: one(),
            env: StringMap::new(),
            images: StringMap::new(),
            metadata: StringMap::new(),
            network: None,
            timeouts: None,
            timeout_seconds: one_minute(),
            keep_seconds: None,
        }
    }
}

const fn one() -> u32 {
    1
}

const fn one_minute() -> u32 {
    60
}

impl Spec for ClaimSpec {
    type Status = ClaimStatus;
    const KIND: KindName = KindName("SandboxClaim");
    const SELECTABLE: &'static [&'static str] = &["spec.pool"];

    fn fields(object: &Object<Self>) -> StringMap {
        [("spec.pool", object.spec.pool.as_str())]
            .into_iter()
            .collect()
    }
}

/// How far a claim is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPhase {
    /// Waiting for members.
    #[default]
    Claiming,
    /// It has all it asked for, or its time ran out.
    Completed,
}

/// What is observed of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// How far it is.
    pub phase: ClaimPhase,
    /// The spec generation this was observed at.
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: Generation,
    /// Names of the sandboxes it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bound: Vec<Name>,
    /// Why it ended as it did, or still waits.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Box<str>,
    /// When it completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What was wrong of late: only in the answer to a request for this one object.
    #[serde(skip_serializing_if = "<[Warning]>::is_empty")]
    pub recent_warnings: Box<[Warning]>,
}
