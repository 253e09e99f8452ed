//! Finds what changed by itself, what no record speaks of, and forgets what nobody reads any more.
//!
//! A record is always there before its workload, so a workload without one is left over from a
//! crash. But a cache that lags also shows no record. To tell the two apart the suspicion itself
//! is recorded, as an event: once the cache has seen *that* write, it has seen every record that
//! was there when the workload was listed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use model::{
    Generation, Key, Name, OperationId, Sandbox, Spec as _, Uid,
    event::{About, EventSpec, Severity},
    sandbox::SandboxSpec,
    workload::{Fence, Observed},
};
use plan::{Note, sandbox::agrees, trouble::kills};
use store::{Query, StoreError, StoreExt as _};
use tokio::time::Instant;

use crate::{events, world::World};

/// How long an event is kept after it was last seen.
const KEEP_EVENTS: Duration = Duration::from_secs(3600);
const CATCH_UP: Duration = Duration::from_secs(10);

/// Compares what there is with what the records say. Answers the sandboxes that need a look:
/// nobody is told when a workload ends, freezes or vanishes by itself.
pub(crate) fn disagreeing(world: &World, there: &[(Uid, Observed)]) -> Vec<Key> {
    let there: BTreeMap<Uid, &Observed> = there.iter().map(|(uid, seen)| (*uid, seen)).collect();
    let all = world.caches.sandboxes.find_all();
    world.disown(&all.iter().map(|sandbox| sandbox.uid()).collect());
    let differs = |s: &&Arc<Sandbox>| {
        let seen = there.get(&s.uid()).copied().unwrap_or(&Observed::Absent);
        !agrees(s, seen) || kills(s, seen).is_some()
    };
    all.iter()
        .filter(differs)
        .map(|sandbox| sandbox.key())
        .collect()
}

/// Removes workloads without a record. Answers how many.
pub(crate) async fn orphans(world: &World, there: &[(Uid, Observed)]) -> usize {
    let mut removed = 0;
    for uid in without_record(world, there.iter().map(|(uid, _)| *uid).collect()) {
        match confirm(world, uid).await {
            Ok(true) => {
                // Nothing can be newer than this: the record it belonged to is gone for good.
                let fence = Fence {
                    uid,
                    generation: Generation(u64::MAX),
                    operation: OperationId(u64::MAX),
                };
                match world.ports.runtime.delete(fence).await {
                    Ok(()) => removed += 1,
                    Err(error) => tracing::warn!(%uid, %error, "left-over workload not removed"),
                }
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%uid, %error, "left-over workload not confirmed"),
        }
    }
    removed
}

fn without_record(world: &World, there: Vec<Uid>) -> Vec<Uid> {
    if there.is_empty() {
        return there;
    }
    let known: BTreeSet<Uid> = world
        .caches
        .sandboxes
        .find_all()
        .iter()
        .map(|sandbox| sandbox.uid())
        .collect();
    there
        .into_iter()
        .filter(|uid| !known.contains(uid))
        .collect()
}

async fn confirm(world: &World, uid: Uid) -> Result<bool, StoreError> {
    let about = About {
        kind: SandboxSpec::KIND.0.into(),
        namespace: None,
        name: Name::new("workload").map_err(|_| StoreError::Expired {
            after: model::Version::ZERO,
        })?,
        uid,
    };
    let note = Note {
        severity: Severity::Warning,
        reason: "LeftOver",
        message: format!("workload {uid} has no record and is being removed").into(),
    };
    let version = events::write(world.ports.store.as_ref(), about, note, world.now()).await?;
    let sandboxes = &world.caches.sandboxes;
    if sandboxes
        .wait_for_version(version, Instant::now() + CATCH_UP)
        .await
        .is_err()
    {
        return Ok(false);
    }
    Ok(!without_record(world, vec![uid]).is_empty())
}

/// Forgets events that were last seen long ago.
pub(crate) async fn old_events(world: &World) {
    let query = Query::kind(EventSpec::KIND);
    let Ok((found, _)) = world.ports.store.list_objects::<EventSpec>(&query).await else {
        return;
    };
    let now = world.now();
    for event in found {
        if now.since(event.spec.last_seen) >= KEEP_EVENTS {
            // One that was seen again in between is kept by its version.
            let _ = world.ports.store.delete_object(&event).await;
        }
    }
}
