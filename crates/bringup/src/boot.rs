//! Bringing a sandbox up by its template's commands.
//!
//! The agent starts one start command in its life, so a server that dies on the way and another
//! that begins again start it once.

use std::time::Duration;

use ::runtime::{Boot, BootFailure, RuntimeError};
use agent_client::{Client, Event, Process as Running, StartOptions, by_tag};
use kit::{Backoff, Entropy};
use tokio::time::Instant;
use wire::{
    connect::Code,
    process::{ProcessConfig, StartRequest},
};

use crate::words::{describe, said, succeed};

/// Between two tries of the ready command.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(20),
    cap: Duration::from_secs(1),
};
/// The name of the start command's process.
const TAG: &str = "dormouse-start";

/// How a try of the ready command ended.
enum Try {
    Ready,
    NotYet(Box<str>),
}

/// Runs the commands of a template, until all is up or the time is over.
///
/// # Errors
/// [`RuntimeError::NotReady`] if they cannot bring it up; anything else may pass.
pub async fn boot(agent: &Client, boot: &Boot, within: Duration) -> Result<(), RuntimeError> {
    let attempt = Attempt {
        agent,
        boot,
        deadline: Instant::now() + within,
        within,
    };
    attempt.run().await
}

struct Attempt<'a> {
    agent: &'a Client,
    boot: &'a Boot,
    deadline: Instant,
    within: Duration,
}

impl Attempt<'_> {
    async fn run(self) -> Result<(), RuntimeError> {
        let started = tokio::time::timeout_at(self.deadline, self.start()).await;
        let mut started = started.map_err(|_| {
            let why = format!("the agent inside did not answer within {:?}", self.within);
            RuntimeError::Failed(why.into())
        })??;
        if self.boot.ready.is_empty() {
            return Ok(());
        }
        let entropy = Entropy::from_os();
        let mut last: Box<str> = "it was never tried to its end".into();
        for attempt in 1.. {
            let wait = BACKOFF.delay(attempt, &entropy);
            let next = async {
                let tried = self.try_ready().await?;
                if let Try::NotYet(_) = &tried {
                    tokio::time::sleep(wait).await;
                }
                Ok::<Try, RuntimeError>(tried)
            };
            let tried = tokio::select! {
                tried = next => tried?,
                failed = end_of(&mut started) => return Err(failed),
                () = tokio::time::sleep_until(self.deadline) => {
                    let detail = format!("not within {:?}; last, {last}", self.within);
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

    /// Starts the start command, where there is one and it was not started before.
    async fn start(&self) -> Result<Option<Running>, RuntimeError> {
        if self.boot.start.is_empty() {
            return Ok(None);
        }
        let options = StartOptions {
            boot: true,
            ..StartOptions::default()
        };
        let request = request(&self.boot.start, Some(TAG));
        let failed = match self.agent.start(&request, options).await {
            Ok(started) => return Ok(Some(started)),
            Err(error) => error,
        };
        match failed.code() {
            // How it ended, if it has, is known for a while only; the ready command tells the rest.
            Some(Code::AlreadyExists) => Ok(self.agent.connect(by_tag(TAG)).await.ok()),
            _ => Err(refused(BootFailure::StartCommand, &failed)),
        }
    }

    async fn try_ready(&self) -> Result<Try, RuntimeError> {
        let options = StartOptions {
            timeout: Some(self.deadline.saturating_duration_since(Instant::now())),
            ..StartOptions::default()
        };
        let request = request(&self.boot.ready, None);
        let running = match self.agent.start(&request, options).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_takes_a_command_and_never_answers_is_not_waited_for_for_ever() {
        // The other end is held, and says nothing.
        let (held, stream) = tokio::io::duplex(1024);
        let stream = parking_lot::Mutex::new(Some(stream));
        let agent = Client::new(move || {
            let stream = stream.lock().take();
            async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
        });
        let commands = Boot {
            start: vec!["sleep".into()],
            ..Boot::default()
        };
        let failed = boot(&agent, &commands, Duration::from_secs(60)).await;
        assert!(
            matches!(&failed, Err(error @ RuntimeError::Failed(_)) if error.is_retryable()),
            "{failed:?}"
        );
        drop(held);
    }
}
