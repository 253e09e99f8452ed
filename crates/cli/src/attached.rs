//! A sandbox for one command, on a server that runs: made for it, ended with it.
//!
//! Its time is short and is extended as long as this process is there. So it ends by itself soon
//! after a client that had no chance to end it.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, interval_at},
};

use crate::{
    complain,
    e2b::{Access, Api, Found},
    exec::{Exec, execute},
    progress,
};

/// Seconds that the sandbox has without its client.
const LASTS: u32 = 30;
/// How often its client says that it is there.
const EXTEND: Duration = Duration::from_secs(10);

/// A server that answers.
#[derive(Debug)]
pub struct Server(Api);

impl Server {
    /// The server that flags or variables name, which must answer; else the one of this user's data
    /// directory, if it answers. Otherwise why there is none.
    ///
    /// # Errors
    /// If the one that was named does not answer.
    pub async fn find(access: &Access, is_root: bool) -> anyhow::Result<Result<Self, String>> {
        Ok(access.running(is_root).await?.map(Self))
    }

    /// Runs a command in a sandbox of its own, and answers its exit code.
    ///
    /// # Errors
    /// If there can be no sandbox, or the command cannot be started in it.
    pub async fn run(
        &self,
        template: &str,
        user: Option<&str>,
        exec: Exec,
    ) -> anyhow::Result<ExitCode> {
        // From before it is made: what comes in between must not kill us with it left behind.
        let mut terminate = signal(SignalKind::terminate()).context("wait for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("wait for signals")?;
        let made = self.0.post(
            "/v2/sandboxes",
            json!({"templateID": template, "timeout": LASTS}),
        );
        let made = tokio::select! {
            biased;
            // A client that leaves before the answer leaves nothing behind: the server sees to it.
            _ = interrupt.recv() => return Ok(ExitCode::from(130)),
            _ = terminate.recv() => return Ok(ExitCode::from(143)),
            made = progress::slow("Making the sandbox", made) => made?,
        };
        let found: Found = serde_json::from_value(made).context("read the sandbox")?;
        let outcome = tokio::select! {
            biased;
            // What a shell answers for a command that one of these ended.
            _ = interrupt.recv() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
            outcome = self.inside(&found, user, exec) => outcome,
            never = self.keep(&found) => match never {},
        };
        if let Err(error) = self.0.kill(&found.id).await {
            complain(&error.context(format!(
                "the sandbox {} could not be ended; it ends by itself in {LASTS} seconds",
                found.id
            )));
        }
        outcome
    }

    async fn inside(
        &self,
        found: &Found,
        user: Option<&str>,
        exec: Exec,
    ) -> anyhow::Result<ExitCode> {
        let mut agent = self.0.agent(found)?;
        if let Some(user) = user {
            agent = agent.as_user(user);
        }
        execute(&agent, exec).await
    }

    /// Extends its time again and again. One try that fails is no reason to give up: the next is
    /// still in time.
    async fn keep(&self, found: &Found) -> std::convert::Infallible {
        let mut ticks = interval_at(Instant::now() + EXTEND, EXTEND);
        let path = format!("/sandboxes/{}/refreshes", found.id);
        loop {
            ticks.tick().await;
            let _ = self.0.post(&path, json!({"duration": LASTS})).await;
        }
    }
}
