//! `cargo xtask check`: exactly what CI runs.

use crate::{
    command::{self, Stopwatch, cargo},
    tests,
};

/// Seeds of the simulator in every check; `cargo xtask soak` goes on from there.
const SEEDS: &str = "1000";

/// Runs every step, and stops at the first that fails.
pub(crate) fn run() -> anyhow::Result<()> {
    let whole = Stopwatch::start();
    step("format", || {
        command::run(cargo().args(["fmt", "--all", "--check"]))
    })?;
    step("lints", || {
        command::run(cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("simulator", || {
        command::run(
            cargo()
                .args(["run", "--package", "dormouse-sim", "--"])
                .args(["--seeds", SEEDS]),
        )
    })?;
    // Last, so that the counts are the last thing to read.
    step("tests", || tests::run(None))?;
    println!("check passed in {:.0?}", whole.elapsed());
    Ok(())
}

fn step(name: &str, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    println!("== {name}");
    let watch = Stopwatch::start();
    work()?;
    println!("== {name} took {:.1?}", watch.elapsed());
    Ok(())
}
