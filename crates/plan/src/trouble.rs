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
    say(&mut status, trouble, detail, now);
    status
}

/// What is wrong with a sandbox, if anything is.
#[must_use]
pub fn find(status: &SandboxStatus) -> Option<(Trouble, &str)> {
    let said = status.conditions.iter().find(|c| &*c.kind == TROUBLED)?;
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
            next.conditions.retain(|c| &*c.kind != TROUBLED);
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
            say(next, Trouble::OomKilled, &detail, now);
        }
        Observed::Present(facts) if facts.loss.is_some() => say(next, Trouble::Lost, &why, now),
        Observed::Present(facts) => {
            if let WorkloadState::Exited { code } = facts.state
                && code != 0
            {
                let detail = format!("{why} with exit status {code}");
                say(next, Trouble::Exited, &detail, now);
            }
        }
        Observed::Absent | Observed::Coming | Observed::Partial => {
            if find(next).is_none() {
                say(next, Trouble::Lost, &why, now);
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
        Observed::Absent | Observed::Coming | Observed::Partial => None,
    }
}

/// The status that says so, and what people should read of it.
#[must_use]
pub fn out_of_memory(sandbox: &Sandbox, kills: u32, now: Timestamp) -> (SandboxStatus, Note) {
    let mut status = sandbox.status.clone();
    status.oom_kills = kills;
    let message = killed(kills);
    say(&mut status, Trouble::OomKilled, &message, now);
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

fn say(status: &mut SandboxStatus, trouble: Trouble, message: &str, now: Timestamp) {
    let observed_generation = status.observed_generation;
    set_condition(
        &mut status.conditions,
        Condition {
            kind: TROUBLED.into(),
            status: ConditionStatus::True,
            reason: trouble.as_str().into(),
            message: message.into(),
            last_transition_time: now,
            observed_generation,
        },
    );
}

#[cfg(test)]
mod tests {
    use model::{
        Metadata, Name, Namespace,
        sandbox::{Address, SandboxSpec, StopReason, Stopped, Via},
        workload::Facts,
    };

    use super::*;

    const T0: Timestamp = Timestamp::from_micros(1);

    fn at(phase: Phase) -> Sandbox {
        let meta = Metadata::new(Some(Namespace::new("t").unwrap()), Name::new("a").unwrap());
        let mut sandbox = Sandbox::new(meta, SandboxSpec::default());
        sandbox.status.phase = phase;
        sandbox
    }

    fn seen(state: WorkloadState, oom_kills: u32) -> Observed {
        Observed::Present(Facts {
            state,
            epoch: model::Epoch(1),
            booted: true,
            container_id: "c".into(),
            images: model::StringMap::new(),
            digests: std::collections::BTreeMap::new(),
            hooked: None,
            layer: None,
            network: None,
            address: Address {
                via: Via::NetworkNamespace,
                ip: None,
            },
            oom_kills,
            loss: None,
        })
    }

    fn after(before: &Sandbox, phase: Phase, observed: &Observed) -> SandboxStatus {
        let mut next = before.status.clone();
        next.phase = phase;
        if phase == Phase::Stopped {
            next.stopped = Some(Box::new(Stopped {
                reason: StopReason::Failed,
                at: T0,
                exit_code: None,
                cause: None,
                message: "its first process ended".into(),
            }));
        }
        settle(&mut next, before, observed, T0);
        next
    }

    #[test]
    fn what_was_wrong_is_taken_back_when_it_is_up_and_stays_when_it_has_failed() {
        let mut before = at(Phase::Starting);
        before.status = troubled(before.status, Trouble::PullBackOff, "no registry", T0);
        let word = |status: &SandboxStatus| find(status).map(|(trouble, _)| trouble);
        let up = seen(WorkloadState::Running, 0);
        assert_eq!(word(&after(&before, Phase::Running, &up)), None);
        assert_eq!(word(&after(&before, Phase::Idle, &up)), None);
        let failed = after(&before, Phase::Failed, &Observed::Absent);
        assert_eq!(find(&failed), Some((Trouble::PullBackOff, "no registry")));
    }

    #[test]
    fn what_has_ended_says_how() {
        let running = at(Phase::Running);
        for (observed, trouble) in [
            (seen(WorkloadState::Exited { code: 0 }, 0), None),
            (
                seen(WorkloadState::Exited { code: 3 }, 0),
                Some((
                    Trouble::Exited,
                    "its first process ended with exit status 3",
                )),
            ),
            (
                seen(WorkloadState::Exited { code: 137 }, 1),
                Some((
                    Trouble::OomKilled,
                    "its first process ended; memory ran out and one of its processes was killed",
                )),
            ),
            (
                Observed::Absent,
                Some((Trouble::Lost, "its first process ended")),
            ),
        ] {
            let ended = after(&running, Phase::Stopped, &observed);
            assert_eq!(find(&ended), trouble, "{observed:?}");
        }
    }

    #[test]
    fn processes_killed_for_memory_are_told_once() {
        let mut sandbox = at(Phase::Running);
        assert_eq!(kills(&sandbox, &seen(WorkloadState::Running, 0)), None);
        let two = seen(WorkloadState::Running, 2);
        assert_eq!(kills(&sandbox, &two), Some(2));
        let (status, note) = out_of_memory(&sandbox, 2, T0);
        assert_eq!(
            (note.severity, note.reason),
            (Severity::Warning, "OomKilled")
        );
        sandbox.status = status;
        assert_eq!(kills(&sandbox, &two), None);
        assert_eq!(find(&sandbox.status).unwrap().0, Trouble::OomKilled);
        // Processes that were started anew are counted anew.
        sandbox.status.phase = Phase::Resuming;
        let fresh = seen(WorkloadState::Running, 0);
        sandbox.status = after(&sandbox, Phase::Running, &fresh);
        assert_eq!(kills(&sandbox, &seen(WorkloadState::Running, 1)), Some(1));
    }
}
