//! How long waking a sandbox takes: the runtime, and control besides.
//!
//! It counts from the first look at a sandbox that sleeps and should not, to the write that says it
//! is awake. Calls of the runtime in between are the runtime's; the rest is control's: its line, its
//! own thinking, and its writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{
    Sandbox, Uid,
    lifecycle::Phase,
    sandbox::{DesiredState, Sleeps},
};
use parking_lot::Mutex;

/// Those that are being woken.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<BTreeMap<Uid, Wake>>);

#[derive(Clone, Copy, Debug)]
struct Wake {
    since: Duration,
    runtime: Duration,
}

impl Wakes {
    /// Takes note of a sandbox as a turn sees it.
    pub(crate) fn look(&self, sandbox: &Sandbox, now: Duration) {
        let sleeps = matches!(sandbox.status.phase, Phase::Paused | Phase::Resuming);
        let mut wakes = self.0.lock();
        if sleeps && sandbox.spec.desired_state == DesiredState::Running {
            wakes.entry(sandbox.uid()).or_insert(Wake {
                since: now,
                runtime: Duration::ZERO,
            });
        } else {
            wakes.remove(&sandbox.uid());
        }
    }

    /// The runtime was called for a sandbox, for so long.
    pub(crate) fn ran(&self, uid: Uid, took: Duration) {
        if let Some(wake) = self.0.lock().get_mut(&uid) {
            wake.runtime += took;
        }
    }

    /// Says in its record how long it took to wake it, where that is what is written.
    pub(crate) fn tell(&self, uid: Uid, before: &Sleeps, after: &mut Sleeps, now: Duration) {
        if before.woken == after.woken {
            return;
        }
        let micros = |d: Duration| u32::try_from(d.as_micros()).unwrap_or(u32::MAX);
        let wake = self.0.lock().remove(&uid);
        let all = wake.map(|wake| now.saturating_sub(wake.since));
        let runtime = wake.map(|wake| wake.runtime);
        let control = all.zip(runtime).map(|(all, its)| all.saturating_sub(its));
        after.last_wake_runtime_micros = runtime.map(micros);
        after.last_wake_control_micros = control.map(micros);
    }

    /// Forgets those that are gone.
    pub(crate) fn retain(&self, known: &BTreeSet<Uid>) {
        self.0.lock().retain(|uid, _| known.contains(uid));
    }
}
