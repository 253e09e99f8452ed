//! Bringing a sandbox up by its template's commands.
//!
//! ```text
//! the agent is told a token of its own ──▶ start command, once ──▶ ready command, until it succeeds
//!                                                                    └─▶ noted beside the record
//! ```
//!
//! This comes before the first delivery, so that a sandbox that waits to be claimed is up. What the
//! agent demands until then is known to this engine alone: programs inside could otherwise ask it
//! for anything. The waiting belongs to a task of the engine's and goes on between calls; a call
//! waits for it a moment at a time, so that whoever asks can also be told to remove the sandbox.
//!
//! The agent starts one start command in its life, so a server that dies on the way and another
//! that begins again start it once. What was noted speaks of one container: whatever starts over
//! has another.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use ::runtime::{Boot, BootFailure, Booting, Fence, RuntimeError};
use agent_client::{Client, Event, Process as Running, StartOptions, by_tag};
use kit::{Backoff, Entropy};
use model::{Epoch, Uid};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use wire::{
    Secret,
    connect::Code,
    envd::InitRequest,
    process::{EndEvent, ProcessConfig, StartRequest},
};

use crate::{
    arm::{self, Kept},
    engine::Engine,
    error::{Doing as _, Result},
    record::{self, Place, Record},
    socket::dial,
};

/// How long one call waits.
const MOMENT: Duration = Duration::from_secs(1);
/// Between two tries of the ready command.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(20),
    cap: Duration::from_secs(1),
};
/// The name of the start command's process.
const TAG: &str = "dormouse-start";
/// How much of a command's last words is shown.
const LAST_WORDS: usize = 300;

type Outcome = Option<Result<(), RuntimeError>>;

/// A boot under way, or over.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    container_id: Box<str>,
    outcome: watch::Receiver<Outcome>,
}

impl UnderWay {
    /// Waits a moment for the end.
    pub(crate) async fn wait(mut self) -> Result<Booting, RuntimeError> {
        let waited = tokio::time::timeout(MOMENT, self.outcome.wait_for(Option::is_some)).await;
        match waited {
            Err(_) => Ok(Booting::UnderWay),
            Ok(Ok(outcome)) => match outcome.as_ref() {
                Some(Ok(())) => Ok(Booting::Done),
                Some(Err(error)) => Err(error.clone()),
                None => Ok(Booting::UnderWay),
            },
            Ok(Err(_)) => Err(RuntimeError::Failed("the boot has ended unseen".into())),
        }
    }

    /// Whether asking again would hear the same.
    fn stands(&self) -> bool {
        let over = self.outcome.has_changed().is_err();
        match &*self.outcome.borrow() {
            None => !over,
            Some(Ok(())) => true,
            Some(Err(error)) => !error.is_retryable(),
        }
    }
}

/// The boots of one engine, by sandbox.
#[derive(Debug, Default)]
pub(crate) struct Boots(Mutex<std::collections::BTreeMap<Uid, UnderWay>>);

impl Boots {
    /// Forgets what is no longer there.
    pub(crate) fn forget(&self, uid: Uid) {
        self.0.lock().remove(&uid);
    }
}

/// Begins a boot, or finds the one under way; none if there is nothing to wait for.
pub(crate) fn begin(engine: &Arc<Engine>, fence: Fence) -> Result<Option<UnderWay>> {
    engine.perform(fence, |_, there| {
        let workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
        let process = workload.alive(fence.uid)?;
        if workload.frozen {
            return Err(RuntimeError::WrongState {
                uid: fence.uid,
                state: "frozen",
                needs: "thaw it",
            }
            .into());
        }
        let (Some(boot), false) = (&workload.record.boot, workload.booted) else {
            return Ok(None);
        };
        let container_id = workload.record.container_id.clone();
        let there = engine.boots.0.lock().get(&fence.uid).cloned();
        if let Some(there) = there
            && there.container_id == container_id
            && there.stands()
        {
            return Ok(Some(there));
        }
        let token = engine.unseal(fence.uid, process, &workload.record, boot)?;
        let (tell, outcome) = watch::channel(None);
        let under_way = UnderWay {
            container_id,
            outcome,
        };
        // Whoever waited for an older one is told that it has ended, and the older one ends.
        engine.boots.0.lock().insert(fence.uid, under_way.clone());
        let attempt = Attempt {
            engine: Arc::downgrade(engine),
            uid: fence.uid,
            boot: boot.clone(),
            deadline: Instant::now() + engine.options.startup_timeout,
            timeout: engine.options.startup_timeout,
        };
        let stop = engine.tasks.stopping().clone();
        engine.tasks.spawn(async move {
            let outcome = tokio::select! {
                outcome = attempt.run(token) => outcome,
                () = stop.cancelled() => return,
                // The sandbox is gone, or has started over.
                () = tell.closed() => return,
            };
            // Nobody need be listening.
            tell.send_replace(Some(outcome));
        });
        Ok(Some(under_way))
    })
}

impl Engine {
    /// Notes that a sandbox is up.
    pub(crate) fn note_up(&self, uid: Uid, under_way: &UnderWay) -> Result<()> {
        let Some(slot) = self.slot(uid) else {
            return Ok(());
        };
        let mut seen = slot.seen.lock();
        let Some(workload) = seen
            .as_mut()
            .filter(|there| there.record.container_id == under_way.container_id)
        else {
            return Ok(());
        };
        record::replace(
            &note(&self.place(uid)),
            under_way.container_id.as_bytes(),
            0o600,
        )
        .doing("note that the sandbox is up")?;
        workload.booted = true;
        Ok(())
    }

    /// Has the agent serve this engine, and nobody else. Answers what it demands.
    fn unseal(
        &self,
        uid: Uid,
        process: &crate::workload::Process,
        record: &Record,
        boot: &Boot,
    ) -> Result<Option<Secret>> {
        let place = self.place(uid);
        let kept = match arm::kept(&place) {
            // Told before by a server that died, or armed for a delivery already.
            Some(kept) => kept,
            None => {
                let token = format!("{:016x}{:016x}", self.entropy.u64(), self.entropy.u64());
                let env = boot.env.iter();
                let kept = Kept {
                    epoch: Epoch::default(),
                    settings: InitRequest {
                        env_vars: Some(
                            env.map(|(name, value)| (name.into(), value.into()))
                                .collect(),
                        ),
                        access_token: Some(token.as_str().into()),
                        default_user: boot.user.as_deref().map(str::to_owned),
                        default_workdir: boot.workdir.as_deref().map(str::to_owned),
                        ..InitRequest::default()
                    },
                };
                // Before it is told: who dies in between must still know it.
                arm::keep(&place, &kept)?;
                kept
            }
        };
        self.tell_agent(uid, process, record, &kept.settings, None)?;
        Ok(kept.settings.access_token.filter(|token| !token.is_empty()))
    }
}

/// Where it is noted which container is up.
pub(crate) fn note(place: &Place) -> PathBuf {
    place.directory().join("booted")
}

/// Whether a container was noted as up.
pub(crate) fn was_up(place: &Place, container_id: &str) -> bool {
    std::fs::read(note(place)).is_ok_and(|noted| noted == container_id.as_bytes())
}

struct Attempt {
    engine: Weak<Engine>,
    uid: Uid,
    boot: Box<Boot>,
    deadline: Instant,
    timeout: Duration,
}

/// How a try of the ready command ended.
enum Try {
    Ready,
    NotYet(Box<str>),
}

impl Attempt {
    async fn run(self, token: Option<Secret>) -> Result<(), RuntimeError> {
        let agent = self.client(token)?;
        let mut started = self.start(&agent).await?;
        if self.boot.ready.is_empty() {
            return Ok(());
        }
        let entropy = Entropy::from_os();
        let mut last: Box<str> = "it was never tried to its end".into();
        for attempt in 1.. {
            let wait = BACKOFF.delay(attempt, &entropy);
            let next = async {
                let tried = self.try_ready(&agent).await?;
                if let Try::NotYet(_) = &tried {
                    tokio::time::sleep(wait).await;
                }
                Ok::<Try, RuntimeError>(tried)
            };
            let tried = tokio::select! {
                tried = next => tried?,
                failed = end_of(&mut started) => return Err(failed),
                () = tokio::time::sleep_until(self.deadline) => {
                    let detail = format!("not within {:?}; last, {last}", self.timeout);
                    return Err(not_ready(BootFailure::Deadline, detail));
                }
            };
            match tried {
                Try::Ready => break,
                Try::NotYet(why) => last = why,
            }
        }
        Ok(())
    }

    fn client(&self, token: Option<Secret>) -> Result<Client, RuntimeError> {
        let (engine, uid) = (self.engine.clone(), self.uid);
        let client = Client::new(move || {
            let port = engine.upgrade().and_then(|it| it.options.agent_port);
            dial(&engine, uid, port.unwrap_or(wire::envd::PORT))
        });
        match token {
            None => Ok(client),
            Some(token) => client
                .with_token(&token)
                .map_err(|error| RuntimeError::Failed(error.to_string().into())),
        }
    }

    /// Starts the start command, where there is one and it was not started before.
    async fn start(&self, agent: &Client) -> Result<Option<Running>, RuntimeError> {
        if self.boot.start.is_empty() {
            return Ok(None);
        }
        let options = StartOptions {
            boot: true,
            ..StartOptions::default()
        };
        let failed = match agent
            .start(&request(&self.boot.start, Some(TAG)), options)
            .await
        {
            Ok(started) => return Ok(Some(started)),
            Err(error) => error,
        };
        match failed.code() {
            // How it ended, if it has, is known for a while only; the ready command tells the rest.
            Some(Code::AlreadyExists) => Ok(agent.connect(by_tag(TAG)).await.ok()),
            _ => Err(refused(BootFailure::StartCommand, &failed)),
        }
    }

    async fn try_ready(&self, agent: &Client) -> Result<Try, RuntimeError> {
        let options = StartOptions {
            timeout: Some(self.deadline.saturating_duration_since(Instant::now())),
            ..StartOptions::default()
        };
        let tried = agent.start(&request(&self.boot.ready, None), options).await;
        let running = match tried {
            Ok(running) => running,
            Err(error) if error.is_retryable() => return Ok(Try::NotYet(error.to_string().into())),
            Err(error) => return Err(refused(BootFailure::ReadyCommand, &error)),
        };
        Ok(match succeed(running).await {
            Ok(()) => Try::Ready,
            Err(why) => Try::NotYet(why.into()),
        })
    }
}

/// Waits until the start command has failed. One that ends well may have left others running.
async fn end_of(started: &mut Option<Running>) -> RuntimeError {
    let mut words = Vec::new();
    while let Some(process) = started {
        match process.next().await {
            Ok(Some(Event::End(end))) if end.exit_code == 0 && end.exited => *started = None,
            Ok(Some(Event::End(end))) => {
                return not_ready(BootFailure::StartCommand, describe(&end, &words));
            }
            Ok(Some(event)) => said(&mut words, &event),
            // It is not listened to any more; whether all is ready is still found out.
            Ok(None) | Err(_) => *started = None,
        }
    }
    std::future::pending().await
}

fn request(command: &[Box<str>], tag: Option<&str>) -> StartRequest {
    let (program, arguments) = match command.split_first() {
        Some((program, arguments)) => (program.as_ref(), arguments),
        None => ("", &[][..]),
    };
    StartRequest {
        process: Some(ProcessConfig {
            cmd: program.to_owned(),
            args: arguments.iter().map(|word| word.to_string()).collect(),
            ..ProcessConfig::default()
        }),
        tag: tag.map(str::to_owned),
        stdin: Some(false),
        ..StartRequest::default()
    }
}

fn not_ready(failure: BootFailure, detail: String) -> RuntimeError {
    RuntimeError::NotReady {
        failure,
        detail: detail.into(),
    }
}

/// A command that cannot be run as it is asked for never can; anything else may pass.
fn refused(failure: BootFailure, error: &agent_client::Error) -> RuntimeError {
    match (error, error.code()) {
        (
            agent_client::Error::Refused { message, .. },
            Some(Code::InvalidArgument | Code::Unauthenticated | Code::NotFound),
        ) => not_ready(failure, message.clone()),
        (error, _) => RuntimeError::Failed(format!("{failure}: {error}").into()),
    }
}

/// Waits for a command's end; what is told of it if it did not end well.
pub(crate) async fn succeed(running: Running) -> Result<(), String> {
    let mut words = Vec::new();
    let ended = running
        .wait(|event| {
            said(&mut words, &event);
            Ok::<(), agent_client::Error>(())
        })
        .await;
    match ended {
        Ok(end) if end.exited && end.exit_code == 0 => Ok(()),
        Ok(end) => Err(describe(&end, &words)),
        Err(error) => Err(error.to_string()),
    }
}

/// Keeps the last of what a command says.
fn said(words: &mut Vec<u8>, event: &Event) {
    if let Event::Stdout(bytes) | Event::Stderr(bytes) | Event::Pty(bytes) = event {
        words.extend_from_slice(bytes);
        let surplus = words.len().saturating_sub(4 * LAST_WORDS);
        words.drain(..surplus);
    }
}

/// What is told of a command's end. Its words are untrusted: one line of them, without anything
/// that a terminal would obey.
fn describe(end: &EndEvent, words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let line: String = line
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .take(LAST_WORDS)
        .collect();
    if line.is_empty() {
        end.status.clone()
    } else {
        format!("{}: {line}", end.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_says_something_is_told() {
        let end = EndEvent {
            status: "exit status 2".into(),
            ..EndEvent::default()
        };
        assert_eq!(describe(&end, b""), "exit status 2");
        let words = b"first\nno \x1b[31mway\xff\n\n";
        assert_eq!(describe(&end, words), "exit status 2: no [31mway\u{fffd}");
        let long = vec![b'x'; 10_000];
        assert!(describe(&end, &long).len() < 400);
    }
}
