//! Time as an input.
//!
//! Two clocks in one trait because they answer different questions: the wall clock says what a
//! record should carry, the monotonic one how long something took. Only the second may decide
//! that a deadline has passed.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Where code that needs the time gets it.
pub trait Clock: Send + Sync + Debug {
    /// Microseconds since 1970 on the wall clock. Can jump either way.
    fn wall_micros(&self) -> i64;
    /// Time since some fixed moment. Never goes back.
    fn monotonic(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where the real clock comes in"
    )]
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where the real clock comes in"
    )]
    fn wall_micros(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that follows tokio's time, which tests can pause, and whose wall half can be pushed.
#[derive(Debug)]
pub struct ManualClock {
    start: tokio::time::Instant,
    wall_offset: AtomicI64,
}

impl ManualClock {
    /// A clock whose wall half starts at this many microseconds since 1970.
    #[must_use]
    pub fn starting_at(wall_micros: i64) -> Self {
        Self {
            start: tokio::time::Instant::now(),
            wall_offset: AtomicI64::new(wall_micros),
        }
    }

    /// Makes the wall clock jump; the monotonic one does not notice.
    pub fn jump(&self, micros: i64) {
        self.wall_offset.fetch_add(micros, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall_micros(&self) -> i64 {
        let elapsed = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.wall_offset
            .load(Ordering::Relaxed)
            .saturating_add(elapsed)
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
