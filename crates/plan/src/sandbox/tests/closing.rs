//! What is closed before anything is done to what may be inside.

use model::{
    lifecycle::{Request, is_closing},
    sandbox::{OperationState, Timeouts},
};

use super::{
    rules::{ask, running, then, until},
    *,
};

const IDLE: Due = Due {
    end: false,
    idle: true,
    descend: false,
    retention: false,
    retry: false,
    lease: false,
    claimer_lost: false,
};

fn plan(sandbox: &Sandbox, due: Due) -> Plan<Step> {
    let seen = &sights(sandbox)[2];
    next(sandbox, seen, due, RecyclePolicy::Recycle)
}

#[test]
fn an_idle_sandbox_is_closed_before_it_is_ended_or_released() {
    let pooled = member(Phase::Running, true);
    let alone = standing(Phase::Running);
    let rows = [
        (&alone, IdleAction::Kill, "DeleteRecord if unused"),
        (&alone, IdleAction::Release, "DeleteRecord if unused"),
        (&pooled, IdleAction::Kill, "DeleteRecord if unused"),
        (
            &pooled,
            IdleAction::Release,
            "Intend Release(IdleTimeout) if unused",
        ),
    ];
    for (sandbox, idle_action, expected) in rows {
        let mut sandbox = sandbox.clone();
        sandbox.spec.timeouts = Timeouts {
            idle_action,
            idle_seconds: Some(60),
            ..Timeouts::default()
        };
        let Some(Step::Publish(status, _)) = plan(&sandbox, IDLE).steps.pop() else {
            panic!("{idle_action:?}: it is closed first");
        };
        assert_eq!(status.phase, Phase::Running, "it is not over yet");
        sandbox.status = *status;
        assert!(is_closing(&sandbox));
        assert_eq!(words(&plan(&sandbox, IDLE)), expected, "{idle_action:?}");
        // Somebody was inside, or wants something of it: it goes on, open.
        let mut wanted = sandbox.clone();
        wanted.metadata.generation.0 += 1;
        for (sandbox, due) in [(sandbox, Due::default()), (wanted, IDLE)] {
            let Some(Step::Publish(status, _)) = plan(&sandbox, due).steps.pop() else {
                panic!("{idle_action:?}: it is opened again");
            };
            let mut open = sandbox.clone();
            open.status = *status;
            assert!(!is_closing(&open), "{idle_action:?}");
            let operation = open.status.last_operation.unwrap();
            assert_eq!(operation.state, OperationState::Succeeded);
        }
    }
}

#[test]
fn a_pause_that_meets_the_freeze_of_a_snapshot_lets_what_is_inside_end() {
    for rung in [SnapshotType::Freeze, SnapshotType::Rootfs] {
        let mut world = running(rung);
        world.freeze();
        ask(&mut world, Request::Pause);
        until(&mut world, "Thaw");
        assert_eq!(then(&world), "Thaw", "{rung:?}");
        until(&mut world, "Freeze");
        assert!(world.undrained, "{rung:?}");
        world.tick(super::world::Fault::None);
        assert!(!world.undrained, "{rung:?}");
        assert_ne!(then(&world), "Thaw", "{rung:?}");
    }
}
