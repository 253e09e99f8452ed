//! What flights did, as numbers: how requests ended, and for whom flights waited.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kit::buckets;
use routes::WakeError;

/// From which rung of sleep a sandbox was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Rung {
    /// Frozen in memory.
    Freeze,
    /// From its files.
    Rootfs,
}

impl Rung {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Freeze, Self::Rootfs];

    /// The value of a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Rootfs => "rootfs",
        }
    }
}

/// Whom a flight waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Whom {
    /// Other flights: for its turn.
    Turn,
    /// The store, to read the record and write the intent.
    Store,
    /// The runtime, to have its processes go on.
    Runtime,
    /// Control, its line and its writes, until the sandbox was seen awake.
    Control,
}

impl Whom {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Turn, Self::Store, Self::Runtime, Self::Control];

    /// The value of a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Store => "store",
            Self::Runtime => "runtime",
            Self::Control => "control",
        }
    }
}

/// How a request's wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Ending {
    /// Its sandbox is awake.
    Woken,
    /// There was nothing to wake.
    NotFound,
    /// Waking failed.
    Failed,
    /// It took too long.
    Timeout,
    /// Refused: too many wait.
    Overloaded,
    /// Refused: the team's limit.
    TeamLimit,
    /// The client left.
    Left,
}

impl Ending {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Woken,
        Self::NotFound,
        Self::Failed,
        Self::Timeout,
        Self::Overloaded,
        Self::TeamLimit,
        Self::Left,
    ];

    /// The value of a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::NotFound => "not_found",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::TeamLimit => "team_limit",
            Self::Left => "left",
        }
    }

    pub(crate) const fn of<T>(outcome: &Result<T, WakeError>) -> Self {
        match outcome {
            Ok(_) => Self::Woken,
            Err(WakeError::NotFound) => Self::NotFound,
            Err(WakeError::Failed) => Self::Failed,
            Err(WakeError::Timeout) => Self::Timeout,
            Err(WakeError::Overloaded { .. }) => Self::Overloaded,
            Err(WakeError::TeamLimit { .. }) => Self::TeamLimit,
        }
    }
}

/// Buckets of a histogram, as [`kit::buckets`] bounds them.
pub const BUCKETS: usize = 24;

/// Times of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many were in each bucket.
    pub buckets: [u64; BUCKETS],
    /// All of them together, in microseconds.
    pub micros: u64,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

/// What was counted.
#[derive(Debug, Default)]
pub struct Stats {
    endings: [AtomicU64; Ending::ALL.len()],
    flights: AtomicU64,
    waits: [[Histogram; Whom::ALL.len()]; Rung::ALL.len()],
}

/// Counts an ending when it is dropped.
struct Counted<'a> {
    stats: &'a Stats,
    ending: Ending,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.stats.endings[self.ending as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Stats {
    /// How many waits of requests ended so.
    #[must_use]
    pub fn ended(&self, how: Ending) -> u64 {
        self.endings[how as usize].load(Ordering::Relaxed)
    }

    /// How many flights were begun.
    #[must_use]
    pub fn flights(&self) -> u64 {
        self.flights.load(Ordering::Relaxed)
    }

    /// How long flights that ended well waited.
    #[must_use]
    pub fn waited(&self, from: Rung, whom: Whom) -> Times {
        let histogram = &self.waits[from as usize][whom as usize];
        Times {
            buckets: std::array::from_fn(|at| histogram.buckets[at].load(Ordering::Relaxed)),
            micros: histogram.micros.load(Ordering::Relaxed),
        }
    }

    /// Counts how a request's wait ends, also if it is dropped.
    pub(crate) async fn counted<T>(
        &self,
        wait: impl Future<Output = Result<T, WakeError>>,
    ) -> Result<T, WakeError> {
        let mut counted = Counted {
            stats: self,
            ending: Ending::Left,
        };
        let outcome = wait.await;
        counted.ending = Ending::of(&outcome);
        outcome
    }

    pub(crate) fn began(&self) {
        self.flights.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note(&self, from: Rung, whom: Whom, took: Duration) {
        let histogram = &self.waits[from as usize][whom as usize];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        histogram.buckets[buckets::bucket::<BUCKETS>(micros)].fetch_add(1, Ordering::Relaxed);
        histogram.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        let stats = Stats::default();
        for micros in [0, 16, 17, 32, 33, u64::MAX] {
            stats.note(Rung::Freeze, Whom::Store, Duration::from_micros(micros));
        }
        let times = stats.waited(Rung::Freeze, Whom::Store);
        assert_eq!(times.buckets[..3], [2, 2, 1]);
        assert_eq!(times.buckets[BUCKETS - 1], 1);
    }
}
