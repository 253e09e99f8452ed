//! `dormouse history`: what sandboxes were, and how they ended.

use clap::Args;
use serde_json::Value;

use crate::{
    e2b::{Access, ago, with_query},
    output, print,
    sandbox::seconds,
};

/// Which sandboxes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only those of this team; a key sees its own team only
    #[arg(long)]
    team: Option<String>,
    /// Only those made for this person
    #[arg(long)]
    user: Option<String>,
    /// Only those from this pool
    #[arg(long)]
    pool: Option<String>,
    /// Only those made from this template
    #[arg(long)]
    template: Option<String>,
    /// Only those of the last so much time
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    since: Option<u32>,
    /// Those that live, and not those that have ended
    #[arg(long)]
    live: bool,
    /// The newest so many
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// Print each as JSON, newest first
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let from = arguments.since.map(ago);
    let mut found: Vec<Value> = Vec::new();
    let mut after: Option<String> = None;
    while found.len() < arguments.limit {
        let limit = (arguments.limit - found.len()).min(1000).to_string();
        let pairs = [
            ("team", arguments.team.as_deref()),
            ("user", arguments.user.as_deref()),
            ("pool", arguments.pool.as_deref()),
            ("template", arguments.template.as_deref()),
            ("state", arguments.live.then_some("live")),
            ("from", from.as_deref()),
            ("after", after.as_deref()),
            ("limit", Some(limit.as_str())),
        ];
        let pairs = pairs.into_iter().filter_map(|(k, v)| Some((k, v?)));
        let mut page = api.get(&with_query("/dormouse/history", pairs)).await?;
        let records = page["records"].as_array_mut().map(std::mem::take);
        found.extend(records.unwrap_or_default());
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    if arguments.json {
        let lines = found.iter().map(|record| format!("{record}\n"));
        return print(&lines.collect::<String>());
    }
    if found.is_empty() {
        eprintln!("No sandboxes.");
        return Ok(());
    }
    let header = [
        "ID", "USER", "POOL", "TEMPLATE", "STATE", "CLAIMED", "ENDED", "WHY",
    ];
    let rows: Vec<_> = found.iter().map(row).collect();
    print(&output::table(&header.map(str::to_owned), &rows))
}

fn row(record: &Value) -> Vec<String> {
    let or_none = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let ended = &record["ended"];
    let why = [&ended["cause"], &ended["message"]]
        .into_iter()
        .filter_map(Value::as_str)
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    let state = match ended["reason"].as_str() {
        Some(reason) => match ended["exitCode"].as_i64() {
            Some(code) => format!("{reason} ({code})"),
            None => reason.to_owned(),
        },
        None => or_none(&record["phase"]),
    };
    vec![
        or_none(&record["sandboxId"]),
        or_none(&record["owner"]["user"]),
        or_none(&record["pool"]),
        or_none(&record["template"]),
        state,
        or_none(&record["claimedAt"]),
        or_none(&ended["at"]),
        if why.is_empty() { "-".to_owned() } else { why },
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_how_it_ended_and_why() {
        let record = json!({
            "sandboxId": "i1", "owner": {"team": "a", "user": "ada"}, "template": "base",
            "phase": "Stopped", "claimedAt": "t1",
            "ended": {"reason": "Failed", "at": "t2", "exitCode": 137, "cause": "Exited", "message": "gone"},
        });
        let expected = [
            "i1",
            "ada",
            "-",
            "base",
            "Failed (137)",
            "t1",
            "t2",
            "Exited: gone",
        ];
        assert_eq!(row(&record), expected);
        let live = json!({"sandboxId": "i2", "phase": "Running"});
        assert_eq!(row(&live)[4..], ["Running", "-", "-", "-"]);
    }
}
