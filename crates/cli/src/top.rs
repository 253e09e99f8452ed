//! `dormouse top`: what sandboxes use, now and again.

use std::{io::IsTerminal as _, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use crate::{
    e2b::{Access, Api},
    output, print,
    sandbox::seconds,
};

/// How to show it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Show it once, and not again and again; so it is if the output is no terminal
    #[arg(long)]
    once: bool,
    /// How long between two looks: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = seconds)]
    every: u32,
    /// Print it once, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let repeats = !arguments.once && !arguments.json && std::io::stdout().is_terminal();
    loop {
        let rows = look(&api).await?;
        if arguments.json {
            return print(&format!("{:#}\n", Value::from(rows)));
        }
        if !repeats {
            return print(&show(&rows));
        }
        // Home, and clear what is below: without the flicker of clearing first.
        print(&format!("\x1b[H\x1b[2J{}", show(&rows)))?;
        tokio::time::sleep(Duration::from_secs(arguments.every.max(1).into())).await;
    }
}

/// Those that run, with what they used last; the busiest first.
async fn look(api: &Api) -> anyhow::Result<Vec<Value>> {
    let all = api.list(&[("state", "running")]).await?;
    let text = |s: &Value, name: &str| s[name].as_str().unwrap_or_default().to_owned();
    let ids: Vec<String> = all.iter().map(|s| text(s, "sandboxID")).collect();
    let metrics = match ids.is_empty() {
        true => json!({}),
        false => api.metrics(&ids).await?,
    };
    let mut rows: Vec<Value> = all
        .iter()
        .zip(&ids)
        .map(|(sandbox, id)| {
            json!({
                "sandboxID": id,
                "template": sandbox["alias"],
                "metrics": metrics.get(id),
            })
        })
        .collect();
    let cpu = |row: &Value| row["metrics"]["cpuUsedPct"].as_f64().unwrap_or(-1.0);
    rows.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)));
    Ok(rows)
}

fn show(rows: &[Value]) -> String {
    if rows.is_empty() {
        return "No sandbox runs.\n".to_owned();
    }
    let header = ["ID", "TEMPLATE", "CPU", "MEMORY", "CACHE", "DISK"].map(str::to_owned);
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    output::table(&header, &lines)
}

fn line(row: &Value) -> Vec<String> {
    let seen = &row["metrics"];
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let bytes = |name: &str| seen[name].as_u64();
    let of = |used: &str, total: &str| match (bytes(used), bytes(total)) {
        (Some(used), Some(total)) if total > 0 => format!("{} / {}", size(used), size(total)),
        (Some(used), _) => size(used),
        (None, _) => "-".to_owned(),
    };
    let cpu = seen["cpuUsedPct"].as_f64();
    vec![
        text("sandboxID"),
        text("template"),
        cpu.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%")),
        of("memUsed", "memTotal"),
        bytes("memCache").map_or_else(|| "-".to_owned(), size),
        of("diskUsed", "diskTotal"),
    ]
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut amount = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while amount >= 1024.0
        && let Some(larger) = units.next()
    {
        amount /= 1024.0;
        unit = Some(larger);
    }
    format!("{amount:.1} {}", unit.unwrap_or(&""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_largest_unit_that_fits() {
        assert_eq!(size(0), "0.0 KiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(512 << 20), "512.0 MiB");
        assert_eq!(size(1 << 50), "1024.0 TiB");
    }

    #[test]
    fn one_that_was_not_measured_yet_says_so() {
        let row = json!({"sandboxID": "i1", "template": "base", "metrics": null});
        assert_eq!(line(&row), ["i1", "base", "-", "-", "-", "-"]);
    }
}
