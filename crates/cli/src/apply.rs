//! `dormouse apply`.

use std::path::PathBuf;

use clap::Args;
use http::{Method, StatusCode};

use crate::{
    client::{Client, JSON, MERGE_PATCH, Refusal},
    connect::{Connection, Scope},
    manifest::{self, Manifest},
    merge, print, resource,
};

/// How often another writer may be first before we give up.
const ATTEMPTS: u32 = 5;

/// What to apply.
#[derive(Debug, Args)]
pub struct Arguments {
    /// YAML or JSON file, directory of such files, or - for stdin; can be repeated
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    scope: Scope,
    /// Let the server check and answer, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let namespace = arguments.scope.namespace.as_deref();
    let manifests = manifest::read(&arguments.files, namespace, client.default_namespace())?;
    let mut failed = 0;
    for manifest in &manifests {
        let title = resource::title(manifest.kind, &manifest.name);
        match apply(&client, manifest, arguments.dry_run).await {
            Ok(outcome) => {
                let note = if arguments.dry_run { " (dry run)" } else { "" };
                print(&format!("{title} {outcome}{note}\n"))?;
            }
            Err(error) if error.is::<Refusal>() => {
                eprintln!("{title}:");
                crate::complain(&error);
                failed += 1;
            }
            Err(error) => return Err(error),
        }
    }
    crate::tally(failed)
}

async fn apply(
    client: &Client,
    manifest: &Manifest,
    dry_run: bool,
) -> anyhow::Result<&'static str> {
    let mut query = vec![("fieldValidation", "Strict"), ("fieldManager", "dormouse")];
    if dry_run {
        query.push(("dryRun", "All"));
    }
    let wanted = merge::remember(&manifest.object);
    let path = resource::object(manifest.kind, &manifest.namespace, &manifest.name);
    let mut attempt = 1;
    loop {
        let outcome = match client.get(&path, JSON).await {
            Ok(current) => {
                let last = merge::last_applied(&current);
                let Some(patch) = merge::patch(&last, &wanted, &current) else {
                    return Ok("unchanged");
                };
                let url = resource::with_query(&path, &query);
                let body = Some((MERGE_PATCH, &patch));
                let changed = client.call(Method::PATCH, &url, JSON, body).await;
                changed.map(|_| "configured")
            }
            Err(error) if Refusal::is(&error, StatusCode::NOT_FOUND) => {
                let collection = resource::collection(manifest.kind, Some(&manifest.namespace));
                let url = resource::with_query(&collection, &query);
                let created = client
                    .call(Method::POST, &url, JSON, Some((JSON, &wanted)))
                    .await;
                created.map(|_| "created")
            }
            Err(error) => return Err(error),
        };
        match outcome {
            // Created, changed or deleted by another in between: look again.
            Err(error)
                if attempt < ATTEMPTS
                    && (Refusal::is(&error, StatusCode::CONFLICT)
                        || Refusal::is(&error, StatusCode::NOT_FOUND)) =>
            {
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}
