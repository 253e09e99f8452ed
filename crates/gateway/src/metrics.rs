//! What happened, as numbers.
//!
//! Every thread counts for itself, in memory that only it writes: counting is a load and a store.
//! Whoever wants to know adds them up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kit::buckets;

/// How a request ended for the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Outcome {
    /// The sandbox answered, to the end.
    Forwarded,
    /// The sandbox died while it answered; the client's connection was reset.
    CutShort,
    /// The client left before the end.
    Abandoned,
    /// Handed to the API.
    Fallback,
    /// 502: no such sandbox, for this caller, now.
    NotFound,
    /// 502: nothing listens.
    PortClosed,
    /// 502: a connection and no answer.
    NoAnswer,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404: a route of the platform's.
    Internal,
    /// 503: not woken.
    NotWoken,
    /// 413, or a body that was cut because it turned out to be longer.
    TooLarge,
    /// 408, or an answer that was cut because its request's body did not come.
    BodyLate,
    /// 429.
    TooMany,
    /// 503: not synced.
    NotSynced,
    /// 503: short of something.
    Overloaded,
    /// 400.
    BadAddress,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Forwarded,
        Self::CutShort,
        Self::Abandoned,
        Self::Fallback,
        Self::NotFound,
        Self::PortClosed,
        Self::NoAnswer,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Internal,
        Self::NotWoken,
        Self::TooLarge,
        Self::BodyLate,
        Self::TooMany,
        Self::NotSynced,
        Self::Overloaded,
        Self::BadAddress,
    ];

    /// The value of a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::CutShort => "cut_short",
            Self::Abandoned => "abandoned",
            Self::Fallback => "fallback",
            Self::NotFound => "not_found",
            Self::PortClosed => "port_closed",
            Self::NoAnswer => "no_answer",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
            Self::NotWoken => "not_woken",
            Self::TooLarge => "too_large",
            Self::BodyLate => "body_late",
            Self::TooMany => "too_many",
            Self::NotSynced => "not_synced",
            Self::Overloaded => "overloaded",
            Self::BadAddress => "bad_address",
        }
    }
}

/// Whom a request waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Waited {
    /// The sandbox, to take the connection.
    Connect,
    /// The sandbox, for the head of its answer.
    FirstByte,
    /// The platform, to wake the sandbox.
    Wake,
}

impl Waited {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Connect, Self::FirstByte, Self::Wake];

    /// The value of a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::FirstByte => "first_byte",
            Self::Wake => "wake",
        }
    }
}

/// Buckets of a histogram, as [`kit::buckets`] bounds them.
pub const BUCKETS: usize = 22;

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
struct Number(AtomicU64);

impl Number {
    fn add(&self, more: u64) {
        // Only the owning thread writes, so nothing is lost between the two.
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(more);
        self.0.store(sum, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [Number; BUCKETS],
    micros: Number,
}

/// What one thread counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    outcomes: [Number; Outcome::ALL.len()],
    waits: [Histogram; Waited::ALL.len()],
    accepted: Number,
    closed: Number,
    dials: Number,
    reuses: Number,
    kept: Number,
}

impl Counters {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].add(1);
    }

    pub(crate) fn waited(&self, whom: Waited, took: Duration) {
        let histogram = &self.waits[whom as usize];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        histogram.buckets[buckets::bucket::<BUCKETS>(micros)].add(1);
        histogram.micros.add(micros);
    }

    pub(crate) fn accepted(&self) {
        self.accepted.add(1);
    }

    pub(crate) fn closed(&self) {
        self.closed.add(1);
    }

    pub(crate) fn dialled(&self) {
        self.dials.add(1);
    }

    pub(crate) fn reused(&self) {
        self.reuses.add(1);
    }

    pub(crate) fn keeps(&self, count: usize) {
        self.kept.0.store(count as u64, Ordering::Relaxed);
    }
}

/// All threads' numbers.
#[derive(Clone, Debug)]
pub struct Metrics(pub(crate) Arc<[Arc<Counters>]>);

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests by how they ended, in the order of [`Outcome::ALL`].
    pub requests: [u64; Outcome::ALL.len()],
    /// Waits by whom for, in the order of [`Waited::ALL`].
    pub waits: [Waits; Waited::ALL.len()],
    /// Connections taken from clients since the start.
    pub accepted: u64,
    /// Connections of clients that are open now.
    pub open: u64,
    /// Connections made to sandboxes since the start.
    pub dials: u64,
    /// Requests that found a kept connection.
    pub reuses: u64,
    /// Connections to sandboxes that wait for a request, as last looked at.
    pub kept: u64,
}

/// How long was waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Not cumulative.
    pub buckets: [u64; BUCKETS],
    /// All of them together.
    pub micros: u64,
}

impl Snapshot {
    /// How many requests ended so.
    #[must_use]
    pub const fn ended(&self, outcome: Outcome) -> u64 {
        self.requests[outcome as usize]
    }

    /// How long was waited for somebody.
    #[must_use]
    pub const fn waited(&self, whom: Waited) -> &Waits {
        &self.waits[whom as usize]
    }
}

impl Metrics {
    /// Adds up what the threads have counted.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut sum = Snapshot::default();
        for one in self.0.iter() {
            for (total, number) in sum.requests.iter_mut().zip(&one.outcomes) {
                *total += number.get();
            }
            for (total, histogram) in sum.waits.iter_mut().zip(&one.waits) {
                for (total, number) in total.buckets.iter_mut().zip(&histogram.buckets) {
                    *total += number.get();
                }
                total.micros = total.micros.wrapping_add(histogram.micros.get());
            }
            // In this order, so that the difference is never below zero.
            let closed = one.closed.get();
            let accepted = one.accepted.get();
            sum.accepted += accepted;
            sum.open += accepted.saturating_sub(closed);
            sum.dials += one.dials.get();
            sum.reuses += one.reuses.get();
            sum.kept += one.kept.get();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_in_its_bucket_and_in_the_sum() {
        let counters = Counters::default();
        for micros in [16, 17] {
            counters.waited(Waited::Wake, Duration::from_micros(micros));
        }
        let seen = Metrics([Arc::new(counters)].into()).snapshot();
        let waits = seen.waited(Waited::Wake);
        assert_eq!((&waits.buckets[..3], waits.micros), (&[1, 1, 0][..], 33));
    }

    #[test]
    fn outcomes_are_numbered_as_they_are_listed() {
        for (number, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
        }
        for (number, whom) in Waited::ALL.into_iter().enumerate() {
            assert_eq!(whom as usize, number);
        }
    }
}
