//! What every benchmark here shares: percentiles, and ratios to a baseline of the same run.
//!
//! Machines are noisy, so a number alone says little. Each benchmark measures the thing and its
//! baseline side by side and prints the ratio beside the target it is held to.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

pub mod cgroup;
pub mod http;
pub mod server;

use std::{
    fmt::Display,
    fs, io,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

/// What a benchmark gives up with.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Bytes of a process that are in memory: by its number, or `self`.
///
/// # Errors
/// If the kernel does not say.
pub fn resident_bytes(process: impl Display) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("the kernel does not say how much memory is used"))
}

/// Latencies of one measured thing, in nanoseconds.
#[derive(Debug)]
pub struct Samples(Histogram<u64>);

impl Default for Samples {
    fn default() -> Self {
        // Bounds up front, an hour at most: saturating_record does not grow a histogram, it clips.
        let hour = 3_600_000_000_000;
        Self(Histogram::new_with_bounds(1, hour, 3).expect("three digits is a valid precision"))
    }
}

impl Samples {
    /// Adds one latency.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Grows to what it is given; only a range set in advance can be too small.
        self.0
            .record(nanos.max(1))
            .expect("the histogram resizes itself");
    }

    /// Measures one call.
    ///
    /// # Errors
    /// Those of the call.
    pub fn time<T>(&mut self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let result = call()?;
        self.record(begun.elapsed());
        Ok(result)
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("both histograms have the same precision");
    }

    /// The latency that this share (0 to 1) of samples stays within.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(q))
    }

    /// Prints one line: name, count, p50, p99, max.
    pub fn print(&self, name: &str) {
        println!(
            "{name:<44} n {:>8}  p50 {:>10}  p99 {:>10}  max {:>10}",
            self.0.len(),
            human(self.quantile(0.5)),
            human(self.quantile(0.99)),
            human(Duration::from_nanos(self.0.max())),
        );
    }
}

/// What a ratio is held to.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// The ratio may be at most this.
    AtMost(f64),
    /// The ratio must be at least this.
    AtLeast(f64),
}

/// Prints a measured ratio beside its target, and whether it is met.
pub fn verdict(name: &str, ratio: f64, target: Target) {
    let (word, bound, met) = match target {
        Target::AtMost(bound) => ("at most", bound, ratio <= bound),
        Target::AtLeast(bound) => ("at least", bound, ratio >= bound),
    };
    let met = if met { "met" } else { "MISSED" };
    println!("{name:<44} {ratio:>8.2}  target {word} {bound}  {met}");
}

/// A duration at the unit a person would choose.
#[must_use]
pub fn human(d: Duration) -> String {
    let ns = d.as_nanos();
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}
