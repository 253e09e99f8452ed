//! When an idle sandbox is put to sleep, ended or released.
//!
//! A *source* is whoever sees use: a gateway, or a peer that speaks for one. It says what it sees
//! now, how long ago it last saw use, and how long it has been watching. All sources together
//! ([`Activity::union`]) decide:
//!
//! - One that sees use keeps the sandbox awake.
//! - One that **cannot be reached** is not one that saw nothing: while any is unknown, nobody is put
//!   to sleep.
//! - One that has not watched for a whole patience cannot vouch for the time before. For that time
//!   the record stands in: `status.lastActiveAt` is persisted while a sandbox is in use, at least
//!   every [`staleness`], so that true use is at most that much later than what is written.
//!
//! Times of sources are elapsed ones, and those of the record are measured by a monotonic clock
//! from when they are first seen: a jump of the wall clock makes nobody idle.
//!
//! # Bounds
//! With a patience of `p` (`idleSeconds`), `w` = max(`p`, one minute) and all sources reachable:
//!
//! - **Never early**: a sandbox is not acted upon before `p` has passed since its last use ended.
//!   Two failures at once can break this, and nothing less: a source forgets (a gateway dies) what
//!   it saw while control was not there to write it down.
//! - **Late** by no more than control takes for a turn. Who finds it in use at `t` looks again at
//!   `t + p`, the first moment at which it could be idle, and then at the moment it is.
//! - **After a restart** that forgets what was seen, late by at most `p + w`, or `p` after it.
//! - **Writes**: each of `lastActiveAt` moves it forward by at least `w`; none for what is not used.

use std::time::Duration;

use model::{Sandbox, Timestamp, lifecycle::Phase, sandbox::DesiredState};

/// Use is not written down more often than this.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// What is known of a sandbox's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It is in use now: a request, stream, session or command is open.
    InUse,
    /// It is not.
    Quiet {
        /// How long ago use ended, if any was seen.
        last: Option<Duration>,
        /// For how long it was watched.
        watched: Duration,
    },
    /// Some source cannot be asked.
    Unknown,
}

impl Activity {
    /// Where nothing measures use: only what the record says counts.
    pub const RECORD_ONLY: Self = Self::Quiet {
        last: None,
        watched: Duration::MAX,
    };

    /// What several sources know together.
    #[must_use]
    pub fn union(sources: impl IntoIterator<Item = Self>) -> Self {
        sources
            .into_iter()
            .fold(Self::RECORD_ONLY, |all, one| match (all, one) {
                (Self::InUse, _) | (_, Self::InUse) => Self::InUse,
                (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
                (
                    Self::Quiet { last, watched },
                    Self::Quiet {
                        last: other,
                        watched: since,
                    },
                ) => Self::Quiet {
                    last: last.into_iter().chain(other).min(),
                    watched: watched.min(since),
                },
            })
    }
}

/// How the idle timeout of a sandbox stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// It does not run: none is set, or it does not run itself.
    #[default]
    Off,
    /// It cannot be idle yet. Look again after this long.
    Look(Duration),
    /// It is over when both are.
    Timer {
        /// This moment of the record, of which no more than `whole` can be left.
        at: Timestamp,
        /// See `at`.
        whole: Duration,
        /// What is left by what sources saw.
        left: Duration,
        /// Look again after this long in any case: then more is known.
        look: Option<Duration>,
    },
}

/// How the idle timeout of a sandbox stands.
#[must_use]
pub fn plan_idle(sandbox: &Sandbox, activity: Activity) -> Idle {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    let Some(patience) = patience(sandbox) else {
        return Idle::Off;
    };
    let (last, watched) = match activity {
        Activity::InUse | Activity::Unknown => return Idle::Look(patience),
        Activity::Quiet { last, watched } => (last, watched),
    };
    // The newest of everything recorded: when it was used, when it woke, when it was claimed.
    let recorded = status
        .last_active_at
        .max(status.started_at)
        .max(spec.claimed_at);
    let Some(recorded) = recorded else {
        return Idle::Off;
    };
    let (whole, look) = match patience.checked_sub(watched) {
        Some(unwatched) if !unwatched.is_zero() => {
            (patience + staleness(patience), Some(unwatched))
        }
        Some(_) | None => (patience, None),
    };
    Idle::Timer {
        at: recorded.plus(whole),
        whole,
        left: patience.saturating_sub(last.unwrap_or(Duration::MAX)),
        look,
    }
}

/// The patience of a sandbox that can be idle at all.
fn patience(sandbox: &Sandbox) -> Option<Duration> {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    let runs = status.phase == Phase::Running && spec.desired_state == DesiredState::Running;
    let seconds = spec.timeouts.idle_seconds.filter(|_| runs)?;
    Some(Duration::from_secs(seconds.into()))
}

/// By how much use can be later than what is written of it: what is looked at every patience is
/// written when it is older than `w`.
#[must_use]
pub fn staleness(patience: Duration) -> Duration {
    patience + patience.max(WRITE_EVERY)
}

/// The time of last use to write down, if what is written is too old.
#[must_use]
pub fn plan_last_active(
    sandbox: &Sandbox,
    activity: Activity,
    now: Timestamp,
) -> Option<Timestamp> {
    let patience = patience(sandbox)?;
    let used = match activity {
        Activity::InUse => now,
        Activity::Quiet { last, .. } => {
            let ago = i64::try_from(last?.as_micros()).unwrap_or(i64::MAX);
            Timestamp::from_micros(now.as_micros().saturating_sub(ago))
        }
        Activity::Unknown => return None,
    };
    let written = sandbox.status.last_active_at;
    let is_old = |written: Timestamp| used >= written.plus(patience.max(WRITE_EVERY));
    written.is_none_or(is_old).then_some(used)
}

#[cfg(test)]
mod tests;
