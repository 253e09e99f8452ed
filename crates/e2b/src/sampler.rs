//! What sandboxes used, in memory: the last minutes of each delivery as they were measured, and a
//! day in coarser steps.
//!
//! | | every | for | samples |
//! |---|---|---|---|
//! | fine | second, as it is fed | 5 minutes | 300 |
//! | coarse | 2 minutes | a day | 720 |
//!
//! A sample has 56 bytes, so a delivery takes at most 57,120 bytes, and little while it is young:
//! room is made as it is needed. A coarse sample has the average of the processor's use over its
//! time, and of everything else the last value.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use model::{SandboxId, Timestamp};
use parking_lot::RwLock;

use crate::ports::{MetricsSource, Sample};

const FINE: usize = 300;
const COARSE: usize = 720;
const STEP: Duration = Duration::from_secs(120);

/// Keeps samples of each sandbox. Whoever measures feeds it, from the first second of a sandbox on,
/// and tells it which sandboxes are left.
#[derive(Debug, Default)]
pub struct Sampler {
    kept: RwLock<BTreeMap<SandboxId, History>>,
}

/// What is kept of one delivery.
#[derive(Debug, Default)]
struct History {
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
    open: Option<Step>,
}

/// A coarse sample in the making.
#[derive(Debug)]
struct Step {
    since: Timestamp,
    percents: f64,
    count: u32,
}

impl History {
    fn take(&mut self, sample: Sample) {
        push(&mut self.fine, sample, FINE);
        let step = self.open.get_or_insert(Step {
            since: sample.at,
            percents: 0.0,
            count: 0,
        });
        step.percents += f64::from(sample.cpu_used_percent);
        step.count += 1;
        if sample.at >= step.since.plus(STEP) {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the average of such numbers is one"
            )]
            let cpu_used_percent = (step.percents / f64::from(step.count)) as f32;
            let average = Sample {
                cpu_used_percent,
                ..sample
            };
            push(&mut self.coarse, average, COARSE);
            self.open = None;
        }
    }

    /// What is known of the past, then what is known exactly.
    fn all(&self) -> impl Iterator<Item = &Sample> {
        let exact = self.fine.front().map(|sample| sample.at);
        let past = self.coarse.iter().filter(move |s| Some(s.at) < exact);
        past.chain(&self.fine)
    }
}

/// Adds to a ring, which never has room for more than `most`.
fn push(ring: &mut VecDeque<Sample>, sample: Sample, most: usize) {
    if ring.len() == most {
        ring.pop_front();
    } else if ring.len() == ring.capacity() {
        ring.reserve_exact(ring.len().max(8).min(most - ring.len()));
    }
    ring.push_back(sample);
}

impl Sampler {
    /// Takes a sample. One that is older than the newest is late, and is dropped.
    pub fn record(&self, id: &SandboxId, sample: Sample) {
        let mut kept = self.kept.write();
        let history = kept.entry(id.clone()).or_default();
        let newest = history.fine.back();
        if newest.is_none_or(|newest| newest.at < sample.at) {
            history.take(sample);
        }
    }

    /// Forgets the sandboxes for which this does not hold.
    pub fn retain(&self, keep: impl Fn(&SandboxId) -> bool) {
        self.kept.write().retain(|id, _| keep(id));
    }

    /// How many sandboxes there are samples of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.read().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl MetricsSource for Sampler {
    fn range(&self, id: &SandboxId, start: Timestamp, end: Timestamp) -> Vec<Sample> {
        let kept = self.kept.read();
        let all = kept.get(id).into_iter().flat_map(History::all);
        all.filter(|sample| (start..=end).contains(&sample.at))
            .copied()
            .collect()
    }

    fn latest(&self, id: &SandboxId) -> Option<Sample> {
        self.kept.read().get(id)?.fine.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn sample(second: i64, cpu_used_percent: f32) -> Sample {
        Sample {
            at: at(second),
            cpu_count: 1,
            cpu_used_percent,
            memory_used: u64::try_from(second).unwrap(),
            memory_total: 2,
            memory_cache: 0,
            disk_used: 1,
            disk_total: 2,
        }
    }

    fn seconds(samples: &[Sample]) -> Vec<i64> {
        let seconds = samples.iter().map(|s| s.at.as_micros() / 1_000_000);
        seconds.collect()
    }

    #[test]
    fn samples_are_found_by_time_and_late_ones_dropped() {
        let sampler = Sampler::default();
        let id = SandboxId::new("i1").unwrap();
        for second in [1, 2, 3, 4, 2] {
            sampler.record(&id, sample(second, 1.0));
        }
        assert_eq!(seconds(&sampler.range(&id, at(2), at(9))), [2, 3, 4]);
        assert_eq!(seconds(&sampler.range(&id, at(3), at(3))), [3]);
        assert_eq!(sampler.latest(&id).map(|s| s.at), Some(at(4)));
        sampler.retain(|_| false);
        assert!(sampler.is_empty());
    }

    #[test]
    fn a_day_is_kept_in_coarse_steps_within_the_stated_bytes() {
        let sampler = Sampler::default();
        let id = SandboxId::new("i1").unwrap();
        let day = 24 * 3600;
        for second in 0..2 * day {
            let busy = if second % 2 == 0 { 100.0 } else { 0.0 };
            sampler.record(&id, sample(second, busy));
        }
        let all = sampler.range(&id, at(0), at(3 * day));
        let times = seconds(&all);
        assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
        assert_eq!(times.last(), Some(&(2 * day - 1)));
        assert!(times[0] <= day + 150, "a day back: {}", times[0]);
        let exact = times.iter().filter(|t| **t >= 2 * day - 300).count();
        assert_eq!(exact, 300);
        let coarse = &all[10];
        assert!((coarse.cpu_used_percent - 50.0).abs() < 1.0, "{coarse:?}");
        let last = u64::try_from(coarse.at.as_micros() / 1_000_000).unwrap();
        assert_eq!(coarse.memory_used, last, "the last value, not an average");
        let kept = sampler.kept.read();
        let history = &kept[&id];
        let room = history.fine.capacity() + history.coarse.capacity();
        assert!(room * size_of::<Sample>() <= 57_120, "{room}");
    }
}
