//! Arming a sandbox for a delivery.
//!
//! The agent inside is told its settings by `/init`, over a socket in the sandbox's network
//! namespace. It was started sealed, so that nobody can have asked it for anything before. What it
//! was told is kept on the host: the agent of a sandbox that starts over for the same delivery is
//! another process, and must be told again.
//!
//! ```text
//! told the agent ──▶ kept on the host ──▶ epoch in the ledger
//! ```
//!
//! Whoever dies in between does it all again: an agent takes the same settings twice, and one that
//! has another token by now is shown the token before.

use std::{io, path::PathBuf, time::Duration};

use ::runtime::{Arming, Fence, RuntimeError, connect};
use agent_client::Client;
use images::ImageConfig;
use kit::{Clock as _, SystemClock};
use model::{Epoch, StringMap, Uid};
use serde::{Deserialize, Serialize};
use wire::{connect::Code, envd::InitRequest, time::Timestamp};

use crate::{
    boot,
    engine::Engine,
    error::{Doing as _, EngineError, Result, impossible},
    hook,
    record::{self, Place, Record},
    socket::Family,
    workload::{Process, Workload},
};

/// How long an agent may take to listen, and then to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reach an agent that does not listen yet: hardly any at first, for it mostly
/// is there at once; more and more on a busy machine, which many who try would only keep busy.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// What the engine keeps of a delivery.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) epoch: Epoch,
    pub(crate) settings: InitRequest,
}

/// What an init program that is no agent finds in `/run/dormouse/arming.json`.
#[derive(Debug, Serialize)]
struct ArmingFile<'a> {
    epoch: Epoch,
    env: &'a StringMap,
}

impl Engine {
    /// Puts a delivery's settings in force. When this returns, the agent has answered.
    pub(crate) fn arm(&self, fence: Fence, arming: &Arming) -> Result<()> {
        self.perform(fence, |slot, there| {
            let mut workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            let process = workload.alive(fence.uid)?;
            if workload.frozen {
                return Err(RuntimeError::WrongState {
                    uid: fence.uid,
                    state: "frozen",
                    needs: "thaw it",
                }
                .into());
            }
            let place = self.place(fence.uid);
            match self.options.agent_port {
                Some(_) => {
                    let mut settings = settings(arming);
                    let before = kept(&place);
                    if settings.access_token.is_none() {
                        // What it has demanded until now goes.
                        settings.access_token = Some("".into());
                    }
                    self.tell_agent(
                        fence.uid,
                        process,
                        &workload.record,
                        &settings,
                        before.as_ref(),
                    )?;
                    keep(
                        &place,
                        &Kept {
                            epoch: arming.epoch,
                            settings,
                        },
                    )?;
                }
                None => write_file(&place, arming)?,
            }
            workload.ledger.epoch = arming.epoch;
            place.write_ledger(workload.ledger)?;
            *slot.seen.lock() = Some(workload);
            Ok(())
        })
    }

    /// Puts what is in force for this epoch in force again, in a sandbox that has started over.
    pub(crate) fn arm_again(&self, uid: Uid, renewed: &Workload) -> Result<()> {
        if self.options.agent_port.is_none() {
            return Ok(());
        }
        let (process, place) = (renewed.alive(uid)?, self.place(uid));
        let Some(before) = kept(&place).filter(|kept| kept.epoch == renewed.ledger.epoch) else {
            return Err(EngineError::Damaged {
                what: path(&place).display().to_string().into(),
                how: "the settings of the sandbox's delivery are not there".into(),
            });
        };
        self.tell_agent(uid, process, &renewed.record, &before.settings, None)
    }

    /// Forgets what was in force.
    pub(crate) fn disarm(&self, uid: Uid) -> Result<()> {
        let place = self.place(uid);
        for note in [path(&place), boot::note(&place), hook::path(&place)] {
            match std::fs::remove_file(note) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).doing("forget the sandbox's last delivery");
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    pub(crate) fn tell_agent(
        &self,
        uid: Uid,
        process: &Process,
        record: &Record,
        settings: &InitRequest,
        before: Option<&Kept>,
    ) -> Result<()> {
        let port = self
            .options
            .agent_port
            .ok_or_else(|| RuntimeError::Failed("the first process runs no commands".into()))?;
        let image = record.origin.as_ref().and_then(|on| self.config_of(on));
        let settings = &over_image(settings, image.unwrap_or_default());
        // Calls of the engine run where they may block; this one waits for a socket there.
        let threads = tokio::runtime::Handle::try_current()
            .map_err(io::Error::other)
            .doing("find the runtime that drives sockets")?;
        threads.block_on(async {
            let stream = self.reach_agent(uid, process, port).await?;
            let mut agent = Client::over(stream);
            if let Some(token) = before.and_then(|kept| kept.settings.access_token.as_ref()) {
                agent = agent.with_token(token).map_err(|error| failed(&error))?;
            }
            let answer = tokio::time::timeout(PATIENCE, agent.init(settings)).await;
            let answer = answer.map_err(|_| {
                EngineError::from(RuntimeError::Failed(
                    "the agent inside does not answer".into(),
                ))
            })?;
            answer.map(drop).map_err(|error| failed(&error))
        })
    }

    /// Connects to an agent that may have been started just now.
    async fn reach_agent(
        &self,
        uid: Uid,
        process: &Process,
        port: u16,
    ) -> Result<tokio::net::TcpStream> {
        let clock = SystemClock::default();
        let mut pause = FIRST_PAUSE;
        loop {
            let socket = self.socket_of(uid, process, Family::V4)?;
            let error = match connect(socket, port).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if clock.monotonic() >= PATIENCE {
                return Err(error).doing("reach the agent inside");
            }
            // Shorter than the runtime's timers can be, on a thread that is there to wait.
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }
}

/// Settings with what an image says of its processes where nobody says otherwise.
fn over_image(settings: &InitRequest, image: ImageConfig) -> InitRequest {
    let mut settings = settings.clone();
    if let Some(env) = &mut settings.env_vars {
        for (name, value) in image.env.iter().filter_map(|pair| pair.split_once('=')) {
            env.entry(name.to_owned())
                .or_insert_with(|| value.to_owned());
        }
    }
    // The group that an image may name is that of its user's entry for the agent.
    let user = image.user.split(':').next().unwrap_or_default();
    if settings.default_user.is_none() && !user.is_empty() {
        settings.default_user = Some(user.to_owned());
    }
    if settings.default_workdir.is_none() && !image.working_dir.is_empty() {
        settings.default_workdir = Some(image.working_dir);
    }
    settings
}

/// A delivery in the agent's words.
fn settings(arming: &Arming) -> InitRequest {
    let micros = SystemClock::default().wall_micros();
    let now = Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1_000).unwrap_or_default(),
    };
    let env = arming.env.iter();
    InitRequest {
        env_vars: Some(
            env.map(|(name, value)| (name.into(), value.into()))
                .collect(),
        ),
        access_token: arming.token.as_ref().map(|token| token.reveal().into()),
        timestamp: Some(now),
        default_user: arming.user.as_deref().map(str::to_owned),
        default_workdir: arming.workdir.as_deref().map(str::to_owned),
        ..InitRequest::default()
    }
}

fn failed(error: &agent_client::Error) -> EngineError {
    if error.code() == Some(Code::InvalidArgument) {
        return impossible("env", error.to_string());
    }
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    RuntimeError::Failed(format!("arm the agent inside: {error}{cause}").into()).into()
}

/// Outside of what the sandbox sees: it may hold a token.
fn path(place: &Place) -> PathBuf {
    place.directory().join("arming.json")
}

pub(crate) fn kept(place: &Place) -> Option<Kept> {
    serde_json::from_slice(&std::fs::read(path(place)).ok()?).ok()
}

pub(crate) fn keep(place: &Place, kept: &Kept) -> Result<()> {
    let write = || record::replace(&path(place), &serde_json::to_vec(kept)?, 0o600);
    write().doing("keep the sandbox's arming")
}

fn write_file(place: &Place, arming: &Arming) -> Result<()> {
    let content = ArmingFile {
        epoch: arming.epoch,
        env: &arming.env,
    };
    let write = || {
        let text = serde_json::to_vec(&content)?;
        // Root's alone: it may hold tokens.
        record::replace(&place.inside().join("arming.json"), &text, 0o600)
    };
    write().doing("write the sandbox's arming")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_what_nobody_else_says() {
        let image = ImageConfig {
            env: vec!["PATH=/opt/bin".into(), "LANG=C".into(), "broken".into()],
            user: "app:staff".into(),
            working_dir: "/srv".into(),
            ..ImageConfig::default()
        };
        let told = |user: Option<&str>| InitRequest {
            env_vars: Some([("LANG".to_owned(), "de".to_owned())].into()),
            default_user: user.map(str::to_owned),
            ..InitRequest::default()
        };
        let merged = over_image(&told(None), image.clone());
        let env = merged.env_vars.unwrap();
        assert_eq!(env["PATH"], "/opt/bin");
        assert_eq!(env["LANG"], "de");
        assert_eq!(env.len(), 2);
        assert_eq!(merged.default_user.as_deref(), Some("app"));
        assert_eq!(merged.default_workdir.as_deref(), Some("/srv"));
        let merged = over_image(&told(Some("user")), image);
        assert_eq!(merged.default_user.as_deref(), Some("user"));
        let plain = told(None);
        assert_eq!(over_image(&plain, ImageConfig::default()), plain);
    }
}
