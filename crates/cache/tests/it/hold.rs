use cache::OperationConflict;
use model::lifecycle::{OperationKind, Phase};

use crate::world::{World, at, in_phase, within};

#[tokio::test(start_paused = true)]
async fn the_same_operation_joins_and_another_is_refused() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let first = cache.hold(&at("a"), OperationKind::Pause).unwrap();
    let second = cache.hold(&at("a"), OperationKind::Pause).unwrap();
    let refused = cache.hold(&at("a"), OperationKind::Resume).unwrap_err();
    let current = OperationKind::Pause;
    assert_eq!(refused, OperationConflict { current });
    let other = cache.hold(&at("b"), OperationKind::Resume).unwrap();
    assert_eq!(other.kind(), OperationKind::Resume);

    drop(first);
    assert!(
        cache.hold(&at("a"), OperationKind::Resume).is_err(),
        "one still holds it"
    );
    drop(second);
    let after = cache.hold(&at("a"), OperationKind::Resume).unwrap();
    assert_eq!(after.key(), &at("a"));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_dropped_leaves_nothing_behind() {
    let world = World::new();
    let cache = world.sandboxes().await;
    for n in 0..1000 {
        let key = at(&format!("n{n}"));
        let first = cache.hold(&key, OperationKind::Stop).unwrap();
        let second = cache.hold(&key, OperationKind::Stop).unwrap();
        assert!(cache.hold(&key, OperationKind::Pause).is_err());
        assert_eq!(cache.stats().held_keys, 1);
        drop((first, second));
    }
    assert_eq!(cache.stats().held_keys, 0);
}

#[tokio::test(start_paused = true)]
async fn joined_operations_all_see_the_effect() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let first = cache.hold(&at("a"), OperationKind::Start).unwrap();
    let second = cache.hold(&at("a"), OperationKind::Start).unwrap();
    let (a, b, _) = tokio::join!(
        first.wait_for(in_phase(Phase::Running), within(5)),
        second.wait_for(in_phase(Phase::Running), within(5)),
        async {
            world.set_phase("a", Phase::Starting).await;
            world.set_phase("a", Phase::Running).await
        },
    );
    assert_eq!(a.unwrap().unwrap().version(), b.unwrap().unwrap().version());
    drop((first, second));
    assert_eq!(cache.stats().waited_keys + cache.stats().held_keys, 0);
}
