//! What sandboxes used lately, in memory: a ring for each delivery.

use std::collections::{BTreeMap, VecDeque};

use model::{SandboxId, Timestamp};
use parking_lot::RwLock;

use crate::ports::{MetricsSource, Sample};

/// Keeps the last samples of each sandbox. Whoever measures feeds it, from the first second of a
/// sandbox on, and tells it which sandboxes are left.
#[derive(Debug)]
pub struct Sampler {
    most: usize,
    rings: RwLock<BTreeMap<SandboxId, VecDeque<Sample>>>,
}

impl Sampler {
    /// Keeps at most this many samples of each.
    #[must_use]
    pub fn keeping(most: usize) -> Self {
        Self {
            most: most.max(1),
            rings: RwLock::default(),
        }
    }

    /// Takes a sample. One that is older than the newest is late, and is dropped.
    pub fn record(&self, id: &SandboxId, sample: Sample) {
        let mut rings = self.rings.write();
        let ring = rings.entry(id.clone()).or_default();
        if ring.back().is_some_and(|newest| newest.at >= sample.at) {
            return;
        }
        if ring.len() == self.most {
            ring.pop_front();
        }
        ring.push_back(sample);
    }

    /// Forgets the sandboxes for which this does not hold.
    pub fn retain(&self, keep: impl Fn(&SandboxId) -> bool) {
        self.rings.write().retain(|id, _| keep(id));
    }

    /// How many sandboxes there are samples of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rings.read().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Sampler {
    /// An hour, at one sample every five seconds.
    fn default() -> Self {
        Self::keeping(720)
    }
}

impl MetricsSource for Sampler {
    fn range(&self, id: &SandboxId, start: Timestamp, end: Timestamp) -> Vec<Sample> {
        let rings = self.rings.read();
        let ring = rings.get(id).into_iter().flatten();
        ring.filter(|sample| (start..=end).contains(&sample.at))
            .copied()
            .collect()
    }

    fn latest(&self, id: &SandboxId) -> Option<Sample> {
        self.rings.read().get(id)?.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: i64) -> Sample {
        Sample {
            at: Timestamp::from_micros(at),
            cpu_count: 1,
            cpu_used_percent: 1.0,
            memory_used: 1,
            memory_total: 2,
            memory_cache: 0,
            disk_used: 1,
            disk_total: 2,
        }
    }

    #[test]
    fn the_newest_samples_are_kept_and_late_ones_dropped() {
        let sampler = Sampler::keeping(3);
        let id = SandboxId::new("i1").unwrap();
        for at in [1, 2, 3, 4, 2] {
            sampler.record(&id, sample(at));
        }
        let all = sampler.range(&id, Timestamp::from_micros(0), Timestamp::from_micros(9));
        let times: Vec<_> = all.iter().map(|s| s.at.as_micros()).collect();
        assert_eq!(times, [2, 3, 4]);
        assert_eq!(sampler.latest(&id).map(|s| s.at.as_micros()), Some(4));
        let some = sampler.range(&id, Timestamp::from_micros(3), Timestamp::from_micros(3));
        assert_eq!(some.len(), 1);
        sampler.retain(|_| false);
        assert!(sampler.is_empty());
    }
}
