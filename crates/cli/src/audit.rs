//! `dormouse audit`: who did what, and what became of it.

use std::collections::VecDeque;

use clap::Args;
use kit::{Clock as _, SystemClock};
use model::Timestamp;
use serde_json::Value;

use crate::{
    e2b::{Access, with_query},
    output, print,
    sandbox::seconds,
};

/// Which entries.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only those of this team; a key sees its own team only
    #[arg(long)]
    team: Option<String>,
    /// Only those about this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only those by this key or this person
    #[arg(long, value_name = "KEY|USER")]
    actor: Option<String>,
    /// Only those of this kind, as sandbox.create
    #[arg(long)]
    action: Option<String>,
    /// Only those of the last so much time
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    since: Option<u32>,
    /// The newest so many
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// Print each entry as JSON, oldest first
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let from = arguments.since.map(|seconds| {
        let now = SystemClock::default().wall_micros();
        let from = now.saturating_sub(i64::from(seconds) * 1_000_000);
        Timestamp::from_micros(from).to_string()
    });
    let mut newest: VecDeque<Value> = VecDeque::new();
    let mut after: Option<String> = None;
    loop {
        let pairs = [
            ("team", arguments.team.as_deref()),
            ("sandbox", arguments.sandbox.as_deref()),
            ("actor", arguments.actor.as_deref()),
            ("action", arguments.action.as_deref()),
            ("from", from.as_deref()),
            ("after", after.as_deref()),
        ];
        let pairs = pairs.into_iter().filter_map(|(k, v)| Some((k, v?)));
        let mut page = api.get(&with_query("/dormouse/audit", pairs)).await?;
        let entries = page["entries"].as_array_mut().map(std::mem::take);
        newest.extend(entries.unwrap_or_default());
        let beyond = newest.len().saturating_sub(arguments.limit);
        newest.drain(..beyond);
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    if arguments.json {
        return print(
            &newest
                .iter()
                .map(|entry| format!("{entry}\n"))
                .collect::<String>(),
        );
    }
    if newest.is_empty() {
        eprintln!("No entries.");
        return Ok(());
    }
    let header = ["TIME", "TEAM", "BY", "ACTION", "SANDBOX", "OUTCOME"].map(str::to_owned);
    let rows: Vec<_> = newest.iter().map(row).collect();
    print(&output::table(&header, &rows))
}

fn row(entry: &Value) -> Vec<String> {
    let text = |name: &str| entry[name].as_str();
    let or_none = |name: &str| text(name).unwrap_or("-").to_owned();
    let by = text("user").or(text("key")).unwrap_or("administrator");
    let outcome = match (text("outcome"), text("reason")) {
        (Some(outcome), Some(reason)) => format!("{outcome}: {reason}"),
        (outcome, _) => outcome.unwrap_or("-").to_owned(),
    };
    vec![
        or_none("time"),
        or_none("team"),
        by.to_owned(),
        or_none("action"),
        or_none("sandboxID"),
        outcome,
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_who_and_why_not() {
        let entry = json!({
            "time": "t", "team": "a", "key": "k", "user": "ada", "action": "sandbox.kill",
            "sandboxID": null, "outcome": "refused", "reason": "Not Found",
        });
        assert_eq!(
            row(&entry),
            ["t", "a", "ada", "sandbox.kill", "-", "refused: Not Found"]
        );
    }
}
