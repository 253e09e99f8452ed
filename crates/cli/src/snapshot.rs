//! `dormouse snapshot`: what was kept of sandboxes, and what sandboxes can start from.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use model::{Spec as _, kinds, snapshot::SnapshotSpec};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{
    client::JSON,
    complain,
    connect::{Connection, Scope},
    describe,
    e2b::Access,
    output, print, progress, resource, tally,
};

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep the files of a sandbox, and print the snapshot's id
    #[command(after_help = "Examples:
  dormouse snapshot create ID
  dormouse snapshot create ID --name my-app:v2
  dormouse sandbox create --snapshot my-app:v2

The sandbox goes on as it was, awake or asleep. Its memory is not kept: what starts from the snapshot
starts its processes anew.")]
    Create(Create),
    /// List snapshots, the newest first
    #[command(after_help = "Examples:
  dormouse snapshot ls
  dormouse snapshot ls --sandbox ID
  dormouse snapshot ls --name my-app -q")]
    Ls(List),
    /// Delete snapshots
    #[command(after_help = "Examples:
  dormouse snapshot rm my-app:v2
  dormouse snapshot rm $(dormouse snapshot ls -q)          all of them

Sandboxes that started from one have its files as their own, and stay.")]
    Rm(Remove),
    /// Show everything about snapshots
    #[command(after_help = "Examples:
  dormouse snapshot describe my-app:v2")]
    Describe(Describe),
}

/// What to keep.
#[derive(Debug, Args)]
pub struct Create {
    /// The sandbox
    sandbox: String,
    /// What to call it, as NAME or NAME:TAG; an earlier one of that name gives the name up
    #[arg(long)]
    name: Option<String>,
    /// Print the whole answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// Which to list.
#[derive(Debug, Args)]
pub struct List {
    /// Only those of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only those of this name, of any tag unless it has one
    #[arg(long)]
    name: Option<String>,
    /// Print ids only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// Which to delete.
#[derive(Debug, Args)]
pub struct Remove {
    /// Their ids or names
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<String>,
    #[command(flatten)]
    access: Access,
}

/// Which to show.
#[derive(Debug, Args)]
pub struct Describe {
    /// Their ids or names
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    connection: Connection,
}

/// Runs one.
pub(crate) async fn run(command: Command, is_root: bool) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(&arguments, is_root).await,
        Command::Ls(arguments) => list(&arguments, is_root).await,
        Command::Rm(arguments) => remove(&arguments, is_root).await,
        Command::Describe(arguments) => show(arguments, is_root).await,
    }
}

/// Keeps the files of a sandbox.
pub(crate) async fn create(arguments: &Create, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let id = api.find(&arguments.sandbox).await?.id;
    let mut body = json!({"memory": false});
    if let Some(name) = &arguments.name {
        body["name"] = json!(name);
    }
    let path = format!("/sandboxes/{id}/snapshots");
    let taken = progress::slow("Keeping its files", api.post(&path, body)).await?;
    match arguments.json {
        true => print(&format!("{taken:#}\n")),
        false => print(&format!("{}\n", text(&taken, "snapshotID"))),
    }
}

async fn list(arguments: &List, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let sandbox = arguments.sandbox.as_deref().map(|id| ("sandboxID", id));
    let name = arguments.name.as_deref().map(|name| ("name", name));
    let query: Vec<_> = sandbox.into_iter().chain(name).collect();
    let all = api.pages("/snapshots", &query).await?;
    if arguments.json {
        return print(&format!("{:#}\n", Value::from(all)));
    }
    let ids = all.iter().map(|snapshot| text(snapshot, "snapshotID"));
    if arguments.quiet {
        return print(&ids.map(|id| format!("{id}\n")).collect::<String>());
    }
    if all.is_empty() {
        eprintln!("No snapshots. `dormouse snapshot create SANDBOX` takes one.");
        return Ok(());
    }
    let header = ["ID", "NAMES"].map(str::to_owned);
    let rows: Vec<_> = all
        .iter()
        .map(|snapshot| {
            let names = snapshot["names"].as_array().into_iter().flatten();
            let names: Vec<_> = names.filter_map(Value::as_str).collect();
            vec![text(snapshot, "snapshotID").to_owned(), names.join(",")]
        })
        .collect();
    print(&output::table(&header, &rows))
}

async fn remove(arguments: &Remove, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let mut failed = 0;
    for word in &arguments.snapshots {
        let encoded = utf8_percent_encode(word, NON_ALPHANUMERIC);
        let removed = api.delete(&format!("/templates/{encoded}")).await;
        match removed.with_context(|| format!("snapshot {word}")) {
            Ok(()) => print(&format!("{word} deleted\n"))?,
            Err(error) if arguments.snapshots.len() == 1 => return Err(error),
            Err(error) => {
                complain(&error);
                failed += 1;
            }
        }
    }
    tally(failed)
}

async fn show(arguments: Describe, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let kind = kinds::find(SnapshotSpec::KIND.0).context("snapshots are not in the registry")?;
    let namespace = arguments.scope.namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace());
    let path = resource::collection(kind, Some(namespace));
    let listed = client.get(&path, JSON).await?;
    let all = listed["items"].as_array().cloned().unwrap_or_default();
    let mut what = vec![kind.singular.to_owned()];
    for word in &arguments.snapshots {
        let name = choose(&all, namespace, word).with_context(|| {
            format!("there is no snapshot {word}: `dormouse snapshot ls` shows those there are")
        })?;
        what.push(name);
    }
    let found = describe::Arguments::of(what, arguments.scope, arguments.connection);
    describe::run(&found, is_root).await
}

/// The record that an id or a name means: the newest of the name.
fn choose(all: &[Value], namespace: &str, word: &str) -> Option<String> {
    let plain = word.strip_prefix(&format!("{namespace}/")).unwrap_or(word);
    let (name, tag) = plain.split_once(':').unwrap_or((plain, "default"));
    let alias = format!("{name}:{tag}");
    let is = |object: &&Value| {
        let is_record = tag == "default" && object["metadata"]["name"] == name;
        is_record || object["spec"]["alias"] == alias.as_str()
    };
    let newest = all
        .iter()
        .filter(is)
        .max_by_key(|object| object["status"]["capturedAt"].as_str().unwrap_or_default());
    newest?["metadata"]["name"].as_str().map(str::to_owned)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_the_newest_and_an_id_means_its_own() {
        let snapshot = |name: &str, alias: &str, at: &str| {
            json!({
                "metadata": {"name": name},
                "spec": {"alias": alias},
                "status": {"capturedAt": at},
            })
        };
        let all = [
            snapshot("s1", "app:default", "2026-01-01"),
            snapshot("s2", "app:default", "2026-01-02"),
            snapshot("s3", "app:v1", "2026-01-03"),
        ];
        let chosen = |word: &str| choose(&all, "team", word);
        for word in ["app", "app:default", "team/app", "s2", "s2:default"] {
            assert_eq!(chosen(word).as_deref(), Some("s2"), "{word}");
        }
        assert_eq!(chosen("s1").as_deref(), Some("s1"));
        assert_eq!(chosen("app:v1").as_deref(), Some("s3"));
        assert_eq!(chosen("other/app"), None);
        assert_eq!(chosen("s1:v1"), None);
    }
}
