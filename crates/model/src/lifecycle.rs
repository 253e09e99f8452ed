//! The life of a sandbox, and which requests each moment of it admits.
//!
//! ```text
//!                                  claim                  pause
//!  Pending ──▶ Starting ──▶ Idle ────────▶ Running ─────────────▶ Pausing ──▶ Paused
//!                 │          ▲   (members)  ▲  ▲ └─── freeze ────────────────▶ │ │
//!                 └──────────┼──(others)────┘  └─────── thaw ──────────────────┘ │
//!                            │              ▲                                    │
//!                            │ recycled     └───────── Resuming ◀────────────────┘
//!                        Stopping ◀── release or kill, from any live phase
//!                            │
//!                            ▼                     Failed: it could not be started
//!                         Stopped                  Unknown: nobody can tell now
//! ```
//!
//! - **Pending → Starting**: control takes it up and records that it does, before it acts.
//! - **Starting → Idle / Running**: the workload runs; a pool member without an owner is `Idle`.
//! - **Idle → Running**: a claim's settings are in place inside (it is *armed*).
//! - **Running → Pausing → Paused**: a sleep that captures; recorded first because it can fail
//!   half-way. A freeze goes to `Paused` directly: it is idempotent and can be looked at, so it
//!   needs no record of doubt, and the intent alone already closes admission at the gateways.
//! - **Paused → Resuming → Running**: likewise; a thaw goes to `Running` directly.
//! - **Pausing → Running**, **Resuming → Paused**: the operation failed and the workload decides.
//! - **Stopping → Idle**: a released member of which nothing of the last owner is left.
//! - **→ Unknown**: the runtime cannot be asked. Anything can follow once it answers.
//!
//! A failed operation is recorded in `lastOperation` and as a condition; it is never a phase that
//! hides a running workload. `Failed` is reached only where there is no workload to hide.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sandbox::{DesiredState, OperationState, Sandbox};

/// Where a sandbox is in its life.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum Phase {
    /// Recorded; nothing done yet.
    #[default]
    Pending,
    /// Its workload is being made.
    Starting,
    /// Ready, without an owner.
    Idle,
    /// Awake.
    Running,
    /// Falling asleep by a capture.
    Pausing,
    /// Asleep.
    Paused,
    /// Waking from a capture.
    Resuming,
    /// Being ended, or given back.
    Stopping,
    /// Ended.
    Stopped,
    /// It could not be started.
    Failed,
    /// Nobody can tell now.
    Unknown,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 11] = [
        Self::Pending,
        Self::Starting,
        Self::Idle,
        Self::Running,
        Self::Pausing,
        Self::Paused,
        Self::Resuming,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Unknown,
    ];

    /// The name, as in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Idle => "Idle",
            Self::Running => "Running",
            Self::Pausing => "Pausing",
            Self::Paused => "Paused",
            Self::Resuming => "Resuming",
            Self::Stopping => "Stopping",
            Self::Stopped => "Stopped",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether `next` may be published after this phase. Staying is always allowed.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use Phase::{
            Failed, Idle, Paused, Pausing, Pending, Resuming, Running, Starting, Stopped, Stopping,
            Unknown,
        };
        if self == next {
            return true;
        }
        match self {
            // Stopped: a record restored from a backup can find its workload ended.
            Pending => matches!(next, Starting | Stopping | Stopped | Failed | Unknown),
            Starting => matches!(next, Idle | Running | Stopping | Stopped | Failed | Unknown),
            Idle => matches!(next, Running | Stopping | Stopped | Unknown),
            Running => matches!(next, Pausing | Paused | Stopping | Stopped | Unknown),
            Pausing => matches!(next, Running | Paused | Stopping | Stopped | Unknown),
            Paused => matches!(next, Running | Resuming | Stopping | Stopped | Unknown),
            Resuming => matches!(next, Running | Paused | Stopping | Stopped | Unknown),
            Stopping => matches!(next, Idle | Stopped | Unknown),
            Stopped | Failed => matches!(next, Stopping),
            Unknown => !matches!(next, Pending),
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What is done to a sandbox, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OperationKind {
    /// Making its workload.
    Start,
    /// Putting a claim's settings in place.
    Arm,
    /// Putting it to sleep.
    Pause,
    /// Waking it.
    Resume,
    /// Giving it back to its pool.
    Release,
    /// Ending it.
    Stop,
    /// Changing what it may reach.
    Network,
    /// Looking at what is there.
    Inspect,
}

/// What somebody asks of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make it mine.
    Claim,
    /// Put it to sleep.
    Pause,
    /// Wake it.
    Resume,
    /// Move its deadline.
    Renew,
    /// Give it back to its pool. An opportunistic one (idle, crash seen) names the phase it acts
    /// on, and is refused if that is no longer so.
    Release {
        /// The phase the asker saw.
        expected: Option<Phase>,
    },
    /// End it.
    Kill,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error, Serialize, Deserialize)]
pub enum DenyReason {
    /// It is falling asleep.
    #[error("the sandbox is pausing")]
    Pausing,
    /// It is ending.
    #[error("the sandbox is terminating")]
    Terminating,
    /// Its time is over.
    #[error("the sandbox's deadline has been reached")]
    DeadlineReached,
    /// Its phase does not allow it.
    #[error("the sandbox's phase does not allow this")]
    PhaseNotAllowed,
    /// It has no owner yet.
    #[error("the sandbox has no owner")]
    NotOwned,
    /// Somebody else was first, or it is no longer what the asker saw.
    #[error("the sandbox was changed by another request")]
    Conflict,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write the intent; it takes effect now.
    Do,
    /// It is so already, or the intent is written already: write nothing.
    Already,
    /// Write the intent; it takes effect after this operation, or cancels it where that is safe.
    Deferred(OperationKind),
    /// Write nothing.
    Denied(DenyReason),
}

/// What of a sandbox admission looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Observed phase.
    pub phase: Phase,
    /// Intent.
    pub desired: DesiredState,
    /// Deletion was asked for.
    pub deleting: bool,
    /// It has an owner.
    pub owned: bool,
    /// It is a member of a pool.
    pub pooled: bool,
    /// Its deadline has passed.
    pub deadline_reached: bool,
}

impl Standing {
    /// The standing of a sandbox. Whether its deadline has passed is for the holder of a clock.
    #[must_use]
    pub fn of(sandbox: &Sandbox, deadline_reached: bool) -> Self {
        // A released member looks idle until control takes it up; it is on its way out already.
        let released = was_released(sandbox) && sandbox.status.phase == Phase::Idle;
        Self {
            phase: if released {
                Phase::Stopping
            } else {
                sandbox.status.phase
            },
            desired: sandbox.spec.desired_state,
            deleting: sandbox.metadata.is_deleting(),
            owned: sandbox.spec.owner.is_some(),
            pooled: sandbox.spec.pool.is_some(),
            deadline_reached,
        }
    }

    /// The operation that a live, changing phase is in the middle of.
    const fn in_flight(self) -> Option<OperationKind> {
        match self.phase {
            Phase::Pending | Phase::Starting => Some(OperationKind::Start),
            Phase::Pausing => Some(OperationKind::Pause),
            Phase::Resuming => Some(OperationKind::Resume),
            Phase::Unknown => Some(OperationKind::Inspect),
            Phase::Idle if self.owned => Some(OperationKind::Arm),
            Phase::Running if matches!(self.desired, DesiredState::Paused) => {
                Some(OperationKind::Pause)
            }
            Phase::Paused if matches!(self.desired, DesiredState::Running) => {
                Some(OperationKind::Resume)
            }
            Phase::Stopping => Some(OperationKind::Stop),
            Phase::Idle | Phase::Running | Phase::Paused | Phase::Stopped | Phase::Failed => None,
        }
    }
}

/// Answers a request by where the sandbox stands. Pure and total.
#[must_use]
pub fn admit(request: Request, at: Standing) -> Verdict {
    match request {
        Request::Claim => admit_claim(at),
        Request::Pause => admit_state(at, DesiredState::Paused),
        Request::Resume => admit_state(at, DesiredState::Running),
        Request::Renew => admit_renew(at),
        Request::Release { expected } => admit_release(at, expected),
        Request::Kill if at.deleting => Verdict::Already,
        Request::Kill => Verdict::Do,
    }
}

fn admit_claim(at: Standing) -> Verdict {
    if ending(at) {
        return Verdict::Denied(DenyReason::Terminating);
    }
    if at.owned {
        return Verdict::Denied(DenyReason::Conflict);
    }
    match at.phase {
        Phase::Idle => Verdict::Do,
        Phase::Pending
        | Phase::Starting
        | Phase::Running
        | Phase::Pausing
        | Phase::Paused
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Failed
        | Phase::Unknown => Verdict::Denied(DenyReason::PhaseNotAllowed),
    }
}

/// Pause and resume: the same rules in two directions.
fn admit_state(at: Standing, wanted: DesiredState) -> Verdict {
    if ending(at) {
        return Verdict::Denied(DenyReason::Terminating);
    }
    if matches!(at.phase, Phase::Stopped | Phase::Failed) {
        return Verdict::Denied(DenyReason::PhaseNotAllowed);
    }
    if !at.owned {
        return Verdict::Denied(DenyReason::NotOwned);
    }
    if at.desired == wanted {
        return Verdict::Already;
    }
    if at.deadline_reached && wanted == DesiredState::Running {
        return Verdict::Denied(DenyReason::DeadlineReached);
    }
    at.in_flight().map_or(Verdict::Do, Verdict::Deferred)
}

fn admit_renew(at: Standing) -> Verdict {
    if ending(at) {
        return Verdict::Denied(DenyReason::Terminating);
    }
    if !at.owned {
        return Verdict::Denied(DenyReason::NotOwned);
    }
    if at.deadline_reached {
        return Verdict::Denied(DenyReason::DeadlineReached);
    }
    match at.phase {
        Phase::Pending
        | Phase::Starting
        | Phase::Idle
        | Phase::Running
        | Phase::Resuming
        | Phase::Unknown => Verdict::Do,
        Phase::Pausing => Verdict::Denied(DenyReason::Pausing),
        Phase::Paused | Phase::Stopping | Phase::Stopped | Phase::Failed => {
            Verdict::Denied(DenyReason::PhaseNotAllowed)
        }
    }
}

fn admit_release(at: Standing, expected: Option<Phase>) -> Verdict {
    if at.deleting {
        return Verdict::Denied(DenyReason::Terminating);
    }
    if !at.pooled {
        return Verdict::Denied(DenyReason::PhaseNotAllowed);
    }
    if !at.owned {
        return Verdict::Already;
    }
    match expected {
        Some(seen) if seen != at.phase && at.phase == Phase::Pausing => {
            Verdict::Denied(DenyReason::Pausing)
        }
        Some(seen) if seen != at.phase => Verdict::Denied(DenyReason::Conflict),
        Some(_) | None => at.in_flight().map_or(Verdict::Do, Verdict::Deferred),
    }
}

fn ending(at: Standing) -> bool {
    at.deleting || at.phase == Phase::Stopping
}

/// Whether a pool member has had an owner whose traces are not proven gone.
#[must_use]
pub fn was_released(sandbox: &Sandbox) -> bool {
    sandbox.spec.pool.is_some()
        && sandbox.spec.owner.is_none()
        && sandbox.spec.epoch > sandbox.status.recycled_epoch
}

/// Whether a sandbox that runs is being closed to traffic, to be ended or released if nobody turns
/// out to be inside.
#[must_use]
pub fn is_closing(sandbox: &Sandbox) -> bool {
    let ends = |kind| matches!(kind, OperationKind::Stop | OperationKind::Release);
    let status = &sandbox.status;
    let operation = status.last_operation.as_deref();
    status.phase == Phase::Running
        && operation.is_some_and(|op| ends(op.kind) && op.state == OperationState::InFlight)
}

/// What a gateway may do with a request for a sandbox, derived from intent and observation, so
/// that a pause closes admission the moment it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Traffic {
    /// Not reachable yet.
    Creating,
    /// No owner: nobody's requests.
    Idle,
    /// Forward.
    Running,
    /// Falling asleep: hold.
    Pausing,
    /// Asleep: wake it, where allowed.
    Paused,
    /// Waking: hold.
    Resuming,
    /// Nobody can tell now: hold.
    Unknown,
    /// Over: the route goes.
    Dead,
}

/// The traffic state of a sandbox.
#[must_use]
pub fn traffic(sandbox: &Sandbox) -> Traffic {
    let spec = &sandbox.spec;
    if sandbox.metadata.is_deleting() {
        return Traffic::Dead;
    }
    let status = &sandbox.status;
    match (status.phase, spec.desired_state) {
        (Phase::Stopped | Phase::Failed, _) => Traffic::Dead,
        // A released member keeps its row and has no id to be reached by.
        (_, _) if spec.owner.is_none() => Traffic::Idle,
        (Phase::Stopping, _) => Traffic::Dead,
        (Phase::Pending | Phase::Starting | Phase::Idle, _) => Traffic::Creating,
        // Claimed again while the last delivery is still inside: not this owner's yet.
        (_, _) if status.armed_epoch != spec.epoch => Traffic::Creating,
        (Phase::Running, DesiredState::Running) => Traffic::Running,
        (Phase::Running, DesiredState::Paused) | (Phase::Pausing, _) => Traffic::Pausing,
        (Phase::Paused, DesiredState::Paused) => Traffic::Paused,
        (Phase::Paused, DesiredState::Running) | (Phase::Resuming, _) => Traffic::Resuming,
        (Phase::Unknown, _) => Traffic::Unknown,
    }
}

#[cfg(test)]
mod tests;
