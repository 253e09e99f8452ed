//! A table of which everything is told and taken only when a test says so.

use std::{sync::Arc, time::Duration};

use mesh::Book;
use model::Version;
use parking_lot::{Condvar, Mutex};
use routes::{Changes, Everything, Message, Outcome, Resync, Snapshot, Table, Writer};

/// Holds whoever comes until it is opened, at the latest when the test ends.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_somebody_there: bool,
    is_open: bool,
}

impl Gate {
    pub(crate) fn is_somebody_there(&self) -> bool {
        self.state.lock().is_somebody_there
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.is_somebody_there = true;
        self.changed.wait_while(&mut state, |state| !state.is_open);
    }

    pub(crate) fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }
}

/// Opens a gate when it goes, so that a test that fails ends.
pub(crate) struct Opens(pub(crate) Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[derive(Debug)]
pub(crate) struct Slow {
    pub(crate) table: Arc<Table>,
    pub(crate) gate: Arc<Gate>,
}

impl Book for Slow {
    fn apply(&self, message: Message, now: Duration) -> Outcome {
        self.table.apply(Writer::Peer, message, now)
    }

    fn replace_all(&self, snapshot: Snapshot, now: Duration) -> Resync {
        self.gate.pass();
        self.table.adopt(snapshot, now)
    }

    fn since(&self, after: Version, told: Option<u64>) -> Option<Changes> {
        self.table.since(after, told)
    }

    fn everything(&self) -> Option<Everything> {
        self.gate.pass();
        self.table.everything()
    }

    fn watched(&self) -> Version {
        self.table.watched()
    }

    fn synced(&self) -> bool {
        self.table.synced()
    }
}
