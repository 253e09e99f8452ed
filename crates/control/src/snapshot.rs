//! Drives one snapshot, in the lane of the sandbox it captures.

use std::time::Duration;

use failpoints::reached;
use model::{
    Key, Name, SandboxSnapshot, Spec as _,
    sandbox::SandboxSpec,
    snapshot::SnapshotPhase,
    workload::{Captured, Keeps, Observed},
};
use plan::snapshot::{Step, View, after_failure, captured_as, plan_snapshot};
use runtime::RuntimeError;
use store::StoreExt as _;

use crate::{
    deadlines::Timer,
    publish::{capture, publish, target},
    recipe, registries,
    sandbox::fence_of,
    world::{Done, World, lost},
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
    // What its sandbox's last turn wrote decides what may be captured.
    if !world.caught_up(&source_of(&cached)).await {
        return Done::Retry;
    }
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
    let (expired, left) = keeping(world, snapshot);
    let open = matches!(
        snapshot.status.phase,
        SnapshotPhase::Pending | SnapshotPhase::Capturing
    );
    let observed = match &sandbox {
        Some(sandbox) if open => {
            let looked = world.ports.runtime.inspect(sandbox.uid()).await;
            looked.map_err(|_| Done::Retry)?
        }
        Some(_) | None => Observed::Absent,
    };
    let recipe = sandbox.as_deref().map(|s| recipe::of(world, s));
    let can = world.ports.runtime.abilities();
    let view = View {
        snapshot,
        sandbox: sandbox.as_deref(),
        observed: &observed,
        recipe: &recipe.unwrap_or_default(),
        can,
        expired,
        now: world.now(),
    };
    let Some(step) = plan_snapshot(view).steps.into_iter().next() else {
        return Err(Done::Rest(left));
    };
    // A registry need not answer: not too many turns wait for one.
    let named = snapshot.spec.registry.is_some();
    let far = match &step {
        Step::Publish(_) => named,
        Step::Capture => named || can.keeps != Keeps::Here,
        Step::Freeze | Step::DeleteRecord => false,
    };
    let _may_wait = match far {
        true => {
            let team = snapshot.metadata.namespace.as_ref();
            let entered = world.waiting.enter(team, world.options.workers);
            Some(entered.ok_or(Done::Rest(Some(registries::REST)))?)
        }
        false => None,
    };
    let mut next = snapshot.clone();
    let failed = match (step, &sandbox) {
        (Step::Publish(status), _) => {
            next.status = *status;
            // Its sandbox slept on a layer already, which may be on this machine only.
            let to = snapshot.spec.registry.as_deref();
            let secret = sandbox.as_deref().and_then(|s| target(s)?.1);
            match within(world, publish_ready(world, &next, to, secret)).await {
                Ok(image) => {
                    next.status.image = image.or(next.status.image);
                    return write(world, &next).await;
                }
                Err(error) => {
                    next = snapshot.clone();
                    error
                }
            }
        }
        (Step::DeleteRecord, _) => {
            let deleted = world.ports.store.delete_object(snapshot).await;
            deleted.map_err(|e| lost(&snapshot.key(), &e))?;
            return Err(Done::Again);
        }
        (Step::Freeze, Some(sandbox)) => {
            world.undrained(sandbox.uid());
            match within(world, world.ports.runtime.freeze(fence_of(sandbox))).await {
                Ok(()) => return Ok(next),
                Err(error) => error,
            }
        }
        (Step::Capture, Some(sandbox)) => {
            // Where nothing can be frozen, this is what stops it.
            if view.observed.runs() {
                world.undrained(sandbox.uid());
            }
            let own = target(sandbox);
            let named = snapshot.spec.registry.as_deref();
            let named = named.map(|to| (to, own.and_then(|(_, secret)| secret)));
            // What is not kept here goes where its sandbox's layers go, if it names no place.
            let to = named.or(own.filter(|_| can.keeps != Keeps::Here));
            let capture = capture(world, fence_of(sandbox), to);
            match within(world, capture).await {
                Ok((captured, image)) => {
                    next.status = captured_as(view, &captured);
                    next.status.image = image;
                    return write(world, &next).await;
                }
                Err(error) => error,
            }
        }
        (Step::Freeze | Step::Capture, None) => return Err(Done::Again),
    };
    if matches!(failed, RuntimeError::Stale(_)) {
        return Err(Done::Retry);
    }
    let hopeless = !failed.is_retryable();
    next.status = after_failure(snapshot, &failed.to_string(), hopeless, view.now);
    world.write_status(&next).await?;
    Err(Done::Retry)
}

async fn write(world: &World, next: &SandboxSnapshot) -> Result<SandboxSnapshot, Done> {
    if next.status.phase == SnapshotPhase::Ready {
        reached(failpoints::Step::SnapshotUnsaid);
    }
    let written = world.write_status(next).await?;
    match written.status.phase {
        SnapshotPhase::Capturing => reached(failpoints::Step::SnapshotBegun),
        SnapshotPhase::Ready => reached(failpoints::Step::SnapshotSaid),
        SnapshotPhase::Pending | SnapshotPhase::Failed => {}
    }
    Ok(written)
}

/// Whether its time to be kept is over, and how much of it is left.
fn keeping(world: &World, snapshot: &SandboxSnapshot) -> (bool, Option<Duration>) {
    let seconds = snapshot.spec.expire_after_seconds;
    let kept = seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let made = snapshot.metadata.creation_timestamp;
    let until = made.zip(kept).map(|(made, kept)| made.plus(kept));
    let timer = world
        .deadlines
        .judge(&snapshot.key(), "expire", until, kept);
    match timer {
        Timer::Off => (false, None),
        Timer::Over => (true, None),
        Timer::In(left) => (false, Some(left)),
    }
}

/// Brings the layer of a snapshot that would be ready to where it should be.
async fn publish_ready(
    world: &World,
    snapshot: &SandboxSnapshot,
    registry: Option<&str>,
    secret: Option<&Name>,
) -> Result<Option<Box<str>>, RuntimeError> {
    let container = snapshot.status.containers.first();
    let ready = snapshot.status.phase == SnapshotPhase::Ready && snapshot.status.image.is_none();
    match (container.filter(|_| ready), registry) {
        (Some(container), Some(registry)) => {
            let captured = Captured {
                digest: container.digest.clone(),
                size: container.size,
                parent: container.parent.clone(),
                published: None,
            };
            publish(world, &captured, Some((registry, secret))).await
        }
        (Some(_) | None, _) => Ok(None),
    }
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
