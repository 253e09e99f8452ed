//! Tables: where it stands, what is wanted and what is seen, against the next step.

mod checks;
mod closing;
mod delivery;
mod lease;
mod life;
mod losses;
mod origins;
mod rules;
mod world;

use model::{Epoch, Generation, sandbox::PausePolicy};

use super::*;
use world::{facts, owner, record};

/// A step in a word: what is published is named by its phase.
fn word(step: &Step) -> String {
    match step {
        Step::Publish(status, _) => format!("→{}", status.phase),
        Step::Intend(intent) => format!("Intend {intent:?}"),
        Step::DeleteRecord(_) => "DeleteRecord".into(),
        Step::IfUnused(step) => format!("{} if unused", word(step)),
        Step::Create(Some(_)) => "Create from layer".into(),
        Step::Create(None) => "Create".into(),
        other => format!("{other:?}"),
    }
}

/// The one next step: whoever performs it looks again.
fn words(plan: &Plan<Step>) -> String {
    assert!(!plan.why.is_empty() && plan.steps.len() < 2, "{plan:?}");
    plan.steps.first().map_or("rest".into(), word)
}

fn layer() -> Digest {
    Digest::new(format!("sha256:{:064x}", 1)).unwrap()
}

const T0: Timestamp = Timestamp::from_micros(1_000_000);

/// A sandbox of its owner, as a life would have brought it into this phase.
fn standing(phase: Phase) -> Sandbox {
    let mut sandbox = record(false);
    sandbox.metadata.finalizers.push(SANDBOX_FINALIZER.into());
    let status = &mut sandbox.status;
    status.phase = phase;
    status.observed_generation = Generation(1);
    if !matches!(
        phase,
        Phase::Pending | Phase::Starting | Phase::Idle | Phase::Failed
    ) {
        status.started_at = Some(T0);
        status.armed_epoch = Epoch(1);
    }
    if phase == Phase::Resuming {
        status.snapshot = Some(layer());
    }
    sandbox
}

/// A member of a pool; one with an owner is in its first delivery.
fn member(phase: Phase, owned: bool) -> Sandbox {
    let mut sandbox = standing(phase);
    sandbox.spec.pool = Some(model::Name::new("pool").unwrap());
    sandbox.spec.idle_images = std::mem::take(&mut sandbox.spec.images);
    if !owned {
        sandbox.spec.owner = None;
        sandbox.spec.epoch = Epoch(0);
    }
    sandbox
}

fn with_layer(mut sandbox: Sandbox) -> Sandbox {
    sandbox.status.snapshot = Some(layer());
    sandbox
}

fn sleeping_by(mut sandbox: Sandbox, snapshot_type: SnapshotType) -> Sandbox {
    sandbox.spec.pause_policy = Some(Box::new(PausePolicy {
        snapshot_type,
        ..PausePolicy::default()
    }));
    sandbox
}

fn deleting(mut sandbox: Sandbox) -> Sandbox {
    sandbox.metadata.deletion_timestamp = Some(T0);
    sandbox
}

/// Absent, partial, running, frozen, exited: armed for the delivery unless it waits for it.
fn sights(sandbox: &Sandbox) -> [Observed; 5] {
    let epoch = match sandbox.status.phase {
        Phase::Pending | Phase::Starting | Phase::Idle => Epoch(0),
        _ => sandbox.spec.epoch,
    };
    let seen = |state| {
        let mut facts = facts(state, epoch, sandbox.spec.wanted_images());
        facts.layer.clone_from(&sandbox.status.snapshot);
        Observed::Present(facts)
    };
    [
        Observed::Absent,
        Observed::Partial,
        seen(WorkloadState::Running),
        seen(WorkloadState::Frozen),
        seen(WorkloadState::Exited { code: 1 }),
    ]
}

fn next(sandbox: &Sandbox, observed: &Observed, due: Due, recycle: RecyclePolicy) -> Plan<Step> {
    plan_sandbox(View {
        sandbox,
        observed,
        due,
        base: Base::Images,
        recycle,
        undrained: false,
        hooks: false,
        can: Abilities::ALL,
        now: T0,
    })
}

const AWAKE: DesiredState = DesiredState::Running;
const ASLEEP: DesiredState = DesiredState::Paused;

/// One row: the next step for what is wanted, at each sight.
#[track_caller]
fn row(sandbox: &Sandbox, desired: DesiredState, expected: [&str; 5]) {
    let mut sandbox = sandbox.clone();
    sandbox.spec.desired_state = desired;
    let plan = |seen| {
        words(&next(
            &sandbox,
            seen,
            Due::default(),
            RecyclePolicy::Recycle,
        ))
    };
    let got: Vec<_> = sights(&sandbox).iter().map(plan).collect();
    assert_eq!(got, expected, "{} wanted {desired:?}", sandbox.status.phase);
}

/// Both rows, where what is wanted makes no difference.
#[track_caller]
fn rows(sandbox: &Sandbox, expected: [&str; 5]) {
    row(sandbox, AWAKE, expected);
    row(sandbox, ASLEEP, expected);
}

const REMOVE: &str = "DeleteWorkload";

#[test]
fn a_new_one_records_that_it_starts_before_anything_is_made() {
    rows(
        &standing(Phase::Pending),
        ["→Starting", REMOVE, "→Starting", "→Starting", "→Stopped"],
    );
}

#[test]
fn a_record_is_held_before_anything_else() {
    let mut sandbox = standing(Phase::Pending);
    sandbox.metadata.finalizers.clear();
    rows(&sandbox, ["AddFinalizer"; 5]);
}

#[test]
fn a_starting_one_is_armed_before_its_owner_hears_of_it() {
    let expected = ["Create", REMOVE, "Arm", "Thaw", "→Stopped"];
    rows(&standing(Phase::Starting), expected);
    rows(&member(Phase::Starting, true), expected);
    rows(
        &member(Phase::Starting, false),
        ["Create", REMOVE, "→Idle", "Thaw", "→Stopped"],
    );
}

#[test]
fn an_idle_one_waits_for_a_claim_and_is_then_armed() {
    rows(
        &member(Phase::Idle, false),
        ["→Stopped", REMOVE, "rest", "Thaw", "→Stopped"],
    );
    let claimed = member(Phase::Idle, true);
    rows(&claimed, ["→Stopped", REMOVE, "Arm", "Thaw", "→Stopped"]);
    let mut other_image = claimed;
    let seen = sights(&other_image);
    other_image.spec.images.insert("main", "theirs:2");
    let plan = next(
        &other_image,
        &seen[2],
        Due::default(),
        RecyclePolicy::Recycle,
    );
    assert_eq!(words(&plan), "SwapImages");
}

#[test]
fn a_running_one_follows_its_workload_and_then_what_is_wanted() {
    let frozen = standing(Phase::Running);
    row(
        &frozen,
        AWAKE,
        ["→Stopped", REMOVE, "rest", "Thaw", "→Stopped"],
    );
    row(
        &frozen,
        ASLEEP,
        ["→Stopped", REMOVE, "Freeze", "→Paused", "→Stopped"],
    );
    let captured = sleeping_by(frozen, SnapshotType::Rootfs);
    row(
        &captured,
        AWAKE,
        ["→Stopped", REMOVE, "rest", "Thaw", "→Stopped"],
    );
    row(
        &captured,
        ASLEEP,
        ["→Stopped", REMOVE, "→Pausing", "→Pausing", "→Stopped"],
    );
}

#[test]
fn a_pausing_one_is_frozen_then_captured_and_thawed_only_if_called_off() {
    let sandbox = sleeping_by(standing(Phase::Pausing), SnapshotType::Rootfs);
    row(
        &sandbox,
        ASLEEP,
        ["→Stopped", REMOVE, "Freeze", "Capture", "→Stopped"],
    );
    row(
        &sandbox,
        AWAKE,
        ["→Stopped", REMOVE, "→Running", "Thaw", "→Stopped"],
    );
}

#[test]
fn a_frozen_one_sleeps_and_wakes_by_a_thaw() {
    let sandbox = standing(Phase::Paused);
    row(
        &sandbox,
        ASLEEP,
        ["→Stopped", REMOVE, "Freeze", "rest", "→Stopped"],
    );
    row(
        &sandbox,
        AWAKE,
        ["→Stopped", REMOVE, "→Running", "Thaw", "→Stopped"],
    );
}

#[test]
fn a_captured_one_is_released_whatever_is_wanted_and_however_its_workload_ended() {
    let sandbox = with_layer(standing(Phase::Paused));
    row(&sandbox, ASLEEP, ["rest", REMOVE, REMOVE, REMOVE, REMOVE]);
    row(
        &sandbox,
        AWAKE,
        ["→Resuming", REMOVE, REMOVE, REMOVE, REMOVE],
    );
}

#[test]
fn a_resuming_one_is_made_from_its_layer_or_stays_asleep() {
    let sandbox = standing(Phase::Resuming);
    row(
        &sandbox,
        AWAKE,
        ["Create from layer", REMOVE, "→Running", "Thaw", "→Resuming"],
    );
    row(
        &sandbox,
        ASLEEP,
        ["→Paused", REMOVE, "→Paused", "→Paused", "→Paused"],
    );
    let mut bare = facts(
        WorkloadState::Running,
        Epoch(0),
        sandbox.spec.wanted_images(),
    );
    let late = Observed::Present(bare.clone());
    let plan = next(&sandbox, &late, Due::default(), RecyclePolicy::Recycle);
    assert_eq!(
        words(&plan),
        REMOVE,
        "a late first start has none of its files"
    );
    bare.layer = Some(layer());
    let bare = Observed::Present(bare);
    let plan = next(&sandbox, &bare, Due::default(), RecyclePolicy::Recycle);
    assert_eq!(
        words(&plan),
        "Arm",
        "a new workload knows nothing of its owner"
    );
}

#[test]
fn a_released_one_is_cleaned_or_goes_from_every_phase() {
    let released = |phase| {
        let mut sandbox = member(phase, true);
        sandbox.spec.owner = None;
        sandbox
    };
    let gone = "DeleteRecord";
    for phase in [
        Phase::Running,
        Phase::Pausing,
        Phase::Paused,
        Phase::Unknown,
    ] {
        rows(
            &released(phase),
            [gone, REMOVE, "→Stopping", "→Stopping", "→Stopped"],
        );
    }
    let stopping = released(Phase::Stopping);
    rows(&stopping, [gone, REMOVE, "Reset", "Reset", "→Stopped"]);
    let clean = facts(
        WorkloadState::Running,
        Epoch(0),
        stopping.spec.wanted_images(),
    );
    let clean = Observed::Present(clean);
    let plan = next(&stopping, &clean, Due::default(), RecyclePolicy::Recycle);
    assert_eq!(words(&plan), "→Idle");
    // Not ready yet: an arming may be on its way.
    rows(
        &released(Phase::Idle),
        [gone, REMOVE, gone, gone, "→Stopped"],
    );
    rows(
        &with_layer(released(Phase::Paused)),
        [gone, REMOVE, gone, gone, gone],
    );
}

#[test]
fn an_ended_one_is_cleared_away_and_rests() {
    for phase in [Phase::Stopped, Phase::Failed] {
        rows(&standing(phase), ["rest", REMOVE, REMOVE, REMOVE, REMOVE]);
        rows(
            &member(phase, false),
            ["rest", REMOVE, REMOVE, REMOVE, REMOVE],
        );
    }
}

#[test]
fn an_unknown_one_is_what_the_runtime_shows() {
    let sandbox = standing(Phase::Unknown);
    row(
        &sandbox,
        AWAKE,
        ["→Stopped", REMOVE, "→Running", "→Running", "→Stopped"],
    );
    row(
        &sandbox,
        ASLEEP,
        ["→Stopped", REMOVE, "→Running", "→Paused", "→Stopped"],
    );
    // One that sleeps by capture has not fallen asleep while it is only frozen.
    let captured = sleeping_by(sandbox.clone(), SnapshotType::Rootfs);
    row(
        &captured,
        ASLEEP,
        ["→Stopped", REMOVE, "→Running", "→Running", "→Stopped"],
    );
    // Beside a durable layer no workload counts.
    let layered = with_layer(sandbox.clone());
    rows(
        &layered,
        ["→Paused", REMOVE, "→Paused", "→Paused", "→Paused"],
    );
    // One that never ran starts.
    let mut new = sandbox;
    new.status.started_at = None;
    rows(
        &new,
        ["→Starting", REMOVE, "→Starting", "→Starting", "→Stopped"],
    );
}

#[test]
fn deletion_ends_the_workload_and_then_lets_go_from_every_phase() {
    for phase in Phase::ALL {
        for sandbox in [
            standing(phase),
            with_layer(standing(phase)),
            member(phase, false),
        ] {
            let first = if phase == Phase::Stopping {
                REMOVE
            } else {
                "→Stopping"
            };
            rows(
                &deleting(sandbox),
                ["RemoveFinalizer", first, first, first, first],
            );
        }
    }
    let mut held_by_others = deleting(standing(Phase::Running));
    held_by_others.metadata.finalizers.clear();
    rows(&held_by_others, ["rest"; 5]);
}

#[test]
fn every_published_phase_is_drawn_in_the_machine() {
    for phase in Phase::ALL {
        let owned = [
            standing(phase),
            member(phase, true),
            with_layer(standing(phase)),
        ];
        let mut released = member(phase, true);
        released.spec.owner = None;
        let free = [member(phase, false), released, deleting(standing(phase))];
        for mut sandbox in owned.into_iter().chain(free) {
            for desired in [AWAKE, ASLEEP] {
                sandbox.spec.desired_state = desired;
                for rung in [SnapshotType::Freeze, SnapshotType::Rootfs] {
                    let sandbox = sleeping_by(sandbox.clone(), rung);
                    for seen in sights(&sandbox) {
                        let plan = next(&sandbox, &seen, Due::default(), RecyclePolicy::Recycle);
                        check_phases(phase, &plan);
                    }
                }
            }
        }
    }
}

fn check_phases(from: Phase, plan: &Plan<Step>) {
    assert!(!plan.why.is_empty(), "{plan:?}");
    for step in &plan.steps {
        if let Step::Publish(status, _) = step {
            let to = status.phase;
            assert!(
                from.may_become(to),
                "{from} may not become {to}: {}",
                plan.why
            );
        }
    }
}

#[test]
fn an_owner_is_told_apart_from_a_pool() {
    assert!(!was_released(&standing(Phase::Running)));
    assert!(
        !was_released(&member(Phase::Idle, false)),
        "never delivered"
    );
    let mut sandbox = member(Phase::Idle, false);
    sandbox.spec.epoch = Epoch(2);
    assert!(was_released(&sandbox));
    sandbox.status.recycled_epoch = Epoch(2);
    assert!(!was_released(&sandbox), "proven clean");
    sandbox.spec.epoch = Epoch(3);
    sandbox.spec.owner = Some(owner());
    assert!(!was_released(&sandbox), "claimed");
}

#[test]
fn a_workload_of_another_delivery_is_not_the_one_that_was_published() {
    for phase in [Phase::Running, Phase::Pausing, Phase::Paused] {
        let sandbox = standing(phase);
        let late = facts(
            WorkloadState::Running,
            Epoch(0),
            sandbox.spec.wanted_images(),
        );
        let late = Observed::Present(late);
        assert!(!super::agrees(&sandbox, &late));
        let plan = next(&sandbox, &late, Due::default(), RecyclePolicy::Recycle);
        assert_eq!(words(&plan), "→Stopped", "{phase}");
    }
}
