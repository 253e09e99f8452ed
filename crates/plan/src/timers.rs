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

/// What is known of a sandbox's use.
///
/// A source that cannot be reached is not a source that saw nothing: while any source is unknown,
/// nobody is put to sleep on its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It is in use now: a request, stream, session or command is open.
    InUse,
    /// It was last used then, by all sources together; `None` if no source ever saw use.
    LastUsed(Option<Timestamp>),
    /// Some source cannot be asked.
    Unknown,
}

/// When each timer runs out; `None` for one that does not run. Where a timer's whole length is
/// known it comes with it: whatever the wall clock did, no more than that can be left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// Its deadline.
    pub end: Option<Timestamp>,
    /// Its idle timeout.
    pub idle: Option<(Timestamp, Duration)>,
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

/// When an idle sandbox's patience ends; `None` while it must not be put to sleep.
#[must_use]
pub fn plan_idle(sandbox: &Sandbox, activity: Activity) -> Option<(Timestamp, Duration)> {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    if status.phase != Phase::Running || spec.desired_state == DesiredState::Paused {
        return None;
    }
    let patience = Duration::from_secs(spec.timeouts.idle_seconds?.into());
    let seen = match activity {
        Activity::InUse | Activity::Unknown => return None,
        Activity::LastUsed(seen) => seen,
    };
    // The newest of everything known: what sources saw, what was persisted, when it woke.
    let last = seen
        .max(status.last_active_at)
        .max(status.started_at)
        .max(spec.claimed_at)?;
    Some((last.plus(patience), patience))
}

#[cfg(test)]
mod tests {
    use model::{Metadata, Name, Namespace, sandbox::SandboxSpec};

    use super::*;

    fn running(idle_seconds: u32) -> Sandbox {
        let meta = Metadata::new(Some(Namespace::new("t").unwrap()), Name::new("a").unwrap());
        let mut sandbox = Sandbox::new(meta, SandboxSpec::default());
        sandbox.spec.timeouts.idle_seconds = Some(idle_seconds);
        sandbox.status.phase = Phase::Running;
        sandbox.status.started_at = Some(Timestamp::from_micros(0));
        sandbox
    }

    #[test]
    fn nobody_is_put_to_sleep_while_in_use_or_while_a_source_is_unknown() {
        let sandbox = running(10);
        assert_eq!(plan_idle(&sandbox, Activity::InUse), None);
        assert_eq!(plan_idle(&sandbox, Activity::Unknown), None);
        let idle = plan_idle(&sandbox, Activity::LastUsed(None));
        let patience = Duration::from_secs(10);
        assert_eq!(idle, Some((Timestamp::from_micros(10_000_000), patience)));
    }

    #[test]
    fn the_newest_sign_of_use_counts() {
        let mut sandbox = running(10);
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        sandbox.status.last_active_at = Some(at(5));
        assert_eq!(
            plan_idle(&sandbox, Activity::LastUsed(Some(at(3)))),
            Some((at(15), Duration::from_secs(10)))
        );
        assert_eq!(
            plan_idle(&sandbox, Activity::LastUsed(Some(at(8)))),
            Some((at(18), Duration::from_secs(10)))
        );
    }
}
