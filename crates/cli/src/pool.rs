//! `dormouse pool`: how pools stand, and how many members they keep.

use clap::{Args, Subcommand};
use http::Method;
use model::{Spec as _, kinds, pool::PoolSpec};
use serde_json::{Map, Value, json};

use crate::{
    client::{JSON, MERGE_PATCH},
    connect::{Connection, Scope},
    describe, output, print, resource,
};

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show pools: members by what they do, claims that wait, and why one is not at its target
    Ls(List),
    /// Change how many members a pool keeps
    Scale(Scale),
    /// Show everything about a pool
    Describe(One),
}

/// Which pools.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    scope: Scope,
    /// Pools of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    connection: Connection,
}

/// How many members.
#[derive(Debug, Args)]
#[group(id = "sizes", required = true, multiple = true, args = ["min_idle", "max_idle", "max"])]
pub(crate) struct Sizes {
    /// At least this many wait to be claimed
    #[arg(long)]
    min_idle: Option<u32>,
    /// At most this many wait; more are removed
    #[arg(long)]
    max_idle: Option<u32>,
    /// At most this many exist, claimed ones included
    #[arg(long)]
    max: Option<u32>,
}

/// Which pool, and how many members.
#[derive(Debug, Args)]
pub struct Scale {
    /// The pool
    name: String,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    connection: Connection,
}

/// Which pool.
#[derive(Debug, Args)]
pub struct One {
    /// The pool
    name: String,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    connection: Connection,
}

/// Runs a command.
pub(crate) async fn run(command: Command, is_root: bool) -> anyhow::Result<()> {
    match command {
        Command::Ls(arguments) => list(&arguments, is_root).await,
        Command::Scale(arguments) => scale(&arguments, is_root).await,
        Command::Describe(One {
            name,
            scope,
            connection,
        }) => {
            let what = vec![PoolSpec::KIND.0.to_owned(), name];
            describe::run(&describe::Arguments::of(what, scope, connection), is_root).await
        }
    }
}

fn kind() -> anyhow::Result<&'static kinds::KindInfo> {
    kinds::find(PoolSpec::KIND.0).ok_or_else(|| anyhow::anyhow!("there is no kind of pools"))
}

async fn list(arguments: &List, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let named = arguments.scope.namespace.as_deref();
    let namespace =
        (!arguments.all_namespaces).then(|| named.unwrap_or(client.default_namespace()));
    let found = client
        .get(&resource::collection(kind()?, namespace), JSON)
        .await?;
    let items = found["items"].as_array().map_or(&[][..], Vec::as_slice);
    if items.is_empty() {
        eprintln!("No pools.");
        return Ok(());
    }
    let header = [
        "NAMESPACE",
        "NAME",
        "TEMPLATE",
        "IDLE",
        "STARTING",
        "CLAIMED",
        "STOPPING",
        "WAITING",
        "MAX",
        "WHY NOT AT TARGET",
    ];
    let rows: Vec<_> = items.iter().map(row).collect();
    print(&output::table(&header.map(str::to_owned), &rows))
}

fn row(pool: &Value) -> Vec<String> {
    let (meta, spec, status) = (&pool["metadata"], &pool["spec"], &pool["status"]);
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0).to_string();
    vec![
        text(&meta["namespace"]),
        text(&meta["name"]),
        text(&spec["template"]),
        format!("{}/{}", number(&status["idle"]), number(&spec["minIdle"])),
        number(&status["starting"]),
        number(&status["claimed"]),
        number(&status["stopping"]),
        number(&status["waitingClaims"]),
        number(&spec["max"]),
        text(&status["why"]),
    ]
}

async fn scale(arguments: &Scale, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let namespace = arguments.scope.namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace());
    let selection = resource::select(&[PoolSpec::KIND.0.to_owned(), arguments.name.clone()])?;
    let path = resource::object(selection.kind, namespace, &arguments.name);
    let patch = json!({"spec": changes(&arguments.sizes)});
    let body = Some((MERGE_PATCH, &patch));
    let pool = client.call(Method::PATCH, &path, JSON, body).await?;
    let spec = &pool["spec"];
    print(&format!(
        "{} scaled: {} to {} idle, at most {}\n",
        resource::title(selection.kind, &arguments.name),
        spec["minIdle"],
        spec["maxIdle"],
        spec["max"]
    ))
}

fn changes(sizes: &Sizes) -> Map<String, Value> {
    let pairs = [
        ("minIdle", sizes.min_idle),
        ("maxIdle", sizes.max_idle),
        ("max", sizes.max),
    ];
    let said = pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    said.map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_is_changed() {
        let sizes = Sizes {
            min_idle: Some(0),
            max_idle: None,
            max: Some(9),
        };
        assert_eq!(
            Value::from(changes(&sizes)),
            json!({"minIdle": 0, "max": 9})
        );
    }

    #[test]
    fn a_row_says_how_a_pool_stands() {
        let pool = json!({
            "metadata": {"namespace": "a", "name": "warm"},
            "spec": {"template": "base", "minIdle": 3, "max": 9},
            "status": {"idle": 1, "claimed": 4, "waitingClaims": 2, "why": "makes 2 members"},
        });
        let expected = [
            "a",
            "warm",
            "base",
            "1/3",
            "0",
            "4",
            "0",
            "2",
            "9",
            "makes 2 members",
        ];
        assert_eq!(row(&pool), expected);
    }
}
