//! What is wrong with a sandbox, as its record says it.
//!
//! The condition `Troubled` names the last thing that was wrong, in one word and a sentence. It
//! stays when a sandbox ends, because that is why; it is taken back when the sandbox is up.

use model::{
    Sandbox, Timestamp,
    event::Severity,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus, set_condition},
    sandbox::SandboxStatus,
    trouble::{TROUBLED, Trouble},
    workload::{Observed, WorkloadState},
};

use crate::Note;

/// The status that also says what is wrong.
#[must_use]
pub fn troubled(
    mut status: SandboxStatus,
    trouble: Trouble,
    detail: &str,
    now: Timestamp,
) -> SandboxStatus {
    say(
        &mut status,
        ConditionStatus::True,
        trouble.as_str(),
        detail,
        now,
    );
    status
}

/// What is wrong with a sandbox, if anything is.
#[must_use]
pub fn find(status: &SandboxStatus) -> Option<(Trouble, &str)> {
    let said = status.conditions.iter().find(|c| &*c.kind == TROUBLED)?;
    if said.status != ConditionStatus::True {
        return None;
    }
    Some((Trouble::find(&said.reason)?, &said.message))
}

/// Brings what is said in line with a status that is about to be written: what has ended says why,
/// what is up has no trouble.
pub fn settle(next: &mut SandboxStatus, before: &Sandbox, observed: &Observed, now: Timestamp) {
    let was = before.status.phase;
    match next.phase {
        Phase::Running | Phase::Idle if was != next.phase => {
            if let Observed::Present(facts) = observed {
                // The count begins anew with its processes.
                next.oom_kills = facts.oom_kills;
            }
            if find(next).is_some() {
                say(next, ConditionStatus::False, "Resolved", "", now);
            }
        }
        Phase::Stopped if was != Phase::Stopped => ended(next, observed, now),
        Phase::Pending
        | Phase::Starting
        | Phase::Running
        | Phase::Idle
        | Phase::Pausing
        | Phase::Paused
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Failed
        | Phase::Unknown => {}
    }
}

fn ended(next: &mut SandboxStatus, observed: &Observed, now: Timestamp) {
    let why = next.stopped.as_ref().map(|stopped| stopped.message.clone());
    let why = why.unwrap_or_default();
    match observed {
        Observed::Present(facts) if facts.oom_kills > 0 => {
            next.oom_kills = next.oom_kills.max(facts.oom_kills);
            let detail = format!("{why}; {}", killed(facts.oom_kills));
            say(
                next,
                ConditionStatus::True,
                Trouble::OomKilled.as_str(),
                &detail,
                now,
            );
        }
        Observed::Present(facts) => {
            if let WorkloadState::Exited { code } = facts.state
                && code != 0
            {
                let detail = format!("{why} with exit status {code}");
                say(
                    next,
                    ConditionStatus::True,
                    Trouble::Exited.as_str(),
                    &detail,
                    now,
                );
            }
        }
        Observed::Absent | Observed::Partial => {
            if find(next).is_none() {
                say(
                    next,
                    ConditionStatus::True,
                    Trouble::Lost.as_str(),
                    &why,
                    now,
                );
            }
        }
    }
}

/// Processes that were killed since this was last said, because memory ran out.
#[must_use]
pub fn kills(sandbox: &Sandbox, observed: &Observed) -> Option<u32> {
    match observed {
        Observed::Present(facts) => {
            (facts.oom_kills > sandbox.status.oom_kills).then_some(facts.oom_kills)
        }
        Observed::Absent | Observed::Partial => None,
    }
}

/// The status that says so, and what people should read of it.
#[must_use]
pub fn out_of_memory(sandbox: &Sandbox, kills: u32, now: Timestamp) -> (SandboxStatus, Note) {
    let mut status = sandbox.status.clone();
    status.oom_kills = kills;
    let message = killed(kills);
    say(
        &mut status,
        ConditionStatus::True,
        Trouble::OomKilled.as_str(),
        &message,
        now,
    );
    let note = Note {
        severity: Severity::Warning,
        reason: Trouble::OomKilled.as_str(),
        message: message.into(),
    };
    (status, note)
}

fn killed(kills: u32) -> String {
    match kills {
        1 => "memory ran out and one of its processes was killed".to_owned(),
        many => format!("memory ran out and {many} of its processes were killed"),
    }
}

fn say(
    status: &mut SandboxStatus,
    is: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let observed_generation = status.observed_generation;
    set_condition(
        &mut status.conditions,
        Condition {
            kind: TROUBLED.into(),
            status: is,
            reason: reason.into(),
            message: message.into(),
            last_transition_time: now,
            observed_generation,
        },
    );
}
