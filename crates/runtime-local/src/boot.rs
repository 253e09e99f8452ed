//! Bringing a sandbox up by its template's commands.
//!
//! ```text
//! the agent is told a token of its own ──▶ start command, once ──▶ ready command, until it succeeds
//!                                                                    └─▶ noted beside the record
//! ```
//!
//! This comes before the first delivery, so that a sandbox that waits to be claimed is up. What the
//! agent demands until then is known to this engine alone: programs inside could otherwise ask it
//! for anything. How it is done is [`bringup`]'s; what was noted speaks of one container: whatever
//! starts over has another.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
};

use ::runtime::{Boot, Fence, RuntimeError};
use agent_client::Client;
use bringup::Flight;
use model::{Epoch, Uid};
use wire::{Secret, envd::InitRequest};

use crate::{
    arm::{self, Kept},
    engine::Engine,
    error::{Doing as _, Result},
    record::{self, Place, Record},
    socket::dial,
};

/// Begins a boot, or finds the one under way; none if there is nothing to wait for.
pub(crate) fn begin(engine: &Arc<Engine>, fence: Fence) -> Result<Option<Flight<()>>> {
    engine.perform(fence, |_, there| {
        let uid = fence.uid;
        let workload = there.ok_or(RuntimeError::Absent(uid))?;
        let process = workload.alive(uid)?;
        if workload.frozen {
            return Err(RuntimeError::WrongState {
                uid,
                state: "frozen",
                needs: "thaw it",
            }
            .into());
        }
        let (Some(boot), false) = (&workload.record.boot, workload.booted) else {
            return Ok(None);
        };
        // It comes before every delivery.
        let (id, epoch) = (&workload.record.container_id, Epoch::default());
        if let Some(there) = engine.boots.find(uid, id, epoch) {
            return Ok(Some(there));
        }
        let token = engine.unseal(uid, process, &workload.record, boot)?;
        let agent = client(Arc::downgrade(engine), uid, token)?;
        let (boot, within) = (boot.clone(), engine.options.startup_timeout);
        let begin = || async move { bringup::boot(&agent, &boot, within).await };
        let flight = engine.boots.join(&engine.tasks, uid, id, epoch, begin);
        Ok(Some(flight))
    })
}

fn client(engine: Weak<Engine>, uid: Uid, token: Option<Secret>) -> Result<Client, RuntimeError> {
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

impl Engine {
    /// Notes that a sandbox is up.
    pub(crate) fn note_up(&self, uid: Uid, flight: &Flight<()>) -> Result<()> {
        let Some(slot) = self.slot(uid) else {
            return Ok(());
        };
        let mut seen = slot.seen.lock();
        let Some(workload) = seen
            .as_mut()
            .filter(|there| there.record.container_id == flight.container_id)
        else {
            return Ok(());
        };
        record::replace(
            &note(&self.place(uid)),
            flight.container_id.as_bytes(),
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
