//! A command inside a sandbox, joined to this process: its output comes out here, and what comes
//! in here goes there, over a terminal if one is asked for.

use std::{
    io::{self, IsTerminal as _, Read as _, Write},
    os::fd::AsFd as _,
    pin::pin,
    process::ExitCode,
};

use agent_client::{Client, Event, Process, StartOptions, by_pid};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::{
    signal::unix::{Signal as UnixSignal, SignalKind, signal},
    sync::mpsc,
};
use wire::process::{EndEvent, ProcessConfig, ProcessInput, Pty, PtySize, Signal, StartRequest};

/// What is run, and how it is joined.
#[derive(Debug, Default)]
pub struct Exec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables of its environment, besides the sandbox's.
    pub env: Vec<(String, String)>,
    /// The directory it runs in; none means the sandbox's own.
    pub cwd: Option<String>,
    /// Whether it reads what is typed or piped here.
    pub stdin: bool,
    /// Whether it gets a terminal.
    pub terminal: bool,
}

/// How much is read at a time from what is typed or piped.
const PIECE: usize = 32 << 10;
/// Pieces on their way: a command that does not read stops what is piped into it.
const PIECES: usize = 4;
/// Ends the input of a program on a terminal.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

/// Runs a command through the agent of a sandbox, and answers what a shell would.
///
/// # Errors
/// If it cannot be started, its sandbox ends under it, or a terminal is asked for where there is
/// none.
pub async fn execute(agent: &Client, exec: Exec) -> anyhow::Result<ExitCode> {
    if exec.terminal && !io::stdin().is_terminal() {
        bail!("the input is not a terminal: leave --tty (-t) out");
    }
    let terminal = exec.terminal.then(RawTerminal::enter).transpose()?;
    let outcome = joined(agent, &exec).await;
    drop(terminal);
    outcome.map(|end| exit_code(&end))
}

async fn joined(agent: &Client, exec: &Exec) -> anyhow::Result<EndEvent> {
    let of = |kind| signal(kind).context("wait for signals");
    let mut resized = of(SignalKind::window_change())?;
    let (mut interrupt, mut terminate) =
        (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
    let mut asked = 0;
    let process = agent
        .start(&request(exec), StartOptions::default())
        .await
        .context("start the command")?;
    let pid = process.pid();
    let mut output = pin!(follow(process));
    let mut input = pin!(async {
        if exec.stdin {
            pass_input(agent, pid, exec.terminal).await;
        }
        std::future::pending::<()>().await;
    });
    loop {
        tokio::select! {
            end = &mut output => return end,
            () = &mut input => {}
            _ = resized.recv(), if exec.terminal => {
                // The next change tells the size again.
                let _ = agent.resize(by_pid(pid), window()).await;
            }
            // Whoever stops this means the command: asked once to end, then told to.
            Some(()) = ended_by(&mut interrupt, &mut terminate) => {
                let signal = if asked == 0 { Signal::Term } else { Signal::Kill };
                asked += 1;
                // How it ends is heard where its output is.
                let _ = agent.signal(by_pid(pid), signal).await;
            }
        }
    }
}

async fn ended_by(interrupt: &mut UnixSignal, terminate: &mut UnixSignal) -> Option<()> {
    tokio::select! {
        seen = interrupt.recv() => seen,
        seen = terminate.recv() => seen,
    }
}

fn request(exec: &Exec) -> StartRequest {
    let mut command = exec.command.iter().cloned();
    let mut envs: std::collections::HashMap<_, _> = exec.env.iter().cloned().collect();
    if exec.terminal {
        let term = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned());
        envs.entry("TERM".to_owned()).or_insert(term);
    }
    StartRequest {
        process: Some(ProcessConfig {
            cmd: command.next().unwrap_or_default(),
            args: command.collect(),
            envs: envs.into_iter().collect(),
            cwd: exec.cwd.clone(),
        }),
        pty: exec.terminal.then(|| Pty {
            size: Some(window()),
        }),
        tag: None,
        stdin: Some(exec.stdin),
    }
}

async fn follow(process: Process) -> anyhow::Result<EndEvent> {
    let ended = process.wait(|event| match event {
        Event::Stdout(bytes) | Event::Pty(bytes) => pass_on(io::stdout(), &bytes),
        Event::Stderr(bytes) => pass_on(io::stderr(), &bytes),
        Event::End(_) => Ok(()),
    });
    ended.await.context("follow the command")
}

fn pass_on(mut to: impl Write, bytes: &[u8]) -> anyhow::Result<()> {
    to.write_all(bytes)?;
    Ok(to.flush()?)
}

/// Sends what is typed or piped here, up to its end. A command that has ended, or does not read,
/// is no failure: how it ended is heard elsewhere.
async fn pass_input(agent: &Client, pid: u32, terminal: bool) {
    let mut pieces = typed();
    let stream = async_stream(terminal, move |context| pieces.poll_recv(context));
    let sent = agent.stream_input(by_pid(pid), stream).await;
    if sent.is_ok() && !terminal {
        let _ = agent.close_stdin(by_pid(pid)).await;
    }
}

fn async_stream(
    terminal: bool,
    mut next: impl FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<Bytes>>,
) -> impl futures_util::Stream<Item = ProcessInput> {
    let mut ended = false;
    futures_util::stream::poll_fn(move |context| {
        if ended {
            return std::task::Poll::Ready(None);
        }
        next(context).map(|piece| match piece {
            Some(bytes) => Some(input(terminal, bytes)),
            None => {
                ended = true;
                terminal.then(|| input(true, Bytes::from_static(END_OF_TRANSMISSION)))
            }
        })
    })
}

fn input(terminal: bool, bytes: Bytes) -> ProcessInput {
    if terminal {
        ProcessInput {
            pty: Some(bytes),
            ..ProcessInput::default()
        }
    } else {
        ProcessInput {
            stdin: Some(bytes),
            ..ProcessInput::default()
        }
    }
}

/// What is typed or piped, piece by piece. It is read by a thread of its own that nobody waits
/// for: a read of a terminal ends when somebody types.
fn typed() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES);
    std::thread::spawn(move || {
        let mut stdin = io::stdin();
        let mut buffer = vec![0; PIECE];
        loop {
            let read = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if sender
                .blocking_send(Bytes::copy_from_slice(&buffer[..read]))
                .is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn window() -> PtySize {
    let size = tcgetwinsize(io::stdin().as_fd()).ok();
    // A terminal that nobody looks at may have none.
    let size = size.filter(|s| s.ws_col > 0 && s.ws_row > 0);
    let (cols, rows) = size.map_or((80, 24), |s| (s.ws_col, s.ws_row));
    PtySize {
        cols: cols.into(),
        rows: rows.into(),
    }
}

/// What a shell answers for a command that ended so.
fn exit_code(end: &EndEvent) -> ExitCode {
    let code = if end.exited {
        end.exit_code
    } else {
        128 + signal_number(&end.status)
    };
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}

/// The number of the signal that a status names; of one that is not told apart, that of a kill.
fn signal_number(status: &str) -> i32 {
    match status.trim_start_matches("signal: ") {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "aborted" => 6,
        "segmentation fault" => 11,
        "broken pipe" => 13,
        "terminated" => 15,
        _ => 9,
    }
}

/// The terminal here, passing every key on as it is, until this goes.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> anyhow::Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(stdin.as_fd()).context("read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        // What was typed ahead is kept.
        tcsetattr(stdin.as_fd(), OptionalActions::Drain, &raw)
            .context("change the terminal's settings")?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing better can be done for a terminal that is gone.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Drain, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(exited: bool, exit_code: i32, status: &str) -> EndEvent {
        EndEvent {
            exited,
            exit_code,
            status: status.into(),
            ..EndEvent::default()
        }
    }

    #[test]
    fn the_exit_code_is_what_a_shell_would_answer() {
        for (event, code) in [
            (end(true, 0, "exit status 0"), 0),
            (end(true, 3, "exit status 3"), 3),
            (end(false, -1, "signal: killed"), 137),
            (end(false, -1, "signal: terminated"), 143),
            (end(false, -1, "signal: interrupt"), 130),
        ] {
            assert_eq!(exit_code(&event), ExitCode::from(code), "{event:?}");
        }
    }
}
