//! `dormouse key ssh`: the public keys with which people of a team log in to its sandboxes.
//!
//! They are a field of the team's record. A change names the version it saw, and looks again if
//! somebody else was first.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use model::team::{SshKey, TeamSpec};
use serde_json::{Value, json};

use super::{kind, team};
use crate::{
    client::{Client, JSON, Refusal},
    connect::{Connection, Scope},
    output, print, resource,
};

/// How often a change is tried again that others were first to make.
const TRIES: usize = 5;
/// The longest file that can be a public key.
const LONGEST: u64 = 16 << 10;

/// What to do with SSH keys.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let whoever has the private part of a key log in to the sandboxes of a team
    #[command(after_help = "Examples:
  dormouse key ssh add ~/.ssh/id_ed25519.pub
  dormouse key ssh add key.pub --name ada -n team-blue")]
    Add(Add),
    /// List the keys of a team
    Ls(List),
    /// Shut keys out
    Rm(Remove),
}

/// Which key to add.
#[derive(Debug, Args)]
pub struct Add {
    /// The public key, a file that ends in .pub; - reads it from the input
    file: PathBuf,
    /// What people call it; otherwise its comment, or the name of the file
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    connection: Connection,
}

/// Of which team.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    scope: Scope,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Which keys to shut out.
#[derive(Debug, Args)]
pub struct Remove {
    /// What people call them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(command: &Command, is_root: bool) -> anyhow::Result<()> {
    match command {
        Command::Add(arguments) => add(arguments, is_root).await,
        Command::Ls(arguments) => list(arguments, is_root).await,
        Command::Rm(arguments) => remove(arguments, is_root).await,
    }
}

async fn add(arguments: &Add, is_root: bool) -> anyhow::Result<()> {
    let text = read(&arguments.file)?;
    let key = parse(&text, arguments.name.as_deref(), &arguments.file)?;
    let client = arguments.connection.client(is_root)?;
    let team = team(&arguments.scope, &client)?;
    change(&client, team.as_str(), |keys| {
        if keys.iter().any(|known| known.name == key.name) {
            bail!(
                "team {team} has a key {:?} already: choose another --name",
                key.name
            );
        }
        keys.push(key.clone());
        Ok(())
    })
    .await?;
    print(&format!(
        "{} may log in to sandboxes of team {team}\n",
        key.name
    ))
}

async fn list(arguments: &List, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let team = team(&arguments.scope, &client)?;
    let (_, keys) = fetch(&client, team.as_str()).await?;
    if arguments.json {
        return print(&format!("{:#}\n", serde_json::to_value(&keys)?));
    }
    if keys.is_empty() {
        eprintln!("No SSH keys found in team {team}.");
        return Ok(());
    }
    let header = ["NAME", "KEY"].map(str::to_owned);
    let rows = keys
        .iter()
        .map(|key| vec![key.name.to_string(), key.key.to_string()]);
    print(&output::table(&header, &rows.collect::<Vec<_>>()))
}

async fn remove(arguments: &Remove, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let team = team(&arguments.scope, &client)?;
    change(&client, team.as_str(), |keys| {
        for name in &arguments.names {
            let before = keys.len();
            keys.retain(|key| *key.name != **name);
            if keys.len() == before {
                bail!("team {team} has no SSH key {name:?}: `dormouse key ssh ls -n {team}` shows them");
            }
        }
        Ok(())
    })
    .await?;
    for name in &arguments.names {
        print(&format!("{name} shut out\n"))?;
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let shown = file.display();
    if file == Path::new("-") {
        std::io::stdin().take(LONGEST).read_to_string(&mut text)
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("open {shown}"))?;
        opened.take(LONGEST).read_to_string(&mut text)
    }
    .with_context(|| format!("read {shown}"))?;
    Ok(text)
}

/// A key from a line as `ssh-keygen` writes it. What is not one is not repeated: it could be the
/// private part.
fn parse(text: &str, name: Option<&str>, file: &Path) -> anyhow::Result<SshKey> {
    let shown = file.display();
    if text.contains("PRIVATE KEY") {
        bail!("{shown} is a private key: nobody else may have it, so name the file .pub beside it");
    }
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (Some(line), None) = (lines.next(), lines.next()) else {
        bail!("{shown} is not one public key");
    };
    let mut words = line.trim().splitn(3, ' ');
    let (Some(algorithm), Some(bytes)) = (words.next(), words.next()) else {
        bail!("{shown} is not a public key");
    };
    if !SshKey::ALGORITHMS.contains(&algorithm) {
        bail!(
            "{shown} is not a key that is taken: make one with `ssh-keygen -t ed25519` (taken are {})",
            SshKey::ALGORITHMS.join(", ")
        );
    }
    let comment = words.next().map(str::trim).filter(|text| !text.is_empty());
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let name = name.or(comment).or(stem).unwrap_or("key");
    Ok(SshKey {
        name: name.into(),
        key: format!("{algorithm} {bytes}").into(),
    })
}

/// Reads the keys of a team, changes them, and writes them back.
async fn change(
    client: &Client,
    team: &str,
    apply: impl Fn(&mut Vec<SshKey>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = resource::object(kind::<TeamSpec>()?, "", team);
    for left in (0..TRIES).rev() {
        let (mut record, mut keys) = fetch(client, team).await?;
        apply(&mut keys)?;
        record["spec"]["sshKeys"] = json!(keys);
        let written = client
            .call(Method::PUT, &path, JSON, Some((JSON, &record)))
            .await;
        match written {
            // Somebody else was first.
            Err(error) if left > 0 && Refusal::is(&error, StatusCode::CONFLICT) => {}
            other => return other.map(|_| ()).context("change the keys of the team"),
        }
    }
    Ok(())
}

/// The record of a team, and its keys.
async fn fetch(client: &Client, team: &str) -> anyhow::Result<(Value, Vec<SshKey>)> {
    let path = resource::object(kind::<TeamSpec>()?, "", team);
    let record = match client.get(&path, JSON).await {
        Err(error) if Refusal::is(&error, StatusCode::NOT_FOUND) => {
            bail!("there is no team {team}: `dormouse get teams` shows those there are")
        }
        other => other?,
    };
    let keys = match &record["spec"]["sshKeys"] {
        Value::Null => Vec::new(),
        keys => {
            serde_json::from_value(keys.clone()).context("the server sent keys that are none")?
        }
    };
    Ok((record, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOTOXyJWkxH1Rt7dayofr6Jh2Hjh6dXdFKZSr8G+1ZFc";

    #[test]
    fn a_key_is_called_as_said_or_by_its_comment_or_its_file() {
        let read = |text: &str, name: Option<&str>| {
            parse(text, name, Path::new("/home/ada/.ssh/laptop.pub")).map_err(|e| e.to_string())
        };
        let named = |text: &str, name| read(text, name).unwrap().name;
        assert_eq!(&*named(&format!("{LINE} ada@host\n"), Some("work")), "work");
        assert_eq!(&*named(&format!("{LINE} ada's key\n"), None), "ada's key");
        assert_eq!(&*named(LINE, None), "laptop");
        assert_eq!(&*read(&format!("{LINE} x"), None).unwrap().key, LINE);
    }

    #[test]
    fn what_is_no_public_key_is_refused_and_not_repeated() {
        for text in [
            "",
            "secret",
            "ssh-rsa AAAAB3NzaC1yc2EAAAA ada",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n",
            &format!("{LINE}\n{LINE}\n"),
        ] {
            let why = parse(text, None, Path::new("k")).unwrap_err().to_string();
            assert!(!why.contains("secret") && !why.contains("c2Vj"), "{why}");
        }
    }
}
