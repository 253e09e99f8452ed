//! `dormouse run`: a throw-away sandbox for one command.
//!
//! Where a server runs, the sandbox is one of its, and `cli` sees to all of it. Otherwise it is made
//! by the local engine in this very process, on a directory that goes with it; the command is
//! started through the agent inside, which is reached from within the sandbox's network namespace.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use agent_client::Client;
use anyhow::{Context as _, bail};
use cli::{Access, Server, exec::Exec};
use kit::Entropy;
use model::{
    Epoch, Generation, OperationId, Uid,
    workload::{Arming, Fence, WorkloadSpec},
};
use runtime::{Inside, Runtime as _};
use runtime_local::{LocalRuntime, Options};
use tokio::signal::unix::{SignalKind, signal};
use wire::envd;

use crate::throwaway::{self, Throwaway};

/// What to run, and in what.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dormouse run python3 -c 'print(1)'
  dormouse run -it bash
  echo hello | dormouse run -i tr a-z A-Z
  dormouse run --env NAME=world -- sh -c 'echo hello $NAME; exit 3'
  dormouse run --user root id

The sandbox sees the system's programs in /usr, a home of its own, no other files and no other
processes; it is gone when the command ends, or half a minute after this program was killed.

If a server runs on this machine, it is one of the server's, of the team --namespace names; with
E2B_API_KEY and E2B_API_URL set, one of that server's. Otherwise, or with --local, this program makes
it: that needs root, and dormouse-agent beside this program (or named with --agent). `dormouse doctor`
says what this host lacks.")]
pub(crate) struct Run {
    /// Make the sandbox in this very process, even if a server runs
    #[arg(long)]
    local: bool,
    /// Template or pool of the server to make it from
    #[arg(long, default_value = BASE, conflicts_with_all = ["local", "agent"])]
    template: String,
    /// The agent to start inside, with --local; the default is `dormouse-agent` beside this program
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// A variable of the command's environment; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Who runs the command inside; the default is the sandbox's own, which is `user` in `base`
    #[arg(long)]
    user: Option<String>,
    /// The directory inside that the command runs in; the default is the user's home
    #[arg(long, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// Pass the input on to the command
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    access: Access,
}

/// What sandboxes are made from when nothing else is named.
const BASE: &str = "base";
/// Who runs commands in it.
const USER: &str = "user";

impl Run {
    fn exec(&mut self) -> Exec {
        Exec {
            command: std::mem::take(&mut self.command),
            env: std::mem::take(&mut self.env),
            cwd: self.workdir.take(),
            stdin: self.interactive,
            terminal: self.tty,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// Runs the command. Answers its exit code.
///
/// # Errors
/// If there can be no sandbox, or the command cannot be started in it.
pub(crate) async fn run(mut args: Run, is_root: bool) -> anyhow::Result<ExitCode> {
    let mut no_server = None;
    // Whoever names an agent wants it started here.
    if !args.local && args.agent.is_none() {
        match Server::find(&args.access, is_root).await? {
            Ok(server) => {
                let exec = args.exec();
                return server.run(&args.template, args.user.as_deref(), exec).await;
            }
            Err(why) => no_server = Some(why),
        }
    }
    if args.template != BASE {
        bail!(
            "the template {} is a server's, and none runs: {}",
            args.template,
            no_server.unwrap_or_default()
        );
    }
    if !is_root {
        bail!(
            "a sandbox needs root, or a server that runs: use sudo, or start a server with `sudo \
             dormouse serve`{}",
            no_server.map_or_else(String::new, |why| format!(" ({why})"))
        );
    }
    ephemeral(args).await
}

/// Makes the sandbox here.
async fn ephemeral(mut args: Run) -> anyhow::Result<ExitCode> {
    let agent = find_agent(args.agent.as_deref())?;
    let options = Options::agent(agent);
    let directory = Throwaway::make()?;
    let engine = LocalRuntime::open(directory.path(), options.clone())
        .context("this host cannot run sandboxes; `dormouse doctor` tells all")?;
    let exec = args.exec();
    let user = args.user.as_deref().unwrap_or(USER);
    let uid = Uid::from_random(Entropy::from_os().u128());
    let fence = |generation| Fence {
        uid,
        generation: Generation(generation),
        operation: OperationId(1),
    };
    let mut terminate = signal(SignalKind::terminate()).context("wait for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for signals")?;
    let outcome = tokio::select! {
        biased;
        // What a shell answers for a command that one of these ended.
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
        outcome = inside(&engine, fence(1), user, exec) => outcome,
    };
    let removed = engine.delete(fence(2)).await.context("remove the sandbox");
    throwaway::sweep(&options).await;
    let code = outcome?;
    removed?;
    Ok(code)
}

async fn inside(
    engine: &LocalRuntime,
    fence: Fence,
    user: &str,
    exec: Exec,
) -> anyhow::Result<ExitCode> {
    let spec = WorkloadSpec {
        images: [("main", BASE)].into_iter().collect(),
        sudo: true,
        ..WorkloadSpec::default()
    };
    engine
        .create(fence, &spec)
        .await
        .context("make the sandbox")?;
    let arming = Arming {
        epoch: Epoch(1),
        user: Some(user.into()),
        ..Arming::default()
    };
    engine
        .arm(fence, &arming)
        .await
        .context("arm the sandbox")?;
    let agent = agent_of(Arc::new(engine.clone()), fence.uid);
    cli::exec::execute(&agent, exec).await
}

/// The agent of a sandbox on this machine, dialled from within its network namespace.
fn agent_of(inside: Arc<dyn Inside>, uid: Uid) -> Client {
    Client::new(move || runtime::dial(&*inside, uid, envd::PORT))
}

/// The agent that runs inside every sandbox.
///
/// # Errors
/// If it is not where it should be; the message says where, and how to get it.
pub(crate) fn find_agent(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .context("find this program")?
            .with_file_name("dormouse-agent"),
    };
    if !path.is_file() {
        bail!(
            "there is no agent at {}: build it with `cargo build --release -p dormouse-agent`, and put it there",
            path.display()
        );
    }
    std::fs::canonicalize(&path).with_context(|| format!("resolve {}", path.display()))
}
