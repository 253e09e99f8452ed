//! A SandboxSnapshot: the writable layer of a sandbox, kept by its digest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Digest, Generation, KindName, Name, StringMap, Timestamp,
    meta::{Condition, Object, Spec, is_default},
};

/// A snapshot.
pub type SandboxSnapshot = Object<SnapshotSpec>;

/// What is wanted of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSpec {
    /// The sandbox to capture, in the snapshot's own namespace.
    pub sandbox: Name,
    /// Registry to push to; absent keeps it on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Box<str>>,
}

impl Spec for SnapshotSpec {
    type Status = SnapshotStatus;
    const KIND: KindName = KindName("SandboxSnapshot");
    const SELECTABLE: &'static [&'static str] = &["spec.sandbox"];

    fn fields(object: &Object<Self>) -> StringMap {
        [("spec.sandbox", object.spec.sandbox.as_str())]
            .into_iter()
            .collect()
    }
}

/// How far a snapshot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SnapshotPhase {
    /// Waiting for its sandbox.
    #[default]
    Pending,
    /// Being captured.
    Capturing,
    /// Durable; it can be resumed from.
    Ready,
    /// It will not be.
    Failed,
}

/// What is observed of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    /// How far it is.
    pub phase: SnapshotPhase,
    /// The spec generation this was observed at.
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: Generation,
    /// What was captured of each container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<CapturedContainer>,
    /// When it became durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_at: Option<Timestamp>,
    /// How often it was tried.
    #[serde(skip_serializing_if = "is_default")]
    pub attempts: u32,
    /// Why it failed, or still waits.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Box<str>,
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What was captured of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapturedContainer {
    /// The container's name.
    pub name: Box<str>,
    /// The layer.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The layer it was captured on top of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Digest>,
}
