//! Which timers of a sandbox run, and when each runs out on the wall clock.
//!
//! Whether one *has* run out is not decided here: a holder of a monotonic clock measures the time
//! that is left from when it first saw the timer, so that a jump of the wall clock ends nothing.

use std::time::Duration;

use model::{
    Sandbox, Timestamp,
    lifecycle::Phase,
    sandbox::{DesiredState, OperationState, SnapshotType},
};

use crate::idle::{Activity, Idle, plan_idle};

/// When each timer runs out; `None` for one that does not run. Where a timer's whole length is
/// known it comes with it: whatever the wall clock did, no more than that can be left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// Its deadline.
    pub end: Option<Timestamp>,
    /// Its idle timeout.
    pub idle: Idle,
    /// Its descent from freeze to rootfs.
    pub descend: Option<(Timestamp, Duration)>,
    /// How long it is kept asleep.
    pub retention: Option<(Timestamp, Duration)>,
    /// The pause after a failed operation.
    pub retry: Option<(Timestamp, Duration)>,
}

/// How long a given-up pause is left alone before a standing order tries it again.
pub const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The timers of a sandbox.
#[must_use]
pub fn timers(sandbox: &Sandbox, activity: Activity) -> Timers {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    let sleeping = spec.desired_state == DesiredState::Paused;
    let retry = status
        .last_operation
        .as_ref()
        .filter(|op| op.state == OperationState::Failed)
        .map(|op| (op.started_at.plus(RETRY_AFTER), RETRY_AFTER));
    Timers {
        // Nothing happens at it while it sleeps, but it is measured all the same: taken up anew
        // later, a jump of the clock in between would count.
        end: spec.timeouts.end_at,
        idle: plan_idle(sandbox, activity),
        descend: spec
            .pause_policy
            .as_ref()
            .filter(|policy| sleeping && policy.snapshot_type == SnapshotType::Freeze)
            .filter(|_| status.phase == Phase::Paused && status.snapshot.is_none())
            .and_then(|policy| policy.descend_after)
            .map(|after| Duration::from_secs(after.into()))
            .and_then(|after| Some((status.paused_at?.plus(after), after))),
        retention: plan_retention(sandbox, retry.map(|(at, _)| at)),
        retry,
    }
}

/// When a sandbox that sleeps has been kept for long enough. Whoever failed to wake it at the last
/// moment can try once more.
fn plan_retention(sandbox: &Sandbox, retry: Option<Timestamp>) -> Option<(Timestamp, Duration)> {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    let sleeps = spec.desired_state == DesiredState::Paused && status.phase == Phase::Paused;
    let seconds = spec.timeouts.paused_retention_seconds.filter(|_| sleeps)?;
    let whole = Duration::from_secs(seconds.into());
    let over = status.paused_at?.plus(whole);
    Some(match retry {
        Some(retry) => (over.max(retry), whole.max(RETRY_AFTER)),
        None => (over, whole),
    })
}
