//! `dormouse run`: a throw-away sandbox for one command.
//!
//! The sandbox is made by the local engine in this very process, on a directory that goes with it.
//! The command is started through the agent inside, which is reached from within the sandbox's
//! network namespace: it has no route to anywhere, and needs none.

use std::{
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use agent_client::{Client, Event, StartOptions};
use anyhow::{Context as _, anyhow, bail};
use kit::{Clock as _, Entropy, SystemClock};
use model::{
    Epoch, Generation, OperationId, Uid,
    workload::{Arming, Fence, WorkloadSpec},
};
use runtime::Runtime as _;
use runtime_local::{LocalRuntime, Options};
use tokio::signal::unix::{SignalKind, signal};
use wire::{
    envd,
    process::{EndEvent, ProcessConfig, StartRequest},
};

/// What to run, and in what.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dormouse run python3 -c 'print(1)'
  dormouse run --env NAME=world -- sh -c 'echo hello $NAME; exit 3'
  dormouse run --user root id

It needs root, and dormouse-agent beside this program (or named with --agent). The sandbox sees the
system's programs in /usr, a home of its own, no other files, no other processes and no network; it
is gone when the command ends. Input and terminals are not passed in yet.")]
pub(crate) struct Run {
    /// The agent to start inside; the default is `dormouse-agent` beside this program
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// A variable of the command's environment; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Who runs the command inside
    #[arg(long, default_value = "user")]
    user: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// How long the agent may take to answer for the first time.
const START: Duration = Duration::from_secs(10);

/// Runs the command. Answers its exit code.
///
/// # Errors
/// If there can be no sandbox, or the command cannot be started in it.
pub(crate) async fn run(args: Run) -> anyhow::Result<ExitCode> {
    let agent = find_agent(args.agent.as_deref())?;
    let directory = tempfile::Builder::new()
        .prefix("dormouse-run-")
        .tempdir()
        .context("make a directory for the sandbox")?;
    let mut options = Options::new(agent);
    options.init_args = vec!["--pid1".into(), "--user".into(), args.user.clone()];
    let engine = LocalRuntime::open(directory.path(), options).context("open the engine")?;
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
        outcome = inside(&engine, fence(1), args) => outcome,
    };
    let removed = engine.delete(fence(2)).await.context("remove the sandbox");
    let code = outcome?;
    removed?;
    Ok(code)
}

async fn inside(engine: &LocalRuntime, fence: Fence, args: Run) -> anyhow::Result<ExitCode> {
    let spec = WorkloadSpec {
        images: [("main", "base")].into_iter().collect(),
        sudo: true,
        ..WorkloadSpec::default()
    };
    engine
        .create(fence, &spec)
        .await
        .context("make the sandbox")?;
    let arming = Arming {
        epoch: Epoch(1),
        user: Some(args.user.as_str().into()),
        ..Arming::default()
    };
    engine
        .arm(fence, &arming)
        .await
        .context("arm the sandbox")?;
    let pid = engine
        .first_process(fence.uid)
        .context("the sandbox ended at once")?;
    let connection = reach_agent(pid).await?;
    let end = execute(connection, args).await?;
    // What a shell answers for a command that a signal ended.
    let code = if end.exited {
        end.exit_code
    } else {
        128 + end.exit_code.abs()
    };
    Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)))
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

/// Connects to the agent, which has just been started and may not listen yet.
async fn reach_agent(pid: i32) -> anyhow::Result<tokio::net::TcpStream> {
    let clock = SystemClock::default();
    let mut wait = Duration::from_micros(200);
    loop {
        let error = match dial(pid).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if clock.monotonic() >= START {
            return Err(error.context("the agent inside does not answer"));
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_millis(20));
    }
}

/// Dials the agent from within the network namespace of a process. The namespace belongs to the
/// thread that entered it, so the thread is one of its own and ends with the dial.
async fn dial(pid: i32) -> anyhow::Result<tokio::net::TcpStream> {
    let (answer, dialled) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // Nobody to answer to means that the dial is no longer wanted.
        let _ = answer.send(dial_in_thread(pid));
    });
    let stream = dialled
        .await
        .map_err(|_| anyhow!("the dialling thread died"))??;
    stream.set_nonblocking(true)?;
    Ok(tokio::net::TcpStream::from_std(stream)?)
}

fn dial_in_thread(pid: i32) -> anyhow::Result<TcpStream> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::fd::AsFd as _;
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))
        .context("open the sandbox's network namespace")?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("enter the sandbox's network namespace")?;
    let address = SocketAddr::from(([127, 0, 0, 1], envd::PORT));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Starts the command and passes its output on, until it ends.
async fn execute(connection: tokio::net::TcpStream, args: Run) -> anyhow::Result<EndEvent> {
    let mut command = args.command.into_iter();
    let start = StartRequest {
        process: Some(ProcessConfig {
            cmd: command.next().unwrap_or_default(),
            args: command.collect(),
            envs: args.env.into_iter().collect(),
            cwd: None,
        }),
        pty: None,
        tag: None,
        stdin: Some(false),
    };
    let agent = Client::over(connection);
    let process = agent
        .start(&start, StartOptions::default())
        .await
        .context("start the command")?;
    let ended = process.wait(|event| match event {
        Event::Stdout(bytes) => pass_on(std::io::stdout(), &bytes),
        Event::Stderr(bytes) => pass_on(std::io::stderr(), &bytes),
        Event::Pty(_) | Event::End(_) => Ok(()),
    });
    ended.await.context("follow the command")
}

fn pass_on(mut to: impl std::io::Write, bytes: &[u8]) -> anyhow::Result<()> {
    to.write_all(bytes)?;
    to.flush()?;
    Ok(())
}
