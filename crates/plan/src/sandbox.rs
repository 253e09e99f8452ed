//! The next step in a sandbox's life.
//!
//! The live workload decides: a record that says one thing while the runtime shows another is
//! brought in line with the runtime, and only then towards what is wanted. The order of the
//! questions below is the order of their weight:
//!
//! 1. deletion asked for → end the workload, then let go of the record
//! 2. the workload has ended, or is lost → say so
//! 3. its time is over, it has been idle for too long, or it slept for as long as it is kept → write
//!    that as intent
//! 4. released by its owner → clean it, or remove it
//! 5. otherwise: by phase, one step towards the desired state

mod origin;
mod record;
mod sleep;

use model::{
    Digest, Sandbox, Timestamp,
    event::Severity,
    lifecycle::{OperationKind, Phase, was_released},
    pool::RecyclePolicy,
    sandbox::{
        DesiredState, IdleAction, OnTimeout, Operation, OperationState, SANDBOX_FINALIZER,
        SandboxSpec, SandboxStatus, Sleeps, SnapshotType, StopCause, StopReason, Stopped,
    },
    workload::{Abilities, Facts, Loss, Observed, WorkloadState},
};

pub use origin::Base;
pub use record::not_up;
pub(crate) use record::note;
use record::{begin, error_of, hooked, next_id, operation_failed, settle, timed_out};
pub use sleep::asleep;

use sleep::{may_try_to_sleep, paused, pausing, resuming, rung, running};

use crate::{Note, Plan, claim::open_lease};

const NOT_UP: &str = "its template's commands have not brought it up yet";

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The record.
    pub sandbox: &'a Sandbox,
    /// What the runtime shows.
    pub observed: &'a Observed,
    /// Which timers have run out.
    pub due: Due,
    /// What it starts from, if it was not started yet.
    pub base: Base<'a>,
    /// What its pool wants done with a released member.
    pub recycle: RecyclePolicy,
    /// It may be frozen though what was inside had no time to end: a snapshot was taken of it.
    pub undrained: bool,
    /// Whether hooks are to be run before its owner hears of it.
    pub hooks: bool,
    /// What its runtime can do.
    pub can: Abilities,
    /// For stamping records; whether time is up is in `due`.
    pub now: Timestamp,
}

/// Which timers have run out, judged by elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// `spec.timeouts.endAt`.
    pub end: bool,
    /// The idle timeout.
    pub idle: bool,
    /// Time to descend from freeze to rootfs.
    pub descend: bool,
    /// It was kept asleep for as long as it should be.
    pub retention: bool,
    /// The pause after a failed operation.
    pub retry: bool,
    /// The lease of a delivery that is not ready.
    pub lease: bool,
    /// Likewise, because the process that holds it is gone.
    pub claimer_lost: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hold the record while a workload may exist.
    AddFinalizer,
    /// Let the record go.
    RemoveFinalizer,
    /// Write what is observed.
    Publish(Box<SandboxStatus>, Option<Note>),
    /// Write what is wanted.
    Intend(Intent),
    /// Ask for the record's deletion, exactly as it was seen.
    DeleteRecord(Note),
    /// Take a step only if nobody is let in any more, and nobody was inside after that.
    IfUnused(Box<Step>),
    /// Make and start the workload, from a captured layer if there is one.
    Create(Option<Digest>),
    /// Have its template's commands bring it up.
    Boot,
    /// Put the delivery's settings in place.
    Arm,
    /// Do what is to be done inside before its owner hears of it.
    RunHooks,
    /// Put the delivery's images in place.
    SwapImages,
    /// Change what it may reach.
    SetNetwork,
    /// Stop its processes where they are.
    Freeze,
    /// Let them go on.
    Thaw,
    /// Keep its writable layer.
    Capture,
    /// Remove what its last owner left.
    Reset,
    /// End the workload.
    DeleteWorkload,
}

/// A change of what is wanted, on somebody's standing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Sleep.
    Pause,
    /// Be awake: takes back a pause that could not be.
    Resume,
    /// Take back a resume that could not be.
    StayPaused,
    /// Go back to the pool, for this.
    Release(StopCause),
}

/// Decides the next step.
#[must_use]
pub fn plan_sandbox(view: View<'_>) -> Plan<Step> {
    let plan = decide(view);
    if plan.steps.is_empty() && !view.sandbox.metadata.is_deleting() {
        return at_rest(view, plan);
    }
    plan
}

/// Before it rests, its record says that nothing is in flight and that its intent was seen:
/// somebody may be waiting to hear just that.
fn at_rest(view: View<'_>, plan: Plan<Step>) -> Plan<Step> {
    let status = &view.sandbox.status;
    let seen = status.observed_generation == view.sandbox.metadata.generation;
    let open = status
        .last_operation
        .as_ref()
        .filter(|op| op.state == OperationState::InFlight)
        .map(|op| op.kind);
    if seen && open.is_none() {
        return plan;
    }
    let mut status = settle(view, status.phase, open);
    if status.phase == Phase::Running && !seen {
        // Who changes what is wanted of it is using it.
        status.last_active_at = status.last_active_at.max(Some(view.now));
    }
    Plan::step(Step::Publish(status, None), plan.why)
}

fn decide(view: View<'_>) -> Plan<Step> {
    let View {
        sandbox,
        observed,
        due,
        ..
    } = view;
    let status = &sandbox.status;
    if sandbox.metadata.is_deleting() {
        return end(view);
    }
    if !sandbox.metadata.has_finalizer(SANDBOX_FINALIZER) {
        return Plan::step(Step::AddFinalizer, "the record must outlive its workload");
    }
    if matches!(status.phase, Phase::Stopped | Phase::Failed) {
        return after_the_end(view);
    }
    // With a durable layer the workload is a remnant or an attempt; its end ends nothing.
    if let (
        None,
        Observed::Present(Facts {
            state: WorkloadState::Exited { code },
            loss,
            ..
        }),
    ) = (&status.snapshot, observed)
    {
        if let Some(loss) = loss {
            return taken_away(view, *loss);
        }
        let reason = if *code == 0 {
            StopReason::Completed
        } else {
            StopReason::Failed
        };
        // Nothing of its owner's ended it then.
        let why = if status.phase == Phase::Paused {
            "its first process ended while it was frozen, as it does when the container runtime of \
             its node starts anew"
        } else {
            "its first process ended"
        };
        return stop(view, reason, Some(*code), why);
    }
    if is_replaced(sandbox, observed) {
        return lost(view);
    }
    if *observed == Observed::Partial {
        return Plan::step(
            Step::DeleteWorkload,
            "it was left half-made; only removal is safe",
        );
    }
    let asleep =
        status.phase == Phase::Paused || sandbox.spec.desired_state == DesiredState::Paused;
    if due.end && !asleep {
        return match sandbox.spec.timeouts.on_timeout {
            OnTimeout::Kill => Plan::step(
                Step::DeleteRecord(timed_out("ended")),
                "its deadline has passed",
            ),
            OnTimeout::Pause if may_try_to_sleep(view) => {
                Plan::step(Step::Intend(Intent::Pause), "its deadline has passed")
            }
            OnTimeout::Pause if observed.is_cut() => after_a_restart(view),
            OnTimeout::Pause => by_phase(view),
        };
    }
    if due.retention
        && status.phase == Phase::Paused
        && sandbox.spec.desired_state == DesiredState::Paused
    {
        const WHY: &str = "it slept for as long as it is kept";
        let note = note(Severity::Normal, "RetentionOver", &format!("ended: {WHY}"));
        return Plan::step(Step::DeleteRecord(note), WHY);
    }
    // Its owner may have heard of one that is ready, before this record could say so.
    if open_lease(sandbox).is_some() && (due.lease || due.claimer_lost) && !is_ready(view) {
        return too_late(view);
    }
    if observed.is_cut() {
        return after_a_restart(view);
    }
    // A change of what is wanted is a sign of use that must be recorded first.
    let seen = status.observed_generation == sandbox.metadata.generation;
    if due.idle && !asleep && seen && status.phase == Phase::Running && may_try_to_sleep(view) {
        return match (sandbox.spec.timeouts.idle_action, &sandbox.spec.pool) {
            (IdleAction::Pause, _) => {
                Plan::step(Step::Intend(Intent::Pause), "it has been idle for too long")
            }
            (IdleAction::Release, Some(_)) => end_unused(
                view,
                OperationKind::Release,
                Step::Intend(Intent::Release(StopCause::IdleTimeout)),
            ),
            (IdleAction::Kill, _) | (IdleAction::Release, None) => {
                let note = note(
                    Severity::Normal,
                    "Idle",
                    "ended: it has been idle for too long",
                );
                end_unused(view, OperationKind::Stop, Step::DeleteRecord(note))
            }
        };
    }
    if was_released(sandbox) {
        return release(view);
    }
    by_phase(view)
}

/// Ends or releases a sandbox that has been idle for too long. It is closed first: whoever was let in
/// since it was found idle is seen after that, and then it goes on as it was.
fn end_unused(view: View<'_>, kind: OperationKind, step: Step) -> Plan<Step> {
    let operation = view.sandbox.status.last_operation.as_deref();
    let is_begun = |op: &Operation| {
        op.kind == kind
            && op.state == OperationState::InFlight
            && op.generation == view.sandbox.metadata.generation
    };
    if operation.is_some_and(is_begun) {
        let step = Step::IfUnused(Box::new(step));
        return Plan::step(step, "it has been idle for too long");
    }
    let status = begin(view, kind, Phase::Running);
    let why = "it has been idle for too long, and is closed before it ends";
    Plan::step(Step::Publish(status, None), why)
}

/// Whether the workload that a sandbox was published with is gone and another stands in its place,
/// as a belated effect of its first start leaves one: nothing of its owner's is in there.
fn is_replaced(sandbox: &Sandbox, observed: &Observed) -> bool {
    let status = &sandbox.status;
    let published = match status.phase {
        Phase::Running | Phase::Pausing => true,
        Phase::Paused => status.snapshot.is_none(),
        Phase::Pending
        | Phase::Starting
        | Phase::Idle
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Failed
        | Phase::Unknown => false,
    };
    match observed {
        // What was told to a host that died need not be known to it; its files are.
        Observed::Present(facts) if facts.state == WorkloadState::Cut => false,
        Observed::Present(facts) => published && facts.epoch != status.armed_epoch,
        Observed::Absent | Observed::Coming | Observed::Partial => false,
    }
}

/// Whether the runtime shows what the record says of a sandbox at rest. Nobody is told when a
/// workload changes by itself; whoever compares the two from time to time finds out by this.
#[must_use]
pub fn agrees(sandbox: &Sandbox, observed: &Observed) -> bool {
    if is_replaced(sandbox, observed) {
        return false;
    }
    let state = match observed {
        Observed::Absent => None,
        Observed::Partial => return false,
        Observed::Coming => {
            return matches!(sandbox.status.phase, Phase::Starting | Phase::Resuming);
        }
        Observed::Present(facts) => Some(facts.state),
    };
    match sandbox.status.phase {
        Phase::Idle | Phase::Running => state == Some(WorkloadState::Running),
        Phase::Paused if sandbox.status.snapshot.is_some() => state.is_none(),
        Phase::Paused => state == Some(WorkloadState::Frozen),
        Phase::Stopped | Phase::Failed => state.is_none(),
        // On its way: its own turns look.
        Phase::Pending
        | Phase::Starting
        | Phase::Pausing
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Unknown => true,
    }
}

/// Whether a delivery has all it needs, by what is seen of its workload. From here on its owner may
/// hear of it: that it goes on is not taken back any more.
fn is_ready(view: View<'_>) -> bool {
    let spec = &view.sandbox.spec;
    match view.observed {
        Observed::Present(facts) => {
            facts.booted
                && facts.epoch == spec.epoch
                && is_hooked(view, facts)
                && is_dressed(spec, facts)
        }
        Observed::Absent | Observed::Coming | Observed::Partial => false,
    }
}

/// Whether its hooks were run for this delivery.
fn is_hooked(view: View<'_>, facts: &Facts) -> bool {
    let epoch = view.sandbox.spec.epoch;
    !view.hooks || facts.hooked.as_ref().is_some_and(|it| it.epoch == epoch)
}

/// Whether its containers run the images that they should.
fn is_dressed(spec: &SandboxSpec, facts: &Facts) -> bool {
    let mut wanted = spec.wanted_images().iter();
    wanted.all(|(container, image)| facts.runs(container, image))
}

/// A delivery that nobody will hear of: it was not ready in time, or who would have told its owner
/// is gone.
fn too_late(view: View<'_>) -> Plan<Step> {
    let (cause, why) = if view.due.claimer_lost {
        (
            StopCause::ClaimerLost,
            "who claimed it died before it was ready",
        )
    } else {
        (
            StopCause::StartupTimeout,
            "it was not ready for its owner in time",
        )
    };
    if view.sandbox.spec.pool.is_some() {
        return Plan::step(Step::Intend(Intent::Release(cause)), why);
    }
    Plan::step(
        Step::DeleteRecord(note(Severity::Warning, "StartupTimeout", why)),
        why,
    )
}

/// What becomes of a sandbox whose host has restarted: its processes are gone, its files are not. One
/// that was its owner's is put to sleep on them; any other is made again.
fn after_a_restart(view: View<'_>) -> Plan<Step> {
    let (spec, status) = (&view.sandbox.spec, &view.sandbox.status);
    const WHY: &str = "the host restarted";
    // What stands beside a durable layer is its remnant, or an attempt nobody has heard of; what
    // was not delivered yet is nobody's.
    if status.snapshot.is_some() || status.phase == Phase::Starting {
        return Plan::step(Step::DeleteWorkload, WHY);
    }
    let delivered = spec.owner.is_some() && status.armed_epoch == spec.epoch;
    if !delivered || operation_failed(view, OperationKind::Pause) {
        return stop(view, StopReason::Failed, None, WHY);
    }
    match spec.desired_state {
        DesiredState::Running => Plan::step(Step::Intend(Intent::Pause), WHY),
        DesiredState::Paused => Plan::step(Step::Capture, "the host restarted; its files are kept"),
    }
}

fn end(view: View<'_>) -> Plan<Step> {
    let View {
        sandbox, observed, ..
    } = view;
    if !sandbox.metadata.has_finalizer(SANDBOX_FINALIZER) {
        return Plan::rest("others still have to clean up");
    }
    match (observed, sandbox.status.phase) {
        (Observed::Absent, _) => Plan::step(Step::RemoveFinalizer, "nothing is left of it"),
        (Observed::Coming | Observed::Partial | Observed::Present(_), Phase::Stopping) => {
            Plan::step(Step::DeleteWorkload, "its deletion was asked for")
        }
        (Observed::Coming | Observed::Partial | Observed::Present(_), _) => {
            let status = begin(view, OperationKind::Stop, Phase::Stopping);
            Plan::step(Step::Publish(status, None), "its deletion was asked for")
        }
    }
}

fn after_the_end(view: View<'_>) -> Plan<Step> {
    if *view.observed != Observed::Absent {
        return Plan::step(Step::DeleteWorkload, "it has ended; its remains go");
    }
    if view.due.end {
        return Plan::step(
            Step::DeleteRecord(timed_out("forgotten")),
            "its deadline has passed",
        );
    }
    // Who waited for it was told, or has gone: a pool would count it for ever.
    if open_lease(view.sandbox).is_some() && (view.due.lease || view.due.claimer_lost) {
        const WHY: &str = "it ended before it was ready for its owner";
        let note = note(Severity::Normal, "Forgotten", WHY);
        return Plan::step(Step::DeleteRecord(note), WHY);
    }
    Plan::rest("it has ended")
}

fn stop(view: View<'_>, reason: StopReason, exit_code: Option<i32>, message: &str) -> Plan<Step> {
    stop_by(view, reason, exit_code, None, message)
}

/// A workload that did not end by itself.
fn taken_away(view: View<'_>, loss: Loss) -> Plan<Step> {
    let cause = match loss {
        Loss::Evicted => StopCause::Evicted,
        Loss::NodeLost => StopCause::NodeLost,
        Loss::Removed => StopCause::Lost,
    };
    stop_by(view, StopReason::Failed, None, Some(cause), loss.message())
}

fn stop_by(
    view: View<'_>,
    reason: StopReason,
    exit_code: Option<i32>,
    cause: Option<StopCause>,
    message: &str,
) -> Plan<Step> {
    let mut status = settle(view, Phase::Stopped, None);
    // Its owner may have heard of it before a record could say so: it ended as its owner's.
    if view.sandbox.spec.owner.is_some() && is_ready(view) {
        status.armed_epoch = view.sandbox.spec.epoch;
        status.started_at.get_or_insert(view.now);
    }
    let delivered = status.armed_epoch == view.sandbox.spec.epoch;
    let reason = match (reason, status.started_at) {
        (StopReason::Completed, None) => StopReason::Canceled,
        (other, _) => other,
    };
    status.stopped = Some(Box::new(Stopped {
        reason,
        at: view.now,
        exit_code,
        cause: cause.or(Some(match exit_code {
            Some(_) => StopCause::Exited,
            None if delivered => StopCause::Lost,
            None => StopCause::StartFailed,
        })),
        message: message.into(),
    }));
    status.address = None;
    if let Some(op) = status
        .last_operation
        .as_mut()
        .filter(|op| op.state == OperationState::InFlight)
    {
        op.state = OperationState::Failed;
        op.error.get_or_insert_with(|| message.into());
    }
    let severity = if reason == StopReason::Failed {
        Severity::Warning
    } else {
        Severity::Normal
    };
    Plan::step(
        Step::Publish(status, Some(note(severity, "Stopped", message))),
        "it has ended",
    )
}

fn release(view: View<'_>) -> Plan<Step> {
    let status = &view.sandbox.status;
    let gone = |why| {
        let note = note(
            Severity::Normal,
            "Released",
            "removed after its owner released it",
        );
        Plan::step(Step::DeleteRecord(note), why)
    };
    if view.recycle == RecyclePolicy::Destroy {
        return gone("its pool does not recycle");
    }
    // Only what was captured would be left of it; a pool member resumes nobody's layer.
    if status.snapshot.is_some() || *view.observed == Observed::Absent {
        return gone("there is no workload to clean");
    }
    let spec = &view.sandbox.spec;
    if spec.idle_images.is_empty() && !spec.images.is_empty() {
        return gone("nobody knows which images it idled on");
    }
    // What was begun for its owner may still be on its way, and nothing seen now proves otherwise.
    if status.armed_epoch != view.sandbox.spec.epoch {
        return gone("it was released before it was ready");
    }
    let failed = operation_failed(view, OperationKind::Release);
    match (status.phase, view.observed) {
        (_, _) if failed => gone("it could not be cleaned"),
        (Phase::Stopping, Observed::Present(facts))
            if facts.epoch.0 == 0 && !is_dressed(spec, facts) =>
        {
            Plan::step(Step::Reset, "it runs images of its last owner's")
        }
        (Phase::Stopping, Observed::Present(facts)) if facts.epoch.0 == 0 && !facts.booted => {
            Plan::step(Step::Boot, NOT_UP)
        }
        (Phase::Stopping, Observed::Present(facts)) if facts.epoch.0 == 0 => {
            let mut clean = settle(view, Phase::Idle, Some(OperationKind::Release));
            clean.recycled_epoch = view.sandbox.spec.epoch;
            clean.armed_epoch = model::Epoch::default();
            clean.started_at = None;
            clean.paused_at = None;
            clean.last_active_at = None;
            clean.sleeps = Sleeps::default();
            let note = note(
                Severity::Normal,
                "Recycled",
                "nothing of its last owner is left",
            );
            Plan::step(Step::Publish(clean, Some(note)), "it is clean")
        }
        (Phase::Stopping, _) => Plan::step(Step::Reset, "its owner released it"),
        (_, _) => {
            let status = begin(view, OperationKind::Release, Phase::Stopping);
            Plan::step(Step::Publish(status, None), "its owner released it")
        }
    }
}

fn by_phase(view: View<'_>) -> Plan<Step> {
    match view.sandbox.status.phase {
        Phase::Pending => origin::pending(view),
        Phase::Starting => starting(view),
        Phase::Idle => idle(view),
        Phase::Running => running(view),
        Phase::Pausing => pausing(view),
        Phase::Paused => paused(view),
        Phase::Resuming => resuming(view),
        Phase::Unknown => find_out(view),
        // Only a release stops without deletion, and was handled; no claim is admitted here.
        Phase::Stopping => Plan::rest("it was given an owner while being released"),
        Phase::Stopped | Phase::Failed => Plan::rest("it has ended"),
    }
}

fn starting(view: View<'_>) -> Plan<Step> {
    let Observed::Present(facts) = view.observed else {
        if operation_failed(view, OperationKind::Start) {
            let status = settle(view, Phase::Failed, None);
            let message = error_of(view);
            let note = note(Severity::Warning, "StartFailed", &message);
            return Plan::step(Step::Publish(status, Some(note)), "it could not be started");
        }
        return match origin::first_layer(view) {
            Ok(layer) => Plan::step(Step::Create(layer), "it has no workload yet"),
            Err(plan) => plan,
        };
    };
    if operation_failed(view, OperationKind::Start) {
        return Plan::step(Step::DeleteWorkload, "it could not be made ready");
    }
    deliver(view, facts)
}

fn idle(view: View<'_>) -> Plan<Step> {
    match view.observed {
        Observed::Absent | Observed::Coming | Observed::Partial => lost(view),
        Observed::Present(_) if operation_failed(view, OperationKind::Arm) => {
            stop(view, StopReason::Failed, None, &error_of(view))
        }
        Observed::Present(facts) => deliver(view, facts),
    }
}

/// From a workload that runs to a sandbox its owner may hear of.
fn deliver(view: View<'_>, facts: &Facts) -> Plan<Step> {
    let spec = &view.sandbox.spec;
    if facts.state == WorkloadState::Frozen {
        return Plan::step(Step::Thaw, "it must be awake to be made ready");
    }
    if let Some(plan) = network(view, facts) {
        return plan;
    }
    if spec.owner.is_none() && spec.pool.is_some() {
        if !facts.booted {
            return Plan::step(Step::Boot, NOT_UP);
        }
        if view.sandbox.status.phase == Phase::Idle {
            return Plan::rest("it waits to be claimed");
        }
        let status = settle(view, Phase::Idle, Some(OperationKind::Start));
        return Plan::step(Step::Publish(status, None), "it is ready to be claimed");
    }
    if !is_dressed(spec, facts) {
        return Plan::step(Step::SwapImages, "its owner asked for other images");
    }
    if !facts.booted {
        return Plan::step(Step::Boot, NOT_UP);
    }
    if facts.epoch != spec.epoch && facts.epoch.0 != 0 {
        let why = "the settings of another delivery are inside";
        return stop(view, StopReason::Failed, None, why);
    }
    if facts.epoch != spec.epoch {
        return Plan::step(Step::Arm, "its owner's settings are not in place");
    }
    if !is_hooked(view, facts) {
        return Plan::step(Step::RunHooks, "its hooks were not run");
    }
    awake(view, facts, "it is ready")
}

fn awake(view: View<'_>, facts: &Facts, why: &'static str) -> Plan<Step> {
    let kind = match view.sandbox.status.phase {
        Phase::Paused | Phase::Resuming => OperationKind::Resume,
        Phase::Pausing => OperationKind::Pause,
        Phase::Idle => OperationKind::Arm,
        Phase::Pending
        | Phase::Starting
        | Phase::Running
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Failed
        | Phase::Unknown => OperationKind::Start,
    };
    let mut status = settle(view, Phase::Running, Some(kind));
    if kind == OperationKind::Resume {
        let from = match status.snapshot {
            Some(_) => SnapshotType::Rootfs,
            None => SnapshotType::Freeze,
        };
        status.sleeps.woken = status.sleeps.woken.saturating_add(1);
        status.sleeps.last_woken_at = Some(view.now);
        status.sleeps.last_woken_from = Some(from);
    }
    status.started_at.get_or_insert(view.now);
    status.last_active_at = status.last_active_at.max(Some(view.now));
    status.address = Some(facts.address.clone());
    status.armed_epoch = facts.epoch;
    status.images = facts.images.clone();
    status.paused_at = None;
    status.snapshot = None;
    status.snapshot_size = 0;
    status.snapshot_image = None;
    let said = match kind {
        // Hooks are run for a delivery, not for a wake.
        OperationKind::Resume | OperationKind::Pause => None,
        _ => hooked(&mut status, facts, view.now),
    };
    let said = said.unwrap_or_else(|| note(Severity::Normal, "Running", why));
    Plan::step(Step::Publish(status, Some(said)), why)
}

/// What it may reach, where that is not as wanted yet.
fn network(view: View<'_>, facts: &Facts) -> Option<Plan<Step>> {
    let given_up = operation_failed(view, OperationKind::Network);
    (facts.network != view.sandbox.spec.network && !given_up)
        .then(|| Plan::step(Step::SetNetwork, "it may reach other things than it should"))
}

fn find_out(view: View<'_>) -> Plan<Step> {
    let (spec, status) = (&view.sandbox.spec, &view.sandbox.status);
    let unowned = spec.owner.is_none() && spec.pool.is_some();
    let sleeps = spec.desired_state == DesiredState::Paused && rung(view) == SnapshotType::Freeze;
    let phase = match view.observed {
        // A workload beside a durable layer is its remnant, or an attempt nobody has heard of.
        _ if status.snapshot.is_some() => Phase::Paused,
        _ if status.started_at.is_none() || unowned => Phase::Starting,
        Observed::Absent | Observed::Coming | Observed::Partial => return lost(view),
        Observed::Present(facts) if facts.state == WorkloadState::Frozen && sleeps => Phase::Paused,
        Observed::Present(_) => Phase::Running,
    };
    let mut status = settle(view, phase, Some(OperationKind::Inspect));
    if phase == Phase::Paused {
        status.paused_at.get_or_insert(view.now);
    }
    Plan::step(Step::Publish(status, None), "the runtime answers again")
}

fn lost(view: View<'_>) -> Plan<Step> {
    stop(view, StopReason::Failed, None, "its workload was lost")
}

/// The record of a sandbox whose runtime cannot be asked.
#[must_use]
pub fn unknown(view: View<'_>, error: &str) -> SandboxStatus {
    // What has ended stays so: it would be found lost, or be started anew.
    let phase = match view.sandbox.status.phase {
        ended @ (Phase::Stopped | Phase::Failed) => ended,
        _ => Phase::Unknown,
    };
    let mut status = settle(view, phase, None);
    if operation_failed(view, OperationKind::Start) {
        return *status;
    }
    status.last_operation = Some(Box::new(Operation {
        kind: OperationKind::Inspect,
        id: next_id(&view.sandbox.status),
        generation: view.sandbox.metadata.generation,
        state: OperationState::InFlight,
        started_at: view.now,
        attempts: 1,
        error: Some(error.into()),
    }));
    *status
}

#[cfg(test)]
mod tests;
