//! Drives one snapshot, in the lane of the sandbox it captures.

use model::{Key, SandboxSnapshot, Spec as _, sandbox::SandboxSpec, workload::Observed};
use plan::snapshot::{Step, View, after_failure, captured_as, plan_snapshot};
use runtime::RuntimeError;

use crate::{
    sandbox::fence_of,
    world::{Done, World},
};

const STEPS_PER_TURN: usize = 8;

/// The sandbox that a snapshot captures.
#[must_use]
pub(crate) fn source_of(snapshot: &SandboxSnapshot) -> Key {
    Key {
        kind: SandboxSpec::KIND,
        namespace: snapshot.metadata.namespace.clone(),
        name: snapshot.spec.sandbox.clone(),
    }
}

/// Brings a snapshot as far as it will go.
pub(crate) async fn drive(world: &World, key: &Key) -> Done {
    if !world.caught_up(key).await {
        return Done::Retry;
    }
    let Some(cached) = world.caches.snapshots.find(key) else {
        world.forget(key);
        return Done::Gone;
    };
    let mut snapshot = SandboxSnapshot::clone(&cached);
    for _ in 0..STEPS_PER_TURN {
        match advance(world, &snapshot).await {
            Ok(next) => snapshot = next,
            Err(done) => return done,
        }
    }
    Done::Again
}

async fn advance(world: &World, snapshot: &SandboxSnapshot) -> Result<SandboxSnapshot, Done> {
    let sandbox = world.caches.sandboxes.find(&source_of(snapshot));
    let observed = match &sandbox {
        None => Observed::Absent,
        Some(sandbox) => {
            let looked = world.ports.runtime.inspect(sandbox.uid()).await;
            looked.map_err(|_| Done::Retry)?
        }
    };
    let now = world.now();
    let plan = plan_snapshot(View {
        snapshot,
        sandbox: sandbox.as_deref(),
        observed: &observed,
        now,
    });
    let Some(step) = plan.steps.into_iter().next() else {
        return Err(Done::Rest(None));
    };
    let mut next = snapshot.clone();
    let failed = match (step, &sandbox) {
        (Step::Publish(status), _) => {
            next.status = *status;
            return world.write_status(&next).await;
        }
        (Step::Freeze, Some(sandbox)) => {
            match within(world, world.ports.runtime.freeze(fence_of(sandbox))).await {
                Ok(()) => return Ok(next),
                Err(error) => error,
            }
        }
        (Step::Capture, Some(sandbox)) => {
            match within(world, world.ports.runtime.capture(fence_of(sandbox))).await {
                Ok(captured) => {
                    next.status = captured_as(snapshot, &captured, now);
                    return world.write_status(&next).await;
                }
                Err(error) => error,
            }
        }
        (Step::Freeze | Step::Capture, None) => return Err(Done::Again),
    };
    if matches!(failed, RuntimeError::Stale(_)) {
        return Err(Done::Retry);
    }
    next.status = after_failure(snapshot, &failed.to_string(), !failed.is_retryable(), now);
    world.write_status(&next).await?;
    Err(Done::Retry)
}

async fn within<T>(
    world: &World,
    call: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let limit = world.options.step_timeout;
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        Err(RuntimeError::Failed(
            format!("no answer within {limit:?}").into(),
        ))
    })
}
