//! A SandboxSnapshot: the writable layer of a sandbox, kept by its digest.
//!
//! It belongs to the delivery it was asked for: should its sandbox have another owner by the time it
//! can be captured, it fails. Once it is ready it stands on its own: its status says everything that
//! a sandbox which starts from it needs, whatever becomes of the sandbox it was taken of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Digest, Epoch, Generation, KindName, Name, SandboxId, StringMap, Timestamp, Uid, limits,
    meta::{Condition, Object, Spec, is_default},
    sandbox::Resources,
    template::ImagePullPolicy,
};

/// A snapshot.
pub type SandboxSnapshot = Object<SnapshotSpec>;

/// The tag of an alias that says none.
pub const DEFAULT_TAG: &str = "default";

/// What is wanted of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSpec {
    /// The sandbox to capture, in the snapshot's own namespace.
    pub sandbox: Name,
    /// The delivery to capture, where the sandbox can have another: a member of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// What people call it, as `name:tag`. The newest one that is ready is what an alias means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::ALIAS))]
    pub alias: Option<Box<str>>,
    /// Seconds after which it is deleted; absent keeps it until somebody deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after_seconds: Option<u32>,
    /// Registry to push to; absent keeps it on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::REGISTRY))]
    pub registry: Option<Box<str>>,
}

impl SnapshotSpec {
    /// A snapshot of a sandbox, with nothing else said.
    #[must_use]
    pub fn of(sandbox: Name) -> Self {
        Self {
            sandbox,
            sandbox_id: None,
            alias: None,
            expire_after_seconds: None,
            registry: None,
        }
    }

    /// The name and the tag of its alias.
    #[must_use]
    pub fn alias(&self) -> Option<(&str, &str)> {
        let alias = self.alias.as_deref()?;
        Some(alias.split_once(':').unwrap_or((alias, DEFAULT_TAG)))
    }
}

impl Spec for SnapshotSpec {
    type Status = SnapshotStatus;
    const KIND: KindName = KindName("SandboxSnapshot");
    const SELECTABLE: &'static [&'static str] = &[
        "spec.alias",
        "spec.sandbox",
        "spec.sandboxId",
        "status.phase",
    ];

    fn fields(object: &Object<Self>) -> StringMap {
        let spec = &object.spec;
        [
            ("spec.alias", spec.alias.as_deref()),
            ("spec.sandbox", Some(spec.sandbox.as_str())),
            (
                "spec.sandboxId",
                spec.sandbox_id.as_ref().map(SandboxId::as_str),
            ),
            ("status.phase", Some(object.status.phase.as_str())),
        ]
        .into_iter()
        .filter_map(|(path, value)| value.map(|value| (path, value)))
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

impl SnapshotPhase {
    /// The name, as in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Capturing => "Capturing",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
        }
    }
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
    /// The delivery that is captured, from the first look at its sandbox on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What a sandbox that starts from it is made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Box<Recipe>>,
    /// What was captured of each container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<CapturedContainer>,
    /// The image it was pushed as, by digest, where its spec names a registry, or its sandbox slept
    /// on a layer that had been pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<str>>,
    /// Name of the secret for pulling that image, as the pause policy of its sandbox has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_secret_name: Option<Name>,
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

/// A delivery of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The sandbox's record.
    #[schemars(with = "String")]
    pub uid: Uid,
    /// Which delivery of it.
    pub epoch: Epoch,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
}

/// What a sandbox is made of besides its layer. Environment, commands and what isolates it come
/// through the template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Recipe {
    /// The template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// The image of each container.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub images: StringMap,
    /// When they are pulled, where the template does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Limits, where the template does not say them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// The snapshot that a sandbox started from. It is a copy: the snapshot may go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The snapshot's name.
    pub snapshot: Name,
    /// The snapshot.
    #[schemars(with = "String")]
    pub uid: Uid,
    /// Its layer.
    pub layer: Digest,
    /// The image that layer was pushed as, by digest: where it is had from if it is not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<str>>,
    /// Name of the secret for pulling that image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret_name: Option<Name>,
    /// What else the sandbox is made of.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recipe: Recipe,
}
