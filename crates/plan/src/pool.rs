//! How many members a pool makes and removes.
//!
//! A pool keeps between `minIdle` and `maxIdle` members without an owner, one for each claim that
//! waits, and never more than `max` in all. Only members without an owner are ever removed, each
//! with the uid and version that was seen, so that a claim that comes in between wins.
//!
//! Members that end before anybody has them are replaced at once the first time, and later each
//! time after, until one comes up: what fails for good must not be made without end.
//!
//! A pool that is deleted lets go of members that have an owner: they stay their owner's and end
//! when their owner ends them. Nobody is left to take them back.

use std::time::Duration;

use model::{
    Key, Metadata, SandboxPool, StringMap, Timestamp, Uid, Version,
    event::Severity,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus, set_condition},
    pool::{Failing, POOL_FINALIZER, PoolSpec, PoolStatus},
    trouble::{TROUBLED, Trouble},
    validate::RESERVED_PREFIX,
};

use crate::{
    Note, Plan,
    autoscale::{self, Decision, Demand, plan_autoscale},
    limit::{self, Limit},
};

/// A member as the pool sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it is found.
    pub key: Key,
    /// Its identity.
    pub uid: Uid,
    /// The version that was seen.
    pub version: Version,
    /// Its phase.
    pub phase: Phase,
    /// Whether it has an owner.
    pub owned: bool,
    /// Whether it had an owner whose traces are not proven gone.
    pub dirty: bool,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Whether it was made from the pool's current template.
    pub current: bool,
    /// When it was created.
    pub created: Timestamp,
    /// Why it ended, if it did: in one word, where there is one, and in a sentence.
    pub ended: Option<(Option<Trouble>, Box<str>)>,
}

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The pool.
    pub pool: &'a SandboxPool,
    /// Its members, in any order.
    pub members: &'a [Member],
    /// Creations and deletions asked for and not seen yet.
    pub unseen: (usize, usize),
    /// What is asked of it.
    pub demand: Demand,
    /// Which timers have run out.
    pub due: Due,
    /// What keeps it from making all that it wants to.
    pub limit: Option<Limit<'a>>,
    /// Whether its template exists.
    pub template: bool,
    /// The revision new members are made from.
    pub revision: &'a str,
    /// For stamping records.
    pub now: Timestamp,
}

/// Which timers of a pool have run out, judged by elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The cooldowns of what follows demand.
    pub autoscale: autoscale::Due,
    /// The time before members that ended are replaced once more.
    pub replace: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hold the record while it has members.
    AddFinalizer,
    /// Let the record go.
    RemoveFinalizer,
    /// Write what is observed.
    Publish(Box<PoolStatus>),
    /// Say what people should read later.
    Tell(Note),
    /// Make this many members.
    Create(u32),
    /// Remove a member, if it is still as it was seen.
    Delete(Member),
    /// Leave a member to its owner.
    LetGo(Member),
}

/// Decides what to make and remove.
#[must_use]
pub fn plan_pool(view: View<'_>) -> Plan<Step> {
    let View { pool, members, .. } = view;
    if pool.metadata.is_deleting() {
        return end(view);
    }
    if !pool.metadata.has_finalizer(POOL_FINALIZER) {
        return Plan::step(Step::AddFinalizer, "its members must not be forgotten");
    }
    let followed = follow(view);
    let (mut steps, why) = scale(view, followed.as_ref());
    let mut status = observe(view, &why);
    status.failing = failing(view, &steps);
    say_trouble(&mut status, view);
    let mut notes = Vec::new();
    if let Some(failing) = status.failing.as_ref().filter(|now| {
        let before = pool.status.failing.as_ref();
        before.is_none_or(|before| before.times != now.times)
    }) {
        notes.push(Note {
            severity: Severity::Warning,
            reason: "MembersFail",
            message: failing.message.clone(),
        });
    }
    status.autoscale = followed.map(|decision| {
        notes.extend(decision.note);
        Box::new(decision.status)
    });
    if status != pool.status {
        // Publish last: what it says of the reason is about these very steps.
        steps.push(Step::Publish(Box::new(status)));
    }
    steps.extend(notes.into_iter().map(Step::Tell));
    debug_assert!(
        steps
            .iter()
            .all(|s| !matches!(s, Step::Delete(m) if m.owned)),
        "{members:?}"
    );
    Plan {
        steps,
        why: why.into(),
    }
}

fn end(view: View<'_>) -> Plan<Step> {
    if !view.pool.metadata.has_finalizer(POOL_FINALIZER) {
        return Plan::rest("others still have to clean up");
    }
    if view.unseen.0 > 0 {
        return Plan::rest(format!(
            "{} members it made are not visible yet",
            view.unseen.0
        ));
    }
    let removable: Vec<_> = view
        .members
        .iter()
        .filter(|m| !m.owned && !m.deleting)
        .map(|m| Step::Delete(m.clone()))
        .collect();
    if !removable.is_empty() {
        return Plan {
            steps: removable,
            why: "the pool is being deleted".into(),
        };
    }
    let owned: Vec<_> = view
        .members
        .iter()
        .filter(|m| m.owned)
        .map(|m| Step::LetGo(m.clone()))
        .collect();
    if !owned.is_empty() {
        return Plan {
            why: format!("leaves {} claimed members to their owners", owned.len()).into(),
            steps: owned,
        };
    }
    if view.members.is_empty() {
        return Plan::step(Step::RemoveFinalizer, "it has no members left");
    }
    let why = format!("{} members are still being ended", view.members.len());
    let status = observe(view, &why);
    Plan {
        steps: (status != view.pool.status)
            .then(|| Step::Publish(Box::new(status)))
            .into_iter()
            .collect(),
        why: why.into(),
    }
}

/// How many are kept idle, where that follows demand.
fn follow(view: View<'_>) -> Option<Decision> {
    let staying = view
        .members
        .iter()
        .filter(|m| !m.owned && !m.deleting && !m.dirty);
    plan_autoscale(autoscale::View {
        spec: &view.pool.spec,
        status: view.pool.status.autoscale.as_deref(),
        demand: view.demand,
        free: u32::try_from(staying.count()).unwrap_or(u32::MAX),
        settled: view.unseen == (0, 0),
        due: view.due.autoscale,
        now: view.now,
    })
}

fn is_over(member: &Member) -> bool {
    matches!(member.phase, Phase::Stopped | Phase::Failed)
}

/// Whether a member ended before anybody had it. One that was given back ended for what its owner
/// did, and says nothing of the next.
fn never_served(member: &Member) -> bool {
    is_over(member) && !member.dirty
}

/// How long members that ended are left alone when they were replaced this often in a row.
#[must_use]
pub fn replace_after(failing: &Failing) -> Duration {
    const MOST: Duration = Duration::from_secs(300);
    Duration::from_secs(1 << failing.times.min(16)).min(MOST)
}

/// What is to be remembered of members that end before anybody has them.
fn failing(view: View<'_>, steps: &[Step]) -> Option<Box<Failing>> {
    let known = view.pool.status.failing.as_deref();
    let replaced = steps.iter().rev().find_map(|step| match step {
        Step::Delete(member) if never_served(member) && member.current => Some(member),
        _ => None,
    });
    if let Some(member) = replaced {
        return Some(Box::new(Failing {
            times: known.map_or(1, |known| known.times.saturating_add(1)),
            at: view.now,
            reason: member.ended.as_ref().and_then(|(word, _)| *word),
            message: member
                .ended
                .as_ref()
                .map(|(_, message)| message.clone())
                .unwrap_or_default(),
        }));
    }
    let known = known?;
    let came_up = |m: &Member| {
        let up = matches!(m.phase, Phase::Idle | Phase::Running | Phase::Paused);
        m.created > known.at && m.current && up
    };
    (!view.members.iter().any(came_up)).then(|| Box::new(known.clone()))
}

/// Says in one word what is wrong with a pool, while something is.
fn say_trouble(status: &mut PoolStatus, view: View<'_>) {
    let full = status.claimed >= view.pool.spec.max && view.demand.waiting > 0;
    let trouble = match (&status.failing, view.limit) {
        (Some(failing), _) if failing.times > 1 => {
            let word = failing.reason.unwrap_or(Trouble::RuntimeFailed).again();
            Some((word, failing.message.clone()))
        }
        (_, Some(limit)) => Some((
            Trouble::Limited,
            format!("{}: {}", limit.by, limit.why).into(),
        )),
        (_, None) if full => Some((Trouble::NoCapacity, status.why.clone())),
        (_, None) => None,
    };
    let Some((word, message)) = trouble else {
        return status.conditions.retain(|c| &*c.kind != TROUBLED);
    };
    let condition = Condition {
        kind: TROUBLED.into(),
        status: ConditionStatus::True,
        reason: word.as_str().into(),
        message,
        last_transition_time: view.now,
        observed_generation: view.pool.metadata.generation,
    };
    set_condition(&mut status.conditions, condition);
}

fn scale(view: View<'_>, followed: Option<&Decision>) -> (Vec<Step>, String) {
    let spec = &view.pool.spec;
    let (creations, deletions) = view.unseen;
    if creations + deletions > 0 {
        return (
            Vec::new(),
            format!("waits to see {creations} creations and {deletions} deletions"),
        );
    }
    if !view.template {
        return (
            Vec::new(),
            format!("template {} does not exist", spec.template),
        );
    }
    let free = || view.members.iter().filter(|m| !m.owned && !m.deleting);
    // One of another revision ended for what may have been put right since.
    let patient = view.pool.status.failing.is_some() && !view.due.replace;
    let ended: Vec<_> = free()
        .filter(|m| is_over(m) && !(patient && m.current && never_served(m)))
        .map(|m| Step::Delete(m.clone()))
        .collect();
    if !ended.is_empty() {
        let why = format!("replaces {} members that ended", ended.len());
        return (ended, why);
    }
    if let Some(plan) = shrink(view, followed) {
        return plan;
    }
    let waiting = u32::try_from(free().count()).unwrap_or(u32::MAX);
    let keeps = followed.map_or(spec.min_idle, |decision| decision.status.min_idle);
    let target = keeps.max(view.demand.waiting);
    if waiting < target {
        return grow(view, target - waiting);
    }
    let held = free().filter(|m| is_over(m)).count();
    let (steps, why) = roll(view, &free().collect::<Vec<_>>());
    match &view.pool.status.failing {
        Some(failing) if held > 0 && steps.is_empty() => {
            let after = replace_after(failing).as_secs();
            let last = &failing.message;
            let why = format!("replaces {held} members that ended after {after} s: {last}");
            (steps, why)
        }
        Some(_) | None => (steps, why),
    }
}

/// Makes what is missing, as far as it may.
fn grow(view: View<'_>, wanted: u32) -> (Vec<Step>, String) {
    let most = view.pool.spec.max;
    let total = u32::try_from(view.members.len()).unwrap_or(u32::MAX);
    let room = wanted.min(most.saturating_sub(total));
    if room == 0 {
        let why = format!("wants {wanted} more idle members but is at its max of {most}");
        return kept_up_to_date(view, why);
    }
    let count = view.limit.map_or(room, |limit| room.min(limit.admitted));
    if let Some(limit) = view.limit.filter(|_| count < room) {
        let why = format!(
            "{} admits {count} of {room} new members: {}",
            limit.by, limit.why
        );
        return match count {
            0 => kept_up_to_date(view, why),
            _ => (vec![Step::Create(count)], why),
        };
    }
    let short = match wanted - count {
        0 => String::new(),
        fewer => format!(", {fewer} fewer than wanted for its max"),
    };
    let why = format!("makes {count} members{short}");
    (vec![Step::Create(count)], why)
}

/// A pool that can make no more still keeps those it has up to date.
fn kept_up_to_date(view: View<'_>, why: String) -> (Vec<Step>, String) {
    let free = view.members.iter().filter(|m| !m.owned && !m.deleting);
    let rolled = roll(view, &free.collect::<Vec<_>>());
    if rolled.0.is_empty() {
        (Vec::new(), why)
    } else {
        rolled
    }
}

/// Removes members that are too many. One that was given back may still go by itself: until that
/// is known, nobody else goes for it.
fn shrink(view: View<'_>, followed: Option<&Decision>) -> Option<(Vec<Step>, String)> {
    let spec = &view.pool.spec;
    let staying = || view.members.iter().filter(|m| !m.deleting && !m.dirty);
    let mut free: Vec<&Member> = staying().filter(|m| !m.owned).collect();
    let trimmed = followed.filter(|decision| decision.trim);
    let most = trimmed.map_or(spec.max_idle, |decision| decision.status.min_idle);
    let most = most.max(view.demand.waiting);
    let above_idle = free.len().saturating_sub(most as usize);
    let above_max = staying().count().saturating_sub(spec.max as usize);
    let surplus = above_idle.max(above_max).min(free.len());
    if surplus == 0 {
        return None;
    }
    // Out-dated ones first, then those that are not ready, then the oldest.
    free.sort_by_key(|m| (m.current, m.phase == Phase::Idle, m.created, m.uid));
    let steps = free.into_iter().take(surplus);
    let bound = match (above_idle >= above_max, trimmed) {
        (true, Some(_)) => "what is needed",
        (true, None) => "maxIdle",
        (false, _) => "max",
    };
    Some((
        steps.map(|m| Step::Delete(m.clone())).collect(),
        format!("removes {surplus} members above {bound}"),
    ))
}

/// Replaces out-dated idle members, a few at a time.
fn roll(view: View<'_>, free: &[&Member]) -> (Vec<Step>, String) {
    let outdated: Vec<_> = free.iter().filter(|m| !m.current && !m.dirty).collect();
    if outdated.is_empty() {
        return (Vec::new(), "at its target".into());
    }
    // Those that are not ready serve nobody: they go free of budget, or they would block it.
    let unready: Vec<_> = outdated.iter().filter(|m| m.phase != Phase::Idle).collect();
    if !unready.is_empty() {
        let steps = unready
            .iter()
            .map(|m| Step::Delete((***m).clone()))
            .collect();
        return (
            steps,
            "replaces out-dated members that are not ready".into(),
        );
    }
    let percent = usize::from(view.pool.spec.update_strategy.max_unavailable_percent);
    let budget = (free.len() * percent / 100).max(1);
    let going = view.members.iter().filter(|m| m.deleting && !m.owned);
    let unready = free.iter().filter(|m| m.phase != Phase::Idle);
    let unavailable = unready.count() + going.count();
    let mut ready = outdated;
    ready.sort_by_key(|m| (m.created, m.uid));
    let steps: Vec<_> = ready
        .into_iter()
        .take(budget.saturating_sub(unavailable))
        .map(|m| Step::Delete((*m).clone()))
        .collect();
    let why = format!("replaces out-dated members, at most {budget} at a time");
    (steps, why)
}

fn observe(view: View<'_>, why: &str) -> PoolStatus {
    let mut status = view.pool.status.clone();
    status.observed_generation = view.pool.metadata.generation;
    status.revision = view.revision.into();
    status.why = if why == "at its target" {
        Box::default()
    } else {
        why.into()
    };
    let count = |is: &dyn Fn(&Member) -> bool| {
        u32::try_from(view.members.iter().filter(|m| is(m)).count()).unwrap_or(u32::MAX)
    };
    let going = |m: &Member| m.deleting || m.phase == Phase::Stopping || (m.dirty && !m.owned);
    status.total = count(&|_| true);
    status.stopping = count(&going);
    status.claimed = count(&|m| m.owned && !going(m));
    status.idle = count(&|m| !m.owned && !going(m) && m.phase == Phase::Idle);
    status.failed =
        count(&|m| !m.owned && !going(m) && matches!(m.phase, Phase::Stopped | Phase::Failed));
    status.starting = status.total - status.stopping - status.claimed - status.idle - status.failed;
    status.waiting_claims = mirrored(status.waiting_claims, view.demand.waiting);
    let enough = status.idle >= view.pool.spec.min_idle;
    set_condition(
        &mut status.conditions,
        Condition {
            kind: "Available".into(),
            status: if enough {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            reason: if enough {
                "EnoughIdle".into()
            } else {
                "TooFewIdle".into()
            },
            message: status.why.clone(),
            last_transition_time: view.now,
            observed_generation: view.pool.metadata.generation,
        },
    );
    let generation = view.pool.metadata.generation;
    limit::say(&mut status.conditions, view.limit, view.now, generation);
    status
}

/// The number of those that wait, as it is published. It changes with every claim; what is worth a
/// write is whether anybody waits at all, and a change by a fifth.
fn mirrored(published: u32, now: u32) -> u32 {
    let close = published.abs_diff(now) * 5 < published;
    if close && (published == 0) == (now == 0) {
        published
    } else {
        now
    }
}

/// What `kubectl apply` remembers of a manifest is the manifest's alone.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Labels and annotations of a new member: the pool's, and over them the template's but for those
/// that the pool ignores. Keys of the product are not anybody's to give.
#[must_use]
pub fn inherited(
    pool: (&Metadata, &PoolSpec),
    template: Option<&Metadata>,
) -> (StringMap, StringMap) {
    let (meta, spec) = pool;
    let ignored = |key: &str| {
        spec.ignore_template_keys
            .iter()
            .any(|known| **known == *key)
    };
    let reserved = |key: &str| key.starts_with(RESERVED_PREFIX) || key == LAST_APPLIED;
    let merged = |own: &StringMap, from: Option<&StringMap>| {
        let over = from.into_iter().flat_map(StringMap::iter);
        let over = over.filter(|(key, _)| !ignored(key));
        let mut all = StringMap::new();
        for (key, value) in own.iter().chain(over) {
            if !reserved(key) {
                all.insert(key, value);
            }
        }
        all
    };
    (
        merged(&meta.labels, template.map(|t| &t.labels)),
        merged(&meta.annotations, template.map(|t| &t.annotations)),
    )
}

#[cfg(test)]
mod tests;
