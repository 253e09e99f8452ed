//! The project's own commands: `cargo xtask check`, `cargo xtask soak`, `cargo xtask bench`.

mod check;
mod command;
mod kubectl;
mod tests;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use command::cargo;

const HELP: &str = "\
The project's own commands.

  cargo xtask check              everything CI checks: format, lints, tests, simulator
  cargo xtask test [FILTER]      only the tests, each with a kill timer
  cargo xtask soak --minutes N   the simulator on fresh seeds for that long
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
    let minutes: u32 = minutes.parse().context("--minutes takes a whole number")?;
    let minutes = minutes.to_string();
    command::run(
        cargo()
            .args(["run", "--release", "--package", "dormouse-sim", "--"])
            .args(["soak", "--minutes", &minutes]),
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
