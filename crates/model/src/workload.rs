//! What is asked of a workload, and what is seen of it: the words of the runtime port, here so
//! that pure decisions can use them without knowing any runtime.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    Digest, Epoch, Generation, Name, OperationId, StringMap, Uid,
    sandbox::{Address, NetworkPolicy, Resources},
    template::{ImagePullPolicy, RuntimeClass},
};

/// Orders the calls on one workload. A newer intent, or a newer operation under the same intent,
/// makes every older call stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Which workload.
    pub uid: Uid,
    /// The generation of the spec that is served.
    pub generation: Generation,
    /// The operation.
    pub operation: OperationId,
}

impl Fence {
    /// What orders fences of one uid.
    #[must_use]
    pub const fn rank(self) -> (Generation, OperationId) {
        (self.generation, self.operation)
    }
}

/// What a workload is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSpec {
    /// Image of each container, by name.
    pub images: StringMap,
    /// When images are pulled.
    pub pull: ImagePullPolicy,
    /// What isolates it.
    pub class: RuntimeClass,
    /// Whether programs inside may raise their privileges, up to root inside.
    pub sudo: bool,
    /// Limits.
    pub resources: Option<Resources>,
    /// What it may reach.
    pub network: Option<Box<NetworkPolicy>>,
    /// The captured layer it continues from.
    pub from: Option<Digest>,
    /// Where that layer can be had, should it not be here.
    pub published: Option<Box<Published>>,
    /// What brings it up whenever its processes were started anew; none means nothing has to.
    pub boot: Option<Box<Boot>>,
}

/// The commands that bring a workload up, and how they are run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Boot {
    /// Started once, and left running; empty means none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<Box<str>>,
    /// Run until it succeeds; empty means that it is up as soon as the other one was started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<Box<str>>,
    /// Their environment.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub env: StringMap,
    /// Who runs them, where it is not the image's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Box<str>>,
    /// Where they run, where it is not that user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<Box<str>>,
}

/// How far the commands of a workload have brought it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booting {
    /// It is up.
    Done,
    /// Not yet: look again.
    UnderWay,
}

/// Why a workload did not come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootFailure {
    /// The start command could not be started, or failed before all was ready.
    StartCommand,
    /// The ready command cannot be run at all.
    ReadyCommand,
    /// The ready command did not succeed in time.
    Deadline,
}

impl BootFailure {
    /// One word for conditions.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::StartCommand => "StartCommandFailed",
            Self::ReadyCommand => "ReadyCommandFailed",
            Self::Deadline => "NotReadyInTime",
        }
    }
}

impl fmt::Display for BootFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartCommand => "its start command failed",
            Self::ReadyCommand => "its ready command cannot be run",
            Self::Deadline => "its ready command did not succeed in time",
        })
    }
}

/// The settings of one delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arming {
    /// Which delivery.
    pub epoch: Epoch,
    /// Environment of every process.
    pub env: StringMap,
    /// What the agent inside demands of whoever speaks to it; none means nothing.
    pub token: Option<Secret>,
    /// User that commands run as, where they name none.
    pub user: Option<Box<str>>,
    /// Directory that commands run in, where they name none.
    pub workdir: Option<Box<str>>,
}

/// A text that nobody may see by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Keeps a text.
    #[must_use]
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever must send it on.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What an inspection saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Nothing.
    Absent,
    /// Something that was being made or removed when its maker died: it can only be removed.
    Partial,
    /// A workload.
    Present(Facts),
}

impl Observed {
    /// Whether only its files are left, because the host it ran on has restarted.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Present(facts) if facts.state == WorkloadState::Cut)
    }
}

/// What is seen of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it does.
    pub state: WorkloadState,
    /// The delivery it is armed for; zero before the first.
    pub epoch: Epoch,
    /// Whether its commands have brought it up since its processes were last started anew; true
    /// where there are none.
    pub booted: bool,
    /// Changes with every restart of its containers.
    pub container_id: Box<str>,
    /// Images that run, by container.
    pub images: StringMap,
    /// The captured layer it continued from.
    pub layer: Option<Digest>,
    /// What it may reach now.
    pub network: Option<Box<NetworkPolicy>>,
    /// How its ports are reached.
    pub address: Address,
    /// How many of its processes were killed since its last start because memory ran out, as far
    /// as was seen: looked for when it is inspected and when its first process ends.
    pub oom_kills: u32,
}

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadState {
    /// Its processes run.
    Running,
    /// Its processes are stopped where they are.
    Frozen,
    /// Its processes went with the host they ran on; its files are there.
    Cut,
    /// Its first process has ended.
    Exited {
        /// With this code.
        code: i32,
    },
}

/// Where a captured layer goes, besides the machine it was captured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The registry: a host and port, maybe with a path.
    pub registry: Box<str>,
    /// Name of the secret for pushing; none means what is configured for the registry.
    pub secret: Option<Name>,
    /// The layer it was captured on top of.
    pub parent: Option<Digest>,
}

/// Where a captured layer was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its image, by digest.
    pub image: Box<str>,
    /// Name of the secret for pulling; none means what is configured for the registry.
    pub secret: Option<Name>,
}

/// A captured layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its content address.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The layer it was captured on top of.
    pub parent: Option<Digest>,
}
