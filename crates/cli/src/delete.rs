//! `dormouse delete`.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use clap::{ArgAction, Args};
use http::{Method, StatusCode};
use kit::{Backoff, Entropy};
use model::kinds::KindInfo;
use serde_json::Value;

use crate::{
    client::{Client, JSON, Refusal},
    connect::{Connection, Scope},
    manifest, print, resource,
};

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(20),
    cap: Duration::from_secs(1),
};

/// What to delete.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Kind and names: `sandbox NAME…` or `sandbox/NAME…`
    #[arg(value_name = "KIND NAME", required_unless_present = "files")]
    what: Vec<String>,
    /// Delete what these files describe; - for stdin
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with = "what")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    scope: Scope,
    /// Succeed if there is nothing to delete
    #[arg(long)]
    ignore_not_found: bool,
    /// Wait until the objects are gone
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    wait: bool,
    /// Longest wait for each object, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u32,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let namespace = arguments.scope.namespace.as_deref();
    let targets: Vec<(&'static KindInfo, String, String)> = if arguments.files.is_empty() {
        let selection = resource::select(&arguments.what)?;
        if selection.names.is_empty() {
            bail!(
                "name what to delete, as `dormouse delete {} NAME`",
                selection.kind.singular
            );
        }
        let place = namespace.unwrap_or(client.default_namespace());
        let target = |name| (selection.kind, place.to_owned(), name);
        selection.names.into_iter().map(target).collect()
    } else {
        manifest::read(&arguments.files, namespace, client.default_namespace())?
            .into_iter()
            .map(|manifest| (manifest.kind, manifest.namespace, manifest.name))
            .collect()
    };

    let mut failed = 0;
    let mut doomed = Vec::new();
    for (kind, namespace, name) in &targets {
        let path = resource::object(kind, namespace, name);
        let title = resource::title(kind, name);
        match client.call(Method::DELETE, &path, JSON, None).await {
            Ok(answer) => doomed.push((title, path, answer)),
            Err(error)
                if arguments.ignore_not_found && Refusal::is(&error, StatusCode::NOT_FOUND) => {}
            Err(error) if error.is::<Refusal>() => {
                crate::complain(&error);
                failed += 1;
            }
            Err(error) => return Err(error),
        }
    }
    // All are asked to go before the first is waited for.
    for (title, path, answer) in doomed {
        if arguments.wait {
            let limit = Duration::from_secs(arguments.timeout.into());
            if let Err(error) = wait_until_gone(&client, &title, &path, &answer, limit).await {
                if !error.is::<StillThere>() {
                    return Err(error);
                }
                crate::complain(&error);
                failed += 1;
                continue;
            }
        }
        print(&format!("{title} deleted{}\n", left_behind(&answer)))?;
    }
    crate::tally(failed)
}

/// What outlives an object that was deleted: claimed members of a pool are their owners'.
fn left_behind(answer: &Value) -> String {
    let claimed = answer["status"]["claimed"].as_u64().unwrap_or(0);
    match (answer["kind"].as_str(), claimed) {
        (Some("SandboxPool"), 1) => "; 1 claimed sandbox stays its owner's".to_owned(),
        (Some("SandboxPool"), n @ 2..) => format!("; {n} claimed sandboxes stay their owners'"),
        (_, _) => String::new(),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{title} is still being deleted after {seconds} s{held}")]
struct StillThere {
    title: String,
    seconds: u64,
    held: String,
}

async fn wait_until_gone(
    client: &Client,
    title: &str,
    path: &str,
    answer: &Value,
    limit: Duration,
) -> anyhow::Result<()> {
    // A `Status` when it is gone already, the object when it waits for its finalizers. Another of
    // the same name that appears meanwhile is not ours to wait for.
    let uid = [&answer["metadata"]["uid"], &answer["details"]["uid"]]
        .into_iter()
        .find(|uid| uid.is_string());
    let entropy = Entropy::from_os();
    let deadline = tokio::time::Instant::now() + limit;
    let mut attempt = 0;
    loop {
        let object = match client.get(path, JSON).await {
            Err(error) if Refusal::is(&error, StatusCode::NOT_FOUND) => return Ok(()),
            other => other?,
        };
        if uid.is_some_and(|uid| *uid != object["metadata"]["uid"]) {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            let finalizers = object["metadata"]["finalizers"]
                .as_array()
                .into_iter()
                .flatten();
            let finalizers: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
            let why = object["status"]["why"].as_str().unwrap_or_default();
            let held = if !why.is_empty() {
                format!(": {why}")
            } else if finalizers.is_empty() {
                String::new()
            } else {
                format!(": it waits for {}", finalizers.join(", "))
            };
            return Err(StillThere {
                title: title.to_owned(),
                seconds: limit.as_secs(),
                held,
            }
            .into());
        }
        attempt += 1;
        tokio::time::sleep(BACKOFF.delay(attempt, &entropy)).await;
    }
}
