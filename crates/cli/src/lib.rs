//! Commands over the public API. They know the registry of kinds and the REST shape, and nothing
//! of the server's insides: against a cluster they would work the same.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`connect`], [`kubeconfig`] | finding a server: its address, its CA, a token |
//! | [`client`] | HTTPS with that CA only; errors as the server states them |
//! | [`resource`] | kinds by any of their names, and their paths |
//! | [`manifest`] | objects from YAML and JSON files |
//! | [`output`] | tables, YAML, JSON |
//! | [`get`], [`describe`], [`apply`], [`delete`], [`watch`], [`key`], [`pool`] | one command each |
//! | [`merge`] | the three-way merge of `apply` |
//! | [`e2b`] | the E2B API, as whom, and the agents behind it |
//! | [`sandbox`], [`snapshot`], [`top`], [`audit`], [`history`], [`gc`], [`cert`] | commands over that |
//! | [`template`] | templates of a team, built from a Dockerfile |
//! | [`attached`] | a sandbox for one command, on a server that runs |
//! | [`admin`] | the affairs of a whole server, for commands that also work without one |
//! | [`progress`] | saying what takes long |
//! | [`exec`] | a command inside a sandbox, joined to this process and its terminal |

mod admin;
mod apply;
mod attached;
mod audit;
mod cert;
mod client;
mod connect;
mod delete;
mod describe;
mod e2b;
pub mod exec;
mod gc;
mod get;
mod history;
mod key;
pub mod kubeconfig;
mod manifest;
mod merge;
mod output;
mod pool;
mod progress;
mod resource;
mod sandbox;
mod snapshot;
pub mod template;
mod top;
mod watch;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Subcommand;

pub use admin::Admin;
pub use attached::Server;
pub use connect::{Connection, KUBECONFIG_VARIABLE, Scope, default_data_dir};
pub use e2b::Access;
pub use output::table;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List objects, or show some of them
    #[command(after_help = "Examples:
  dormouse get sandboxes                          the same as `get sandbox` and `get sbx`
  dormouse get sbx one two -o yaml
  dormouse get sandboxpools -A -o wide
  dormouse get sandboxes -l team=blue --field-selector status.phase=Running
  dormouse get sandboxes --watch")]
    Get(get::Arguments),
    /// Show everything about objects, for people: intent, what is observed, events
    #[command(after_help = "Examples:
  dormouse describe sandbox one
  dormouse describe sandboxpool/warm -n team-blue")]
    Describe(describe::Arguments),
    /// Create or change the objects that files describe
    #[command(after_help = "Examples:
  dormouse apply -f sandbox.yaml
  dormouse apply -f manifests/ -n team-blue
  cat sandbox.json | dormouse apply -f -
  dormouse apply -f sandbox.yaml --dry-run

A field that an earlier apply set and the file no longer mentions is removed; what others set is
kept. The last file is remembered in the same annotation that kubectl uses, so both can be mixed.")]
    Apply(apply::Arguments),
    /// Delete objects, and wait until they are gone
    #[command(after_help = "Examples:
  dormouse delete sandbox one two
  dormouse delete -f sandbox.yaml --ignore-not-found
  dormouse delete sandbox one --wait=false")]
    Delete(delete::Arguments),
    /// Follow the changes of objects until interrupted
    #[command(after_help = "Examples:
  dormouse watch sandboxes
  dormouse watch sandbox one -o json

A lost connection is taken up where it broke.")]
    Watch(watch::Arguments),
    /// Make, use and end sandboxes
    #[command(
        subcommand,
        after_help = "Examples:
  id=$(dormouse sandbox create)
  dormouse sandbox exec $id -- python3 -c 'print(1)'
  dormouse sandbox shell $id
  dormouse sandbox cp ./project $id:/srv/project
  dormouse sandbox url $id 8000
  dormouse sandbox kill $id

With E2B_API_KEY and E2B_API_URL set, they are that server's and that key's team's. Otherwise they
are those of the server on this machine, found by its kubeconfig, and of the team --namespace names."
    )]
    Sandbox(sandbox::Command),
    /// Keep the files of sandboxes, to create others from
    #[command(
        subcommand,
        after_help = "Examples:
  dormouse snapshot create ID --name my-app
  dormouse sandbox create --snapshot my-app
  dormouse snapshot ls
  dormouse snapshot rm my-app"
    )]
    Snapshot(snapshot::Command),
    /// Show what sandboxes use, again and again
    #[command(after_help = "Examples:
  dormouse top
  dormouse top --once
  dormouse top --json")]
    Top(top::Arguments),
    /// Show who did what to sandboxes and keys
    #[command(after_help = "Examples:
  dormouse audit
  dormouse audit --since 1h --action sandbox.kill
  dormouse audit --sandbox ID --json")]
    Audit(audit::Arguments),
    /// Remove images and captured layers that nothing needs, on a server that runs
    #[command(after_help = "Examples:
  dormouse gc --dry-run                           what would go, and why the rest stays
  dormouse gc

A server does this by itself every gc.interval. What was written a moment ago stays for gc.grace.")]
    Gc(gc::Arguments),
    /// Show what sandboxes were: whose, from where, how they ended
    #[command(after_help = "Examples:
  dormouse history
  dormouse history --since 1h --pool warm
  dormouse history --live --json")]
    History(history::Arguments),
    /// Show and scale pools of ready sandboxes
    #[command(
        subcommand,
        after_help = "Examples:
  dormouse pool ls
  dormouse pool scale warm --min-idle 10 --max-idle 20
  dormouse pool describe warm"
    )]
    Pool(pool::Command),
    /// Print the server's certificate authority, and how to trust it
    #[command(after_help = "Examples:
  dormouse cert > dormouse-ca.crt
  dormouse cert --out /usr/local/share/ca-certificates/dormouse.crt")]
    Cert(cert::Arguments),
    /// Make, list and revoke the API keys of a team
    #[command(subcommand)]
    Key(key::Command),
    /// Print the CustomResourceDefinitions of the kinds, for a Kubernetes cluster
    #[command(after_help = "Example:
  dormouse crds | kubectl apply -f -")]
    Crds,
}

/// Runs a command, and answers the exit code: 0, or that of a command inside. `is_root` decides
/// where a server's data is looked for.
///
/// # Errors
/// Whatever it is that went wrong, in words for the person who asked.
pub async fn run(command: Command, is_root: bool) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Sandbox(command) => return sandbox::run(command, is_root).await,
        Command::Get(arguments) => get::run(arguments, is_root).await,
        Command::Describe(arguments) => describe::run(&arguments, is_root).await,
        Command::Apply(arguments) => apply::run(&arguments, is_root).await,
        Command::Delete(arguments) => delete::run(&arguments, is_root).await,
        Command::Watch(arguments) => watch::run(arguments, is_root).await,
        Command::Snapshot(command) => snapshot::run(command, is_root).await,
        Command::Top(arguments) => top::run(&arguments, is_root).await,
        Command::Audit(arguments) => audit::run(&arguments, is_root).await,
        Command::Gc(arguments) => gc::run(&arguments, is_root).await,
        Command::History(arguments) => history::run(&arguments, is_root).await,
        Command::Pool(command) => pool::run(command, is_root).await,
        Command::Cert(arguments) => cert::run(&arguments, is_root),
        Command::Key(command) => key::run(&command, is_root).await,
        Command::Crds => crds(),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn crds() -> anyhow::Result<()> {
    let documents = model::kinds::ALL.iter().map(model::schema::crd);
    print(&output::documents(documents)?)
}

/// Prints to stdout.
///
/// # Errors
/// If that is closed; [`exit_code`] knows that this is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// What the process returns: 0, or 1 after saying what went wrong. A reader that went away, as
/// `head` does, is no failure.
#[must_use]
pub fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    let is_broken_pipe = error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if is_broken_pipe {
        return ExitCode::SUCCESS;
    }
    complain(&error);
    ExitCode::FAILURE
}

/// One line on stderr for each thing that went wrong.
pub(crate) fn complain(error: &anyhow::Error) {
    let mut text = format!("error: {error:#}\n");
    if let Some(refusal) = error.downcast_ref::<client::Refusal>() {
        for (field, message) in refusal.details() {
            let _ = writeln!(text, "  {field}: {message}");
        }
    }
    // There is nobody left to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Says how many of several things went wrong, each of which was shown already.
pub(crate) fn tally(failed: usize) -> anyhow::Result<()> {
    match failed {
        0 => Ok(()),
        1 => anyhow::bail!("1 object failed"),
        _ => anyhow::bail!("{failed} objects failed"),
    }
}
