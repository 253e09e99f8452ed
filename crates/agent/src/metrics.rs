//! What the sandbox uses: of its cgroup where that is visible, else of the machine.

use std::{fs, time::Duration};

use kit::Clock;
use parking_lot::Mutex;
use wire::envd::Metrics;

const MIB: u64 = 1024 * 1024;

/// Remembers the last sample, because use of processors is a difference.
#[derive(Debug, Default)]
pub(crate) struct Sampler(Mutex<Option<Sample>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    used_micros: u64,
}

impl Sampler {
    pub(crate) fn sample(&self, clock: &dyn Clock) -> Metrics {
        let cpu_count = cpu_count();
        let now = Sample {
            at: clock.monotonic(),
            used_micros: cpu_used_micros(),
        };
        let before = self.0.lock().replace(now);
        let cpu_used_pct = before.map_or(0.0, |before| {
            let passed = now.at.saturating_sub(before.at).as_micros();
            let used = now.used_micros.saturating_sub(before.used_micros);
            if passed == 0 {
                0.0
            } else {
                let percent = 100.0 * used as f64 / passed as f64 / f64::from(cpu_count.max(1));
                (percent * 100.0).round() / 100.0
            }
        });
        let memory = memory();
        let (disk_used, disk_total) = rustix::fs::statvfs("/").map_or((0, 0), |disk| {
            let total = disk.f_blocks * disk.f_frsize;
            (total.saturating_sub(disk.f_bfree * disk.f_frsize), total)
        });
        Metrics {
            ts: clock.wall_micros() / 1_000_000,
            cpu_count,
            cpu_used_pct,
            mem_total: memory.total,
            mem_used: memory.used,
            mem_cache: memory.cache,
            mem_total_mib: memory.total / MIB,
            mem_used_mib: memory.used / MIB,
            disk_used,
            disk_total,
        }
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// A value from lines of `key value`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == key).then(|| words.next()?.parse().ok())?
    })
}

fn cpu_count() -> u32 {
    let online = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let quota = read("/sys/fs/cgroup/cpu.max").and_then(|text| {
        let (quota, period) = text.trim().split_once(' ')?;
        Some(
            quota
                .parse::<u64>()
                .ok()?
                .div_ceil(period.parse::<u64>().ok()?.max(1)),
        )
    });
    u32::try_from(quota.unwrap_or(online).clamp(1, online.max(1))).unwrap_or(1)
}

fn cpu_used_micros() -> u64 {
    let own = read("/sys/fs/cgroup/cpu.stat").and_then(|text| keyed(&text, "usage_usec"));
    let own =
        own.or_else(|| number("/sys/fs/cgroup/cpuacct/cpuacct.usage").map(|nanos| nanos / 1000));
    own.unwrap_or_else(|| {
        // Hundredths of a second, but for idle and waiting for disks (the fourth and the fifth).
        let text = read("/proc/stat").unwrap_or_default();
        let fields = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1);
        let busy = fields
            .take(8)
            .enumerate()
            .filter(|(index, _)| !matches!(index, 3 | 4))
            .filter_map(|(_, field)| field.parse::<u64>().ok());
        busy.sum::<u64>() * 10_000
    })
}

struct Memory {
    total: u64,
    used: u64,
    cache: u64,
}

fn memory() -> Memory {
    let info = read("/proc/meminfo").unwrap_or_default();
    let machine = |key| keyed(&info, key).unwrap_or(0) * 1024;
    let total = machine("MemTotal:");
    for (limit, current, stat, cache) in [
        ("memory.max", "memory.current", "memory.stat", "file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_cache",
        ),
    ] {
        let file = |name| format!("/sys/fs/cgroup/{name}");
        let (Some(current), Some(stat)) = (number(&file(current)), read(&file(stat))) else {
            continue;
        };
        let cache = keyed(&stat, cache).unwrap_or(0).min(current);
        // "max", and the number near 2^63 that was its name before, mean the machine's.
        let total = number(&file(limit)).map_or(total, |limit| limit.min(total));
        return Memory {
            total,
            used: current - cache,
            cache,
        };
    }
    let cache = machine("Cached:") + machine("SReclaimable:");
    Memory {
        total,
        used: total.saturating_sub(machine("MemAvailable:")),
        cache,
    }
}
