//! Who was late is not waited for again at once.
//!
//! A peer that acknowledges too late all the time catches up each time. Waited for from then on, it would
//! cost every call the whole `ack_timeout`, for nothing. So it is waited for again only when it has
//! acknowledged a few pushes in a row in half that time, one measured after the other, and a pause is over,
//! twice as long each time it is late again soon. However it behaves, waiting for it in vain takes no more
//! than one `ack_timeout` a pause. It is told of everything meanwhile.

use std::time::Duration;

/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// How many acknowledgements in a row have to be in time.
const ENOUGH: u32 = 3;

/// How a peer has kept up.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// How often it was late, each time soon after it was waited for again.
    lapses: u32,
    again_at: Duration,
    /// Since when it is waited for.
    since: Duration,
    /// Acknowledgements in time, in a row.
    timely: u32,
    /// Pushes, and how many of them were acknowledged.
    pushed: u64,
    acked: u64,
    /// The push whose acknowledgement is measured, and when it was sent.
    probe: Option<(u64, Duration)>,
}

impl Memory {
    pub(super) fn pushed(&mut self, now: Duration) {
        self.pushed += 1;
        self.probe.get_or_insert((self.pushed, now));
    }

    /// Each push is acknowledged by itself, in their order.
    pub(super) fn acknowledged(&mut self, now: Duration, ack_timeout: Duration) {
        self.acked = self.pushed.min(self.acked + 1);
        let acked = self.acked;
        if let Some((_, at)) = self.probe.take_if(|(number, _)| *number <= acked) {
            let is_timely = now < at + ack_timeout / 2;
            self.timely = if is_timely { self.timely + 1 } else { 0 };
        }
    }

    /// It was waited for in vain.
    pub(super) fn late(&mut self, now: Duration) {
        let was_long_ago = now >= self.since + LONGEST;
        self.lapses = if was_long_ago { 1 } else { self.lapses + 1 };
        self.timely = 0;
        let doublings = (self.lapses - 1).min(16);
        self.again_at = now + (FIRST * (1 << doublings)).min(LONGEST);
    }

    /// Whether it may be waited for again.
    pub(super) fn is_mended(&self, now: Duration) -> bool {
        self.lapses == 0 || (self.timely >= ENOUGH && now >= self.again_at)
    }

    /// It is waited for from now on.
    pub(super) fn stands(&mut self, now: Duration) {
        self.since = now;
    }

    /// Whether it may be forgotten.
    pub(super) fn is_old(&self, now: Duration) -> bool {
        now >= self.again_at + LONGEST
    }

    /// The same peer over another link; nothing if there is nothing to remember.
    pub(super) fn over_another_link(&self) -> Option<Self> {
        let kept = Self {
            lapses: self.lapses,
            again_at: self.again_at,
            since: self.since,
            ..Self::default()
        };
        (self.lapses > 0).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: Duration = Duration::from_millis(100);

    /// For how much of an hour somebody is waited for in vain who acknowledges after what `takes` says,
    /// and is told of something every ten milliseconds.
    fn waste(takes: impl Fn(u64) -> u64) -> Duration {
        let (mut memory, mut wasted) = (Memory::default(), Duration::ZERO);
        let (mut now, mut stands) = (Duration::ZERO, true);
        for number in 0.. {
            let lasts = Duration::from_millis(takes(number));
            memory.pushed(now);
            if stands && lasts >= ACK {
                wasted += ACK;
                memory.late(now + ACK);
                stands = false;
            }
            memory.acknowledged(now + lasts, ACK);
            now += lasts.max(Duration::from_millis(10));
            if !stands && memory.is_mended(now) {
                stands = true;
                memory.stands(now);
            }
            if now > Duration::from_secs(3600) {
                break;
            }
        }
        wasted
    }

    #[test]
    fn one_that_is_always_late_is_waited_for_once() {
        assert_eq!(waste(|_| 150), ACK);
    }

    #[test]
    fn one_that_is_always_in_time_is_always_waited_for() {
        assert_eq!(waste(|_| 80), Duration::ZERO);
    }

    #[test]
    fn however_one_behaves_waiting_for_it_costs_one_timeout_a_pause() {
        for every in [2, 4, 5, 10, 100, 1000, 5000] {
            let wasted = waste(|number| if number % every == 0 { 150 } else { 1 });
            // An hour has 120 of the longest pauses; the first ones are shorter.
            assert!(wasted <= ACK * 130, "{every}: {wasted:?}");
        }
    }

    #[test]
    fn one_that_was_late_once_is_waited_for_again_soon() {
        let mut memory = Memory::default();
        memory.late(Duration::from_secs(1));
        for turn in 0..ENOUGH {
            assert!(!memory.is_mended(Duration::from_secs(2)), "{turn}");
            memory.pushed(Duration::from_secs(1));
            memory.acknowledged(Duration::from_secs(1), ACK);
        }
        assert!(!memory.is_mended(Duration::from_millis(1499)));
        assert!(memory.is_mended(Duration::from_millis(1500)));
    }
}
