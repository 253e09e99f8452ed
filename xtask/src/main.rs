//! The project's own commands: `cargo xtask check`, `cargo xtask soak`, `cargo xtask bench`.

mod check;
mod command;
mod kubectl;
mod tests;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use command::{Stopwatch, cargo};

const HELP: &str = "\
The project's own commands.

  cargo xtask check              everything CI checks: format, lints, tests, simulator
  cargo xtask test [FILTER]      only the tests, each with a kill timer
  cargo xtask soak --minutes N   the simulator on fresh seeds for that long
  cargo xtask soak --wakes N     real sandboxes woken N times by each protocol; needs root
  cargo xtask bench [NAME]       the benchmarks; each prints ratios to its own baseline
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["check"] => check::run(),
        ["test"] => tests::run(None),
        ["test", filter] => tests::run(Some(filter)),
        ["soak"] => soak("10"),
        ["soak", "--minutes", minutes] => soak(minutes),
        ["soak", "--wakes", wakes] => soak_wakes(wakes),
        ["bench"] => bench(None),
        ["bench", name] => bench(Some(name)),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => {
            eprintln!("error: `{}` is not a command\n\n{HELP}", other.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn soak(minutes: &str) -> anyhow::Result<()> {
    const BATCH: u64 = 500;
    let minutes: u64 = minutes.parse().context("--minutes takes a whole number")?;
    let watch = Stopwatch::start();
    // Other seeds each time: those of the check are known to pass.
    let mut from = command::seconds_since_1970() * 1_000;
    while watch.elapsed().as_secs() < minutes * 60 {
        let (first, count) = (from.to_string(), BATCH.to_string());
        command::run(
            cargo()
                .args([
                    "run",
                    "--release",
                    "--quiet",
                    "--package",
                    "dormouse-sim",
                    "--",
                ])
                .args(["--from", &first, "--seeds", &count]),
        )?;
        from += BATCH;
    }
    Ok(())
}

/// Wakes real sandboxes of a server in release, and counts what was lost or doubled on the way.
fn soak_wakes(wakes: &str) -> anyhow::Result<()> {
    let wakes: usize = wakes.parse().context("--wakes takes a whole number")?;
    command::run(cargo().args(["build", "--release", "--quiet"]).args([
        "--package",
        "dormouse",
        "--package",
        "dormouse-agent",
    ]))?;
    command::run(
        cargo()
            .args(["test", "--package", "dormouse", "--test", "e2e", "--"])
            .args(["--nocapture", "every_wake_delivers_what_woke_it"])
            .env("DORMOUSE_WAKES", wakes.to_string())
            .env(
                "DORMOUSE_PROGRAM",
                command::target().join("release/dormouse"),
            ),
    )
}

fn bench(name: Option<&str>) -> anyhow::Result<()> {
    let directory = command::root().join("crates/bench/src/bin");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).context("list the benchmarks")? {
        let path = entry?.path();
        names.extend(
            path.file_stem()
                .and_then(|stem| stem.to_str())
                .map(str::to_owned),
        );
    }
    names.sort();
    names.retain(|found| name.is_none_or(|name| name == found));
    if names.is_empty() {
        bail!("there is no benchmark {}", name.unwrap_or_default());
    }
    for name in names {
        println!("== {name}");
        command::run(
            cargo()
                .args(["run", "--release", "--quiet", "--package", "dormouse-bench"])
                .args(["--bin", &name]),
        )?;
    }
    Ok(())
}
