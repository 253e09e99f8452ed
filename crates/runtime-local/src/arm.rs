//! Arming a sandbox for a delivery.

use ::runtime::{Arming, Fence, RuntimeError};
use model::{Epoch, StringMap};
use serde::Serialize;

use crate::{
    engine::Engine,
    error::{Doing as _, Result},
    record::{self, Place},
};

/// What `/run/dormouse/arming.json` says, for the agent.
#[derive(Debug, Serialize)]
struct ArmingFile<'a> {
    epoch: Epoch,
    env: &'a StringMap,
}

impl Engine {
    /// Puts a delivery's settings where the agent finds them.
    pub(crate) fn arm(&self, fence: Fence, arming: &Arming) -> Result<()> {
        self.perform(fence, |slot, there| {
            let mut workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            if workload.frozen {
                return Err(RuntimeError::WrongState {
                    uid: fence.uid,
                    state: "frozen",
                    needs: "thaw it",
                }
                .into());
            }
            let place = self.place(fence.uid);
            write_arming(&place, arming)?;
            workload.ledger.epoch = arming.epoch;
            place.write_ledger(workload.ledger)?;
            *slot.seen.lock() = Some(workload);
            Ok(())
        })
    }
}

fn write_arming(place: &Place, arming: &Arming) -> Result<()> {
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
