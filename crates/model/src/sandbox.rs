//! A Sandbox: one isolated Linux environment, from intent to what is observed of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Digest, Epoch, Generation, KindName, Name, Namespace, OperationId, SandboxId, StringMap,
    Timestamp,
    event::Warning,
    hook::Hook,
    lifecycle::{OperationKind, Phase},
    limits,
    meta::{Condition, Object, Spec, is_default},
    snapshot::Origin,
    template::ImagePullPolicy,
};

/// A sandbox.
pub type Sandbox = Object<SandboxSpec>;

/// The condition that says whether its template's commands have brought it up. Absent where they
/// never failed to.
pub const BOOTED_CONDITION: &str = "Booted";
/// The condition that says whether its hooks have done what they should. Absent where all did.
pub const HOOKS_CONDITION: &str = "HooksSucceeded";
/// Held by control while a workload may exist: the record outlives what it describes.
pub const SANDBOX_FINALIZER: &str = "dormouse.dev/workload";
/// Annotation on sandboxes, their records and snapshots that only a build needs: nobody sees them.
pub const BUILD_ANNOTATION: &str = "dormouse.dev/build";

/// What is wanted of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxSpec {
    /// Template it is made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// Snapshot of its own namespace that it starts from. Where it names no template, images or
    /// limits, they are those of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Name>,
    /// Pool it is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Name>,
    /// Image of each container, by the container's name; absent ones come from the template.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::PINNED_IMAGE }>)]
    pub images: StringMap,
    /// Images that a member of a pool has while nobody owns it, by container.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::PINNED_IMAGE }>)]
    pub idle_images: StringMap,
    /// When images are pulled; absent means as the pool or the template says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Environment given to every process.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::VARIABLE }>)]
    pub env: StringMap,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// What is done inside before its owner hears of it, besides what the template says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Awake or asleep.
    #[serde(skip_serializing_if = "is_default")]
    pub desired_state: DesiredState,
    /// How it sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_policy: Option<Box<PausePolicy>>,
    /// When it ends or sleeps by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub timeouts: Timeouts,
    /// Whether a request wakes it.
    #[serde(skip_serializing_if = "is_default")]
    pub wake_on_traffic: bool,
    /// What it may reach, and who may reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Box<NetworkPolicy>>,
    /// Who may speak to its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Box<Access>>,
    /// Free pairs of the owner's.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::PAIRS }>)]
    pub metadata: StringMap,
    /// Whose it is; a pool member without one can be claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// What its owner calls it; minted for each delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Counts deliveries: raised by each claim.
    #[serde(skip_serializing_if = "is_default")]
    pub epoch: Epoch,
    /// When it was claimed or created for its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// By when it must be ready for its owner, and who waits for that. It ends with being ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Box<Lease>>,
    /// The delivery that was given back last. It goes with the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_back: Option<Box<GivenBack>>,
}

impl SandboxSpec {
    /// The images it should run now, as far as it says so itself.
    #[must_use]
    pub fn wanted_images(&self) -> &StringMap {
        let idles = self.pool.is_some() && self.owner.is_none() && !self.idle_images.is_empty();
        if idles {
            &self.idle_images
        } else {
            &self.images
        }
    }
}

impl Spec for SandboxSpec {
    type Status = SandboxStatus;
    const KIND: KindName = KindName("Sandbox");
    const SELECTABLE: &'static [&'static str] = &[
        "spec.owner.team",
        "spec.pool",
        "spec.sandboxId",
        "spec.snapshot",
        "spec.template",
        "status.phase",
    ];

    fn fields(object: &Object<Self>) -> StringMap {
        let spec = &object.spec;
        [
            (
                "spec.owner.team",
                spec.owner.as_ref().map(|o| o.team.as_str()),
            ),
            ("spec.pool", spec.pool.as_ref().map(Name::as_str)),
            (
                "spec.sandboxId",
                spec.sandbox_id.as_ref().map(SandboxId::as_str),
            ),
            ("spec.snapshot", spec.snapshot.as_ref().map(Name::as_str)),
            ("spec.template", spec.template.as_ref().map(Name::as_str)),
            ("status.phase", Some(object.status.phase.as_str())),
        ]
        .into_iter()
        .filter_map(|(path, value)| value.map(|value| (path, value)))
        .collect()
    }
}

/// Awake or asleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DesiredState {
    /// Awake.
    #[default]
    Running,
    /// Asleep.
    Paused,
}

/// Whose a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The team; the namespace of what it owns.
    pub team: Namespace,
    /// The person within the team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::PERSON))]
    pub user: Option<Box<str>>,
    /// The key it was made or claimed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
}

/// What a claimer has on a sandbox that is not ready yet.
///
/// It is written with the claim, and needs no write to end: from the moment the sandbox is ready
/// its own timeouts are what counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// A sandbox that is not ready by then goes back, or ends.
    pub until: Timestamp,
    /// The process that will tell the owner of it, where its death means that nobody will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Box<str>>,
}

/// What is known of a delivery that was given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GivenBack {
    /// What its owner called it.
    pub sandbox_id: SandboxId,
    /// Whose it was.
    pub owner: Owner,
    /// When it was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// Free pairs of the owner's.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub metadata: StringMap,
    /// How it ended.
    pub ended: Stopped,
}

/// Limits on what a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Memory in MiB.
    #[serde(default, rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Writable disk in MiB.
    #[serde(default, rename = "diskMiB", skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
}

/// When a sandbox ends or sleeps by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// The moment `onTimeout` happens; absent means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_at: Option<Timestamp>,
    /// Seconds it was given when it was created: it gets at least as many again when traffic wakes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// What happens at `endAt`.
    #[serde(skip_serializing_if = "is_default")]
    pub on_timeout: OnTimeout,
    /// Seconds without activity after which `idleAction` happens; absent means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u32>,
    /// What happens when it has been idle for so long.
    #[serde(skip_serializing_if = "is_default")]
    pub idle_action: IdleAction,
    /// Seconds asleep after which it ends; absent means that it is kept for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_retention_seconds: Option<u32>,
    /// Seconds it has to be ready for its owner; absent means two minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_seconds: Option<u32>,
}

/// What happens at `endAt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnTimeout {
    /// It ends.
    #[default]
    Kill,
    /// It sleeps.
    Pause,
}

/// What happens to an idle sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IdleAction {
    /// It sleeps.
    #[default]
    Pause,
    /// It ends.
    Kill,
    /// It goes back to its pool.
    Release,
}

/// How a sandbox sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PausePolicy {
    /// Which rung of sleep it goes to.
    #[serde(skip_serializing_if = "is_default")]
    pub snapshot_type: SnapshotType,
    /// Registry to which its layer is pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::REGISTRY))]
    pub snapshot_registry: Option<Box<str>>,
    /// Name of the secret for pushing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_push_secret_name: Option<Name>,
    /// Name of the secret for pulling at resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_image_pull_secret_name: Option<Name>,
    /// Seconds asleep after which it descends from freeze to rootfs, giving up its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descend_after: Option<u32>,
    /// Whether traffic may wake it when only its files were kept.
    #[serde(skip_serializing_if = "is_default")]
    pub wake_from_filesystem: bool,
}

/// Rungs of sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SnapshotType {
    /// Everything kept, frozen in memory.
    #[default]
    Freeze,
    /// The writable layer kept; processes are gone.
    Rootfs,
}

/// What a sandbox may reach, and who may reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicy {
    /// Whether anything outside may be reached at all; absent means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internet_access: Option<bool>,
    /// Addresses, CIDR blocks and domains that may be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NETWORK_ENTRIES), inner(length(max = limits::DOMAIN)))]
    pub allow_out: Vec<Box<str>>,
    /// Addresses and CIDR blocks that may not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NETWORK_ENTRIES), inner(length(max = limits::BLOCK)))]
    pub deny_out: Vec<Box<str>>,
    /// Whether its ports answer without a traffic token; absent means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// The `Host` that requests to its ports are given, with `${PORT}` for the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::HOST))]
    pub mask_request_host: Option<Box<str>>,
}

/// Who may speak to the ports of one delivery. Only hashes are kept: the tokens are derived from
/// the server's own secret and the sandbox's id, so no record can give them away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Access {
    /// SHA-256 of the token that the agent's port demands, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHA256))]
    pub agent_token: Option<Box<str>>,
    /// Whether the agent's port asks for no token.
    #[serde(skip_serializing_if = "is_default")]
    pub agent_is_open: bool,
    /// SHA-256 of the token that other ports demand where public traffic is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHA256))]
    pub traffic_token: Option<Box<str>>,
}

/// What is observed of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxStatus {
    /// Where it is in its life.
    pub phase: Phase,
    /// The spec generation this was observed at.
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: Generation,
    /// The delivery the workload is armed for; behind `spec.epoch` while a claim is being served.
    #[serde(skip_serializing_if = "is_default")]
    pub armed_epoch: Epoch,
    /// The last delivery whose traces are proven gone.
    #[serde(skip_serializing_if = "is_default")]
    pub recycled_epoch: Epoch,
    /// How its ports are reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// The operation in flight, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<Box<Operation>>,
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When its workload first ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it fell asleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// When it was last used; only moves forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_active_at: Option<Timestamp>,
    /// The images it runs, by container.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub images: StringMap,
    /// How often this delivery slept and woke.
    #[serde(skip_serializing_if = "is_default")]
    pub sleeps: Sleeps,
    /// The layer it resumes from, where it sleeps without a workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Digest>,
    /// The size of that layer in bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub snapshot_size: u64,
    /// The image that layer was pushed as, by digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_image: Option<Box<str>>,
    /// The snapshot it was first started from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Box<Stopped>>,
    /// Processes that were killed since its last start because memory ran out.
    #[serde(skip_serializing_if = "is_default")]
    pub oom_kills: u32,
    /// What was wrong of late: only in the answer to a request for this one object.
    #[serde(skip_serializing_if = "<[Warning]>::is_empty")]
    pub recent_warnings: Box<[Warning]>,
}

impl SandboxStatus {
    /// The captured layers without which it could not be started again. Once its first start is
    /// over, what it started from is in its own files.
    pub fn layers(&self) -> impl Iterator<Item = &Digest> {
        let first = self.origin.as_ref().filter(|_| self.started_at.is_none());
        self.snapshot
            .iter()
            .chain(first.map(|origin| &origin.layer))
    }
}

/// How often a sandbox slept and woke. Written with the change of its phase, never by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sleeps {
    /// How often it fell asleep.
    pub slept: u32,
    /// How often it woke.
    pub woken: u32,
    /// When it last woke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_woken_at: Option<Timestamp>,
    /// From which rung.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_woken_from: Option<SnapshotType>,
    /// How long the runtime took for that, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_wake_runtime_micros: Option<u32>,
    /// How long control took besides, from when it first saw that it should wake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_wake_control_micros: Option<u32>,
}

/// How a sandbox's ports are reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// How to dial.
    pub via: Via,
    /// The address of a Pod; empty where the dial happens inside a network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Box<str>>,
}

/// How to dial a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Via {
    /// Inside its network namespace on this machine.
    NetworkNamespace,
    /// At its Pod's address.
    Pod,
}

/// An operation on a sandbox. A failed one is visible here; it never hides a live workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// What is done.
    pub kind: OperationKind,
    /// Fences its effects.
    pub id: OperationId,
    /// The spec generation it serves.
    pub generation: Generation,
    /// How far it is.
    pub state: OperationState,
    /// When it began.
    pub started_at: Timestamp,
    /// How often it was tried.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempts: u32,
    /// Why it failed, or is being tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<str>>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperationState {
    /// Begun; whether it has taken effect is not known until it ends.
    InFlight,
    /// Done.
    Succeeded,
    /// Given up.
    Failed,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    /// Why.
    pub reason: StopReason,
    /// When.
    pub at: Timestamp,
    /// Exit code of its first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What it was that ended it, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<StopCause>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
}

/// What it was that ended a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StopCause {
    /// Its deadline passed.
    Timeout,
    /// Nobody used it for too long.
    IdleTimeout,
    /// It was asleep for too long.
    RetentionTimeout,
    /// It was not ready in time.
    StartupTimeout,
    /// The process that would have told its owner of it died.
    ClaimerLost,
    /// It could not be started.
    StartFailed,
    /// Its first process ended.
    Exited,
    /// Its workload was lost.
    Lost,
    /// It was evicted from its node.
    Evicted,
    /// The node that it ran on was lost.
    NodeLost,
}

/// Why a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StopReason {
    /// Its work was done, or its owner ended it.
    Completed,
    /// It was given back: idle, or its startup took too long.
    Released,
    /// It crashed, was evicted, or was lost.
    Failed,
    /// It ended before it ever ran.
    Canceled,
}
