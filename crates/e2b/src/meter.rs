//! How often each route was asked, how it ended and how long it took: as data.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// With what was asked for.
    Served,
    /// With a status from 400 on: the caller's fault.
    Refused,
    /// With 501: a route or a part of one that is not built.
    NotBuilt,
    /// With another status from 500 on: ours.
    Failed,
    /// The client left before the answer.
    Abandoned,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 5] = [
        Self::Served,
        Self::Refused,
        Self::NotBuilt,
        Self::Failed,
        Self::Abandoned,
    ];

    /// The ending of an answer with this status.
    #[must_use]
    pub const fn of(status: u16) -> Self {
        match status {
            0..=399 => Self::Served,
            400..=499 => Self::Refused,
            501 => Self::NotBuilt,
            _ => Self::Failed,
        }
    }

    /// The name, as a label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::NotBuilt => "not_built",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Upper bounds of the histogram's buckets, in microseconds; what is longer is in one more.
pub const BOUNDS: [u64; 14] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000, 20_000_000, 60_000_000,
];

/// What was measured of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStats {
    /// As `GET`.
    pub method: &'static str,
    /// As `/sandboxes/{sandboxID}`.
    pub path: &'static str,
    /// Requests, by [`Ending::ALL`].
    pub endings: [u64; Ending::ALL.len()],
    /// Answers, by [`BOUNDS`].
    pub took: [u64; BOUNDS.len() + 1],
    /// The time of all answers together.
    pub total: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Meter {
    endings: [AtomicU64; Ending::ALL.len()],
    took: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Meter {
    /// Counts a request; as abandoned, unless its end is told.
    pub(crate) const fn begin(&self) -> Measuring<'_> {
        Measuring {
            meter: self,
            ending: Ending::Abandoned,
        }
    }

    pub(crate) fn stats(&self, method: &'static str, path: &'static str) -> RouteStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RouteStats {
            method,
            path,
            endings: self.endings.each_ref().map(load),
            took: self.took.each_ref().map(load),
            total: Duration::from_micros(load(&self.micros)),
        }
    }
}

pub(crate) struct Measuring<'m> {
    meter: &'m Meter,
    ending: Ending,
}

impl Measuring<'_> {
    pub(crate) fn end(mut self, status: u16, took: Duration) {
        self.ending = Ending::of(status);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.meter.took[bucket].fetch_add(1, Ordering::Relaxed);
        self.meter.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        self.meter.endings[self.ending as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_dropped_counts_as_abandoned() {
        let meter = Meter::default();
        drop(meter.begin());
        meter.begin().end(201, Duration::from_micros(700));
        meter.begin().end(501, Duration::from_secs(3600));
        let stats = meter.stats("GET", "/x");
        assert_eq!(stats.endings, [1, 0, 1, 0, 1]);
        assert_eq!((stats.took[1], stats.took[BOUNDS.len()]), (1, 1));
    }
}
