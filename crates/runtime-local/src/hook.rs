//! Running hooks inside a sandbox that is armed.
//!
//! ```text
//! one hook after the other: try ──failed──▶ wait ──▶ try again … ──▶ noted beside the record
//! ```
//!
//! How it is done is [`bringup`]'s. What was noted speaks of one container and one delivery, so whatever starts over has its
//! hooks run again, and a server that dies on the way leaves them to be run again by the next one.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Weak},
};

use ::runtime::{Booting, FailedHook, Fence, Hooked, RuntimeError};
use agent_client::{Client, Io};
use bringup::Flight;
use futures_util::future::BoxFuture;
use model::{Epoch, Uid, hook::Hook};
use serde::{Deserialize, Serialize};
use wire::Secret;

use crate::{
    arm,
    engine::Engine,
    error::{Doing as _, Result},
    record::{self, Place},
    socket::dial,
};

/// Hooks that are being run for a delivery.
pub(crate) type UnderWay = (Flight<Vec<FailedHook>>, Epoch);

/// What is kept of hooks that were run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    container_id: Box<str>,
    hooked: Hooked,
}

/// Begins to run hooks, or finds those under way; none if they were run.
pub(crate) fn begin(
    engine: &Arc<Engine>,
    fence: Fence,
    hooks: Vec<Hook>,
) -> Result<Option<UnderWay>> {
    engine.perform(fence, |_, there| {
        let uid = fence.uid;
        let workload = there.ok_or(RuntimeError::Absent(uid))?;
        workload.alive(uid)?;
        let wrong = |state, needs| RuntimeError::WrongState { uid, state, needs };
        if workload.frozen {
            return Err(wrong("frozen", "thaw it").into());
        }
        let epoch = workload.ledger.epoch;
        if epoch == Epoch::default() {
            return Err(wrong("nobody's", "arm it").into());
        }
        if workload.hooked.as_ref().is_some_and(|it| it.epoch == epoch) {
            return Ok(None);
        }
        let token = arm::kept(&engine.place(uid)).and_then(|kept| kept.settings.access_token);
        let inside = Inside {
            engine: Arc::downgrade(engine),
            uid,
            token: token.filter(|token| !token.is_empty()),
        };
        let id = &workload.record.container_id;
        let begin = || async move { bringup::run_hooks(&inside, &hooks).await };
        let flight = engine.hooks.join(&engine.tasks, uid, id, epoch, begin);
        Ok(Some((flight, epoch)))
    })
}

impl Engine {
    /// Notes that hooks were run to their end.
    pub(crate) fn note_hooked(
        &self,
        uid: Uid,
        (flight, epoch): &UnderWay,
        failed: Vec<FailedHook>,
    ) -> Result<Booting> {
        let Some(slot) = self.slot(uid) else {
            return Ok(Booting::Done);
        };
        let mut seen = slot.seen.lock();
        let Some(workload) = seen
            .as_mut()
            .filter(|there| there.record.container_id == flight.container_id)
        else {
            return Ok(Booting::Done);
        };
        let epoch = *epoch;
        let note = Note {
            container_id: flight.container_id.clone(),
            hooked: Hooked { epoch, failed },
        };
        let write = || {
            let text = serde_json::to_vec(&note)?;
            record::replace(&path(&self.place(uid)), &text, 0o600)
        };
        write().doing("note that the sandbox's hooks were run")?;
        workload.hooked = Some(note.hooked);
        Ok(Booting::Done)
    }
}

/// Where it is noted which hooks were run.
pub(crate) fn path(place: &Place) -> PathBuf {
    place.directory().join("hooked.json")
}

/// What was noted of a container.
pub(crate) fn noted(place: &Place, container_id: &str) -> Option<Hooked> {
    let note: Note = serde_json::from_slice(&std::fs::read(path(place)).ok()?).ok()?;
    (*note.container_id == *container_id).then_some(note.hooked)
}

/// A sandbox, as its hooks reach it.
struct Inside {
    engine: Weak<Engine>,
    uid: Uid,
    token: Option<Secret>,
}

impl bringup::Inside for Inside {
    fn agent(&self) -> Result<Client, String> {
        let (engine, uid) = (self.engine.clone(), self.uid);
        let client = Client::new(move || {
            let port = engine.upgrade().and_then(|it| it.options.agent_port);
            let dial = port.map(|port| dial(&engine, uid, port));
            async move { dial.ok_or(io::ErrorKind::NotConnected)?.await }
        });
        match &self.token {
            None => Ok(client),
            Some(token) => client.with_token(token).map_err(|error| error.to_string()),
        }
    }

    fn dial(&self, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Io>>> {
        let dialled = dial(&self.engine, self.uid, port);
        Box::pin(async move { Ok(Box::new(dialled.await?) as Box<dyn Io>) })
    }
}
