//! Whether a timer has run out, by elapsed time.
//!
//! A timer is a moment on the wall clock, and wall clocks jump. So the time that is left is taken
//! once, when a timer is first seen, and from then on measured on the monotonic clock: a jump ends
//! nothing that was being measured.
//!
//! What is first seen *after* a jump may have been written before or after it. Of all readings of
//! the wall clock in the last minute the one that leaves most is taken, so nothing is ended early,
//! at worst late by the size of the jump. A minute later only the new reading is left.
//!
//! A timer that is already over when a process first sees it (it was down meanwhile, or its clock
//! is wrong) gets a grace period, in which its owner can renew it.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use kit::Clock;
use model::Timestamp;
use parking_lot::Mutex;

/// How long a reading of the wall clock is considered.
const SETTLE: Duration = Duration::from_secs(60);
/// What a timer gets that was over before this process saw it.
pub const GRACE: Duration = Duration::from_secs(10);
/// A difference between the clocks that is not a jump.
const DRIFT: i64 = 1_000_000;

/// The timers of keys `K`.
#[derive(Debug)]
pub struct Deadlines<K> {
    clock: Arc<dyn Clock>,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    /// What the wall clock was ahead of the monotonic one, and when it was last seen so.
    readings: Vec<(i64, Duration)>,
    started: Duration,
    /// For each key and timer: the moment it names, and when that is on the monotonic clock.
    timers: BTreeMap<(K, &'static str), (Timestamp, Duration)>,
}

/// How a timer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// It does not run.
    Off,
    /// It runs out after this long.
    In(Duration),
    /// It has run out.
    Over,
}

impl<K: Ord + Clone + Debug> Deadlines<K> {
    /// No timers.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let monotonic = clock.monotonic();
        let state = State {
            readings: vec![(clock.wall_micros() - micros(monotonic), monotonic)],
            started: monotonic,
            timers: BTreeMap::new(),
        };
        Self {
            clock,
            state: Mutex::new(state),
        }
    }

    /// How a timer of a key stands that names this moment, or none. No more than `whole` can be
    /// left of it, where its length is known.
    pub fn judge(
        &self,
        key: &K,
        which: &'static str,
        at: Option<Timestamp>,
        whole: Option<Duration>,
    ) -> Timer {
        let mut state = self.state.lock();
        let slot = (key.clone(), which);
        let Some(at) = at else {
            state.timers.remove(&slot);
            return Timer::Off;
        };
        let now = self.clock.monotonic();
        state.read(self.clock.wall_micros(), now);
        let due = match state.timers.get(&slot) {
            Some((same, due)) if *same == at => *due,
            Some(_) | None => {
                let mut due = state.first_sight(at, now);
                due = due.min(whole.map_or(due, |whole| now + whole.max(GRACE)));
                state.timers.insert(slot, (at, due));
                due
            }
        };
        match due.checked_sub(now) {
            Some(left) if left > Duration::ZERO => Timer::In(left),
            Some(_) | None => Timer::Over,
        }
    }

    /// Drops the timers of a key that is gone.
    pub fn forget(&self, key: &K) {
        self.state.lock().timers.retain(|(of, _), _| of != key);
    }

    /// Reads the wall clock. Called from time to time, so that a jump is seen even while no timer
    /// is judged.
    pub fn look_at_the_clock(&self) {
        let now = self.clock.monotonic();
        self.state.lock().read(self.clock.wall_micros(), now);
    }
}

impl<K> State<K> {
    fn read(&mut self, wall: i64, now: Duration) {
        let ahead = wall - micros(now);
        self.readings.retain(|(known, seen)| {
            now.saturating_sub(*seen) < SETTLE && (known - ahead).abs() > DRIFT
        });
        self.readings.push((ahead, now));
    }

    fn first_sight(&self, at: Timestamp, now: Duration) -> Duration {
        let earliest = self
            .readings
            .iter()
            .map(|(ahead, _)| ahead + micros(now))
            .min();
        let left = at.as_micros().saturating_sub(earliest.unwrap_or(i64::MAX));
        match u64::try_from(left) {
            Ok(left) => now + Duration::from_micros(left),
            Err(_) if now.saturating_sub(self.started) < GRACE => now + GRACE,
            Err(_) => now,
        }
    }
}

fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use kit::ManualClock;

    use super::*;

    const HOUR: i64 = 3_600_000_000;

    fn deadlines() -> (Arc<ManualClock>, Deadlines<u8>) {
        let clock = Arc::new(ManualClock::starting_at(1_000 * HOUR));
        (Arc::clone(&clock), Deadlines::new(clock))
    }

    fn after(clock: &ManualClock, seconds: i64) -> Option<Timestamp> {
        Some(Timestamp::from_micros(
            clock.wall_micros() + seconds * 1_000_000,
        ))
    }

    async fn pass(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_forward_ends_nothing() {
        let (clock, deadlines) = deadlines();
        let at = after(&clock, 300);
        assert_eq!(
            deadlines.judge(&1, "end", at, None),
            Timer::In(Duration::from_secs(300))
        );
        clock.jump(HOUR);
        assert_eq!(
            deadlines.judge(&1, "end", at, None),
            Timer::In(Duration::from_secs(300))
        );
        pass(300).await;
        assert_eq!(deadlines.judge(&1, "end", at, None), Timer::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_between_writing_and_first_sight_ends_nothing_early() {
        let (clock, deadlines) = deadlines();
        let at = after(&clock, 300);
        clock.jump(HOUR);
        assert_eq!(
            deadlines.judge(&1, "end", at, None),
            Timer::In(Duration::from_secs(300))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn two_jumps_that_cancel_each_other_end_nothing_early() {
        let (clock, deadlines) = deadlines();
        clock.jump(-HOUR);
        let at = after(&clock, 300);
        deadlines.look_at_the_clock();
        clock.jump(HOUR);
        assert!(
            matches!(deadlines.judge(&1, "end", at, None), Timer::In(left) if left.as_secs() == 300)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_back_does_not_keep_what_was_measured_before_it() {
        let (clock, deadlines) = deadlines();
        let at = after(&clock, 300);
        deadlines.judge(&1, "end", at, None);
        clock.jump(-HOUR);
        pass(301).await;
        assert_eq!(deadlines.judge(&1, "end", at, None), Timer::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn a_minute_after_a_jump_the_new_clock_is_the_clock() {
        let (clock, deadlines) = deadlines();
        clock.jump(HOUR);
        deadlines.look_at_the_clock();
        pass(61).await;
        let at = after(&clock, 300);
        assert_eq!(
            deadlines.judge(&1, "end", at, None),
            Timer::In(Duration::from_secs(300))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_over_before_the_start_gets_a_grace_period() {
        let (clock, deadlines) = deadlines();
        let at = after(&clock, -5);
        assert_eq!(deadlines.judge(&1, "end", at, None), Timer::In(GRACE));
        pass(10).await;
        assert_eq!(deadlines.judge(&1, "end", at, None), Timer::Over);
        let late = after(&clock, -5);
        assert_eq!(deadlines.judge(&2, "end", late, None), Timer::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_timer_is_measured_anew() {
        let (clock, deadlines) = deadlines();
        deadlines.judge(&1, "end", after(&clock, 10), None);
        pass(9).await;
        let renewed = after(&clock, 10);
        assert_eq!(
            deadlines.judge(&1, "end", renewed, None),
            Timer::In(Duration::from_secs(10))
        );
        assert_eq!(deadlines.judge(&1, "end", None, None), Timer::Off);
    }
}
