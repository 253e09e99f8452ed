//! A Team: who shares a namespace, and how much of the machine it may use.
//!
//! The name of a team is the namespace of everything that is its own. A key opens nothing while
//! there is no team of its namespace, so removing a team shuts its keys out rather than lifting
//! their limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    KindName, limits,
    meta::{Condition, Object, Spec, is_default},
};

/// A team.
pub type Team = Object<TeamSpec>;

/// What a team may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamSpec {
    /// What people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::TITLE))]
    pub display_name: Option<Box<str>>,
    /// The most it may have at a time, all its keys together.
    #[serde(skip_serializing_if = "is_default")]
    pub quotas: Quotas,
    /// Bounds on each of its sandboxes.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: Limits,
    /// Public keys with which its people log in to its sandboxes over SSH.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SSH_KEYS))]
    pub ssh_keys: Vec<SshKey>,
}

impl Spec for TeamSpec {
    type Status = TeamStatus;
    const KIND: KindName = KindName("Team");
}

/// A public key of somebody of the team.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshKey {
    /// What people call it. No two keys of a team have one name.
    #[schemars(length(max = limits::TITLE))]
    pub name: Box<str>,
    /// The key as in a file `.pub`, without the comment: its algorithm, a space, and its bytes in
    /// base64.
    #[schemars(length(max = limits::SSH_KEY))]
    pub key: Box<str>,
}

impl SshKey {
    /// The algorithms of keys that are taken.
    pub const ALGORITHMS: [&'static str; 6] = [
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    ];
}

/// The most of something that may be had at a time; what is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Quotas {
    /// Sandboxes, asleep ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u32>,
    /// Sandboxes that are awake, waking or falling asleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_sandboxes: Option<u32>,
    /// Thousandths of a processor, of those together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Memory in MiB, of those together.
    #[serde(rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
}

/// Bounds on each sandbox; what is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// The longest timeout that may be asked for, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_timeout_seconds: Option<u32>,
}

/// What is observed of a team. The server writes nothing here yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamStatus {
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
