//! `dormouse audit`: who did what, and what became of it.

use clap::Args;
use serde_json::Value;

use crate::{
    e2b::{Access, ago, with_query},
    output, print,
    sandbox::seconds,
};

/// The most entries that the server answers with at once.
const MAX_PAGE: usize = 1000;

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
    /// Go on towards the past: those before the place that an earlier call ended with
    #[arg(long, value_name = "PLACE")]
    before: Option<String>,
    /// Print the newest first; otherwise it is last
    #[arg(long)]
    newest_first: bool,
    /// Print each entry as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let from = arguments.since.map(ago);
    let mut entries: Vec<Value> = Vec::new();
    let mut next = arguments.before.clone();
    // From the newest on, so that a long log costs no more than what is shown of it.
    loop {
        let wanted = arguments.limit.saturating_sub(entries.len());
        let limit = wanted.clamp(1, MAX_PAGE).to_string();
        let pairs = [
            ("order", Some("desc")),
            ("limit", Some(limit.as_str())),
            ("team", arguments.team.as_deref()),
            ("sandbox", arguments.sandbox.as_deref()),
            ("actor", arguments.actor.as_deref()),
            ("action", arguments.action.as_deref()),
            ("from", from.as_deref()),
            ("after", next.as_deref()),
        ];
        let pairs = pairs.into_iter().filter_map(|(k, v)| Some((k, v?)));
        let mut page = api.get(&with_query("/dormouse/audit", pairs)).await?;
        let found = page["entries"].as_array_mut().map(std::mem::take);
        entries.extend(found.unwrap_or_default());
        next = page["next"].as_str().map(str::to_owned);
        if next.is_none() || entries.len() >= arguments.limit {
            break;
        }
    }
    entries.truncate(arguments.limit);
    if let Some(place) = next.filter(|_| !entries.is_empty()) {
        eprintln!("There are older ones: add --before {place}");
    }
    if !arguments.newest_first {
        entries.reverse();
    }
    if arguments.json {
        return print(
            &entries
                .iter()
                .map(|entry| format!("{entry}\n"))
                .collect::<String>(),
        );
    }
    if entries.is_empty() {
        eprintln!("No entries.");
        return Ok(());
    }
    let header = ["TIME", "TEAM", "BY", "ACTION", "ON", "OUTCOME"].map(str::to_owned);
    let rows: Vec<_> = entries.iter().map(row).collect();
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
        text("object").map_or_else(|| or_none("sandboxID"), str::to_owned),
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
