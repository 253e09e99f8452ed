//! What happened, as numbers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use gateway::metrics::Outcome;

/// What an Envoy did that it should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fault {
    /// It asked for another service, or another call.
    OtherCall,
    /// The head of a request has no headers, or such as cannot be.
    BadHead,
    /// A message came before the head, or the head twice.
    OutOfOrder,
    /// A kind of message that is not known here.
    Unknown,
    /// A message longer than one may be.
    Oversized,
    /// Bytes that are no message.
    Broken,
    /// It is configured in a way in which nothing would be enforced, or nothing would arrive.
    Unsupported,
    /// It opened a connection or a stream, and said nothing.
    Silent,
    /// It opened more connections than there may be.
    Crowded,
}

impl Fault {
    /// Every fault, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::OtherCall,
        Self::BadHead,
        Self::OutOfOrder,
        Self::Unknown,
        Self::Oversized,
        Self::Broken,
        Self::Unsupported,
        Self::Silent,
        Self::Crowded,
    ];

    /// The value of a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::OtherCall => "other_call",
            Self::BadHead => "bad_head",
            Self::OutOfOrder => "out_of_order",
            Self::Unknown => "unknown",
            Self::Oversized => "oversized",
            Self::Broken => "broken",
            Self::Unsupported => "unsupported",
            Self::Silent => "silent",
            Self::Crowded => "crowded",
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    begun: AtomicU64,
    ended: AtomicU64,
    passed: AtomicU64,
    unaddressed: AtomicU64,
    undecided: AtomicU64,
    waited: AtomicU64,
    answered: [AtomicU64; Outcome::ALL.len()],
    faults: [AtomicU64; Fault::ALL.len()],
}

/// The numbers of an external processor. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Counters>);

impl Metrics {
    pub(crate) fn begin(&self) -> Open {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }

    pub(crate) fn pass(&self) {
        self.0.passed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn pass_unaddressed(&self) {
        self.0.unaddressed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn pass_undecided(&self) {
        self.0.undecided.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn wait(&self) {
        self.0.waited.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answer(&self, outcome: Outcome) {
        self.0.answered[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a fault, and explains the first of its kind.
    pub(crate) fn fault(&self, fault: Fault, why: &str) {
        let before = self.0.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
        let kind = fault.label();
        if before == 0 {
            tracing::warn!(
                kind,
                why,
                "an Envoy is not understood; more of it is only counted"
            );
        } else {
            tracing::debug!(kind, why, "an Envoy is not understood");
        }
    }

    /// Streams that were opened since the start.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// Streams that are open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        // In this order, so that the difference is never below zero.
        let ended = self.0.ended.load(Ordering::Acquire);
        self.begun().saturating_sub(ended)
    }

    /// Requests that went on to a sandbox.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.0.passed.load(Ordering::Relaxed)
    }

    /// Requests that went on to nobody in particular.
    #[must_use]
    pub fn unaddressed(&self) -> u64 {
        self.0.unaddressed.load(Ordering::Relaxed)
    }

    /// Requests that went on for the gateway to decide: see [`crate::Server::leave_to_gateway`].
    #[must_use]
    pub fn undecided(&self) -> u64 {
        self.0.undecided.load(Ordering::Relaxed)
    }

    /// Requests that waited for their sandbox.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.0.waited.load(Ordering::Relaxed)
    }

    /// Requests that were answered here, by what they were told.
    #[must_use]
    pub fn answered(&self, outcome: Outcome) -> u64 {
        self.0.answered[outcome as usize].load(Ordering::Relaxed)
    }

    /// What Envoys did that they should not.
    #[must_use]
    pub fn faults(&self, fault: Fault) -> u64 {
        self.0.faults[fault as usize].load(Ordering::Relaxed)
    }
}

/// A stream that is open.
#[derive(Debug)]
pub(crate) struct Open(Metrics);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_numbered_as_they_are_listed() {
        for (number, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, number);
        }
    }

    #[test]
    fn a_stream_is_open_until_it_is_dropped() {
        let metrics = Metrics::default();
        let open = metrics.begin();
        assert_eq!((metrics.begun(), metrics.open()), (1, 1));
        drop(open);
        assert_eq!((metrics.begun(), metrics.open()), (1, 0));
    }
}
