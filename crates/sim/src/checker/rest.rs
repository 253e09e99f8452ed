//! What must be so once it is quiet: every operation has ended, intent and truth agree, nothing is
//! left over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Sandbox, SandboxClaim, SandboxPool, SandboxSnapshot, Spec as _,
    claim::{ClaimPhase, ClaimSpec},
    lifecycle::Phase,
    pool::PoolSpec,
    sandbox::{DesiredState, SandboxSpec},
    snapshot::{SnapshotPhase, SnapshotSpec},
};
use routes::{Route, keep};
use runtime::{WorkloadState, fake::FakeRuntime};
use store::memory::MemoryStore;

use super::Violation;
use crate::gateway::Gateway;

/// What keeps the world from being at rest.
#[must_use]
pub fn unrest(
    store: &MemoryStore,
    runtime: &FakeRuntime,
    gateways: &[Arc<Gateway>],
    unanswered: &[usize],
) -> Vec<Violation> {
    let mut found = Found::default();
    let mut sandboxes = Vec::new();
    let mut pools: Vec<SandboxPool> = Vec::new();
    let mut claims: Vec<SandboxClaim> = Vec::new();
    let mut snapshots: Vec<SandboxSnapshot> = Vec::new();
    for record in store.truth() {
        match record.kind {
            SandboxSpec::KIND => sandboxes.extend(record.decode()),
            PoolSpec::KIND => pools.extend(record.decode()),
            ClaimSpec::KIND => claims.extend(record.decode()),
            SnapshotSpec::KIND => snapshots.extend(record.decode()),
            _other => {}
        }
    }
    sandboxes.iter().for_each(|s| found.sandbox(s, runtime));
    found.leaks(&sandboxes, runtime);
    pools.iter().for_each(|p| found.pool(p, &sandboxes));
    claims.iter().for_each(|c| found.claim(c, &sandboxes));
    for snapshot in &snapshots {
        if !matches!(
            snapshot.status.phase,
            SnapshotPhase::Ready | SnapshotPhase::Failed
        ) {
            found.broken(
                "every operation ends",
                format!("{} is {:?}", snapshot.key(), snapshot.status),
            );
        }
    }
    for gateway in gateways {
        found.gateway("gateways agree with the store", gateway, &sandboxes);
    }
    for number in unanswered {
        found.broken("every request ends once", format!("{number} never did"));
    }
    found.0
}

/// Where gateways differ from the store, one of which hears nothing of it but by others.
#[must_use]
pub fn disagreements(store: &MemoryStore, gateways: &[Arc<Gateway>]) -> Vec<Violation> {
    let mut found = Found::default();
    let records = store.truth();
    let of = records.iter().filter(|r| r.kind == SandboxSpec::KIND);
    let sandboxes: Vec<Sandbox> = of.filter_map(|record| record.decode().ok()).collect();
    for gateway in gateways {
        found.gateway("a gateway hears by others", gateway, &sandboxes);
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn broken(&mut self, promise: &'static str, detail: String) {
        self.0.push(Violation { promise, detail });
    }

    fn sandbox(&mut self, sandbox: &Sandbox, runtime: &FakeRuntime) {
        let (key, phase) = (sandbox.key(), sandbox.status.phase);
        let unended = |found: &mut Self, what: &str| {
            found.broken(
                "every operation ends",
                format!(
                    "{key} {what}: {:?} {:?}",
                    sandbox.spec.desired_state, sandbox.status
                ),
            );
        };
        if sandbox.metadata.is_deleting() {
            return unended(self, "is still being deleted");
        }
        let owned = sandbox.spec.owner.is_some();
        match (phase, sandbox.spec.desired_state) {
            (Phase::Idle, _) if !owned => {}
            (Phase::Running, DesiredState::Running) | (Phase::Paused, DesiredState::Paused) => {}
            (Phase::Stopped | Phase::Failed, _) => {}
            (_, _) => return unended(self, "has not come to rest"),
        }
        let truth = runtime.truth();
        let state = truth.get(&sandbox.uid()).map(|inside| inside.facts.state);
        let agrees = match phase {
            Phase::Idle | Phase::Running => state == Some(WorkloadState::Running),
            Phase::Paused if sandbox.status.snapshot.is_some() => state.is_none(),
            Phase::Paused => state == Some(WorkloadState::Frozen),
            Phase::Stopped | Phase::Failed => state.is_none(),
            Phase::Pending
            | Phase::Starting
            | Phase::Pausing
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Unknown => false,
        };
        if !agrees {
            self.broken(
                "the live workload decides the state",
                format!("{key} is {phase}, its workload {state:?}"),
            );
        }
        let inside = truth.get(&sandbox.uid());
        let rewired = inside.filter(|i| i.facts.network != sandbox.spec.network);
        if matches!(phase, Phase::Idle | Phase::Running) && rewired.is_some() {
            self.broken(
                "a sandbox reaches what it may",
                format!("{key}: {:?}, {inside:?}", sandbox.spec.network),
            );
        }
        let origin = sandbox.status.origin.as_ref();
        let inherited = origin.and_then(|origin| runtime.traces_in(&origin.layer));
        let inherited = inherited.unwrap_or_default();
        let is_foreign = |e: &model::Epoch| !owned || *e != sandbox.spec.epoch;
        let foreign = inside.is_some_and(|i| {
            let mut traces = i.traces.iter();
            traces.any(|e| is_foreign(e) && !inherited.contains(e))
        });
        if foreign {
            self.broken(
                "nothing of the last owner reaches the next",
                format!("{key}: {inside:?}"),
            );
        }
    }

    fn leaks(&mut self, sandboxes: &[Sandbox], runtime: &FakeRuntime) {
        for uid in runtime.truth().keys() {
            if !sandboxes.iter().any(|s| s.uid() == *uid) {
                self.broken("no leaked runtime object", uid.to_string());
            }
        }
    }

    fn pool(&mut self, pool: &SandboxPool, sandboxes: &[Sandbox]) {
        let members: Vec<_> = sandboxes
            .iter()
            .filter(|s| {
                s.metadata
                    .controller()
                    .is_some_and(|owner| owner.uid == pool.uid())
            })
            .collect();
        let idle = members
            .iter()
            .filter(|s| s.status.phase == Phase::Idle)
            .count();
        let (spec, total) = (&pool.spec, members.len());
        if pool.metadata.is_deleting() {
            if members.iter().all(|s| s.spec.owner.is_none()) {
                self.broken(
                    "every operation ends",
                    format!("{} is still being deleted", pool.key()),
                );
            }
            return;
        }
        let enough = idle >= spec.min_idle as usize || total >= spec.max as usize;
        if !enough || idle > spec.max_idle as usize {
            self.broken(
                "a pool reaches its target",
                format!("{}: {idle} idle of {total}, {:?}", pool.key(), pool.spec),
            );
        }
        if pool.status.idle as usize != idle || pool.status.total as usize != total {
            self.broken(
                "a pool's status is true",
                format!("{}: {idle} of {total}, {:?}", pool.key(), pool.status),
            );
        }
    }

    fn claim(&mut self, claim: &SandboxClaim, sandboxes: &[Sandbox]) {
        let uid = claim.uid().to_string();
        let taken = |s: &&Sandbox| {
            s.spec.owner.is_some()
                && s.metadata
                    .annotations
                    .get(plan::claim::CLAIM_UID_ANNOTATION)
                    == Some(&uid)
        };
        let taken = sandboxes.iter().filter(taken).count();
        if claim.status.phase != ClaimPhase::Completed {
            self.broken(
                "every operation ends",
                format!("{}: {:?}", claim.key(), claim.status),
            );
        } else if taken > claim.spec.count as usize {
            self.broken(
                "a claim takes what it asks for",
                format!("{} has {taken}", claim.key()),
            );
        }
    }

    fn gateway(&mut self, promise: &'static str, gateway: &Gateway, sandboxes: &[Sandbox]) {
        let key = |route: &Route| (route.namespace.clone(), route.name.clone());
        let wanted: BTreeMap<_, _> = sandboxes
            .iter()
            .filter_map(Route::of)
            .filter(|route| keep(route.state))
            .map(|route| (key(&route), Arc::new(route)))
            .collect();
        let routes = gateway.table.routes();
        let has: BTreeMap<_, _> = routes.into_iter().map(|r| (key(&r), r)).collect();
        for key in wanted.keys().chain(has.keys()).collect::<BTreeSet<_>>() {
            if wanted.get(key) != has.get(key) {
                let (has, wanted) = (has.get(key), wanted.get(key));
                self.broken(
                    promise,
                    format!("gateway {}: {has:?}, not {wanted:?}", gateway.name),
                );
            }
        }
        let ids: BTreeSet<_> = wanted.values().filter_map(|r| r.id.clone()).collect();
        let served: BTreeSet<_> = gateway.routes().into_keys().collect();
        if ids != served {
            self.broken(
                promise,
                format!("gateway {} serves {served:?}, not {ids:?}", gateway.name),
            );
        }
    }
}
