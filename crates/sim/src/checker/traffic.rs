//! The promises about requests and use.
//!
//! Every request ends once. One that came to a sandbox which traffic may wake, and which nobody
//! changed meanwhile, is not told that there is none; nor is one that came to any sandbox while that
//! was being closed, before it has ended. Who is told that a sandbox is awake, before its record says
//! so, finds it awake. Nothing reaches another delivery than it was for. What wakes a sandbox writes
//! that once per sleep. Nobody is put to sleep, ended or released for being idle who was not; and one
//! that is ended or released so has nobody inside.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{
    Epoch, Generation, Sandbox, SandboxId, Uid,
    lifecycle::{Phase, traffic},
    sandbox::{DesiredState, SnapshotType},
};
use plan::idle::staleness;
use routes::{Route, WakeError};
use runtime::WorkloadState;

use super::{Checker, ONE_TURN, State};
use crate::traffic::{Ending, Refusal};

/// A failed write is tried again within this time.
const WRITTEN_LATE: Duration = Duration::from_secs(15);

/// What is known of requests.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Those that came, and what they came to.
    asked: BTreeMap<usize, Option<CameTo>>,
    ended: BTreeMap<usize, Ending>,
    uses: BTreeMap<(Uid, usize), Use>,
}

/// What a request came to, where it is promised something.
#[derive(Clone, Copy, Debug)]
struct CameTo {
    uid: Uid,
    epoch: Epoch,
    generation: Generation,
    /// Traffic could wake it from whatever sleep it can fall into.
    can_wake: bool,
}

/// The use of a sandbox through one gateway.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    epoch: Epoch,
    open: u32,
    /// When the last one began, and ended.
    began: Duration,
    ended: Duration,
    /// Its gateway died since.
    forgotten: bool,
}

/// A request that is inside. It is no more when this is dropped.
#[derive(Debug)]
pub struct Inside {
    checker: Arc<Checker>,
    place: (Uid, usize),
}

impl Drop for Inside {
    fn drop(&mut self) {
        let now = self.checker.clock.monotonic();
        let mut state = self.checker.state.lock();
        if let Some(used) = state.traffic.uses.get_mut(&self.place) {
            used.open = used.open.saturating_sub(1);
            used.ended = now;
        }
    }
}

impl Checker {
    /// Hears that a request came.
    pub fn asked(&self, number: usize, id: &SandboxId) {
        let mut state = self.state.lock();
        let came_to = state.came_to(id);
        if state.traffic.asked.insert(number, came_to).is_some() {
            state.broken("every request ends once", format!("{number} came twice"));
        }
        state.note_line(&format!("request {number} for {id}"));
    }

    /// Hears how it ended.
    pub fn answered(&self, number: usize, ending: Ending) {
        let mut state = self.state.lock();
        state.note_line(&format!("request {number} ended: {ending:?}"));
        if let Some(before) = state.traffic.ended.insert(number, ending) {
            let detail = format!("{number}: {before:?}, then {ending:?}");
            state.broken("every request ends once", detail);
        }
        let came_to = state.traffic.asked.get(&number).copied().flatten();
        let Some(came_to) = came_to.filter(|came_to| state.is_still(*came_to)) else {
            return;
        };
        let promise = match ending {
            Ending::Refused(Refusal::NotWoken(WakeError::NotFound)) if came_to.can_wake => {
                "no lost wake"
            }
            Ending::Refused(Refusal::Closed) => "who comes while it closes hears what became of it",
            Ending::Served | Ending::Refused(_) | Ending::Crashed => return,
        };
        let detail = format!("request {number} was told that {came_to:?} is not there");
        state.broken(promise, detail);
    }

    /// Hears that a request was told that its sandbox is awake.
    pub fn woken(&self, route: &Route) {
        let mut state = self.state.lock();
        let mut all = state.sandboxes.values();
        let now = all.find(|s| s.uid() == route.uid && s.spec.epoch == route.epoch);
        // Nothing was written since what it was told of, and that did not say that it is awake.
        let is_unsaid =
            |s: &&Sandbox| s.version() <= route.version && matches!(s.status.phase, Phase::Paused);
        let truth = self.runtime.truth();
        let frozen = |i: &runtime::fake::Inside| i.facts.state == WorkloadState::Frozen;
        if now.filter(is_unsaid).is_some() && truth.get(&route.uid).is_some_and(frozen) {
            let detail = format!("{route:?} is frozen");
            state.broken("awake is what the runtime shows", detail);
        }
    }

    /// Hears that a request goes in, for as long as the answer is kept.
    #[must_use]
    pub fn goes_in(self: &Arc<Self>, gateway: usize, route: &Route) -> Inside {
        let now = self.clock.monotonic();
        let place = (route.uid, gateway);
        let mut state = self.state.lock();
        let used = state.traffic.uses.entry(place).or_default();
        let before = if used.epoch == route.epoch {
            used.open
        } else {
            0
        };
        *used = Use {
            epoch: route.epoch,
            open: before + 1,
            began: if before == 0 { now } else { used.began },
            ended: now,
            forgotten: false,
        };
        drop(state);
        let checker = Arc::clone(self);
        Inside { checker, place }
    }

    /// Hears what a request met where it went.
    pub fn reached(&self, gateway: usize, route: &Route, found: Epoch) {
        if found != route.epoch && found != Epoch::default() {
            let detail = format!("gateway {gateway} reached {found:?} with {route:?}");
            self.state
                .lock()
                .broken("nothing reaches another delivery", detail);
        }
    }

    /// Hears that a gateway died, and what it saw with it.
    pub fn gateway_died(&self, gateway: usize) {
        let mut state = self.state.lock();
        for ((_, of), used) in &mut state.traffic.uses {
            used.forgotten |= *of == gateway;
        }
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn unanswered(&self) -> Vec<usize> {
        let state = self.state.lock();
        let traffic = &state.traffic;
        let open = |number: &&usize| !traffic.ended.contains_key(*number);
        traffic.asked.keys().filter(open).copied().collect()
    }
}

impl State {
    /// The delivery of an id as it is now, if it runs or traffic can wake it.
    fn came_to(&self, id: &SandboxId) -> Option<CameTo> {
        let delivery = self.deliveries.get(id)?;
        let sandbox = self.sandboxes.values().find(|s| s.uid() == delivery.uid)?;
        let can_wake = self.can_wake(sandbox);
        let of = CameTo {
            uid: sandbox.uid(),
            epoch: sandbox.spec.epoch,
            generation: sandbox.metadata.generation,
            can_wake,
        };
        let is_there = can_wake || runs(sandbox);
        (sandbox.spec.epoch == delivery.epoch && is_there).then_some(of)
    }

    fn can_wake(&self, sandbox: &Sandbox) -> bool {
        let (spec, status) = (&sandbox.spec, &sandbox.status);
        let in_memory = self.freezes && !self.restarted.contains(&sandbox.uid());
        let from_any = match spec.pause_policy.as_deref() {
            Some(policy) => {
                policy.wake_from_filesystem
                    || (policy.snapshot_type == SnapshotType::Freeze
                        && policy.descend_after.is_none()
                        && in_memory)
            }
            None => in_memory,
        };
        let lives = matches!(
            status.phase,
            Phase::Running | Phase::Pausing | Phase::Paused | Phase::Resuming
        );
        let delivered = spec.owner.is_some() && status.armed_epoch == spec.epoch;
        spec.wake_on_traffic && from_any && lives && delivered && !sandbox.metadata.is_deleting()
    }

    fn is_still(&self, came_to: CameTo) -> bool {
        let now = self
            .sandboxes
            .values()
            .find(|s| s.uid() == came_to.uid && s.spec.epoch == came_to.epoch);
        now.is_some_and(|s| {
            s.metadata.generation == came_to.generation
                && match came_to.can_wake {
                    true => self.can_wake(s),
                    false => runs(s),
                }
        })
    }

    /// What a flight writes: awake, and until when; nothing else, and only to who sleeps.
    pub(super) fn wakes(&mut self, before: &Sandbox, after: &Sandbox) {
        let mut expected = before.spec.clone();
        expected.desired_state = DesiredState::Running;
        if before.spec.timeouts.end_at.is_some() {
            expected.timeouts.end_at = after.spec.timeouts.end_at;
        }
        let slept = before.spec.desired_state == DesiredState::Paused;
        if !before.spec.wake_on_traffic {
            self.broken("traffic wakes who opted in", after.key().to_string());
        }
        if !slept || expected != after.spec || before.metadata.is_deleting() {
            let detail = format!("{}: {:?} to {:?}", after.key(), before.spec, after.spec);
            self.broken("at most one resume per sleep", detail);
        }
    }

    /// Whether a sandbox that control takes for idle was in use.
    pub(super) fn idles(&mut self, before: &Sandbox, now: Duration) {
        let Some(seconds) = before.spec.timeouts.idle_seconds else {
            return;
        };
        let patience = Duration::from_secs(seconds.into());
        let of = |((uid, _), used): &(&(Uid, usize), &Use)| {
            *uid == before.uid() && used.epoch == before.spec.epoch
        };
        let early = self.traffic.uses.iter().filter(of).find(|(_, used)| {
            // What came while control was deciding could not be known.
            let known = used.began + ONE_TURN <= now;
            let recent = used.open > 0 || used.ended + patience > now;
            known && recent && !self.is_excused(used, patience)
        });
        if let Some((place, used)) = early {
            let detail = format!("{} by {place:?}: {used:?}", before.key());
            self.broken("idle is never early", detail);
        }
    }

    /// Whether somebody is inside a sandbox that control ends or releases because nobody is. There is
    /// no excuse for what came while it was deciding: it was closed before.
    pub(super) fn cuts(&mut self, before: &Sandbox) {
        let of = |((uid, _), used): &(&(Uid, usize), &Use)| {
            *uid == before.uid() && used.epoch == before.spec.epoch
        };
        let inside = |(_, used): &(&(Uid, usize), &Use)| used.open > 0 && !used.forgotten;
        if let Some((place, used)) = self.traffic.uses.iter().filter(of).find(inside) {
            let detail = format!("{} by {place:?}: {used:?}", before.key());
            self.broken("an idle end cuts nobody", detail);
        }
    }

    /// What a gateway forgot, and control was not there to write down, or wrote by another clock.
    fn is_excused(&self, used: &Use, patience: Duration) -> bool {
        let unwritten = self
            .blind_until
            .saturating_add(staleness(patience) + WRITTEN_LATE);
        let jumped = self.jumped.is_some_and(|jump| jump >= used.began);
        used.forgotten && (jumped || unwritten >= used.ended)
    }
}

/// Whether a delivery runs, and was not asked to sleep or to end. It may be in the middle of being
/// closed.
fn runs(sandbox: &Sandbox) -> bool {
    traffic(sandbox) == model::lifecycle::Traffic::Running
}
