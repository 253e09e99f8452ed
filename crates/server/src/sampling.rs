//! What sandboxes use, measured: the feed of the E2B API's metrics.
//!
//! Once a second, each sandbox that runs is looked at; one that sleeps is not, and costs nothing.
//! Processor time is a difference to the last look; a sandbox's first sample is the average since
//! its start, so that there is one from its first second on. Files are counted much more rarely and
//! one sandbox at a time, because that takes time with their number.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cache::{SandboxCache, SandboxIndex};
use e2b::{Sampler, ports::Sample};
use kit::{Clock, Tasks};
use model::{Epoch, Sandbox, SandboxId, Timestamp, Uid, lifecycle::Phase};
use runtime_local::{DiskUsage, LocalRuntime, Usage};
use tokio::time::{MissedTickBehavior, interval};

/// How often a sandbox is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// How many looks pass between two counts of a sandbox's files.
const DISK_EVERY: u32 = 30;

/// What the last look at a delivery saw.
#[derive(Clone, Copy, Debug)]
struct Last {
    epoch: Epoch,
    at: Duration,
    cpu: Duration,
    disk: Option<DiskUsage>,
    looks: u32,
}

/// Looks, as long as the server runs.
pub(crate) struct Sampling {
    pub(crate) runtime: LocalRuntime,
    pub(crate) sandboxes: SandboxCache,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Processors and memory of a sandbox that has no limits.
    pub(crate) host: Host,
}

/// What this machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    processors: u32,
    memory: u64,
}

impl Host {
    /// Looks.
    pub(crate) fn here() -> Self {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let processors = std::thread::available_parallelism();
        Self {
            processors: processors.map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
            memory: total.unwrap_or_default() << 10,
        }
    }
}

impl Sampling {
    /// Begins.
    pub(crate) fn start(self, tasks: &Tasks) {
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.run() => {}
            }
        });
    }

    async fn run(self) {
        let mut ticks = interval(PERIOD);
        // After a stall there is nothing to catch up with.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: BTreeMap<Uid, Last> = BTreeMap::new();
        loop {
            ticks.tick().await;
            let running = self
                .sandboxes
                .find_by(SandboxIndex::Phase, Phase::Running.as_str());
            let owned = running.iter().filter(|s| s.spec.sandbox_id.is_some());
            for sandbox in owned {
                self.look(sandbox, &mut last).await;
            }
            self.forget(&mut last);
        }
    }

    async fn look(&self, sandbox: &Sandbox, last: &mut BTreeMap<Uid, Last>) {
        let uid = sandbox.uid();
        let (Some(id), Some(usage)) = (&sandbox.spec.sandbox_id, self.runtime.usage(uid)) else {
            return;
        };
        let (at, now) = (self.clock.monotonic(), self.now());
        let before = last
            .get(&uid)
            .copied()
            .filter(|last| last.epoch == sandbox.spec.epoch);
        let looks = before.map_or(0, |last| last.looks + 1);
        let mut disk = before.and_then(|last| last.disk);
        if looks.is_multiple_of(DISK_EVERY) {
            disk = self.runtime.disk_usage(uid).await.ok().flatten();
        }
        let (used, over) = match before {
            Some(last) => (
                usage.cpu.saturating_sub(last.cpu),
                at.saturating_sub(last.at),
            ),
            None => (usage.cpu, age(sandbox, now)),
        };
        let sample = self.sample(now, sandbox, usage, disk, percent(used, over));
        self.sampler.record(id, sample);
        let seen = Last {
            epoch: sandbox.spec.epoch,
            at,
            cpu: usage.cpu,
            disk,
            looks,
        };
        last.insert(uid, seen);
    }

    fn sample(
        &self,
        at: Timestamp,
        sandbox: &Sandbox,
        usage: Usage,
        disk: Option<DiskUsage>,
        cpu_used_percent: f32,
    ) -> Sample {
        let millis = sandbox.spec.resources.and_then(|r| r.cpu_millis);
        let disk = disk.unwrap_or(DiskUsage { used: 0, total: 0 });
        Sample {
            at,
            cpu_count: millis.map_or(self.host.processors, |m| m.div_ceil(1000).max(1)),
            cpu_used_percent,
            memory_used: usage.memory,
            memory_total: usage.memory_limit.unwrap_or(self.host.memory),
            memory_cache: usage.cache,
            disk_used: disk.used,
            disk_total: disk.total,
        }
    }

    /// Those that are gone take their samples with them; those that sleep keep them.
    fn forget(&self, last: &mut BTreeMap<Uid, Last>) {
        let all = self.sandboxes.find_all();
        let here: BTreeSet<Uid> = all.iter().map(|s| s.uid()).collect();
        last.retain(|uid, _| here.contains(uid));
        let ids: BTreeSet<&SandboxId> = all
            .iter()
            .filter_map(|s| s.spec.sandbox_id.as_ref())
            .collect();
        self.sampler.retain(|id| ids.contains(id));
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }
}

/// How long a delivery has been there.
fn age(sandbox: &Sandbox, now: Timestamp) -> Duration {
    let started = sandbox.status.started_at.or(sandbox.spec.claimed_at);
    let micros = started.map_or(0, |at| now.as_micros() - at.as_micros());
    Duration::from_micros(u64::try_from(micros).unwrap_or(0)).max(Duration::from_millis(100))
}

/// Of one processor.
fn percent(used: Duration, over: Duration) -> f32 {
    if over.is_zero() {
        return 0.0;
    }
    100.0 * used.as_secs_f32() / over.as_secs_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_work_in_two_seconds_is_half_a_processor() {
        assert!((percent(Duration::from_secs(1), Duration::from_secs(2)) - 50.0).abs() < 0.01);
        assert!(percent(Duration::from_secs(1), Duration::ZERO).abs() < 0.01);
    }

    #[test]
    fn this_machine_has_memory_and_processors() {
        let host = Host::here();
        assert!(host.memory > 0 && host.processors > 0, "{host:?}");
    }
}
