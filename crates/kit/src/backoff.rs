//! How long to wait before trying again.

use std::time::Duration;

use crate::Entropy;

/// Exponential, capped, jittered.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first wait.
    pub first: Duration,
    /// No wait is longer.
    pub cap: Duration,
}

impl Backoff {
    /// The wait before try number `attempt` (1 for the first retry): doubled each time, and drawn
    /// from the upper half of that, so that many who failed together do not return together.
    #[must_use]
    pub fn delay(&self, attempt: u32, entropy: &Entropy) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << attempt.saturating_sub(1).min(20));
        let whole = doubled.min(self.cap);
        let half = whole / 2;
        let micros = usize::try_from(half.as_micros()).unwrap_or(usize::MAX);
        half + Duration::from_micros(entropy.below(micros + 1) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_are_never_less_than_half() {
        let backoff = Backoff {
            first: Duration::from_millis(10),
            cap: Duration::from_secs(1),
        };
        let entropy = Entropy::seeded(1);
        for attempt in 1..40 {
            let whole = Duration::from_millis(10).saturating_mul(1 << (attempt - 1).min(20));
            let whole = whole.min(backoff.cap);
            let delay = backoff.delay(attempt, &entropy);
            assert!(
                delay >= whole / 2 && delay <= whole,
                "attempt {attempt}: {delay:?}"
            );
        }
    }
}
