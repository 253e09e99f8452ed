//! `dormouse sandbox logs`.

use std::{collections::BTreeSet, time::Duration};

use clap::{Args, ValueEnum};
use http::StatusCode;
use model::Timestamp;
use serde_json::Value;

use crate::{
    e2b::{Access, Api, Refused, with_query},
    print,
};

/// Of which sandbox.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The sandbox
    sandbox: String,
    /// Go on until it ends or somebody interrupts
    #[arg(short, long)]
    follow: bool,
    /// Only what is at least so bad
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Print each line as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// How bad a line is.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

const PERIOD: Duration = Duration::from_secs(1);

pub(super) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let id = api.find(&arguments.sandbox).await?.id;
    let mut seen = Seen::default();
    loop {
        let (mut lines, mut gone) = (Vec::new(), false);
        match fetch(&api, &id, arguments.level, seen.since).await {
            Ok(some) => lines = some,
            Err(error) if arguments.follow && Refused::is(&error, StatusCode::NOT_FOUND) => {
                gone = true;
            }
            Err(error) => return Err(error),
        }
        for line in seen.news(lines) {
            print(&show(&line, arguments.json))?;
        }
        if gone {
            eprintln!("The sandbox has ended.");
            return Ok(());
        }
        if !arguments.follow {
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn fetch(
    api: &Api,
    id: &str,
    level: Option<Level>,
    since: Option<i64>,
) -> anyhow::Result<Vec<Value>> {
    let cursor = since.map(|millis| millis.to_string());
    let level = level.map(|level| match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    });
    let pairs = [("cursor", cursor.as_deref()), ("level", level)];
    let pairs = pairs.into_iter().filter_map(|(k, v)| Some((k, v?)));
    let path = with_query(&format!("/v2/sandboxes/{id}/logs"), pairs);
    let mut answer = api.get(&path).await?;
    Ok(answer["logs"]
        .as_array_mut()
        .map(std::mem::take)
        .unwrap_or_default())
}

/// What was shown already. A cursor is a whole millisecond, so the newest lines come again.
#[derive(Debug, Default)]
struct Seen {
    since: Option<i64>,
    shown: BTreeSet<String>,
}

impl Seen {
    fn news(&mut self, lines: Vec<Value>) -> Vec<Value> {
        if lines.is_empty() {
            return lines;
        }
        let newest = lines.iter().filter_map(millis).max();
        if newest > self.since {
            self.since = newest;
        }
        let since = self.since;
        let before = std::mem::take(&mut self.shown);
        let of_now = lines.iter().filter(|line| millis(line) >= since);
        self.shown = of_now.map(Value::to_string).collect();
        let fresh = |line: &Value| !before.contains(&line.to_string());
        lines.into_iter().filter(fresh).collect()
    }
}

fn millis(line: &Value) -> Option<i64> {
    let at: Timestamp = line["timestamp"].as_str()?.parse().ok()?;
    Some(at.as_micros().div_euclid(1000))
}

fn show(line: &Value, as_json: bool) -> String {
    if as_json {
        return format!("{line}\n");
    }
    let text = |name: &str| line[name].as_str().unwrap_or_default();
    // What a sandbox has a part in must not steer the terminal.
    let message: String = text("message")
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    format!("{} {:<5} {message}\n", text("timestamp"), text("level"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_that_comes_again_is_shown_once() {
        let line = |at: &str, message: &str| json!({"timestamp": at, "message": message});
        let first = line("2026-01-01T00:00:00.000100Z", "a");
        let second = line("2026-01-01T00:00:00.000900Z", "b");
        let third = line("2026-01-01T00:00:01.000000Z", "c");
        let mut seen = Seen::default();
        let mut news = |lines: &[&Value]| -> String {
            let lines = lines.iter().copied().cloned().collect();
            let fresh = seen.news(lines).into_iter();
            fresh
                .map(|line| line["message"].as_str().unwrap_or_default().to_owned())
                .collect()
        };
        assert_eq!(news(&[&first]), "a");
        assert_eq!(news(&[&first, &second]), "b");
        assert_eq!(news(&[&first, &second]), "");
        assert_eq!(news(&[&first, &second, &third]), "c");
        assert_eq!(news(&[]), "");
        assert_eq!(news(&[&third]), "");
    }

    #[test]
    fn a_line_cannot_steer_the_terminal() {
        let line = json!({"timestamp": "t", "level": "info", "message": "a\x1b[2Jb\nc"});
        assert_eq!(show(&line, false), "t info  a[2Jbc\n");
    }
}
