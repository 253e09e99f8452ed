//! How many members a pool makes and removes.
//!
//! A pool keeps between `minIdle` and `maxIdle` members without an owner, one for each claim that
//! waits, and never more than `max` in all. Only members without an owner are ever removed, each
//! with the uid and version that was seen, so that a claim that comes in between wins.
//!
//! A pool that is deleted lets go of members that have an owner: they stay their owner's and end
//! when their owner ends them. Nobody is left to take them back.

use model::{
    Key, Metadata, SandboxPool, StringMap, Timestamp, Uid, Version,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus, set_condition},
    pool::{POOL_FINALIZER, PoolSpec, PoolStatus},
    validate::RESERVED_PREFIX,
};

use crate::Plan;

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
    /// Claims that wait for a member.
    pub waiting: u32,
    /// Whether its template exists.
    pub template: bool,
    /// The revision new members are made from.
    pub revision: &'a str,
    /// For stamping records.
    pub now: Timestamp,
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
    let (mut steps, why) = scale(view);
    let status = observe(view, &why);
    if status != pool.status {
        // Publish last: what it says of the reason is about these very steps.
        steps.push(Step::Publish(Box::new(status)));
    }
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

fn scale(view: View<'_>) -> (Vec<Step>, String) {
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
    let over = |m: &&Member| matches!(m.phase, Phase::Stopped | Phase::Failed);
    let ended: Vec<_> = free()
        .filter(over)
        .map(|m| Step::Delete(m.clone()))
        .collect();
    if !ended.is_empty() {
        let why = format!("replaces {} members that ended", ended.len());
        return (ended, why);
    }
    if let Some(plan) = shrink(view) {
        return plan;
    }
    let waiting = u32::try_from(free().count()).unwrap_or(u32::MAX);
    let total = u32::try_from(view.members.len()).unwrap_or(u32::MAX);
    let target = spec.min_idle.max(view.waiting);
    if waiting < target {
        let wanted = target - waiting;
        let room = spec.max.saturating_sub(total);
        let count = wanted.min(room);
        if count == 0 {
            let why = format!(
                "wants {wanted} more idle members but is at its max of {}",
                spec.max
            );
            // Those it has are still kept up to date.
            let rolled = roll(view, &free().collect::<Vec<_>>());
            return if rolled.0.is_empty() {
                (Vec::new(), why)
            } else {
                rolled
            };
        }
        let short = if count < wanted {
            format!(", {} fewer than wanted for its max", wanted - count)
        } else {
            String::new()
        };
        return (
            vec![Step::Create(count)],
            format!("makes {count} members{short}"),
        );
    }
    roll(view, &free().collect::<Vec<_>>())
}

/// Removes members that are too many. One that was given back may still go by itself: until that
/// is known, nobody else goes for it.
fn shrink(view: View<'_>) -> Option<(Vec<Step>, String)> {
    let spec = &view.pool.spec;
    let staying = || view.members.iter().filter(|m| !m.deleting && !m.dirty);
    let mut free: Vec<&Member> = staying().filter(|m| !m.owned).collect();
    let most = spec.max_idle.max(view.waiting);
    let above_idle = free.len().saturating_sub(most as usize);
    let above_max = staying().count().saturating_sub(spec.max as usize);
    let surplus = above_idle.max(above_max).min(free.len());
    if surplus == 0 {
        return None;
    }
    // Out-dated ones first, then those that are not ready, then the oldest.
    free.sort_by_key(|m| (m.current, m.phase == Phase::Idle, m.created, m.uid));
    let steps = free.into_iter().take(surplus);
    let bound = if above_idle >= above_max {
        "maxIdle"
    } else {
        "max"
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
    status.waiting_claims = mirrored(status.waiting_claims, view.waiting);
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
