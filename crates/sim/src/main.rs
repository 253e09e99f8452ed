//! Runs seeds, replays one, or looks at many sandboxes over many gateways.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
};

use clap::{Parser, Subcommand, builder::RangedU64ValueParser};
use parking_lot::Mutex;
use sim::{Outcome, Plant, Size, scale::Scale};

/// Runs the simulated world.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  dormouse-sim --seeds 1000            a thousand seeds, from 0
  dormouse-sim --from 5000 --seeds 50  fifty others
  dormouse-sim --seed 17 --trace       replay one and print what happened
  dormouse-sim --seeds 100 --plant blind-writes
                                       with a defect on purpose: must fail
  dormouse-sim scale --seed 3          100,000 sandboxes over 20 gateways")]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Replay this seed only.
    #[arg(long, global = true)]
    seed: Option<u64>,
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Things that clients ask for in a run.
    #[arg(long, default_value_t = Size::default().acts)]
    acts: usize,
    /// A defect on purpose.
    #[arg(long)]
    plant: Option<Plant>,
    /// Print every change.
    #[arg(long)]
    trace: bool,
    /// Print what the code says about itself, as in RUST_LOG.
    #[arg(long)]
    log: Option<String>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Mode {
    /// Many sandboxes over many gateways, beside what docs/scale.md computes of them.
    Scale {
        /// Sandboxes.
        #[arg(long, default_value_t = Scale::default().sandboxes)]
        sandboxes: usize,
        /// Gateways.
        #[arg(long, default_value_t = Scale::default().gateways, value_parser = at_least_one())]
        gateways: usize,
        /// Replicas of the API.
        #[arg(long, default_value_t = Scale::default().replicas, value_parser = at_least_one())]
        replicas: usize,
        /// Changes a second.
        #[arg(long, default_value_t = Scale::default().changes)]
        changes: usize,
        /// Seconds of changes.
        #[arg(long, default_value_t = Scale::default().seconds)]
        seconds: usize,
    },
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(filter) = &args.log {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .init();
    }
    if let Some(Mode::Scale {
        sandboxes,
        gateways,
        replicas,
        changes,
        seconds,
    }) = args.mode
    {
        let scale = Scale {
            sandboxes,
            gateways,
            replicas,
            changes,
            seconds,
        };
        let report = sim::scale::run(scale, args.seed.unwrap_or(0));
        println!("{scale:?}");
        print!("{report}");
        return match report.wrong.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        };
    }
    let size = Size { acts: args.acts };
    if let Some(seed) = args.seed {
        let outcome = sim::run(seed, size, args.plant);
        if args.trace {
            outcome.trace.iter().for_each(|line| println!("{line}"));
        }
        return report(&[outcome]);
    }
    report(&run_all(&args, size))
}

/// Runs all seeds, on as many threads as there are cores. Each run is a world of its own.
fn run_all(args: &Args, size: Size) -> Vec<Outcome> {
    let next = AtomicU64::new(args.from);
    let end = args.from + args.seeds;
    let outcomes = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let mut outcome = sim::run(seed, size, args.plant);
                    outcome.trace = Vec::new();
                    outcomes.lock().push(outcome);
                }
            });
        }
    });
    outcomes.into_inner()
}

fn report(outcomes: &[Outcome]) -> ExitCode {
    let changes: u64 = outcomes.iter().map(|o| o.fingerprint.0).sum();
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|o| !o.violations.is_empty())
        .collect();
    for outcome in failed.iter().take(20) {
        println!(
            "seed {} broke {} promises:",
            outcome.seed,
            outcome.violations.len()
        );
        for violation in outcome.violations.iter().take(4) {
            println!("  {violation}");
        }
        println!(
            "  replay: cargo run -p dormouse-sim -- --seed {} --trace",
            outcome.seed
        );
    }
    println!(
        "{} seeds, {changes} changes, {} failed",
        outcomes.len(),
        failed.len()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
