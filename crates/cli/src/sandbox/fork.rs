//! `dormouse sandbox fork`.

use clap::Args;
use serde_json::json;

use super::seconds;
use crate::{complain, e2b::Access, print, progress, tally};

/// What to copy.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The sandbox
    sandbox: String,
    /// How many
    #[arg(short, long, default_value_t = 1)]
    count: u32,
    /// How long they have: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = seconds)]
    timeout: u32,
    /// Print the whole answer as JSON, with their tokens
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(super) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let id = api.find(&arguments.sandbox).await?.id;
    let body = json!({"count": arguments.count, "timeout": arguments.timeout});
    let path = format!("/sandboxes/{id}/fork");
    let made = progress::slow("Forking it", api.post(&path, body)).await?;
    if arguments.json {
        return print(&format!("{made:#}\n"));
    }
    let mut failed = 0;
    for child in made.as_array().into_iter().flatten() {
        match child["sandbox"]["sandboxID"].as_str() {
            Some(id) => print(&format!("{id}\n"))?,
            None => {
                let why = child["error"]["message"].as_str();
                complain(&anyhow::anyhow!(
                    "{}",
                    why.unwrap_or("it could not be made")
                ));
                failed += 1;
            }
        }
    }
    tally(failed)
}
