//! `dormouse sandbox create`.

use std::{collections::BTreeMap, io::IsTerminal as _};

use clap::Args;
use serde_json::json;

use crate::{e2b::Access, print, progress};

/// What to make.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Template or pool to make it from
    #[arg(default_value = "base")]
    template: String,
    /// Snapshot to start from, by id or name, instead of a template
    #[arg(long, value_name = "NAME", conflicts_with = "template")]
    snapshot: Option<String>,
    /// How long it has: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = seconds)]
    timeout: u32,
    /// No end
    #[arg(long, conflicts_with = "timeout")]
    never_timeout: bool,
    /// Sleep at the end of its time, rather than be gone
    #[arg(long)]
    auto_pause: bool,
    /// Sleep at the end of its time, and wake when somebody wants something of it
    #[arg(long)]
    auto_resume: bool,
    /// Sleep when it was not used for so long
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    idle_timeout: Option<u32>,
    /// Be gone when it slept for so long; without this it is kept for ever
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    paused_retention: Option<u32>,
    /// A variable of its environment; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// A pair to find it by; can be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Nothing outside can be reached from it
    #[arg(long)]
    no_internet: bool,
    /// Its ports answer only to who has its traffic token
    #[arg(long)]
    private: bool,
    /// Print the whole answer as JSON, with its tokens
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(super) async fn run(arguments: Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let mut metadata: BTreeMap<String, String> = arguments.metadata.into_iter().collect();
    if arguments.never_timeout {
        metadata.insert("dormouse.dev/never-timeout".into(), "true".into());
    }
    if let Some(seconds) = arguments.idle_timeout {
        metadata.insert("dormouse.dev/idle-timeout".into(), seconds.to_string());
    }
    if let Some(seconds) = arguments.paused_retention {
        metadata.insert("dormouse.dev/paused-retention".into(), seconds.to_string());
    }
    let env: BTreeMap<String, String> = arguments.env.into_iter().collect();
    let mut body = json!({
        "templateID": arguments.snapshot.unwrap_or(arguments.template),
        "timeout": arguments.timeout,
        "autoPause": arguments.auto_pause || arguments.auto_resume,
        "metadata": metadata,
        "envVars": env,
    });
    if arguments.auto_resume {
        body["autoResume"] = json!({"enabled": true});
    }
    if arguments.no_internet {
        body["allow_internet_access"] = json!(false);
    }
    if arguments.private {
        body["network"] = json!({"allowPublicTraffic": false});
    }
    let made = api.post("/v2/sandboxes", body);
    let made = progress::slow("Making the sandbox", made).await?;
    if arguments.json {
        return print(&format!("{made:#}\n"));
    }
    let id = made["sandboxID"].as_str().unwrap_or_default();
    print(&format!("{id}\n"))?;
    if std::io::stdout().is_terminal() {
        eprintln!("Open a shell in it: dormouse sandbox shell {id}");
    }
    Ok(())
}

/// A variable or another pair.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// A time in whole seconds.
pub(crate) fn seconds(text: &str) -> Result<u32, String> {
    let wrong = || "write it as 90, 90s, 5m, 2h or 1d".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(wrong()),
    };
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        for (text, expected) in [
            ("90", Some(90)),
            ("90s", Some(90)),
            ("5m", Some(300)),
            ("2h", Some(7200)),
            ("1d", Some(86400)),
            ("", None),
            ("m", None),
            ("5x", None),
            ("-5", None),
            ("99999999d", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
        }
    }
}
