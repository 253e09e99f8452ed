//! What every runtime must pass: the sentences of the port, one function each.
//!
//! A backend's tests call [`run`] with a fresh runtime; a failure panics with the sentence that
//! does not hold.

use model::{Epoch, Generation, OperationId, StringMap, Uid, hook::Hook, sandbox::NetworkPolicy};

use crate::{
    Arming, Boot, Booting, Captured, Facts, Fence, Observed, Publication, Published, Runtime,
    RuntimeError, WorkloadSpec, WorkloadState,
};

/// Runs the whole suite. `images` must name something the backend can start.
///
/// # Panics
/// If a sentence of the port does not hold.
pub async fn run(runtime: &dyn Runtime, images: StringMap) {
    run_with(runtime, images, None).await;
}

/// Runs the whole suite on a backend that may need a registry for captured layers.
///
/// # Panics
/// If a sentence of the port does not hold.
pub async fn run_with(runtime: &dyn Runtime, images: StringMap, to: Option<&Publication>) {
    let spec = WorkloadSpec {
        images,
        ..WorkloadSpec::default()
    };
    what_is_not_there_is_absent(runtime).await;
    creating_twice_gives_one_workload(runtime, &spec).await;
    if runtime.abilities().freeze {
        freezing_and_thawing_are_idempotent(runtime, &spec).await;
        only_a_frozen_workload_can_be_captured(runtime, &spec).await;
    } else {
        what_cannot_be_frozen_says_so(runtime, &spec).await;
        a_capture_leaves_what_ran_frozen(runtime, &spec, to).await;
    }
    arming_shows_in_the_facts(runtime, &spec).await;
    a_capture_can_be_continued_from(runtime, &spec, to).await;
    an_older_fence_is_refused(runtime, &spec).await;
    deleting_twice_is_deleting_once(runtime, &spec).await;
    a_reset_workload_is_armed_for_nobody(runtime, &spec).await;
    swapping_images_restarts_the_containers(runtime, &spec).await;
    a_reset_can_change_the_images_too(runtime, &spec).await;
    a_network_policy_shows_in_the_facts(runtime, &spec).await;
}

/// Runs what holds where the first process can run commands. The image must have `/bin/true`.
///
/// # Panics
/// If a sentence of the port does not hold.
pub async fn run_commands(runtime: &dyn Runtime, images: StringMap) {
    run_commands_with(runtime, images, None).await;
}

/// The same on a backend that may need a registry for captured layers.
///
/// # Panics
/// If a sentence of the port does not hold.
pub async fn run_commands_with(runtime: &dyn Runtime, images: StringMap, to: Option<&Publication>) {
    let spec = WorkloadSpec {
        images,
        ..WorkloadSpec::default()
    };
    what_has_no_commands_is_up_at_once(runtime, &spec).await;
    commands_bring_it_up_once_for_each_start_of_its_processes(runtime, &spec).await;
    a_cold_start_runs_its_commands_again(runtime, &spec, to).await;
}

/// Stops a workload where that can be done without a capture.
async fn stop(runtime: &dyn Runtime, at: Fence) {
    if runtime.abilities().freeze {
        runtime.freeze(at).await.expect("freeze");
    }
}

/// What goes on from a layer that was captured.
fn continued(spec: &WorkloadSpec, captured: Captured) -> WorkloadSpec {
    let published = captured.published.map(|image| {
        let secret = None;
        Box::new(Published { image, secret })
    });
    WorkloadSpec {
        from: Some(captured.digest),
        published,
        ..spec.clone()
    }
}

fn with_commands(spec: &WorkloadSpec) -> WorkloadSpec {
    WorkloadSpec {
        boot: Some(Box::new(Boot {
            start: vec!["/bin/true".into()],
            ready: vec!["/bin/true".into()],
            ..Boot::default()
        })),
        ..spec.clone()
    }
}

async fn boot(runtime: &dyn Runtime, at: Fence) {
    // Slow machines are no reason to fail; a boot that never ends is.
    for _ in 0..300 {
        match runtime.boot(at).await.expect("boot") {
            Booting::Done => return,
            Booting::UnderWay => {}
        }
    }
    panic!("it never comes up");
}

async fn run_hooks(runtime: &dyn Runtime, at: Fence, hooks: &[Hook]) {
    for _ in 0..300 {
        match runtime.run_hooks(at, hooks).await.expect("run hooks") {
            Booting::Done => return,
            Booting::UnderWay => {}
        }
    }
    panic!("they never end");
}

async fn what_has_no_commands_is_up_at_once(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(21, 1, 1);
    assert!(matches!(
        runtime.boot(at).await,
        Err(RuntimeError::Absent(_))
    ));
    let made = runtime.create(at, spec).await.expect("create");
    assert!(made.booted, "there is nothing to wait for");
    assert_eq!(runtime.boot(at).await, Ok(Booting::Done));
    runtime.delete(at).await.expect("delete");
}

async fn commands_bring_it_up_once_for_each_start_of_its_processes(
    runtime: &dyn Runtime,
    spec: &WorkloadSpec,
) {
    let at = fence(22, 1, 1);
    let spec = with_commands(spec);
    let made = runtime.create(at, &spec).await.expect("create");
    assert!(!made.booted, "its commands were not run yet");
    for _ in 0..2 {
        boot(runtime, at).await;
        assert!(facts(runtime, at.uid).await.booted);
    }
    let arming = Arming {
        epoch: Epoch(1),
        ..Arming::default()
    };
    runtime.arm(at, &arming).await.expect("arm what is up");
    let hooks = [Hook::exec("quiet", &["/bin/true"])];
    for _ in 0..2 {
        run_hooks(runtime, at, &hooks).await;
        let hooked = facts(runtime, at.uid).await.hooked.expect("they were run");
        assert_eq!((hooked.epoch, hooked.failed), (Epoch(1), Vec::new()));
    }
    if runtime.abilities().freeze {
        runtime.freeze(at).await.expect("freeze");
        let asleep = runtime.boot(at).await;
        assert!(
            matches!(asleep, Err(RuntimeError::WrongState { .. })),
            "{asleep:?}"
        );
        runtime.thaw(at).await.expect("thaw");
        assert!(
            facts(runtime, at.uid).await.booted,
            "thawing starts nothing again"
        );
    }
    runtime.reset(at, None).await.expect("reset");
    assert!(!facts(runtime, at.uid).await.booted, "a reset starts anew");
    boot(runtime, at).await;
    let swapped = runtime.swap_images(at, &spec.outfit()).await.expect("swap");
    assert!(!swapped.booted, "another image starts anew");
    boot(runtime, at).await;
    runtime.delete(at).await.expect("delete");
}

async fn a_cold_start_runs_its_commands_again(
    runtime: &dyn Runtime,
    spec: &WorkloadSpec,
    to: Option<&Publication>,
) {
    let at = fence(23, 1, 1);
    let spec = with_commands(spec);
    runtime.create(at, &spec).await.expect("create");
    boot(runtime, at).await;
    stop(runtime, at).await;
    let captured = runtime.capture(at, to).await.expect("capture");
    runtime.delete(at).await.expect("delete");
    let from = continued(&spec, captured);
    let later = fence(23, 2, 1);
    let resumed = runtime.create(later, &from).await.expect("create");
    assert!(!resumed.booted, "its processes are new");
    boot(runtime, later).await;
    runtime.delete(later).await.expect("delete");
}

/// A layer that one runtime has published goes on in another that has only the registry in common.
///
/// # Panics
/// If it does not.
pub async fn run_published(
    here: &dyn Runtime,
    there: &dyn Runtime,
    images: StringMap,
    registry: &str,
) {
    let spec = WorkloadSpec {
        images,
        ..WorkloadSpec::default()
    };
    let at = fence(20, 1, 1);
    here.create(at, &spec).await.expect("create");
    here.freeze(at).await.expect("freeze");
    let captured = here.capture(at, None).await.expect("capture");
    here.delete(at).await.expect("delete");
    let to = Publication {
        registry: registry.into(),
        secret: None,
        parent: captured.parent,
    };
    let image = here.publish(&captured.digest, &to).await.expect("publish");
    let again = here.publish(&captured.digest, &to).await.expect("again");
    assert_eq!(image, again, "publishing twice is publishing once");
    assert!(image.contains("@sha256:"), "by digest: {image}");
    let nowhere = WorkloadSpec {
        from: Some(captured.digest.clone()),
        ..spec.clone()
    };
    let refused = there.create(at, &nowhere).await;
    let impossible = matches!(refused, Err(RuntimeError::Impossible { .. }));
    assert!(impossible, "a layer that is nowhere: {refused:?}");
    let from = WorkloadSpec {
        published: Some(Box::new(Published {
            image,
            secret: None,
        })),
        ..nowhere
    };
    let resumed = there.create(fence(20, 2, 1), &from).await.expect("create");
    assert_eq!(resumed.layer, from.from, "it says what it continued from");
    there.delete(fence(20, 3, 1)).await.expect("delete");
}

fn fence(uid: u128, generation: u64, operation: u64) -> Fence {
    Fence {
        uid: Uid::from_random(uid),
        generation: Generation(generation),
        operation: OperationId(operation),
    }
}

async fn facts(runtime: &dyn Runtime, uid: Uid) -> Facts {
    match runtime.inspect(uid).await.expect("inspect") {
        Observed::Present(facts) => facts,
        other @ (Observed::Absent | Observed::Coming | Observed::Partial) => {
            panic!("{uid} should be there: {other:?}")
        }
    }
}

async fn what_is_not_there_is_absent(runtime: &dyn Runtime) {
    let at = fence(1, 1, 1);
    assert_eq!(
        runtime.inspect(at.uid).await.expect("inspect"),
        Observed::Absent
    );
    assert!(matches!(
        runtime.freeze(at).await,
        Err(RuntimeError::Absent(_))
    ));
    runtime
        .delete(at)
        .await
        .expect("deleting what is absent succeeds");
}

async fn creating_twice_gives_one_workload(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(2, 1, 1);
    let first = runtime.create(at, spec).await.expect("create");
    let second = runtime.create(at, spec).await.expect("create again");
    assert_eq!(
        first.container_id, second.container_id,
        "creating twice makes one workload"
    );
    assert_eq!(first.state, WorkloadState::Running);
    assert!(
        runtime
            .list()
            .await
            .expect("list")
            .iter()
            .any(|(uid, _)| *uid == at.uid)
    );
    runtime.delete(at).await.expect("delete");
}

async fn freezing_and_thawing_are_idempotent(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(3, 1, 1);
    runtime.create(at, spec).await.expect("create");
    for _ in 0..2 {
        runtime.freeze(at).await.expect("freeze");
        assert_eq!(facts(runtime, at.uid).await.state, WorkloadState::Frozen);
    }
    for _ in 0..2 {
        runtime.thaw(at).await.expect("thaw");
        assert_eq!(facts(runtime, at.uid).await.state, WorkloadState::Running);
    }
    runtime.delete(at).await.expect("delete");
}

async fn arming_shows_in_the_facts(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(4, 1, 1);
    let made = runtime.create(at, spec).await.expect("create");
    assert_eq!(made.epoch, Epoch(0), "a new workload is armed for nobody");
    let arming = Arming {
        epoch: Epoch(3),
        env: [("A", "1")].into_iter().collect(),
        ..Arming::default()
    };
    runtime.arm(at, &arming).await.expect("arm");
    assert_eq!(facts(runtime, at.uid).await.epoch, Epoch(3));
    runtime.delete(at).await.expect("delete");
}

async fn a_network_policy_shows_in_the_facts(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(12, 1, 1);
    let policy = |internet| NetworkPolicy {
        internet_access: Some(internet),
        ..NetworkPolicy::default()
    };
    let closed = WorkloadSpec {
        network: Some(Box::new(policy(false))),
        ..spec.clone()
    };
    let made = runtime.create(at, &closed).await.expect("create");
    assert_eq!(made.network, closed.network);
    for wanted in [Some(policy(true)), None] {
        runtime
            .set_network(at, wanted.as_ref())
            .await
            .expect("set the network");
        let seen = facts(runtime, at.uid).await.network;
        assert_eq!(seen.as_deref(), wanted.as_ref());
    }
    stop(runtime, at).await;
    let wanted = policy(false);
    runtime
        .set_network(at, Some(&wanted))
        .await
        .expect("a frozen one too");
    let seen = facts(runtime, at.uid).await;
    assert_eq!(seen.network.as_deref(), Some(&wanted));
    let frozen = seen.state == WorkloadState::Frozen;
    assert_eq!(frozen, runtime.abilities().freeze, "it goes on as it was");
    runtime.delete(at).await.expect("delete");
}

async fn only_a_frozen_workload_can_be_captured(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(5, 1, 1);
    runtime.create(at, spec).await.expect("create");
    let refused = runtime.capture(at, None).await;
    assert!(
        matches!(refused, Err(RuntimeError::WrongState { .. })),
        "{refused:?}"
    );
    runtime.delete(at).await.expect("delete");
}

async fn what_cannot_be_frozen_says_so(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(3, 1, 1);
    runtime.create(at, spec).await.expect("create");
    let refused = runtime.freeze(at).await;
    assert!(
        matches!(refused, Err(RuntimeError::Impossible { .. })),
        "{refused:?}"
    );
    assert_eq!(facts(runtime, at.uid).await.state, WorkloadState::Running);
    runtime.delete(at).await.expect("delete");
}

async fn a_capture_leaves_what_ran_frozen(
    runtime: &dyn Runtime,
    spec: &WorkloadSpec,
    to: Option<&Publication>,
) {
    let at = fence(5, 1, 1);
    runtime.create(at, spec).await.expect("create");
    runtime.capture(at, to).await.expect("capture");
    assert_eq!(facts(runtime, at.uid).await.state, WorkloadState::Frozen);
    for _ in 0..2 {
        runtime.thaw(at).await.expect("thaw");
        assert_eq!(facts(runtime, at.uid).await.state, WorkloadState::Running);
    }
    runtime.delete(at).await.expect("delete");
}

async fn a_capture_can_be_continued_from(
    runtime: &dyn Runtime,
    spec: &WorkloadSpec,
    to: Option<&Publication>,
) {
    let at = fence(6, 1, 1);
    runtime.create(at, spec).await.expect("create");
    stop(runtime, at).await;
    let captured = runtime.capture(at, to).await.expect("capture");
    let again = runtime.capture(at, to).await.expect("capture again");
    assert_eq!(
        captured.digest, again.digest,
        "the same content has the same digest"
    );
    assert_eq!(
        facts(runtime, at.uid).await.state,
        WorkloadState::Frozen,
        "a capture thaws nothing"
    );
    runtime.delete(at).await.expect("delete");
    let from = continued(spec, captured);
    let resumed = runtime
        .create(fence(6, 2, 1), &from)
        .await
        .expect("create from the layer");
    assert_eq!(resumed.state, WorkloadState::Running);
    assert_eq!(resumed.layer, from.from, "it says what it continued from");
    runtime.delete(fence(6, 3, 1)).await.expect("delete");
}

async fn an_older_fence_is_refused(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    runtime.create(fence(7, 2, 1), spec).await.expect("create");
    newer(runtime, fence(7, 3, 1)).await;
    let late = runtime.thaw(fence(7, 2, 9)).await;
    assert!(
        matches!(late, Err(RuntimeError::Stale(_))),
        "an older generation: {late:?}"
    );
    newer(runtime, fence(7, 3, 2)).await;
    let late = runtime.thaw(fence(7, 3, 1)).await;
    assert!(
        matches!(late, Err(RuntimeError::Stale(_))),
        "an older operation: {late:?}"
    );
    let state = match runtime.abilities().freeze {
        true => WorkloadState::Frozen,
        false => WorkloadState::Running,
    };
    assert_eq!(facts(runtime, fence(7, 0, 0).uid).await.state, state);
    runtime.delete(fence(7, 4, 1)).await.expect("delete");
}

/// Some call of a newer intent or operation.
async fn newer(runtime: &dyn Runtime, at: Fence) {
    let called = match runtime.abilities().freeze {
        true => runtime.freeze(at).await,
        false => runtime.thaw(at).await,
    };
    called.expect("a newer call");
}

async fn deleting_twice_is_deleting_once(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(8, 1, 1);
    runtime.create(at, spec).await.expect("create");
    stop(runtime, at).await;
    runtime
        .delete(at)
        .await
        .expect("a frozen workload can be deleted");
    runtime.delete(at).await.expect("delete again");
    assert_eq!(
        runtime.inspect(at.uid).await.expect("inspect"),
        Observed::Absent
    );
    assert!(
        !runtime
            .list()
            .await
            .expect("list")
            .iter()
            .any(|(uid, _)| *uid == at.uid)
    );
}

async fn a_reset_workload_is_armed_for_nobody(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(9, 1, 1);
    runtime.create(at, spec).await.expect("create");
    let arming = Arming {
        epoch: Epoch(1),
        ..Arming::default()
    };
    runtime.arm(at, &arming).await.expect("arm");
    runtime.reset(at, None).await.expect("reset");
    assert_eq!(facts(runtime, at.uid).await.epoch, Epoch(0));
    runtime.delete(at).await.expect("delete");
}

async fn swapping_images_restarts_the_containers(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(10, 1, 1);
    let before = runtime.create(at, spec).await.expect("create");
    let after = runtime.swap_images(at, &spec.outfit()).await.expect("swap");
    assert_ne!(before.container_id, after.container_id);
    assert_eq!(after.images, spec.images);
    assert_eq!(after.digests, before.digests, "a name leads to one image");
    let (container, image) = spec.images.iter().next().expect("an image");
    assert!(after.runs(container, image));
    runtime.delete(at).await.expect("delete");
}

async fn a_reset_can_change_the_images_too(runtime: &dyn Runtime, spec: &WorkloadSpec) {
    let at = fence(24, 1, 1);
    runtime.create(at, spec).await.expect("create");
    let again = runtime.reset(at, Some(&spec.outfit())).await;
    again.expect("back to what it idles on");
    let idle = facts(runtime, at.uid).await;
    assert_eq!((idle.images, idle.epoch), (spec.images.clone(), Epoch(0)));
    runtime.delete(at).await.expect("delete");
}

#[cfg(test)]
mod tests {
    use crate::fake::{Call, CallFault, FakeRegistry, FakeRuntime};

    use super::*;

    fn images() -> StringMap {
        [("main", "base")].into_iter().collect()
    }

    #[tokio::test]
    async fn the_fake_keeps_the_ports_promises() {
        run(&FakeRuntime::new(kit::Tasks::default()), images()).await;
        run_commands(&FakeRuntime::new(kit::Tasks::default()), images()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn slow_commands_are_waited_for_a_moment_at_a_time() {
        let runtime = FakeRuntime::new(kit::Tasks::default());
        runtime.on_call(|call, _| match call {
            Call::Boot => CallFault::Slow(std::time::Duration::from_secs(5)),
            _ => CallFault::None,
        });
        let spec = with_commands(&WorkloadSpec {
            images: images(),
            ..WorkloadSpec::default()
        });
        let at = fence(1, 1, 1);
        runtime.create(at, &spec).await.unwrap();
        for _ in 0..4 {
            assert_eq!(runtime.boot(at).await, Ok(Booting::UnderWay));
        }
        assert!(!facts(&runtime, at.uid).await.booted);
        assert_eq!(runtime.boot(at).await, Ok(Booting::Done));
        assert_eq!(runtime.truth()[&at.uid].boots, 1);
    }

    #[tokio::test]
    async fn fakes_that_share_a_registry_share_what_was_published() {
        let (registry, tasks) = (FakeRegistry::default(), kit::Tasks::default());
        let fake = || FakeRuntime::new(tasks.clone()).with_registry(registry.clone());
        run_published(&fake(), &fake(), images(), "r.example").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_goes_on_when_its_caller_has_left() {
        let runtime = FakeRuntime::new(kit::Tasks::default());
        let second = std::time::Duration::from_secs(1);
        runtime.on_call(move |call, _| match call {
            Call::Create => CallFault::Slow(second),
            _ => CallFault::None,
        });
        let spec = WorkloadSpec {
            images: images(),
            ..WorkloadSpec::default()
        };
        let at = fence(1, 1, 1);
        let left = tokio::time::timeout(second / 2, runtime.create(at, &spec)).await;
        assert!(left.is_err());
        assert_eq!(runtime.inspect(at.uid).await.unwrap(), Observed::Absent);
        tokio::time::sleep(second).await;
        assert!(matches!(
            runtime.inspect(at.uid).await.unwrap(),
            Observed::Present(_)
        ));
    }

    #[tokio::test]
    async fn a_half_made_workload_can_only_be_removed() {
        let runtime = FakeRuntime::new(kit::Tasks::default());
        runtime.on_call(|call, _| match call {
            Call::Create => CallFault::HalfWay,
            _ => CallFault::None,
        });
        let spec = WorkloadSpec {
            images: images(),
            ..WorkloadSpec::default()
        };
        let at = fence(1, 1, 1);
        assert!(runtime.create(at, &spec).await.is_err());
        assert_eq!(runtime.inspect(at.uid).await.unwrap(), Observed::Partial);
        assert!(runtime.freeze(at).await.is_err());
        runtime.delete(at).await.unwrap();
        assert_eq!(runtime.inspect(at.uid).await.unwrap(), Observed::Absent);
    }
}
