//! How a pool stands, for those that are turned away.

use std::{fmt, time::Duration};

use cache::{PoolCache, SandboxCache, SandboxIndex};
use model::{
    Key, Namespace,
    lifecycle::{Phase, Request, Standing, Verdict, admit, was_released},
};

/// Members of a pool by what they do, and how many claims wait for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// Can be claimed now.
    pub idle: u32,
    /// Will be idle.
    pub starting: u32,
    /// Have an owner.
    pub claimed: u32,
    /// Are on their way out, or back to idle.
    pub stopping: u32,
    /// At most this many exist.
    pub max: u32,
    /// Claims that wait.
    pub waiting: u32,
}

impl Stock {
    /// Counts.
    #[must_use]
    pub(crate) fn count(
        sandboxes: &SandboxCache,
        pools: &PoolCache,
        pool: &Key,
        waiting: usize,
    ) -> Self {
        let mut stock = Self {
            waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
            max: pools.find(pool).map_or(0, |pool| pool.spec.max),
            ..Self::default()
        };
        let Some(namespace): Option<&Namespace> = pool.namespace.as_ref() else {
            return stock;
        };
        for member in sandboxes.find_by(SandboxIndex::Pool, (namespace, &pool.name)) {
            let going = member.metadata.is_deleting()
                || member.status.phase == Phase::Stopping
                || was_released(&member);
            let claimable = admit(Request::Claim, Standing::of(&member, false)) == Verdict::Do;
            let count = match (going, member.spec.owner.is_some()) {
                (true, _) => &mut stock.stopping,
                (false, true) => &mut stock.claimed,
                (false, false) if claimable => &mut stock.idle,
                (false, false) => &mut stock.starting,
            };
            *count += 1;
        }
        stock
    }

    /// When it is worth asking again: soon where members are on their way.
    #[must_use]
    pub const fn retry_after(&self) -> Duration {
        if self.idle + self.starting + self.stopping > 0 {
            Duration::from_secs(2)
        } else {
            Duration::from_secs(30)
        }
    }

    /// What would help.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        if self.claimed + self.starting + self.stopping >= self.max {
            "the pool is at its max: end sandboxes, or raise spec.max"
        } else if self.starting + self.stopping > 0 {
            "members are on their way: try again soon"
        } else {
            "raise spec.minIdle, or ask again later"
        }
    }
}

impl fmt::Display for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} idle, {} starting, {} claimed, {} stopping of at most {}; {} claims wait",
            self.idle, self.starting, self.claimed, self.stopping, self.max, self.waiting
        )
    }
}
