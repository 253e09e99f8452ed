//! A session: a shell, a command, or files, run by the agent inside as the sandbox's own user.
//!
//! ```text
//!  environment, terminal ─▶ shell | exec | sftp ─▶ bytes both ways ─▶ how it ended ─▶ closed
//! ```
//!
//! A client that leaves ends what it started: who has a terminal as a lost line would, others by
//! being asked to. What a program left behind on purpose stays.

use std::{sync::Arc, time::Duration};

use agent_client::{Client, Event, Process, StartOptions, by_pid};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use russh::{
    Channel, ChannelId, ChannelMsg, ChannelWriteHalf, Sig,
    server::{Handle, Msg},
};
use wire::{
    envd::PROGRAM,
    process::{EndEvent, ProcessConfig, ProcessInput, Pty, Signal, StartRequest},
};

use crate::{
    sandboxes::{Guest, Sandboxes},
    spool::{Bucket, Closed, Flow, Sign, Signs, spool},
    wish::{Wish, size},
};

/// The best shell that is there: as a login shell, and for a command.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi";
const COMMAND: &str =
    "if command -v bash >/dev/null 2>&1; then exec bash -c \"$1\"; else exec sh -c \"$1\"; fi";
/// Ends the input of a program on a terminal.
const END_OF_TRANSMISSION: &[u8] = b"\x04";
/// How often the agent shows that it is there while a program is silent.
const KEEPALIVE: Duration = Duration::from_secs(50);
/// How long a program that its client left has to hear of it.
const FAREWELL: Duration = Duration::from_secs(5);
/// What a client is told where a program could not be run.
const NOT_RUN: u32 = 255;
/// Standard error, to SSH.
const STDERR: u32 = 1;

/// Whether there is such a subsystem.
pub(crate) fn is_subsystem(name: &str) -> bool {
    name == "sftp"
}

/// One session's surroundings.
pub(crate) struct Session {
    pub(crate) guest: Guest,
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) flow: Arc<Flow>,
    pub(crate) handle: Handle,
}

#[derive(Debug, PartialEq, Eq)]
enum Run {
    Shell,
    Command(Vec<u8>),
    Files,
}

impl Session {
    /// Serves a channel, with what its client will have wished for when it says what to run.
    pub(crate) async fn serve(self, mut channel: Channel<Msg>, wish: Arc<Mutex<Wish>>) {
        let run = loop {
            let said = channel.wait().await;
            if wish.lock().is_too_much() {
                break Err("too many variables were sent".to_owned());
            }
            match said {
                Some(ChannelMsg::RequestShell { .. }) => break Ok(Run::Shell),
                Some(ChannelMsg::Exec { command, .. }) => break Ok(Run::Command(command)),
                Some(ChannelMsg::RequestSubsystem { name, .. }) if is_subsystem(&name) => {
                    break Ok(Run::Files);
                }
                Some(ChannelMsg::Close) | None => return,
                Some(_) => {}
            }
        };
        let wished = std::mem::take(&mut *wish.lock());
        // Nobody else keeps it: what is asked for from here on is refused.
        drop(wish);
        let (id, has_terminal) = (channel.id(), wished.terminal.is_some());
        let (from_client, to_client) = channel.split();
        let started = match run {
            Ok(run) => self.start(wished, run).await,
            Err(why) => Err(why),
        };
        let ended = match started {
            Ok((agent, process)) => {
                let (pump, bucket, signs) = spool(from_client, self.flow.clone());
                let run = Running {
                    agent: &agent,
                    pid: process.pid(),
                    has_terminal,
                };
                tokio::select! {
                    ended = self.output(process, &to_client) => ended,
                    never = run.input(bucket) => match never {},
                    never = run.signs(signs) => match never {},
                    closed = pump.run() => {
                        run.leave().await;
                        match closed {
                            Closed::ByClient => return,
                            Closed::TooMuch => {
                                Err("too much was sent that the program does not read".to_owned())
                            }
                        }
                    }
                }
            }
            Err(why) => Err(why),
        };
        self.finish(id, &to_client, ended).await;
    }

    async fn start(&self, wish: Wish, run: Run) -> Result<(Client, Process), String> {
        let Guest { sandbox, .. } = &self.guest;
        let agent = self.sandboxes.agent(&self.guest);
        let agent = agent.map_err(|why| format!("sandbox {sandbox}: {why}"))?;
        let request = request(wish, run)?;
        let options = StartOptions {
            keepalive: Some(KEEPALIVE),
            ..StartOptions::default()
        };
        match agent.start(&request, options).await {
            Ok(process) => Ok((agent, process)),
            Err(why) => Err(format!("sandbox {sandbox}: {}", with_sources(&why))),
        }
    }

    /// Passes on what a program says, up to its end.
    async fn output(
        &self,
        mut process: Process,
        client: &ChannelWriteHalf<Msg>,
    ) -> Result<EndEvent, String> {
        loop {
            let sent = match process.next().await {
                Ok(Some(Event::Stdout(bytes) | Event::Pty(bytes))) => {
                    self.flow.sending(client.data_bytes(bytes)).await
                }
                Ok(Some(Event::Stderr(bytes))) => {
                    let send = client.extended_data_bytes(STDERR, bytes);
                    self.flow.sending(send).await
                }
                Ok(Some(Event::End(end))) => return Ok(end),
                Ok(None) => return Err("the program's end was not heard".to_owned()),
                Err(why) => return Err(with_sources(&why)),
            };
            // A client that is gone is noticed by the pump, which ends this.
            if sent.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Says how it ended. A client that is gone need not hear.
    async fn finish(
        &self,
        id: ChannelId,
        client: &ChannelWriteHalf<Msg>,
        ended: Result<EndEvent, String>,
    ) {
        match ended {
            Ok(end) => match (end.exited, signal_of(&end.status)) {
                (false, Some(signal)) => {
                    let none = String::new();
                    let told =
                        self.handle
                            .exit_signal_request(id, signal, false, none.clone(), none);
                    let _ = told.await;
                }
                (true, _) => {
                    let code = u32::try_from(end.exit_code).unwrap_or(NOT_RUN);
                    let _ = client.exit_status(code).await;
                }
                (false, None) => {
                    let _ = client.exit_status(NOT_RUN).await;
                }
            },
            Err(why) => {
                let line = format!("dormouse: {why}\r\n");
                let _ = client.extended_data_bytes(STDERR, line).await;
                let _ = client.exit_status(NOT_RUN).await;
            }
        }
        let _ = client.eof().await;
        let _ = client.close().await;
    }
}

/// A program that runs.
struct Running<'a> {
    agent: &'a Client,
    pid: u32,
    has_terminal: bool,
}

impl Running<'_> {
    /// Passes on what the client sends, up to its end.
    async fn input(&self, bucket: Bucket) -> std::convert::Infallible {
        let has_terminal = self.has_terminal;
        let end = has_terminal.then(|| bytes::Bytes::from_static(END_OF_TRANSMISSION));
        let pieces = bucket.chain(futures_util::stream::iter(end));
        let pieces = pieces.map(move |bytes| match has_terminal {
            true => ProcessInput {
                pty: Some(bytes),
                ..ProcessInput::default()
            },
            false => ProcessInput {
                stdin: Some(bytes),
                ..ProcessInput::default()
            },
        });
        // A program that does not read, or has ended, is no failure: how it ended is heard where
        // its output is.
        let sent = self.agent.stream_input(by_pid(self.pid), pieces).await;
        if sent.is_ok() && !has_terminal {
            let _ = self.agent.close_stdin(by_pid(self.pid)).await;
        }
        std::future::pending().await
    }

    /// Passes on signals and sizes.
    async fn signs(&self, mut signs: Signs) -> std::convert::Infallible {
        while let Some(sign) = signs.next().await {
            // The next one tells the size again; how a signal is taken is heard at the end.
            let _ = match sign {
                Sign::Size { columns, rows } if self.has_terminal => {
                    self.agent
                        .resize(by_pid(self.pid), size(columns, rows))
                        .await
                }
                Sign::Signal(Sig::KILL) => self.signal(Signal::Kill).await,
                Sign::Signal(Sig::TERM | Sig::INT | Sig::HUP | Sig::QUIT) => {
                    self.signal(Signal::Term).await
                }
                Sign::Size { .. } | Sign::Signal(_) => Ok(()),
            };
        }
        std::future::pending().await
    }

    async fn signal(&self, signal: Signal) -> agent_client::Result<()> {
        self.agent.signal(by_pid(self.pid), signal).await
    }

    /// The client is gone. A shell on a terminal would not hear of a request to end; when it is
    /// killed, what it runs in the foreground is hung up on.
    async fn leave(&self) {
        let signal = match self.has_terminal {
            true => Signal::Kill,
            false => Signal::Term,
        };
        // One that has ended, or whose sandbox has, cannot be told.
        let _ = tokio::time::timeout(FAREWELL, self.signal(signal)).await;
    }
}

fn request(wish: Wish, run: Run) -> Result<StartRequest, String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let (cmd, args): (&str, Vec<String>) = match run {
        Run::Shell => ("sh", words(&["-c", SHELL])),
        Run::Command(command) => {
            let command = String::from_utf8(command);
            let command = command.map_err(|_| "the command is not UTF-8".to_owned())?;
            ("sh", words(&["-c", COMMAND, "sh", &command]))
        }
        Run::Files => (PROGRAM, words(&["sftp"])),
    };
    Ok(StartRequest {
        process: Some(ProcessConfig {
            cmd: cmd.to_owned(),
            args,
            envs: wish.env.into_iter().collect(),
            cwd: None,
        }),
        pty: wish.terminal.map(|size| Pty { size: Some(size) }),
        tag: None,
        stdin: Some(true),
    })
}

/// The signal that ended a program, as the agent's protocol words it.
fn signal_of(status: &str) -> Option<Sig> {
    let name = status.strip_prefix("signal: ")?;
    Some(match name.trim_end_matches(" (core dumped)") {
        "hangup" => Sig::HUP,
        "interrupt" => Sig::INT,
        "quit" => Sig::QUIT,
        "aborted" => Sig::ABRT,
        "killed" => Sig::KILL,
        "segmentation fault" => Sig::SEGV,
        "broken pipe" => Sig::PIPE,
        "alarm clock" => Sig::ALRM,
        "terminated" => Sig::TERM,
        _ => return None,
    })
}

/// What went wrong, down to its cause.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_word_for_the_shell() {
        let run = Run::Command(b"echo 'a b'; exit 3".to_vec());
        let process = request(Wish::default(), run).unwrap().process.unwrap();
        assert_eq!(process.args.last().unwrap(), "echo 'a b'; exit 3");
        assert!(request(Wish::default(), Run::Command(vec![0xff])).is_err());
    }
}
