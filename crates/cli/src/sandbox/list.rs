//! `dormouse sandbox ls`.

use clap::{Args, ValueEnum};
use kit::{Clock as _, SystemClock};
use model::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::pair;
use crate::{e2b::Access, output, print};

/// Which to list.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only those in this state
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only those with this pair; can be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Print ids only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// States that are told apart.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    Running,
    Paused,
}

pub(super) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let pairs = filter(&arguments.metadata);
    let mut query = Vec::new();
    if let Some(state) = arguments.state {
        query.push((
            "state",
            match state {
                State::Running => "running",
                State::Paused => "paused",
            },
        ));
    }
    if !pairs.is_empty() {
        query.push(("metadata", &pairs));
    }
    let all = api.list(&query).await?;
    if arguments.json {
        return print(&format!("{:#}\n", Value::from(all)));
    }
    if arguments.quiet {
        let ids = all.iter().filter_map(|s| s["sandboxID"].as_str());
        return print(&ids.map(|id| format!("{id}\n")).collect::<String>());
    }
    if all.is_empty() {
        eprintln!("No sandboxes. `dormouse sandbox create` makes one.");
        return Ok(());
    }
    let header = ["ID", "TEMPLATE", "STATE", "AGE", "ENDS IN", "METADATA"].map(str::to_owned);
    let now = SystemClock::default().wall_micros();
    let rows: Vec<_> = all.iter().map(|sandbox| row(sandbox, now)).collect();
    print(&output::table(&header, &rows))
}

/// Each part encoded, then all of them as a form.
fn filter(pairs: &[(String, String)]) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut form = form_urlencoded::Serializer::new(String::new());
    for (name, value) in pairs {
        form.append_pair(&encode(name), &encode(value));
    }
    form.finish()
}

fn row(sandbox: &Value, now: i64) -> Vec<String> {
    let text = |name: &str| sandbox[name].as_str().unwrap_or_default().to_owned();
    let moment = |name: &str| text(name).parse::<Timestamp>().ok();
    let micros = |at: Option<Timestamp>| at.map_or(0, Timestamp::as_micros);
    let is_asleep = sandbox["state"] == "paused";
    let pairs = sandbox["metadata"].as_object().into_iter().flatten();
    let pairs: Vec<_> = pairs
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    vec![
        text("sandboxID"),
        text("alias"),
        text("state"),
        span(now - micros(moment("startedAt"))),
        if is_asleep {
            // Its clock stands.
            "-".to_owned()
        } else {
            span(micros(moment("endAt")) - now)
        },
        pairs.join(","),
    ]
}

/// A time for people: the largest unit, and the next one where that matters.
pub(crate) fn span(micros: i64) -> String {
    const YEAR: i64 = 365 * 24 * 3600;
    let seconds = micros.max(0) / 1_000_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        172_800..YEAR => format!("{}d", seconds / 86_400),
        _ => "never".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let of = |seconds: i64| span(seconds * 1_000_000);
        assert_eq!([of(-3), of(119), of(300)], ["0s", "119s", "5m"]);
        assert_eq!([of(7200), of(200_000)], ["2h", "2d"]);
        assert_eq!(of(50 * 365 * 24 * 3600), "never");
    }

    #[test]
    fn a_filter_is_encoded_as_the_server_decodes_it() {
        let pairs = [("a b".to_owned(), "c&d".to_owned())];
        assert_eq!(filter(&pairs), "a%2520b=c%2526d");
    }
}
