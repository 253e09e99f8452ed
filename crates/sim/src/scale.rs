//! Many sandboxes over many gateways: whether what `docs/scale.md` computes is so.
//!
//! The real tables and the real core of the mesh, over the simulated network on virtual time. What
//! is not here are control, flights and requests: changes of routes come at a stated rate from who
//! would write them, and reach each gateway by the mesh at once and by a watch some time later.
//!
//! A run has five parts: a while in which nothing changes; changes at their rate; a gateway that is
//! parted from the others while its watch stands still, and comes back; rest, in which all tables
//! have to be equal; and one more gateway, which has no store to list.

mod churn;
mod fleet;

use std::{fmt, fs, time::Duration};

use churn::Churn;
use fleet::{Fleet, HEALS_WITHIN, Joined};

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Sandboxes.
    pub sandboxes: usize,
    /// Gateways.
    pub gateways: usize,
    /// Replicas of the API.
    pub replicas: usize,
    /// Changes of routes a second.
    pub changes: usize,
    /// Seconds of changes.
    pub seconds: usize,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            sandboxes: 100_000,
            gateways: 20,
            replicas: 4,
            changes: 1_000,
            seconds: 30,
        }
    }
}

/// One line of the model, and what was measured.
#[derive(Clone, Debug)]
pub struct Line {
    /// Of what.
    pub what: &'static str,
    /// What the formula gives.
    pub model: f64,
    /// What was measured.
    pub measured: f64,
}

impl Line {
    /// What was measured, over what the formula gives.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.measured / self.model
    }
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Lines of the model.
    pub lines: Vec<Line>,
    /// What has no formula.
    pub notes: Vec<(&'static str, String)>,
    /// What must not be: a gateway that does not hear what it missed, and tables that differ from what
    /// was written, once all was quiet.
    pub wrong: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<66}{:>14}{:>14}{:>8}",
            "", "model", "measured", "ratio"
        )?;
        for line in &self.lines {
            let Line {
                what,
                model,
                measured,
            } = line;
            let ratio = line.ratio();
            writeln!(f, "{what:<66}{model:>14.1}{measured:>14.1}{ratio:>8.2}")?;
        }
        for (what, found) in &self.notes {
            writeln!(f, "{what:<66}{found:>36}")?;
        }
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        Ok(())
    }
}

/// Runs it, in a runtime of its own.
///
/// # Panics
/// If the runtime cannot be made.
#[must_use]
pub fn run(scale: Scale, seed: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a current-thread runtime needs nothing of the machine");
    runtime.block_on(measure(scale, seed))
}

/// What a route takes after updates: `bench routes` of a million, 15 November 2026.
const ROUTE_BYTES: f64 = 483.0;

/// How long everybody has to meet.
const MEETING: Duration = Duration::from_secs(5);
/// How long nothing changes, to see what that costs.
const IDLE: Duration = Duration::from_secs(20);
/// How long one gateway is parted from the others.
const PARTED: Duration = Duration::from_secs(10);
/// How long everything is given to come to rest.
const REST: Duration = Duration::from_secs(10);

async fn measure(scale: Scale, seed: u64) -> Report {
    let mut report = Report::default();
    let mut churn = Churn::new(scale, seed);
    let before = resident();
    let mut fleet = Fleet::start(&churn, scale, seed);
    let tables = (scale.sandboxes * scale.gateways) as f64;
    let taken = (resident() - before).max(0.0) / tables;
    report.line(
        "bytes of memory for a route in one gateway",
        ROUTE_BYTES,
        taken,
    );
    fleet.pass(MEETING).await;

    let moved = fleet.moved();
    fleet.pass(IDLE).await;
    let idle = fleet.moved().since(&moved);
    let members = fleet.members();
    let pairs = (members * (members - 1)) as f64;
    let a_second = idle.bytes as f64 / IDLE.as_secs_f64();
    let sizes = fleet::Sizes::of(&churn);
    let beat = sizes.beat * pairs + sizes.question * scale.gateways as f64;
    report.line("idle: bytes a second, all members together", beat, a_second);

    let (moved, applied, began) = (fleet.moved(), fleet.applied(), working());
    let made = fleet.change(&mut churn, scale.changes, scale.seconds).await;
    let (busy, took) = (fleet.moved().since(&moved), working() - began);
    let seconds = scale.seconds as f64;
    let bytes = (busy.bytes as f64 - a_second * seconds) / made as f64;
    let told = (scale.gateways + scale.replicas) as f64;
    // A gateway does not tell itself; a replica does not, either.
    let said = (told - churn.own_share()) * sizes.change;
    report.line("bytes on the wire for a change, to all", said, bytes);
    let per_gateway = (fleet.applied() - applied) as f64 / scale.gateways as f64;
    report.line(
        "changes heard first from a peer, each gateway",
        made as f64,
        per_gateway,
    );
    let (p50, p99) = fleet.delays();
    report.note(
        "a change to its effect at all gateways, p50 / p99",
        format!("{p50:?} / {p99:?}"),
    );
    let each = took.as_secs_f64() * 1e6 / (made as f64 * told);
    report.note(
        "processor for a change at one listener, both ends",
        format!("{each:.1} us"),
    );

    match fleet.part_one(&mut churn, scale.changes, PARTED).await {
        Ok(healed) => report.note(
            "after a partition of 10 s under change: all there after",
            format!("{healed:?}"),
        ),
        Err(lacks) => report.wrong.push(format!(
            "{HEALS_WITHIN:?} after a partition its gateway lacks {lacks} changes"
        )),
    }

    fleet.pass(REST).await;
    report.wrong.extend(fleet.differences(&churn));

    let (moved, began) = (fleet.moved(), working());
    let Joined { ready, all, routes } = fleet.join().await;
    let bytes = fleet.moved().since(&moved).bytes as f64 - a_second * all.as_secs_f64();
    // Everything from one, and from each who writes what it has said lately.
    let told = sizes.told * (routes + fleet.said_lately()) as f64;
    report.line("bytes for one more gateway to join", told, bytes);
    let took = working() - began;
    report.note(
        "a gateway without a store joins: network; processor",
        format!("{ready:?}; {took:?}"),
    );
    if routes != churn.alive() {
        report
            .wrong
            .push(format!("joined with {routes} routes of {}", churn.alive()));
    }
    report
}

impl Report {
    fn line(&mut self, what: &'static str, model: f64, measured: f64) {
        self.lines.push(Line {
            what,
            model,
            measured,
        });
    }

    fn note(&mut self, what: &'static str, found: String) {
        self.notes.push((what, found));
    }
}

/// Bytes that this program has in memory; none where that cannot be read.
fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes.and_then(|k| k.parse().ok()).unwrap_or(0.0) * 1024.0
}

/// How long the processor has worked for this thread, which everything runs in; nothing where that
/// cannot be read.
fn working() -> Duration {
    let line = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = line.split_whitespace().next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
