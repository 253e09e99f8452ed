//! How a process tells the others what it has written.
//!
//! What is said has happened; what failed, or may have happened, is not. A replica of the API then
//! waits until it was heard before it answers its client, and the checker looks whether it was.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use kit::{Clock, Tasks};
use model::{Sandbox, Spec as _, sandbox::SandboxSpec};
use parking_lot::Mutex;
use routes::{Deletion, Message, Route};
use store::Record;

use crate::{checker::Checker, gateway::Gateway, plant::Plant, process::Process, traffic::Fronts};

/// The voice of a process; silent until it has one, and when that is no more. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Voice(Arc<Mutex<Weak<Process>>>);

impl Voice {
    /// From now on it speaks as this one.
    pub fn lend(&self, process: &Arc<Process>) {
        *self.0.lock() = Arc::downgrade(process);
    }

    /// As whom it speaks.
    #[must_use]
    pub fn speaker(&self) -> Option<Arc<Process>> {
        self.0.lock().upgrade()
    }
}

/// Whoever waits until others have heard, and what is looked at then.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Who should have heard.
    pub fronts: Fronts,
    /// Looks.
    pub checker: Arc<Checker>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// What waits.
    pub tasks: Tasks,
    /// A defect on purpose.
    pub plant: Option<Plant>,
    /// Whether everybody was told of everybody at the start.
    pub all_known: bool,
}

impl Patience {
    /// Waits as before an answer to a client.
    pub fn wait(&self, speaker: Arc<Process>, message: Message) {
        let patience = self.clone();
        self.tasks.spawn(async move {
            let said = patience.clock.monotonic();
            let version = match &message {
                Message::Upsert(route) => route.version,
                Message::Delete(deletion) => deletion.version,
                Message::Unreadable(_) => return,
            };
            let everybody = match patience.plant {
                // The defect: nobody is waited for.
                Some(Plant::UnheardWrites) => true,
                Some(_) | None => speaker.heard(version).await,
            };
            patience.answers(said, &message, everybody);
        });
    }

    fn answers(&self, said: Duration, message: &Message, everybody: bool) {
        self.checker.waited(said);
        if !everybody || !self.all_known {
            return;
        }
        let gateways = self.fronts.gateways.lock().clone();
        let there = |gateway: &&Arc<Gateway>| gateway.since < said;
        for gateway in gateways.iter().filter(there) {
            self.checker.told_everybody(&gateway.process, message);
        }
    }
}

/// What is to be said of a record as it was written; nothing of one that is no sandbox's.
#[must_use]
pub fn message_of(record: &Record, is_removed: bool) -> Option<Message> {
    if record.kind != SandboxSpec::KIND {
        return None;
    }
    // Who took the last finalizer off a record that was to be deleted has removed it.
    let is_gone = record.meta.is_deleting() && record.meta.finalizers.is_empty();
    if is_removed || is_gone {
        return Some(Message::Delete(Deletion {
            namespace: record.meta.namespace.clone()?,
            name: record.meta.name.clone(),
            version: record.version(),
        }));
    }
    let sandbox: Sandbox = record.decode().ok()?;
    Route::of(&sandbox).map(Message::from)
}
