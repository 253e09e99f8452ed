//! `dormouse sandbox exec` and `shell`.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::pair;
use crate::{
    e2b::Access,
    exec::{Exec, execute},
};

/// What to run, and where.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Pass the input on to the command
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// A variable of its environment; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Who runs it inside; the default is the sandbox's own
    #[arg(long)]
    user: Option<String>,
    /// The directory inside that it runs in; the default is the sandbox's own
    #[arg(long, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// The sandbox
    sandbox: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    access: Access,
}

/// Where to open a shell.
#[derive(Debug, Args)]
pub struct Shell {
    /// The sandbox
    sandbox: String,
    /// Who runs it inside; the default is the sandbox's own
    #[arg(long)]
    user: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// The best shell that is there.
const BEST: &str = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi";

pub(super) async fn run(arguments: Arguments, is_root: bool) -> anyhow::Result<ExitCode> {
    let exec = Exec {
        command: arguments.command,
        env: arguments.env,
        cwd: arguments.workdir,
        stdin: arguments.interactive,
        terminal: arguments.tty,
    };
    inside(
        &arguments.access,
        is_root,
        &arguments.sandbox,
        arguments.user.as_deref(),
        exec,
    )
    .await
}

pub(super) async fn shell(arguments: Shell, is_root: bool) -> anyhow::Result<ExitCode> {
    let exec = Exec {
        command: ["sh", "-c", BEST].map(str::to_owned).into(),
        stdin: true,
        terminal: true,
        ..Exec::default()
    };
    inside(
        &arguments.access,
        is_root,
        &arguments.sandbox,
        arguments.user.as_deref(),
        exec,
    )
    .await
}

async fn inside(
    access: &Access,
    is_root: bool,
    word: &str,
    user: Option<&str>,
    exec: Exec,
) -> anyhow::Result<ExitCode> {
    let api = access.api(is_root)?;
    let found = api.awake(word).await?;
    let mut agent = api.agent(&found)?;
    if let Some(user) = user {
        agent = agent.as_user(user);
    }
    execute(&agent, exec)
        .await
        .with_context(|| format!("sandbox {}", found.id))
}
