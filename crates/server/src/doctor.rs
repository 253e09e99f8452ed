//! `dormouse doctor`: what this host has of what sandboxes need, one line each.
//!
//! A server over the local runtime asks the same before it starts, about what it cannot do
//! without, and refuses with the same lines.

use std::{fmt::Write as _, path::Path, process::ExitCode};

use anyhow::bail;
use runtime_local::{Capability, probe, probe_essential, probe_optional};
use serde::Serialize;

use crate::{config::flags::Flags, run::find_agent};

/// How to show it, and whose data directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dormouse doctor
  dormouse doctor --json | jq '.capabilities[] | select(.state != \"ok\")'
  dormouse doctor --data-dir /srv/dormouse

Each capability is tried, in a directory, cgroups and namespaces that are gone afterwards. A line says
ok, degraded (sandboxes run with less) or missing. The exit code is 1 if no sandbox can run here.")]
pub(crate) struct Doctor {
    /// Show it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    can_run_sandboxes: bool,
    capabilities: &'a [Capability],
}

/// Looks at everything, and says it.
///
/// # Errors
/// If the answer cannot be written.
pub(crate) fn run(args: &Doctor, data_dir: &Path) -> anyhow::Result<ExitCode> {
    let mut all = essential(data_dir);
    all.extend(probe_optional(data_dir));
    let can = !all.iter().any(Capability::is_fatal);
    let text = if args.json {
        let report = Report {
            can_run_sandboxes: can,
            capabilities: &all,
        };
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        let verdict = if can {
            "\nThis host can run sandboxes.\n"
        } else {
            "\nThis host cannot run sandboxes.\n"
        };
        lines(&all) + verdict
    };
    cli::print(&text)?;
    Ok(if can {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Refuses where something is missing that every sandbox needs.
///
/// # Errors
/// Names it, with what to do about it.
pub(crate) fn require(data_dir: &Path) -> anyhow::Result<()> {
    let missing = essential(data_dir).into_iter().filter(Capability::is_fatal);
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "this host cannot run sandboxes:\n{}`dormouse doctor` tells all",
        lines(&missing)
    )
}

fn essential(data_dir: &Path) -> Vec<Capability> {
    let mut all = probe_essential(data_dir);
    let agent = find_agent(None).map_err(|error| error.to_string());
    all.push(probe::agent(agent.as_deref().map_err(String::as_str)));
    all
}

fn lines(all: &[Capability]) -> String {
    all.iter().fold(String::new(), |mut text, capability| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{capability}");
        text
    })
}
