//! The promises.
//!
//! The checker sees every change of the store at the moment it happens, with its author, and can
//! look at the truth of the runtime. It knows nothing of how things are done, only of what must
//! never be seen, and of what must be so once it is quiet ([`rest`]).

pub mod hearing;
pub mod rest;
pub mod traffic;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use kit::Clock;
use model::{
    Epoch, Key, Name, Namespace, Sandbox, SandboxId, SandboxPool, SandboxSnapshot, Spec as _,
    Timestamp, Uid, Version,
    lifecycle::Phase,
    pool::PoolSpec,
    sandbox::{DesiredState, OnTimeout, OperationState, SandboxSpec, StopReason},
    snapshot::{SnapshotPhase, SnapshotSpec},
};
use parking_lot::Mutex;
use routes::{Everything, Route};
use runtime::{Runtime as _, fake::FakeRuntime};
use store::{Record, WatchEvent};

use crate::{desk::Role, network::PipeId};

/// How long control may take to have a turn of something that changed.
const ONE_TURN: Duration = Duration::from_secs(1);

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub promise: &'static str,
    /// How it was broken.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

/// Watches over one run.
#[derive(Debug)]
pub struct Checker {
    clock: Arc<dyn Clock>,
    runtime: Arc<FakeRuntime>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sandboxes: BTreeMap<Key, Sandbox>,
    pools: BTreeMap<Key, SandboxPool>,
    /// The most members each pool was ever allowed.
    most: BTreeMap<Uid, u32>,
    /// Every id that was ever given out.
    deliveries: BTreeMap<SandboxId, Delivery>,
    /// Who was told that a delivery is theirs.
    told: BTreeMap<(Uid, Epoch), usize>,
    /// Each deadline, when it is over by elapsed time, and when it was written.
    deadlines: BTreeMap<Key, (Timestamp, Duration, Duration)>,
    gateways: BTreeMap<usize, Life>,
    /// When a key last had no route.
    dead: BTreeMap<(Namespace, Name), Version>,
    /// What those knew who were asked for all of it.
    given: BTreeMap<PipeId, Everything>,
    traffic: traffic::Traffic,
    /// The last jump of the wall clock.
    jumped: Option<Duration>,
    /// Until when control may not have seen what was written; for ever while watches lag.
    blind_until: Duration,
    /// Workloads that the world itself ended or lost.
    ended: BTreeSet<Uid>,
    /// Workloads whose host restarted: their files are there, so they sleep and do not end.
    restarted: BTreeSet<Uid>,
    /// Whether anything can sleep in memory.
    freezes: bool,
    /// Changes so far, and a fingerprint of all of them.
    changes: u64,
    fingerprint: u64,
    violations: Vec<Violation>,
    trace: Vec<String>,
}

#[derive(Clone, Debug)]
struct Delivery {
    uid: Uid,
    epoch: Epoch,
    died: Option<Duration>,
}

/// One life of a gateway's table.
#[derive(Debug, Default)]
struct Life {
    since: Duration,
    shown: BTreeSet<SandboxId>,
    gone: BTreeSet<SandboxId>,
}

impl Checker {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, runtime: Arc<FakeRuntime>) -> Self {
        let state = State {
            freezes: runtime.abilities().freeze,
            ..State::default()
        };
        Self {
            clock,
            runtime,
            state: Mutex::new(state),
        }
    }

    /// Sees a change of the store.
    pub fn sees(&self, event: &WatchEvent, author: Role) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let (record, removed) = match event {
            WatchEvent::Put { record, .. } => (record, false),
            WatchEvent::Removed { record } => (record, true),
            WatchEvent::Bookmark(_) => return,
        };
        state.note(record, removed, author, now);
        if record.kind == SandboxSpec::KIND {
            self.sandbox(&mut state, record, removed, author, now);
        } else if record.kind == PoolSpec::KIND {
            state.pool(record, removed);
        } else if record.kind == SnapshotSpec::KIND && !removed {
            self.snapshot(&mut state, record);
        }
    }

    /// Hears that a client was told a delivery is theirs.
    pub fn claim_acknowledged(&self, sandbox: &Sandbox, client: usize) {
        let mut state = self.state.lock();
        let delivery = (sandbox.uid(), sandbox.spec.epoch);
        if let Some(other) = state.told.insert(delivery, client) {
            state.broken(
                "one owner per sandbox",
                format!("{delivery:?} told to {other} and {client}"),
            );
        }
    }

    /// Hears of a jump of the wall clock.
    pub fn clock_jumped(&self) {
        self.state.lock().jumped = Some(self.clock.monotonic());
    }

    /// Hears that the world itself ended or lost a workload.
    pub fn workload_ended(&self, uid: Uid) {
        self.state.lock().ended.insert(uid);
    }

    /// Hears that a workload's host restarted.
    pub fn host_restarted(&self, uid: Uid) {
        self.state.lock().restarted.insert(uid);
    }

    /// Hears that control may not see what is written from now on.
    pub fn control_blind(&self) {
        self.state.lock().blind_until = Duration::MAX;
    }

    /// Hears that control sees again, a moment from now.
    pub fn control_sees(&self) {
        self.state.lock().blind_until = self.clock.monotonic() + Duration::from_secs(10);
    }

    /// Hears of a new life of a gateway.
    pub fn gateway_started(&self, name: usize) {
        let since = self.clock.monotonic();
        self.state.lock().gateways.insert(
            name,
            Life {
                since,
                ..Life::default()
            },
        );
    }

    /// Sees everything a gateway would serve. What it was only told by another one may be as old as
    /// that one is.
    pub fn sees_routes(
        &self,
        name: usize,
        routes: &BTreeMap<SandboxId, Arc<Route>>,
        is_told: bool,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let life = state.gateways.entry(name).or_default();
        let gone: Vec<_> = life
            .shown
            .iter()
            .filter(|id| !routes.contains_key(*id))
            .cloned()
            .collect();
        for id in gone {
            life.shown.remove(&id);
            life.gone.insert(id);
        }
        let mut broken = Vec::new();
        for (id, route) in routes {
            let known = state.deliveries.get(id);
            match known {
                Some(d) if (d.uid, d.epoch) == (route.uid, route.epoch) => {
                    if !is_told && d.died.is_some_and(|died| died < life.since) {
                        broken.push(format!(
                            "gateway {name} serves {id}, dead before it started"
                        ));
                    }
                }
                Some(d) => broken.push(format!("gateway {name} sends {id} of {d:?} to {route:?}")),
                None => broken.push(format!(
                    "gateway {name} serves {id}, which nobody was given"
                )),
            }
            if life.gone.contains(id) {
                broken.push(format!("gateway {name} serves {id} again"));
            }
            life.shown.insert(id.clone());
        }
        for detail in broken {
            state.broken("no resurrected route", detail);
        }
    }

    /// What is broken so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.state.lock().violations.clone()
    }

    /// Changes so far and their fingerprint: equal for equal seeds.
    #[must_use]
    pub fn fingerprint(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.changes, state.fingerprint)
    }

    /// The last changes, for people.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.state.lock().trace.clone()
    }

    fn snapshot(&self, state: &mut State, record: &Record) {
        let Ok(snapshot) = record.decode::<SnapshotSpec>() else {
            return;
        };
        let snapshot: SandboxSnapshot = snapshot;
        if snapshot.status.phase != SnapshotPhase::Ready {
            return;
        }
        for container in &snapshot.status.containers {
            let Some(traces) = self.runtime.traces_in(&container.digest) else {
                state.broken(
                    "no acknowledged snapshot lost",
                    format!("{} is ready without {}", record.key(), container.digest),
                );
                continue;
            };
            let (Some(source), Some(asked)) = (&snapshot.status.source, &snapshot.spec.sandbox_id)
            else {
                continue;
            };
            let delivery = state.deliveries.get(asked);
            let is_another =
                delivery.is_none_or(|d| (d.uid, d.epoch) != (source.uid, source.epoch));
            // What its own sandbox started from is in there too.
            let before = state.sandboxes.values().find(|s| s.uid() == source.uid);
            let known = before.is_some();
            let before = before.map(|s| self.inherited(s)).unwrap_or_default();
            let foreign = traces
                .iter()
                .any(|e| *e != source.epoch && !before.contains(e));
            if is_another || (known && foreign) {
                state.broken(
                    "a snapshot holds what it was asked for",
                    format!("{}: {traces:?} of {source:?}", record.key()),
                );
            }
        }
    }

    /// The deliveries whose traces a sandbox has from the snapshot it started from.
    fn inherited(&self, sandbox: &Sandbox) -> Vec<Epoch> {
        let origin = sandbox.status.origin.as_ref();
        let traces = origin.and_then(|origin| self.runtime.traces_in(&origin.layer));
        traces.unwrap_or_default()
    }

    /// A child that has started holds what its snapshot does.
    fn child(&self, state: &mut State, before: &Sandbox, after: &Sandbox) {
        let truth = self.runtime.truth();
        let (Some(origin), Some(inside)) = (&after.status.origin, truth.get(&after.uid())) else {
            return;
        };
        let started =
            before.status.phase == Phase::Starting && after.status.phase == Phase::Running;
        let held = |epoch: &Epoch| inside.traces.contains(epoch);
        let whole = self.inherited(after).iter().all(held);
        if started && (inside.facts.layer.as_ref() != Some(&origin.layer) || !whole) {
            state.broken(
                "a child holds its snapshot's content",
                format!("{}: {inside:?} of {origin:?}", after.key()),
            );
        }
    }

    fn sandbox(
        &self,
        state: &mut State,
        record: &Record,
        removed: bool,
        author: Role,
        now: Duration,
    ) {
        let key = record.key();
        let Ok(sandbox) = record.decode::<SandboxSpec>() else {
            state.broken("records can be read", key.to_string());
            return;
        };
        let before = state
            .sandboxes
            .get(&key)
            .cloned()
            .filter(|b| b.uid() == sandbox.uid());
        if let Some(before) = &before {
            state.steps(before, &sandbox, author);
            state.intents(before, &sandbox, author, now);
            if author == Role::Waker {
                state.wakes(before, &sandbox);
            }
            self.facts(state, before, &sandbox);
            self.child(state, before, &sandbox);
        }
        state.dies(&sandbox, removed);
        if removed {
            state.buries(&sandbox, now);
            state.sandboxes.remove(&key);
            state.deadlines.remove(&key);
            return;
        }
        state.delivers(before.as_ref(), &sandbox, now);
        state.times(&sandbox, self.clock.wall_micros(), now);
        if before.is_none() {
            state.members(&sandbox);
        }
        state.sandboxes.insert(key, sandbox);
    }

    /// What is published must be so at that moment.
    fn facts(&self, state: &mut State, before: &Sandbox, after: &Sandbox) {
        let key = after.key();
        let truth = self.runtime.truth();
        let inside = truth.get(&after.uid());
        let became = |phase| after.status.phase == phase && before.status.phase != phase;
        if became(Phase::Running) && !after.metadata.is_deleting() {
            // A workload may be lost or frozen by a snapshot at any moment, but not be another's.
            let inherited = self.inherited(after);
            let foreign = inside.map(|i| {
                i.traces
                    .iter()
                    .filter(|e| **e != after.status.armed_epoch && !inherited.contains(e))
                    .count()
            });
            if foreign.is_some_and(|n| n > 0) {
                state.broken(
                    "nothing of the last owner reaches the next",
                    format!("{key}: {inside:?}"),
                );
            }
            if after.status.armed_epoch != after.spec.epoch && before.spec.epoch == after.spec.epoch
            {
                state.broken(
                    "armed before anybody hears of it",
                    format!("{key}: {:?}", after.status),
                );
            }
        }
        let lost = after
            .status
            .stopped
            .as_ref()
            .is_some_and(|s| s.reason == StopReason::Failed);
        let known = state.ended.contains(&after.uid());
        let gave_up = after
            .status
            .last_operation
            .as_ref()
            .is_some_and(|op| op.state == OperationState::Failed);
        if became(Phase::Stopped)
            && lost
            && !known
            && !gave_up
            && before.spec.owner.is_some()
            && before.status.started_at.is_some()
        {
            let detail = format!("{key} was {}: {:?}", before.status.phase, after.status);
            state.broken("no old decision undoes a newer one", detail);
        }
        let is_dressed = |i: &runtime::fake::Inside| {
            let mut wanted = after.spec.wanted_images().iter();
            wanted.all(|(container, image)| i.facts.runs(container, image))
        };
        let is_fresh = |i: &runtime::fake::Inside| i.traces.is_empty() && is_dressed(i);
        if became(Phase::Idle) && inside.is_some_and(|i| !is_fresh(i)) {
            state.broken(
                "nothing of the last owner reaches the next",
                format!("{key}: {inside:?}"),
            );
        }
        let fresh = after
            .status
            .snapshot
            .as_ref()
            .filter(|l| before.status.snapshot.as_ref() != Some(*l));
        if let Some(layer) = fresh.filter(|layer| !self.runtime.has_layer(layer)) {
            let detail = format!("{key} sleeps on missing {layer}");
            state.broken("no acknowledged snapshot lost", detail);
        }
    }
}

impl State {
    fn broken(&mut self, promise: &'static str, detail: String) {
        self.violations.push(Violation { promise, detail });
    }

    fn note(&mut self, record: &Record, removed: bool, author: Role, now: Duration) {
        let line = format!(
            "{:>10.3} {author:?} {}{} {} {} {}",
            now.as_secs_f64(),
            if removed { "- " } else { "" },
            record.key(),
            record.version(),
            record.spec,
            record.status
        );
        self.changes += 1;
        self.write_down(line);
    }

    /// Something that is no change of the store.
    fn note_line(&mut self, line: &str) {
        self.write_down(format!("           {line}"));
    }

    fn write_down(&mut self, line: String) {
        const KEPT: usize = 4000;
        for byte in line.bytes() {
            self.fingerprint = (self.fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.trace.push(line);
        if self.trace.len() > 2 * KEPT {
            self.trace.drain(..KEPT);
        }
    }

    /// Steps between two states of one record.
    fn steps(&mut self, before: &Sandbox, after: &Sandbox, author: Role) {
        let key = after.key();
        if !before.status.phase.may_become(after.status.phase) {
            let (from, to) = (before.status.phase, after.status.phase);
            self.broken(
                "phases follow the drawn machine",
                format!("{key}: {from} to {to}"),
            );
        }
        let operation = |s: &Sandbox| s.status.last_operation.as_ref().map(|op| op.id);
        if operation(after) < operation(before) {
            self.broken("operations only go forward", key.to_string());
        }
        if after.spec.epoch < before.spec.epoch
            || after.metadata.generation < before.metadata.generation
        {
            self.broken("epochs and generations only go forward", key.to_string());
        }
        match (&before.spec.owner, &after.spec.owner) {
            (None, Some(_)) => {
                let fresh =
                    after.spec.epoch == before.spec.epoch.next() && after.spec.sandbox_id.is_some();
                if !fresh || before.status.phase != Phase::Idle || before.metadata.is_deleting() {
                    self.broken(
                        "one owner per sandbox",
                        format!("{key} claimed by {author:?} while {}", before.status.phase),
                    );
                }
            }
            (Some(a), Some(b))
                if a != b
                    || before.spec.sandbox_id != after.spec.sandbox_id
                    || before.spec.epoch != after.spec.epoch =>
            {
                self.broken(
                    "one owner per sandbox",
                    format!("{key} went from {a:?} to {b:?} without a release"),
                );
            }
            (Some(_), Some(_) | None) | (None, None) => {}
        }
    }

    /// What control wants on its own account must have a cause.
    fn intents(&mut self, before: &Sandbox, after: &Sandbox, author: Role, now: Duration) {
        if author != Role::Control {
            return;
        }
        let key = after.key();
        let failed = before
            .status
            .last_operation
            .as_ref()
            .is_some_and(|op| op.state == OperationState::Failed);
        let over = self
            .deadlines
            .get(&key)
            .is_some_and(|(_, due, _)| now >= *due);
        // Who first sees a deadline after a jump cannot know that there was one: it was blind when
        // the deadline was written, or the jump came before it had a turn to look.
        let written = self.deadlines.get(&key).map(|(_, _, written)| *written);
        let misled = self.jumped.zip(written).is_some_and(|(jump, written)| {
            let unseen = self.blind_until > written || jump < written + ONE_TURN;
            jump >= written && unseen
        });
        let idle = before.spec.timeouts.idle_seconds.is_some();
        let timed = over || misled || idle;
        let newly_deleting = after.metadata.is_deleting() && !before.metadata.is_deleting();
        // One that ended before its owner heard of it goes with its lease.
        let ended = matches!(before.status.phase, Phase::Stopped | Phase::Failed);
        let unheard = ended && plan::claim::open_lease(before).is_some();
        if newly_deleting && before.spec.owner.is_some() && !timed && !unheard {
            self.broken(
                "claimed is never deleted by scaling, nor early",
                format!("{key} by control, {:?}", before.spec.timeouts),
            );
        }
        let sleeps = (before.spec.desired_state, after.spec.desired_state)
            == (DesiredState::Running, DesiredState::Paused);
        let released = before.spec.owner.is_some() && after.spec.owner.is_none();
        let ends = newly_deleting && before.spec.owner.is_some();
        let caused = over || misled || failed || self.restarted.contains(&after.uid());
        if (sleeps || released || ends) && !caused {
            self.idles(before, now);
        }
        if (released || ends) && !caused && idle && before.status.phase == Phase::Running {
            self.cuts(before);
        }
        match (before.spec.desired_state, after.spec.desired_state) {
            (DesiredState::Paused, DesiredState::Running)
                if !failed && after.spec.owner.is_some() =>
            {
                self.broken(
                    "no acknowledged write lost",
                    format!("{key}: control took back a pause"),
                );
            }
            (DesiredState::Running, DesiredState::Paused)
                if !failed
                    && !self.restarted.contains(&after.uid())
                    && !(timed
                        && (idle || before.spec.timeouts.on_timeout == OnTimeout::Pause)) =>
            {
                self.broken(
                    "no acknowledged write lost",
                    format!("{key}: control paused it for no reason"),
                );
            }
            (_, _) => {}
        }
        if before.spec.owner.is_some()
            && after.spec.owner.is_none()
            && !idle
            && !key.name.as_str().is_empty()
        {
            let surplus = before
                .metadata
                .annotations
                .contains_key(plan::claim::CLAIM_ANNOTATION);
            if !surplus {
                self.broken(
                    "no acknowledged write lost",
                    format!("{key}: control released it for no reason"),
                );
            }
        }
    }

    fn delivers(&mut self, before: Option<&Sandbox>, after: &Sandbox, now: Duration) {
        let id_before = before.and_then(|b| b.spec.sandbox_id.clone());
        if id_before == after.spec.sandbox_id {
            return;
        }
        if let Some(old) = id_before.and_then(|id| self.deliveries.get_mut(&id)) {
            old.died.get_or_insert(now);
        }
        let Some(id) = after.spec.sandbox_id.clone() else {
            return;
        };
        let delivery = Delivery {
            uid: after.uid(),
            epoch: after.spec.epoch,
            died: None,
        };
        if let Some(other) = self.deliveries.insert(id.clone(), delivery) {
            self.broken(
                "one owner per sandbox",
                format!("{id} was given out before, for {}", other.uid),
            );
        }
    }

    fn buries(&mut self, sandbox: &Sandbox, now: Duration) {
        if let Some(old) = sandbox
            .spec
            .sandbox_id
            .as_ref()
            .and_then(|id| self.deliveries.get_mut(id))
        {
            old.died.get_or_insert(now);
        }
    }

    fn times(&mut self, sandbox: &Sandbox, wall: i64, now: Duration) {
        let key = sandbox.key();
        let Some(end) = sandbox.spec.timeouts.end_at else {
            self.deadlines.remove(&key);
            return;
        };
        if self
            .deadlines
            .get(&key)
            .is_none_or(|(known, ..)| *known != end)
        {
            let left = Duration::from_micros(u64::try_from(end.as_micros() - wall).unwrap_or(0));
            self.deadlines.insert(key, (end, now + left, now));
        }
    }

    fn members(&mut self, sandbox: &Sandbox) {
        let Some(pool) = sandbox.metadata.controller().map(|owner| owner.uid) else {
            return;
        };
        let same = |s: &&Sandbox| {
            s.metadata
                .controller()
                .is_some_and(|owner| owner.uid == pool)
        };
        let count = 1 + self.sandboxes.values().filter(same).count();
        if let Some(most) = self
            .most
            .get(&pool)
            .copied()
            .filter(|most| count > *most as usize)
        {
            self.broken(
                "never more members than max",
                format!("{count} of {most} in pool {pool}"),
            );
        }
    }

    fn pool(&mut self, record: &Record, removed: bool) {
        let Ok(pool) = record.decode::<PoolSpec>() else {
            return;
        };
        if removed {
            self.pools.remove(&record.key());
            return;
        }
        let most = self.most.entry(pool.uid()).or_default();
        *most = pool.spec.max.max(*most);
        self.pools.insert(record.key(), pool);
    }
}
