//! How many members a pool that follows demand keeps idle.
//!
//! ```text
//!  minIdle, schedules ─────────────▶ at once
//!  claims that wait, recent claims ─▶ up,   at most once in upCooldown      ──▶ between minIdle
//!  more idle than needed ───────────▶ down, half-way, each downCooldown        and maxIdle
//! ```
//!
//! What is needed is the largest of what the pool asks for, what a schedule asks for, as many more
//! as wait, and as many as come in a while at the rate of late. It is raised to that, and lowered
//! only after more than that was idle for the whole of `downCooldownSeconds`. Members above it go
//! at that moment and no other: one that comes back from its owner a little later is still welcome.
//!
//! Whether a cooldown is over is judged by elapsed time and comes in as [`Due`]; only schedules go
//! by the wall clock, because they are about it. What has to be remembered is in the pool's status.

use std::{collections::VecDeque, time::Duration};

use model::{
    Timestamp,
    autoscale::{Autoscale, AutoscaleReason, AutoscaleStatus},
    event::Severity,
    pool::PoolSpec,
};

use crate::Note;

/// How long a pool with schedules rests at the most: the wall clock may jump over a beginning.
pub const LOOK_AT_SCHEDULES: Duration = Duration::from_secs(60);

/// What is asked of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Claims that wait for a member.
    pub waiting: u32,
    /// Claims that came within the window of its rate.
    pub recent: u32,
}

/// Which cooldowns are over, judged by elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// It may be raised again.
    pub up: bool,
    /// It has been quiet for long enough.
    pub quiet: bool,
}

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The pool.
    pub spec: &'a PoolSpec,
    /// What was decided before.
    pub status: Option<&'a AutoscaleStatus>,
    /// What is asked of it.
    pub demand: Demand,
    /// Its members without an owner that are not on their way out.
    pub free: u32,
    /// Whether everything that it asked for was seen: nothing is lowered before.
    pub settled: bool,
    /// Which cooldowns are over.
    pub due: Due,
    /// For schedules, and for stamping records.
    pub now: Timestamp,
}

/// How many are kept idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be remembered.
    pub status: AutoscaleStatus,
    /// Whether members above that go now.
    pub trim: bool,
    /// What people should read of it.
    pub note: Option<Note>,
}

/// Decides how many are kept idle; `None` for a pool that does not follow demand.
#[must_use]
pub fn plan_autoscale(view: View<'_>) -> Option<Decision> {
    let rules = view.spec.autoscale.as_deref()?;
    let (least, most) = (view.spec.min_idle, top(view.spec));
    let mut status = view.status.cloned().unwrap_or_default();
    let before = view.status.map_or(least, |known| known.min_idle);
    // A change of its bounds is followed at once.
    status.min_idle = before.clamp(least.min(most), most);
    if status.min_idle != before || view.status.is_none() {
        let count = status.min_idle;
        let need = Need {
            count,
            ..Need::configured(least)
        };
        set(&mut status, need, None);
    }
    let fixed = scheduled(rules, view.now, most).map_or(Need::configured(least), |scheduled| {
        scheduled.max(Need::configured(least))
    });
    let needed = by_demand(view, rules).map_or(fixed.clone(), |need| need.max(fixed.clone()));
    let now = status.min_idle;
    let raise = if fixed.count.min(most) > now {
        Some(fixed)
    } else if needed.count.min(most) > now && view.due.up {
        Some(needed.clone())
    } else {
        None
    };
    let needed = needed.count.min(most);
    if let Some(mut need) = raise {
        need.count = need.count.min(most);
        let message = format!(
            "keeps {} members idle instead of {now}: {}",
            need.count, need.why
        );
        set(&mut status, need, Some(&message));
        status.raised_at = Some(view.now);
        status.quiet_since = None;
        return Some(decided(status, false, Some("ScaledUp")));
    }
    let surplus = view.demand.waiting == 0 && (now > needed || view.free > now);
    if !surplus {
        // What is on its way out or in says nothing of demand.
        if view.settled {
            status.quiet_since = None;
        }
        return Some(decided(status, false, None));
    }
    let since = *status.quiet_since.get_or_insert(view.now);
    // A timer that was not running before this moment has not run out.
    let running = view.status.and_then(|known| known.quiet_since) == Some(since);
    if !(view.due.quiet && running && view.settled) {
        return Some(decided(status, false, None));
    }
    let next = now - now.saturating_sub(needed).div_ceil(2);
    // Never the same moment twice, whatever the wall clock does: it names another timer.
    let again = view.now.max(since.plus(Duration::from_micros(1)));
    status.quiet_since = (next > needed).then_some(again);
    let mut word = None;
    if next < now {
        let message = format!("keeps {next} members idle instead of {now}: no more are needed");
        let need = Need {
            count: next,
            reason: AutoscaleReason::Quiet,
            why: String::new(),
        };
        set(&mut status, need, Some(&message));
        word = Some("ScaledDown");
    }
    Some(decided(status, true, word))
}

/// When to look again, if nothing happens before: at the beginning of a schedule, and from time to
/// time because of those that end.
#[must_use]
pub fn next_look(rules: &Autoscale, now: Timestamp) -> Option<Duration> {
    let begins = rules.schedules.iter().filter_map(|schedule| {
        let next = schedule.read().ok()?.at(now).next?;
        Some(next.since(now))
    });
    let first = begins.min();
    (!rules.schedules.is_empty())
        .then(|| first.map_or(LOOK_AT_SCHEDULES, |next| next.min(LOOK_AT_SCHEDULES)))
}

/// The most that may be kept idle.
fn top(spec: &PoolSpec) -> u32 {
    spec.max_idle.min(spec.max)
}

#[derive(Clone, Debug)]
struct Need {
    count: u32,
    reason: AutoscaleReason,
    why: String,
}

impl Need {
    fn configured(count: u32) -> Self {
        Self {
            count,
            reason: AutoscaleReason::Configured,
            why: format!("spec.minIdle is {count}"),
        }
    }

    /// The larger; of two that are as large, this one.
    fn max(self, other: Self) -> Self {
        if other.count > self.count {
            other
        } else {
            self
        }
    }
}

/// What schedules ask for that hold now.
fn scheduled(rules: &Autoscale, now: Timestamp, most: u32) -> Option<Need> {
    let holding = rules.schedules.iter().filter(|schedule| {
        // One that cannot be read was refused at the edge; nothing else follows from it here.
        schedule.read().is_ok_and(|calendar| calendar.at(now).holds)
    });
    let largest = holding.max_by_key(|schedule| schedule.min_idle)?;
    Some(Need {
        count: largest.min_idle.min(most),
        reason: AutoscaleReason::Schedule,
        why: format!("the schedule {:?} holds", largest.cron),
    })
}

fn by_demand(view: View<'_>, rules: &Autoscale) -> Option<Need> {
    let Demand { waiting, recent } = view.demand;
    let queue = (rules.by_queue && waiting > 0).then(|| Need {
        count: view.spec.min_idle.saturating_add(waiting),
        reason: AutoscaleReason::Queue,
        why: format!("{waiting} claims wait"),
    });
    let rate = rules.claim_rate;
    let covered = u64::from(recent) * u64::from(rate.cover_seconds);
    let covered = covered.div_ceil(u64::from(rate.window_seconds.max(1)));
    let often = (covered > 0).then(|| Need {
        count: u32::try_from(covered).unwrap_or(u32::MAX),
        reason: AutoscaleReason::ClaimRate,
        why: format!("{recent} claims came within {} s", rate.window_seconds),
    });
    match (queue, often) {
        (Some(queue), Some(often)) => Some(queue.max(often)),
        (queue, often) => queue.or(often),
    }
}

fn set(status: &mut AutoscaleStatus, need: Need, message: Option<&str>) {
    status.min_idle = need.count;
    status.reason = need.reason;
    status.message = message.map_or_else(|| need.why.into(), Into::into);
}

fn decided(status: AutoscaleStatus, trim: bool, word: Option<&'static str>) -> Decision {
    let note = word.map(|reason| Note {
        severity: Severity::Normal,
        reason,
        message: status.message.clone(),
    });
    Decision { status, trim, note }
}

/// Parts of a window that are counted together.
const PARTS: u32 = 32;

/// Claims of late, from a count that only grows. In the memory of one process: a new one begins
/// with none, and what was raised stays for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    counted: u64,
    /// When a part began, on the monotonic clock, and how many came in it.
    parts: VecDeque<(Duration, u32)>,
}

impl Window {
    /// Takes note of how many came so far. Answers how many of them came within `window`.
    pub fn observe(&mut self, so_far: u64, now: Duration, window: Duration) -> u32 {
        let more = so_far.saturating_sub(self.counted);
        self.counted = so_far;
        self.parts
            .retain(|(began, _)| now.saturating_sub(*began) < window);
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            match self.parts.back_mut() {
                Some((began, count)) if now.saturating_sub(*began) < window / PARTS => {
                    *count = count.saturating_add(more);
                }
                Some(_) | None => self.parts.push_back((now, more)),
            }
        }
        self.parts
            .iter()
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// How long until the oldest of them no longer counts.
    #[must_use]
    pub fn until_fewer(&self, now: Duration, window: Duration) -> Option<Duration> {
        let (began, _) = self.parts.front()?;
        Some((*began + window).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests;
