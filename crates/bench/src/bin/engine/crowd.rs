//! Many sandboxes: creates at once, creates while many live, and what idle ones cost.

use std::{
    error::Error,
    fs, io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bench::{Samples, Target, verdict};

use crate::{Bench, fence, timed};

const AT_ONCE: usize = 8;
const CREATES: usize = 160;
/// Creates that are timed at each number of live sandboxes.
const WINDOW: usize = 20;
const LIVE: [usize; 4] = [1, 100, 500, 1000];
const IDLE: Duration = Duration::from_secs(5);

/// Eight callers against one.
pub(crate) fn concurrent(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let alone = throughput(bench, 1)?;
    let together = throughput(bench, AT_ONCE)?;
    let cores = std::thread::available_parallelism()?.get().min(AT_ONCE);
    println!("\ncreates to the first answer and deletes, each second");
    println!("{:<44} {alone:>8.0}", "one caller");
    println!("{:<44} {together:>8.0}", format!("{AT_ONCE} callers"));
    verdict(
        &format!("callers at once / one, on {cores} cores"),
        together / alone,
        Target::AtLeast(0.5 * cores as f64),
    );
    Ok(())
}

fn throughput(bench: &Bench, callers: usize) -> Result<f64, Box<dyn Error>> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= CREATES {
                        return;
                    }
                    let number = number as u128;
                    let done = bench.start(number).and_then(|()| bench.delete(number));
                    if let Err(error) = done {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(error.to_string());
                        return;
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner()? {
        return Err(error.into());
    }
    Ok(CREATES as f64 / begin.elapsed().as_secs_f64())
}

/// Up to a thousand live ones.
pub(crate) fn live(bench: &Bench) -> Result<(), Box<dyn Error>> {
    println!("\ncreate to the first answer while others live");
    let mut first = None;
    let mut number = 0;
    let mut memory = (0, 0);
    for live in LIVE {
        while number + 1 < live {
            bench.start(number as u128)?;
            number += 1;
        }
        let mut samples = Samples::default();
        for _ in 0..WINDOW {
            timed(&mut samples, || bench.start(number as u128))?;
            bench.delete(number as u128)?;
        }
        samples.print(&format!("{live} live"));
        let p50 = samples.quantile(0.5);
        let ratio = p50.as_secs_f64() / first.get_or_insert(p50).as_secs_f64();
        verdict(&format!("{live} live / 1 live"), ratio, Target::AtMost(1.5));
        // Once nothing that comes with the first ones is counted any more.
        if live == LIVE[1] {
            memory = (number, settled_memory()?);
        }
    }
    let taken = memory.1.saturating_sub(settled_memory()?);
    idle(bench, number, taken / (number - memory.0))?;
    let mut deleted = Samples::default();
    for number in 0..number {
        timed(&mut deleted, || bench.delete(number as u128))?;
    }
    deleted.print("delete, from many to none");
    Ok(())
}

fn idle(bench: &Bench, count: usize, each_kib: usize) -> Result<(), Box<dyn Error>> {
    println!("\n{count} idle sandboxes");
    verdict(
        "MiB of the host for each, all in",
        each_kib as f64 / 1024.0,
        Target::AtMost(1.0),
    );
    let pids: Vec<i32> = (0..count)
        .filter_map(|number| bench.runtime.first_process(fence(number as u128).uid))
        .collect();
    let mut private = 0;
    for pid in &pids {
        private += private_kib(*pid)?;
    }
    println!(
        "{:<44} {:>8.2}",
        "MiB of the agent alone, private",
        private as f64 / pids.len() as f64 / 1024.0
    );
    let busy = |pids: &[i32]| {
        pids.iter()
            .map(|pid| busy_nanos(*pid))
            .sum::<io::Result<u64>>()
    };
    let before = busy(&pids)?;
    std::thread::sleep(IDLE);
    let spent = Duration::from_nanos(busy(&pids)? - before);
    verdict(
        "share of one processor, all together",
        spent.as_secs_f64() / IDLE.as_secs_f64(),
        Target::AtMost(0.0),
    );
    Ok(())
}

/// What the kernel could still give, in KiB, once it has stopped moving.
fn settled_memory() -> io::Result<usize> {
    std::thread::sleep(Duration::from_secs(2));
    let text = fs::read_to_string("/proc/meminfo")?;
    field(&text, "MemAvailable:").ok_or_else(|| io::Error::other("no MemAvailable"))
}

fn field(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn private_kib(pid: i32) -> io::Result<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let both = ["Private_Clean:", "Private_Dirty:"].map(|name| field(&text, name).unwrap_or(0));
    Ok(both.iter().sum())
}

/// How long a process and its threads have run.
fn busy_nanos(pid: i32) -> io::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next();
        sum += first.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}
