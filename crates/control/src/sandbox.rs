//! Drives one sandbox: look, plan, perform one step, look again.

use std::{sync::Arc, time::Duration};

use model::{
    Key, Sandbox, Spec as _, Timestamp,
    lifecycle::Phase,
    pool::{PoolSpec, RecyclePolicy},
    sandbox::{DesiredState, SANDBOX_FINALIZER},
    template::ImagePullPolicy,
    trouble::Trouble,
    workload::{Booting, Captured, Facts, Fence, Keeps, Observed, Outfit, WorkloadState},
};
use plan::{
    failure::{after_failure, again, taken_over},
    idle::plan_last_active,
    sandbox::{Due, Intent, Step, View, asleep, not_up, plan_sandbox, unknown},
    trouble::{self, troubled},
};
use plugins::Holds;
use runtime::RuntimeError;
use store::StoreExt as _;

use crate::{
    admission,
    events::about,
    history,
    moves::Moves,
    publish::{capture, target},
    reception, recipe, registries,
    waking::{self, Weighed},
    world::{Done, World, lost},
};

mod due;
mod spec;

use due::judge;
pub(crate) use spec::fence_of;
use spec::{arming, workload_spec};

/// More steps than any sandbox needs in a row; a turn that takes more gives way to others.
const STEPS_PER_TURN: usize = 16;
/// Failed looks in a row after which a sandbox's state is published as unknown.
const LOOKS_BEFORE_UNKNOWN: u32 = 3;
/// How often a sandbox is looked at whose own commands are under way.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Brings a sandbox as far as it will go. `failures` is how often turns of this key failed in a row.
pub(crate) async fn drive(world: &World, key: &Key, failures: u32) -> Done {
    if !world.caught_up(key).await {
        return Done::Retry;
    }
    let Some(cached) = world.caches.sandboxes.find(key) else {
        world.forget(key);
        return Done::Gone;
    };
    let mut sandbox = Sandbox::clone(&cached);
    // Asked always, so that what this loop begins itself is never taken for another's.
    let first_look = world.adopts(sandbox.uid());
    if first_look {
        // Nobody knows what the last loop was about when it froze it.
        world.undrained(sandbox.uid());
    }
    if let Some(status) = taken_over(&sandbox).filter(|_| first_look) {
        sandbox.status = status;
        match world.write_status(&sandbox).await {
            Ok(written) => sandbox = written,
            Err(done) => return done,
        }
    }
    match reception::receive(world, &sandbox).await {
        Ok(Some(received)) => sandbox = received,
        Ok(None) => {}
        Err(done) => return done,
    }
    let holds = match waking::weigh(world, &sandbox).await {
        Ok(Weighed::Goes(holds)) => holds,
        Ok(Weighed::Stays(asleep)) => {
            sandbox = *asleep;
            Holds::default()
        }
        Err(done) => return done,
    };
    let mut done = Done::Again;
    for _ in 0..STEPS_PER_TURN {
        match advance(world, &sandbox, failures).await {
            Ok(next) => sandbox = next,
            Err(ended) => {
                done = ended;
                break;
            }
        }
    }
    // By now its record says how far it came.
    holds.written(sandbox.version());
    done
}

/// Takes one step. Answers the record after it, or how the turn ends.
async fn advance(world: &World, sandbox: &Sandbox, failures: u32) -> Result<Sandbox, Done> {
    let now = world.now();
    let recycle = recycle_policy(world, sandbox);
    let hooks = recipe::hooks_of(world, sandbox).map_or(true, |hooks| !hooks.is_empty());
    let found = recipe::base_of(world, sandbox).await?;
    let view = |observed, due| View {
        sandbox,
        observed,
        due,
        base: found.base(),
        recycle,
        undrained: world.is_undrained(sandbox.uid()),
        hooks,
        can: world.ports.runtime.abilities(),
        now,
    };
    let asked = world.elapsed();
    world.wakes.look(sandbox, asked);
    let observed = match world.ports.runtime.inspect(sandbox.uid()).await {
        Ok(observed) => {
            world
                .wakes
                .ran(sandbox.uid(), world.elapsed().saturating_sub(asked));
            observed
        }
        Err(error) => {
            let blind = view(&Observed::Absent, Due::default());
            return Err(cannot_look(world, blind, &error, failures).await);
        }
    };
    let activity = world.ports.activity.activity(sandbox);
    let (due, next) = judge(world, sandbox, activity);
    let view = view(&observed, due);
    let plan = plan_sandbox(view);
    if !matches!(plan.steps.first(), Some(Step::Boot | Step::RunHooks)) {
        world.commands.forget(&sandbox.key());
    }
    let Some(step) = plan.steps.into_iter().next() else {
        if let Some(used) = plan_last_active(sandbox, activity, now) {
            let mut next = sandbox.clone();
            next.status.last_active_at = next.status.last_active_at.max(Some(used));
            return world.write_status(&next).await;
        }
        if let Some(kills) = trouble::kills(sandbox, &observed) {
            let (status, note) = trouble::out_of_memory(sandbox, kills, now);
            let mut next = sandbox.clone();
            next.status = status;
            let written = world.write_status(&next).await?;
            world.ports.events.record(about(&written), note);
            return Ok(written);
        }
        tracing::trace!(key = %sandbox.key(), why = %plan.why, "rests");
        return Err(Done::Rest(next));
    };
    // What was written of the last try has called for this turn; it is no reason for another try.
    if let Some(left) = again(sandbox, &step).and_then(|pause| world.left_of(sandbox, pause)) {
        return Err(Done::Rest(Some(next.map_or(left, |next| next.min(left)))));
    }
    tracing::debug!(key = %sandbox.key(), ?step, why = %plan.why, "acts");
    match perform(world, view, step).await {
        // Its timers run on while it waits.
        Err(Done::Rest(after)) => Err(Done::Rest(after.into_iter().chain(next).min())),
        other => other,
    }
}

async fn perform(world: &World, view: View<'_>, step: Step) -> Result<Sandbox, Done> {
    let sandbox = view.sandbox;
    match step {
        Step::AddFinalizer => {
            let mut next = sandbox.clone();
            next.metadata.finalizers.push(SANDBOX_FINALIZER.into());
            world.write_spec(&next).await
        }
        Step::RemoveFinalizer => {
            history::keep(world, sandbox, None).await?;
            failpoints::reached(failpoints::Step::RecordLeft);
            let mut next = sandbox.clone();
            next.metadata
                .finalizers
                .retain(|f| &**f != SANDBOX_FINALIZER);
            world.write_spec(&next).await?;
            Err(Done::Again)
        }
        Step::Publish(status, note) => {
            if status.recycled_epoch != sandbox.status.recycled_epoch {
                history::keep(world, sandbox, Some(view.now)).await?;
            }
            let mut next = sandbox.clone();
            next.status = *status;
            trouble::settle(&mut next.status, sandbox, view.observed, view.now);
            if becomes_ready(sandbox, &next) {
                world.plugins.on_ready(&next).await;
                // It has all it needs, and whatever dies now, this is written: see `plan::sandbox`.
                world.desk.hand_over(&next);
            }
            let (slept, sleeps) = (&sandbox.status.sleeps, &mut next.status.sleeps);
            world
                .wakes
                .tell(sandbox.uid(), slept, sleeps, world.elapsed());
            if is_thawed(view, &next) {
                // Whatever dies now, this is what the next look finds: who waits need not wait for
                // the write.
                world.ports.waiters.awake(&next);
            }
            let moves = Moves::between(&sandbox.status, &next.status);
            moves.before();
            let written = world.write_status(&next).await?;
            moves.after();
            if let Some(note) = note {
                world.ports.events.record(about(&written), note);
            }
            Ok(written)
        }
        Step::Intend(intent) => world.write_spec(&intended(sandbox, intent, view.now)).await,
        Step::DeleteRecord(note) => {
            world
                .ports
                .store
                .delete_object(sandbox)
                .await
                .map_err(|e| lost(&sandbox.key(), &e))?;
            world.ports.events.record(about(sandbox), note);
            Err(Done::Again)
        }
        Step::IfUnused(step) => {
            admission::shut_out(world, sandbox).await?;
            let activity = world.ports.activity.activity(sandbox);
            match judge(world, sandbox, activity).0.idle {
                true => Box::pin(perform(world, view, *step)).await,
                // The next look finds it in use, and opens it again.
                false => Err(Done::Again),
            }
        }
        Step::Capture => {
            // Where nothing can be frozen, this is what stops it.
            if view.observed.runs() {
                admission::close(world, sandbox).await?;
                world.drained(sandbox.uid());
            }
            match at_a_registry(world, view, &step).await? {
                Effect::Captured(captured, image) => {
                    let plan = asleep(view, Some(&captured));
                    match plan.steps.into_iter().next() {
                        Some(Step::Publish(mut status, note)) => {
                            status.snapshot_image = image;
                            let publish = Step::Publish(status, note);
                            Box::pin(perform(world, view, publish)).await
                        }
                        Some(other) => Box::pin(perform(world, view, other)).await,
                        None => Err(Done::Again),
                    }
                }
                Effect::Done | Effect::UnderWay => Err(Done::Again),
            }
        }
        // They go on by themselves, and their end asks for a turn; meanwhile others get theirs, a
        // deletion is heard, and a sandbox that ends is noticed.
        Step::Boot | Step::RunHooks => match run(world, view, &step).await? {
            Effect::UnderWay => Err(Done::Rest(Some(LOOK_AGAIN))),
            Effect::Done | Effect::Captured(..) => Ok(sandbox.clone()),
        },
        Step::Create(_)
        | Step::Arm
        | Step::SwapImages
        | Step::SetNetwork
        | Step::Freeze
        | Step::Thaw
        | Step::Reset
        | Step::DeleteWorkload => {
            match step {
                Step::Freeze => {
                    admission::close(world, sandbox).await?;
                    world.drained(sandbox.uid());
                }
                Step::Reset => admission::shut_out(world, sandbox).await?,
                _ => {}
            }
            if let Some(pulling) = pulling(world, sandbox, &step, view.now).await? {
                return Ok(pulling);
            }
            at_a_registry(world, view, &step).await?;
            Ok(sandbox.clone())
        }
    }
}

/// Performs a step that may have to wait for a registry, if not too many do.
async fn at_a_registry(world: &World, view: View<'_>, step: &Step) -> Result<Effect, Done> {
    let sandbox = view.sandbox;
    let _may_wait = match is_remote(world, sandbox, step) {
        false => None,
        true => {
            let team = sandbox.metadata.namespace.as_ref();
            let entered = world.waiting.enter(team, world.options.workers);
            Some(entered.ok_or(Done::Rest(Some(registries::REST)))?)
        }
    };
    run(world, view, step).await
}

/// Whether a step may ask a registry.
fn is_remote(world: &World, sandbox: &Sandbox, step: &Step) -> bool {
    match step {
        Step::Capture => {
            target(sandbox).is_some() || world.ports.runtime.abilities().keeps != Keeps::Here
        }
        // A layer that was published is here, too, unless this is another host.
        Step::Create(_) | Step::SwapImages => fetches(world, sandbox),
        _ => false,
    }
}

fn fetches(world: &World, sandbox: &Sandbox) -> bool {
    // One that is impossible asks nobody.
    workload_spec(world, sandbox, None).is_ok_and(|spec| match spec.pull {
        ImagePullPolicy::Always => true,
        ImagePullPolicy::IfNotPresent => world.ports.runtime.missing(&spec.images).is_some(),
        ImagePullPolicy::Never => false,
    })
}

/// Says that images are to be fetched first, which may take long. Answers the record that says so;
/// none if they are here, or it is said already.
async fn pulling(
    world: &World,
    sandbox: &Sandbox,
    step: &Step,
    now: Timestamp,
) -> Result<Option<Sandbox>, Done> {
    if !matches!(step, Step::Create(_) | Step::SwapImages)
        || trouble::find(&sandbox.status).is_some()
    {
        return Ok(None);
    }
    // What is wrong with it is said by the step itself.
    let Ok(spec) = workload_spec(world, sandbox, None) else {
        return Ok(None);
    };
    let missing = world.ports.runtime.missing(&spec.images);
    let Some(image) = missing.filter(|_| spec.pull != ImagePullPolicy::Never) else {
        return Ok(None);
    };
    let mut next = sandbox.clone();
    let detail = format!("image {image} is being fetched");
    next.status = troubled(next.status, Trouble::Pulling, &detail, now);
    world.write_status(&next).await.map(Some)
}

/// Whether a delivery becomes its owner's by this.
fn becomes_ready(before: &Sandbox, after: &Sandbox) -> bool {
    let epoch = after.spec.epoch;
    after.status.phase == Phase::Running
        && after.spec.owner.is_some()
        && after.status.armed_epoch == epoch
        && before.status.armed_epoch != epoch
}

/// Whether what slept in memory goes on by this: the same workload, and nothing else to be lost.
fn is_thawed(view: View<'_>, after: &Sandbox) -> bool {
    let runs = |facts: &Facts| facts.state == WorkloadState::Running;
    view.sandbox.status.phase == Phase::Paused
        && after.status.phase == Phase::Running
        && matches!(view.observed, Observed::Present(facts) if runs(facts))
}

/// What a step on the runtime brought.
enum Effect {
    Done,
    UnderWay,
    /// A layer, and the image that it was pushed as.
    Captured(Captured, Option<Box<str>>),
}

/// Performs a step on the runtime; a failure is recorded before the turn ends.
async fn run(world: &World, view: View<'_>, step: &Step) -> Result<Effect, Done> {
    let sandbox = view.sandbox;
    let asked = world.elapsed();
    let (result, took) = match step {
        Step::Boot | Step::RunHooks => match run_commands(world, sandbox, step).await {
            Some(Ran { result, took }) => (result.map(|()| Effect::Done), took),
            None => return Ok(Effect::UnderWay),
        },
        _ => {
            let result = within(world.options.step_timeout, call(world, sandbox, step)).await;
            (result, world.elapsed().saturating_sub(asked))
        }
    };
    world.wakes.ran(sandbox.uid(), took);
    let error = match result {
        Ok(effect) => return Ok(effect),
        // Somebody newer is at work on it: what this turn saw is old.
        Err(RuntimeError::Stale(_)) => return Err(Done::Retry),
        Err(error) => error,
    };
    tracing::warn!(key = %sandbox.key(), ?step, %error, "step failed");
    let mut next = sandbox.clone();
    let hopeless = !error.is_retryable();
    next.status = after_failure(sandbox, step, &error.to_string(), hopeless, view.now);
    next.status = troubled(next.status, error.trouble(), &error.to_string(), view.now);
    if let RuntimeError::NotReady { failure, detail } = &error {
        next.status = not_up(next.status, *failure, detail, view.now);
    }
    world.failed(&next);
    if let Err(done) = world.write_status(&next).await {
        // The failed call may still take effect, and its number was not used up: the next turn
        // takes over from it as from another loop's.
        world.abandon(sandbox.uid());
        return Err(done);
    }
    Err(Done::Retry)
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let late = || RuntimeError::Failed(format!("no answer within {limit:?}").into());
    let called = tokio::time::timeout(limit, call).await;
    called.unwrap_or_else(|_| Err(late()))
}

/// Commands that run inside a sandbox, and for which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Boot(Fence),
    Hooks(Fence),
}

/// How commands ended, and how long they took.
#[derive(Debug)]
pub(crate) struct Ran {
    result: Result<(), RuntimeError>,
    took: Duration,
}

/// Has commands run inside a sandbox; none while they are under way.
async fn run_commands(world: &World, sandbox: &Sandbox, step: &Step) -> Option<Ran> {
    let fence = fence_of(sandbox);
    let (command, hooks) = match step {
        Step::RunHooks => match recipe::hooks_of(world, sandbox) {
            Ok(hooks) => (Command::Hooks(fence), hooks),
            Err(error) => {
                return Some(Ran {
                    result: Err(error),
                    took: Duration::ZERO,
                });
            }
        },
        _boot => (Command::Boot(fence), Vec::new()),
    };
    let (runtime, clock) = (
        Arc::clone(&world.ports.runtime),
        Arc::clone(&world.ports.clock),
    );
    let limit = world.options.step_timeout;
    let call = async move {
        let asked = clock.monotonic();
        let result = loop {
            let called = match command {
                Command::Boot(fence) => within(limit, runtime.boot(fence)).await,
                Command::Hooks(fence) => within(limit, runtime.run_hooks(fence, &hooks)).await,
            };
            match called {
                Ok(Booting::UnderWay) => {}
                Ok(Booting::Done) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        Ran {
            result,
            took: clock.monotonic().saturating_sub(asked),
        }
    };
    world.commands.outcome(&sandbox.key(), command, call).await
}

async fn call(world: &World, sandbox: &Sandbox, step: &Step) -> Result<Effect, RuntimeError> {
    let runtime = &world.ports.runtime;
    let fence = fence_of(sandbox);
    match step {
        Step::Create(from) => {
            let spec = workload_spec(world, sandbox, from.clone())?;
            runtime.create(fence, &spec).await?;
        }
        Step::Arm => runtime.arm(fence, &arming(world, sandbox)).await?,
        Step::SwapImages => {
            let spec = workload_spec(world, sandbox, None)?;
            runtime.swap_images(fence, &spec.outfit()).await?;
        }
        Step::SetNetwork => {
            let policy = sandbox.spec.network.as_deref();
            runtime.set_network(fence, policy).await?;
        }
        Step::Freeze => runtime.freeze(fence).await?,
        Step::Thaw => runtime.thaw(fence).await?,
        Step::Capture => {
            // Before anything of it is released: a pause that cannot be published is none.
            let (captured, image) = capture(world, fence, target(sandbox)).await?;
            return Ok(Effect::Captured(captured, image));
        }
        Step::Reset => {
            let spec = workload_spec(world, sandbox, None)?;
            // It was idle on them before: they are here, and none are asked for anew.
            let idle = Outfit {
                pull: ImagePullPolicy::IfNotPresent,
                ..spec.outfit()
            };
            runtime.reset(fence, Some(&idle)).await?;
            // One that does not run them is not tried for ever: it counts as a failure.
            let wanted = sandbox.spec.wanted_images();
            if let Observed::Present(facts) = runtime.inspect(fence.uid).await?
                && !wanted.iter().all(|(name, image)| facts.runs(name, image))
            {
                let why = "it was reset, and does not run the images that it idles on";
                return Err(RuntimeError::Failed(why.into()));
            }
        }
        Step::DeleteWorkload => runtime.delete(fence).await?,
        Step::Boot
        | Step::RunHooks
        | Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::Publish(..)
        | Step::Intend(_)
        | Step::IfUnused(_)
        | Step::DeleteRecord(_) => {}
    }
    Ok(Effect::Done)
}

fn intended(sandbox: &Sandbox, intent: Intent, now: Timestamp) -> Sandbox {
    let mut next = sandbox.clone();
    match intent {
        Intent::Pause | Intent::StayPaused => next.spec.desired_state = DesiredState::Paused,
        Intent::Resume => next.spec.desired_state = DesiredState::Running,
        Intent::Release(cause) => {
            next = plan::claim::released(sandbox, plan::claim::Ending::by(cause, now));
        }
    }
    next
}

fn recycle_policy(world: &World, sandbox: &Sandbox) -> RecyclePolicy {
    let Some(name) = sandbox.spec.pool.clone() else {
        return RecyclePolicy::Destroy;
    };
    let key = Key {
        kind: PoolSpec::KIND,
        namespace: sandbox.metadata.namespace.clone(),
        name,
    };
    let its = sandbox.metadata.controller().map(|owner| owner.uid);
    match world.caches.pools.find(&key) {
        Some(pool) if !pool.metadata.is_deleting() && its == Some(pool.uid()) => {
            pool.spec.recycle_policy
        }
        // There is no pool to go back to; one of the same name is another.
        Some(_) | None => RecyclePolicy::Destroy,
    }
}

/// A runtime that cannot be asked: after a few tries that is what is published.
async fn cannot_look(world: &World, view: View<'_>, error: &RuntimeError, failures: u32) -> Done {
    let sandbox = view.sandbox;
    tracing::warn!(key = %sandbox.key(), %error, "the runtime cannot be asked");
    let ended = matches!(
        sandbox.status.phase,
        Phase::Stopped | Phase::Failed | Phase::Pending
    );
    let known = sandbox.status.phase != Phase::Unknown && !sandbox.metadata.is_deleting() && !ended;
    if known && failures + 1 >= LOOKS_BEFORE_UNKNOWN {
        let mut next = sandbox.clone();
        next.status = unknown(view, &error.to_string());
        if let Err(done) = world.write_status(&next).await {
            return done;
        }
    }
    Done::Retry
}
