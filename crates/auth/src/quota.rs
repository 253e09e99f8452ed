//! What sandboxes count for, and whether that is too much. Pure.
//!
//! | | counts from | until |
//! |---|---|---|
//! | `sandboxes` | it has an owner | it ended, or its deletion was asked for |
//! | `runningSandboxes`, `cpuMillis`, `memoryMiB` | it is meant to be awake | it is asleep |
//!
//! A sandbox that is falling asleep still counts as awake, and one that is to wake counts at once:
//! a team can never have more awake than it may.

use std::fmt;

use model::{
    Name, Namespace,
    lifecycle::Phase,
    sandbox::{DesiredState, Resources, Sandbox},
    team::Quotas,
};
use thiserror::Error;

/// Whose quotas a sandbox counts against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The team.
    pub team: Namespace,
    /// The key it is made with, where it is made with one.
    pub key: Option<Name>,
    /// The most the team may have.
    pub team_quotas: Quotas,
    /// The most that may be had with the key.
    pub key_quotas: Quotas,
}

impl Account {
    /// Whether there is nothing to check.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.team_quotas == Quotas::default() && self.key_quotas == Quotas::default()
    }
}

/// What one sandbox counts for, or many together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sandboxes.
    pub sandboxes: u64,
    /// Those of them that are awake.
    pub running_sandboxes: u64,
    /// Thousandths of a processor of those.
    pub cpu_millis: u64,
    /// Their memory in MiB.
    pub memory_mib: u64,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_add(other.sandboxes),
            running_sandboxes: self
                .running_sandboxes
                .saturating_add(other.running_sandboxes),
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
        }
    }

    /// What is more here than there.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_sub(other.sandboxes),
            running_sandboxes: self
                .running_sandboxes
                .saturating_sub(other.running_sandboxes),
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.plus(other.beyond(self))
    }
}

/// How large a sandbox is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Thousandths of a processor.
    pub cpu_millis: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl Size {
    /// The size that limits give a sandbox; where they are silent, this one.
    #[must_use]
    pub fn of(self, resources: Option<Resources>) -> Self {
        let given = |value: Option<u32>, otherwise| value.map_or(otherwise, u64::from);
        Self {
            cpu_millis: given(resources.and_then(|r| r.cpu_millis), self.cpu_millis),
            memory_mib: given(resources.and_then(|r| r.memory_mib), self.memory_mib),
        }
    }

    /// What a sandbox of this size counts for while it is awake.
    #[must_use]
    pub const fn awake(self) -> Usage {
        Usage {
            sandboxes: 1,
            running_sandboxes: 1,
            cpu_millis: self.cpu_millis,
            memory_mib: self.memory_mib,
        }
    }
}

/// What a sandbox of this size counts for.
#[must_use]
pub fn weigh(sandbox: &Sandbox, size: Size) -> Usage {
    let is_gone = match sandbox.status.phase {
        Phase::Stopped | Phase::Failed => true,
        Phase::Pending
        | Phase::Starting
        | Phase::Idle
        | Phase::Running
        | Phase::Pausing
        | Phase::Paused
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Unknown => false,
    };
    if is_gone || sandbox.metadata.is_deleting() || sandbox.spec.owner.is_none() {
        return Usage::default();
    }
    let is_asleep =
        sandbox.status.phase == Phase::Paused && sandbox.spec.desired_state == DesiredState::Paused;
    if is_asleep { ASLEEP } else { size.awake() }
}

/// What it counts for by what is seen of it: one that is only wanted awake still sleeps.
#[must_use]
pub fn weigh_observed(sandbox: &Sandbox, size: Size) -> Usage {
    let wanted = weigh(sandbox, size);
    match sandbox.status.phase {
        Phase::Paused if wanted.running_sandboxes > 0 => ASLEEP,
        _ => wanted,
    }
}

/// What a sandbox counts for that sleeps.
const ASLEEP: Usage = Usage {
    sandboxes: 1,
    running_sandboxes: 0,
    cpu_millis: 0,
    memory_mib: 0,
};

/// Whose quota it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The team's.
    Team,
    /// The key's own.
    Key,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Team => "team",
            Self::Key => "API key",
        })
    }
}

/// What there is a quota of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Sandboxes.
    Sandboxes,
    /// Sandboxes that are awake.
    RunningSandboxes,
    /// Thousandths of a processor.
    CpuMillis,
    /// Memory in MiB.
    MemoryMiB,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandboxes => "sandboxes",
            Self::RunningSandboxes => "running sandboxes",
            Self::CpuMillis => "thousandths of a processor",
            Self::MemoryMiB => "MiB of memory",
        })
    }
}

/// One more would be too much. It is the caller's fault, and may pass when something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the {holder} may have {limit} {which} and has {used}, so {asked} more cannot be had: end or pause some"
)]
pub struct QuotaExceeded {
    /// Whose quota.
    pub holder: Holder,
    /// Of what.
    pub which: Quota,
    /// The most there may be.
    pub limit: u64,
    /// What there is, and what is being made.
    pub used: u64,
    /// What was asked for on top.
    pub asked: u64,
}

/// Whether there may be more than what is used, by the team and with the key.
///
/// # Errors
/// With the first quota that would be exceeded. One that is exceeded already refuses only more of
/// the same.
pub fn check(account: &Account, used: Used, more: Usage) -> Result<(), QuotaExceeded> {
    check_one(Holder::Team, &account.team_quotas, used.team, more)?;
    check_one(Holder::Key, &account.key_quotas, used.key, more)
}

/// What is used, by whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// By the team.
    pub team: Usage,
    /// With the key.
    pub key: Usage,
}

fn check_one(
    holder: Holder,
    quotas: &Quotas,
    used: Usage,
    more: Usage,
) -> Result<(), QuotaExceeded> {
    let table = [
        (
            Quota::Sandboxes,
            quotas.sandboxes.map(u64::from),
            used.sandboxes,
            more.sandboxes,
        ),
        (
            Quota::RunningSandboxes,
            quotas.running_sandboxes.map(u64::from),
            used.running_sandboxes,
            more.running_sandboxes,
        ),
        (
            Quota::CpuMillis,
            quotas.cpu_millis,
            used.cpu_millis,
            more.cpu_millis,
        ),
        (
            Quota::MemoryMiB,
            quotas.memory_mib,
            used.memory_mib,
            more.memory_mib,
        ),
    ];
    for (which, limit, used, asked) in table {
        let Some(limit) = limit else { continue };
        if asked > 0 && used.saturating_add(asked) > limit {
            return Err(QuotaExceeded {
                holder,
                which,
                limit,
                used,
                asked,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::{
        Metadata, Object, Timestamp,
        sandbox::{Owner, SandboxSpec},
    };

    use super::*;

    fn team() -> Namespace {
        Namespace::new("blue").unwrap()
    }

    fn sandbox(phase: Phase, desired: DesiredState) -> Sandbox {
        let metadata = Metadata::new(Some(team()), Name::new("a").unwrap());
        let spec = SandboxSpec {
            desired_state: desired,
            owner: Some(Owner {
                team: team(),
                user: None,
                key: None,
            }),
            ..SandboxSpec::default()
        };
        let mut sandbox = Object::new(metadata, spec);
        sandbox.status.phase = phase;
        sandbox
    }

    #[test]
    fn each_phase_counts_for_what_it_holds() {
        let size = Size {
            cpu_millis: 500,
            memory_mib: 256,
        };
        let (gone, awake) = (Usage::default(), size.awake());
        let asleep = Usage {
            sandboxes: 1,
            ..gone
        };
        for phase in Phase::ALL {
            for desired in [DesiredState::Running, DesiredState::Paused] {
                let expected = match (phase, desired) {
                    (Phase::Stopped | Phase::Failed, _) => gone,
                    (Phase::Paused, DesiredState::Paused) => asleep,
                    _ => awake,
                };
                let mut it = sandbox(phase, desired);
                assert_eq!(weigh(&it, size), expected, "{phase} {desired:?}");
                it.spec.owner = None;
                assert_eq!(weigh(&it, size), gone, "{phase} of nobody");
                let mut it = sandbox(phase, desired);
                it.metadata.deletion_timestamp = Some(Timestamp::from_micros(1));
                assert_eq!(weigh(&it, size), gone, "{phase} on its way out");
            }
        }
    }

    #[test]
    fn the_first_quota_that_would_be_exceeded_is_named() {
        let one = Size {
            cpu_millis: 100,
            memory_mib: 10,
        }
        .awake();
        let of = |sandboxes, running_sandboxes, cpu_millis, memory_mib| Usage {
            sandboxes,
            running_sandboxes,
            cpu_millis,
            memory_mib,
        };
        let limited = Quotas {
            sandboxes: Some(3),
            running_sandboxes: Some(2),
            cpu_millis: Some(250),
            memory_mib: Some(25),
        };
        let free = Quotas::default();
        let table = [
            (limited, of(0, 0, 0, 0), one, None),
            (limited, of(2, 1, 150, 15), one, None),
            (
                limited,
                of(3, 0, 0, 0),
                one,
                Some((Quota::Sandboxes, 3, 3, 1)),
            ),
            (
                limited,
                of(2, 2, 0, 0),
                one,
                Some((Quota::RunningSandboxes, 2, 2, 1)),
            ),
            (
                limited,
                of(2, 1, 151, 0),
                one,
                Some((Quota::CpuMillis, 250, 151, 100)),
            ),
            (
                limited,
                of(2, 1, 150, 16),
                one,
                Some((Quota::MemoryMiB, 25, 16, 10)),
            ),
            // Lowered below what there is: nothing more, but waking what takes no more of it.
            (limited, of(9, 1, 0, 0), of(0, 1, 0, 0), None),
            (limited, of(9, 9, 999, 999), of(0, 0, 0, 0), None),
            (
                limited,
                of(u64::MAX, 0, 0, 0),
                one,
                Some((Quota::Sandboxes, 3, u64::MAX, 1)),
            ),
            (free, of(1 << 40, 1 << 40, 1 << 40, 1 << 40), one, None),
            (
                Quotas {
                    sandboxes: Some(0),
                    ..free
                },
                of(0, 0, 0, 0),
                one,
                Some((Quota::Sandboxes, 0, 0, 1)),
            ),
        ];
        for (quotas, used, more, expected) in table {
            for holder in [Holder::Team, Holder::Key] {
                let account = |team_quotas, key_quotas| Account {
                    team: team(),
                    key: None,
                    team_quotas,
                    key_quotas,
                };
                let (account, used) = match holder {
                    Holder::Team => (
                        account(quotas, free),
                        Used {
                            team: used,
                            key: Usage::default(),
                        },
                    ),
                    Holder::Key => (
                        account(free, quotas),
                        Used {
                            team: Usage::default(),
                            key: used,
                        },
                    ),
                };
                let expected = expected.map(|(which, limit, used, asked)| QuotaExceeded {
                    holder,
                    which,
                    limit,
                    used,
                    asked,
                });
                assert_eq!(check(&account, used, more).err(), expected);
            }
        }
    }
}
