//! What is asked of a workload, and what is seen of it: the words of the runtime port, here so
//! that pure decisions can use them without knowing any runtime.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    Digest, Epoch, Generation, Name, Namespace, OperationId, StringMap, Uid,
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

/// Whose workload it is, for a runtime that keeps it beside its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The team.
    pub namespace: Namespace,
    /// The name of the sandbox.
    pub name: Name,
}

/// What a workload is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSpec {
    /// Whose it is.
    pub of: Option<Box<Whose>>,
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

impl WorkloadSpec {
    /// Its images and what belongs to them.
    #[must_use]
    pub fn outfit(&self) -> Outfit {
        Outfit {
            images: self.images.clone(),
            pull: self.pull,
            boot: self.boot.clone(),
        }
    }
}

/// Images of a workload, and what belongs to them: what is replaced in place when a member of a pool
/// becomes its owner's, and again when it goes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outfit {
    /// Image of each container, by name.
    pub images: StringMap,
    /// When images are pulled.
    pub pull: ImagePullPolicy,
    /// What brings them up; none means nothing has to.
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

/// How far the commands of a workload have brought it up, or its hooks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booting {
    /// It is up; they are over.
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
    /// Something that is being made, and becomes a workload by itself: asking for it once more waits
    /// for it. It can also be removed.
    Coming,
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

    /// Whether its processes run.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self, Self::Present(facts) if facts.state == WorkloadState::Running)
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
    /// Images that run, by container, as they were asked for.
    pub images: StringMap,
    /// What those names led to when their containers were started, where that is an image.
    pub digests: BTreeMap<Box<str>, Digest>,
    /// The hooks that were last run since its containers were started.
    pub hooked: Option<Hooked>,
    /// The captured layer it continued from.
    pub layer: Option<Digest>,
    /// What it may reach now.
    pub network: Option<Box<NetworkPolicy>>,
    /// How its ports are reached.
    pub address: Address,
    /// How many of its processes were killed since its last start because memory ran out, as far
    /// as was seen: looked for when it is inspected and when its first process ends.
    pub oom_kills: u32,
    /// Who ended it, where its processes did not end by themselves.
    pub loss: Option<Loss>,
}

/// What took a workload away. It is seen as one that has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its node needed the room, or was being emptied.
    Evicted,
    /// The node that it ran on is gone.
    NodeLost,
    /// Somebody removed it behind our back.
    Removed,
}

impl Loss {
    /// A sentence for people.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Evicted => "it was evicted from its node",
            Self::NodeLost => "the node that it ran on was lost",
            Self::Removed => "its workload was removed by somebody else",
        }
    }
}

impl Facts {
    /// Whether a container runs an image: as it was asked for, or under another name by its digest.
    #[must_use]
    pub fn runs(&self, container: &str, image: &str) -> bool {
        let digest = image.split_once('@').map(|(_, digest)| digest);
        let running = self.digests.get(container).map(Digest::as_str);
        self.images.get(container) == Some(image) || digest.is_some_and(|d| running == Some(d))
    }
}

/// Hooks that were run to their end; none that had to succeed has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hooked {
    /// For this delivery.
    pub epoch: Epoch,
    /// Those that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedHook>,
}

/// A hook that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedHook {
    /// Its name.
    pub name: Box<str>,
    /// How its last try ended.
    pub why: Box<str>,
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
    /// The image it was published as, by digest, where capturing has done that, too.
    pub published: Option<Box<str>>,
}

/// What not every runtime can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Processes can be stopped where they are, and be left so. Where they cannot, a capture stops
    /// them itself and leaves them so, until they are thawed or removed.
    pub freeze: bool,
    /// Where captured layers are kept that nobody names a registry for.
    pub keeps: Keeps,
}

/// Where captured layers are kept that nobody names a registry for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// On the machine they were captured on.
    Here,
    /// In a registry that the runtime was told of.
    InRegistry,
    /// Nowhere: they cannot be captured.
    Nowhere,
}

impl Abilities {
    /// What a runtime can that can do everything.
    pub const ALL: Self = Self {
        freeze: true,
        keeps: Keeps::Here,
    };
}
