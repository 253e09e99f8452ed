//! `dormouse key`: the keys with which a team's programs are let in.
//!
//! A key is made here. The server hears its hash, and this terminal sees the key, once.

mod ssh;

use anyhow::{Context as _, bail};
use auth::{
    key::{NewKey, mint},
    manage::{CreatedKey, KeyInfo},
};
use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use kit::Entropy;
use model::{
    ApiKey, Namespace, Object, Spec,
    api_key::ApiKeySpec,
    kinds::{self, KindInfo},
    meta::GROUP_VERSION,
    team::{Quotas, TeamSpec},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    client::{Client, JSON, Refusal},
    connect::{Connection, Scope},
    output, print, resource,
};

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a key, and print it: nobody can show it again
    #[command(after_help = "Examples:
  dormouse key create ci
  export E2B_API_KEY=$(dormouse key create laptop --user ada)
  dormouse key create batch -n team-blue --max-running 20 --json

The key is made on this machine; the server only ever gets a hash of it.")]
    Create(Create),
    /// List the keys of a team
    #[command(after_help = "Examples:
  dormouse key ls
  dormouse key ls -A --json")]
    Ls(List),
    /// Refuse keys from now on
    #[command(after_help = "Examples:
  dormouse key revoke ci
  dormouse key revoke 0f8fad5b-d9cb-469f-a165-70867728950e -n team-blue")]
    Revoke(Revoke),
    /// Let people log in to sandboxes with their own SSH keys
    #[command(subcommand)]
    Ssh(ssh::Command),
}

/// A key to make.
#[derive(Debug, Args)]
pub struct Create {
    /// What people call it
    name: String,
    #[command(flatten)]
    scope: Scope,
    /// The person who uses it
    #[arg(long)]
    user: Option<String>,
    /// The most sandboxes that may be had with it
    #[arg(long, value_name = "COUNT")]
    max_sandboxes: Option<u32>,
    /// The most of them that may be awake
    #[arg(long, value_name = "COUNT")]
    max_running: Option<u32>,
    /// The most processor they may have, in thousandths of one
    #[arg(long, value_name = "MILLIS")]
    max_cpu: Option<u64>,
    /// The most memory they may have, in MiB
    #[arg(long, value_name = "MIB")]
    max_memory: Option<u64>,
    /// Make the team too, if there is none of this name
    #[arg(long)]
    new_team: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Which keys to list.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    scope: Scope,
    /// Keys of all teams
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Which keys to revoke.
#[derive(Debug, Args)]
pub struct Revoke {
    /// Their ids, or what people call them
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    /// Print what was revoked as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What is shown of a key.
#[derive(Debug, Serialize)]
struct Shown<T> {
    team: Namespace,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Box<str>>,
    #[serde(flatten)]
    key: T,
}

impl<T> Shown<T> {
    fn of(record: &ApiKey, key: T) -> anyhow::Result<Self> {
        let team = record.metadata.namespace.clone();
        Ok(Self {
            team: team.context("the server sent a key without a team")?,
            user: record.spec.user.clone(),
            key,
        })
    }
}

/// Runs the command.
pub(crate) async fn run(command: &Command, is_root: bool) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(arguments, is_root).await,
        Command::Ls(arguments) => list(arguments, is_root).await,
        Command::Revoke(arguments) => revoke(arguments, is_root).await,
        Command::Ssh(command) => ssh::run(command, is_root).await,
    }
}

async fn create(arguments: &Create, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let team = team(&arguments.scope, &client)?;
    ensure_team(&client, &team, arguments.new_team).await?;
    let wish = NewKey {
        display_name: arguments.name.as_str().into(),
        user: arguments.user.as_deref().map(Into::into),
        quotas: Quotas {
            sandboxes: arguments.max_sandboxes,
            running_sandboxes: arguments.max_running,
            cpu_millis: arguments.max_cpu,
            memory_mib: arguments.max_memory,
        },
    };
    let (record, secret) = mint(&Entropy::from_os(), team.clone(), wish);
    let kind = kind::<ApiKeySpec>()?;
    let body = json!({
        "apiVersion": GROUP_VERSION,
        "kind": kind.kind.0,
        "metadata": {"name": record.metadata.name, "namespace": team},
        "spec": serde_json::from_str::<Value>(&record.encode_spec())?,
    });
    let path = resource::collection(kind, Some(team.as_str()));
    let answer = client
        .call(Method::POST, &path, JSON, Some((JSON, &body)))
        .await
        .context("make a key")?;
    let record = decode(&answer)?;
    let created = CreatedKey {
        key: secret,
        info: KeyInfo::of(&record),
    };
    if arguments.json {
        let shown = Shown::of(&record, &created)?;
        return print(&format!("{:#}\n", serde_json::to_value(&shown)?));
    }
    // The key alone on stdout, so that a shell can take it.
    print(&format!("{}\n", created.key.reveal()))?;
    eprintln!(
        "This is the key {:?} of team {team}, id {}. It is shown this once: keep it now.",
        created.info.name, created.info.id
    );
    Ok(())
}

async fn list(arguments: &List, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let team = match arguments.all_namespaces {
        true => None,
        false => Some(team(&arguments.scope, &client)?),
    };
    let records = fetch(&client, team.as_ref()).await?;
    if arguments.json {
        let shown = records
            .iter()
            .map(|record| Shown::of(record, KeyInfo::of(record)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        return print(&format!("{:#}\n", serde_json::to_value(&shown)?));
    }
    if records.is_empty() {
        let place = team.map_or(String::new(), |team| format!(" in team {team}"));
        eprintln!("No keys found{place}.");
        return Ok(());
    }
    let header = ["TEAM", "ID", "NAME", "USER", "KEY", "CREATED"].map(str::to_owned);
    let rows = records
        .iter()
        .map(row)
        .collect::<anyhow::Result<Vec<_>>>()?;
    print(&output::table(&header, &rows))
}

fn row(record: &ApiKey) -> anyhow::Result<Vec<String>> {
    let shown = Shown::of(record, KeyInfo::of(record))?;
    let (key, none) = (shown.key, || "<none>".to_owned());
    let mask = &key.mask;
    Ok(vec![
        shown.team.to_string(),
        key.id.to_string(),
        key.name.into(),
        shown.user.map_or_else(none, Into::into),
        format!(
            "{}{}…{}",
            mask.prefix, mask.masked_value_prefix, mask.masked_value_suffix
        ),
        key.created_at.map_or_else(none, |at| at.to_string()),
    ])
}

async fn revoke(arguments: &Revoke, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let team = team(&arguments.scope, &client)?;
    let all = fetch(&client, Some(&team)).await?;
    // All are found before the first is revoked: a misspelt name changes nothing.
    let chosen = arguments
        .keys
        .iter()
        .map(|word| choose(&all, word, &team))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let kind = kind::<ApiKeySpec>()?;
    let mut revoked = Vec::new();
    for record in chosen {
        let info = KeyInfo::of(record);
        let path = resource::object(kind, team.as_str(), info.id.as_str());
        // The one that was looked at, not another that has its name by now.
        let options = json!({"preconditions": {"uid": record.metadata.uid}});
        client
            .call(Method::DELETE, &path, JSON, Some((JSON, &options)))
            .await
            .with_context(|| format!("revoke {:?}", info.name))?;
        if !arguments.json {
            print(&format!("{} ({}) revoked\n", info.name, info.id))?;
        }
        revoked.push(Shown::of(record, info)?);
    }
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&revoked)?))?;
    }
    Ok(())
}

/// The key with this id, or the only one that people call so.
fn choose<'a>(all: &'a [ApiKey], word: &str, team: &Namespace) -> anyhow::Result<&'a ApiKey> {
    if let Some(record) = all.iter().find(|key| key.metadata.name.as_str() == word) {
        return Ok(record);
    }
    let named: Vec<&ApiKey> = all
        .iter()
        .filter(|key| *key.spec.display_name == *word)
        .collect();
    match named.as_slice() {
        [record] => Ok(record),
        [] => bail!("team {team} has no key {word:?}: `dormouse key ls -n {team}` shows them"),
        several => {
            let ids: Vec<&str> = several.iter().map(|k| k.metadata.name.as_str()).collect();
            bail!(
                "{} keys are called {word:?}: name one by its id: {}",
                several.len(),
                ids.join(", ")
            )
        }
    }
}

fn team(scope: &Scope, client: &Client) -> anyhow::Result<Namespace> {
    let name = scope.namespace.as_deref();
    Ok(Namespace::new(name.unwrap_or(client.default_namespace()))?)
}

async fn ensure_team(client: &Client, team: &Namespace, may_make: bool) -> anyhow::Result<()> {
    let kind = kind::<TeamSpec>()?;
    let path = resource::object(kind, "", team.as_str());
    match client.get(&path, JSON).await {
        Err(error) if Refusal::is(&error, StatusCode::NOT_FOUND) => {}
        other => return other.map(|_| ()),
    }
    if !may_make {
        bail!("there is no team {team}, and a key needs one: add --new-team to make it");
    }
    let body = json!({
        "apiVersion": GROUP_VERSION,
        "kind": kind.kind.0,
        "metadata": {"name": team},
        "spec": {},
    });
    let path = resource::collection(kind, None);
    match client
        .call(Method::POST, &path, JSON, Some((JSON, &body)))
        .await
    {
        // Somebody else was first.
        Err(error) if Refusal::is(&error, StatusCode::CONFLICT) => Ok(()),
        other => other.map(|_| ()).context("make the team"),
    }
}

async fn fetch(client: &Client, team: Option<&Namespace>) -> anyhow::Result<Vec<ApiKey>> {
    let kind = kind::<ApiKeySpec>()?;
    let path = resource::collection(kind, team.map(Namespace::as_str));
    let answer = client.get(&path, JSON).await?;
    let items = answer["items"].as_array().into_iter().flatten();
    items.map(decode).collect()
}

fn decode(object: &Value) -> anyhow::Result<ApiKey> {
    let metadata = serde_json::from_value(object["metadata"].clone());
    let metadata = metadata.context("the server sent a key without metadata")?;
    // An API server sends no status of what has none yet.
    let half = |name: &str| object.get(name).map_or("{}".to_owned(), Value::to_string);
    let (spec, status) = (half("spec"), half("status"));
    Object::decode(metadata, &spec, &status).context("the server sent a key that cannot be read")
}

fn kind<S: Spec>() -> anyhow::Result<&'static KindInfo> {
    kinds::find(S::KIND.0).with_context(|| format!("{} is not in the registry", S::KIND))
}

#[cfg(test)]
mod tests {
    use model::Name;

    use super::*;

    fn key(id: &str, name: &str) -> ApiKey {
        let team = Namespace::new("blue").unwrap();
        let (mut record, _) = mint(&Entropy::seeded(1), team, NewKey::named(name));
        record.metadata.name = Name::new(id).unwrap();
        record
    }

    #[test]
    fn a_key_is_chosen_by_id_or_by_a_name_that_only_it_has() {
        let all = [
            key("a", "one"),
            key("b", "two"),
            key("c", "two"),
            key("d", "a"),
        ];
        let blue = Namespace::new("blue").unwrap();
        let id = |word: &str| {
            choose(&all, word, &blue)
                .map(|k| k.metadata.name.to_string())
                .map_err(|e| e.to_string())
        };
        assert_eq!(id("one").as_deref(), Ok("a"));
        assert_eq!(id("c").as_deref(), Ok("c"));
        assert_eq!(id("a").as_deref(), Ok("a"), "an id comes first");
        assert!(id("two").unwrap_err().contains("b, c"));
        assert!(id("nine").unwrap_err().contains("key ls -n blue"));
    }
}
