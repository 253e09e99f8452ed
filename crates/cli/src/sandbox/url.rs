//! `dormouse sandbox url`.

use std::{collections::BTreeMap, num::NonZeroU16};

use clap::Args;
use serde_json::json;

use crate::{e2b::Access, print};

/// Of which port.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The sandbox
    sandbox: String,
    /// The port inside
    port: NonZeroU16,
    /// Print it as JSON, with the headers that requests need
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(super) const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

pub(super) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let found = api.find(&arguments.sandbox).await?;
    let way = api.way(&found, arguments.port.get())?;
    let url = format!("{}{}/", way.endpoint.url(), way.prefix);
    let mut headers = BTreeMap::new();
    if found.is_closed() && !found.is_asleep() {
        let made = api.connect(&found).await?;
        headers.extend(
            made.traffic_access_token
                .map(|token| (TRAFFIC_TOKEN, token)),
        );
    }
    if arguments.json {
        let shown = json!({"url": url, "headers": headers});
        return print(&format!("{shown:#}\n"));
    }
    print(&format!("{url}\n"))?;
    if found.is_closed() {
        eprintln!("Requests need the header {TRAFFIC_TOKEN}: --json shows it while it runs.");
    }
    if found.is_asleep() {
        eprintln!(
            "The sandbox sleeps: `dormouse sandbox resume {}` wakes it.",
            found.id
        );
    }
    Ok(())
}
