//! What holds on any cluster.

use agent_client::forward;
use auth::Seal;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use model::{Epoch, Name, Namespace, StringMap, workload::Whose};
use runtime::{
    Arming, Loss, Observed, Outfit, Runtime as _, RuntimeError, WorkloadSpec, WorkloadState,
    conformance,
};
use serde_json::json;
use tokio::net::TcpStream;
use wire::{Secret, envd::PORT};

use crate::world::{SEAL, World, fence, name_of};

#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_keeps_the_ports_promises() {
    let world = World::new().await;
    let to = World::registry();
    conformance::run_with(&world.runtime, World::images(), Some(&to)).await;
    conformance::run_commands_with(&world.runtime, World::images(), Some(&to)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_keeps_them_where_nothing_can_be_frozen() {
    let world = World::without_daemon().await;
    let to = World::registry();
    conformance::run_with(&world.runtime, World::images(), Some(&to)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_image_is_patched_in_and_starts_the_container_over() {
    let world = World::new().await;
    let at = fence(31, 1, 1);
    let before = world.runtime.create(at, &World::spec()).await.unwrap();
    let pod = world.pods().get(&name_of(at)).await.unwrap();
    // The same image by another name.
    let image = World::images().get("main").unwrap().to_owned();
    let other = match before.digests.get("main") {
        Some(digest) => format!("{}@{digest}", image.split(':').next().unwrap()),
        None => format!("docker.io/library/{image}"),
    };
    let to = Outfit {
        images: [("main", other.clone())].into_iter().collect(),
        ..Outfit::default()
    };
    let after = world.runtime.swap_images(at, &to).await.unwrap();
    assert_ne!(before.container_id, after.container_id);
    assert!(after.runs("main", &other));
    assert_eq!(after.epoch, Epoch(0));
    let same = world.pods().get(&name_of(at)).await.unwrap();
    assert_eq!(pod.metadata.uid, same.metadata.uid, "it is the same Pod");
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_anew_finds_what_was_left() {
    let world = World::new().await;
    let at = fence(32, 2, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    let arming = Arming {
        epoch: Epoch(4),
        ..Arming::default()
    };
    world.runtime.arm(at, &arming).await.unwrap();
    let freezes = world.runtime.abilities().freeze;
    if freezes {
        world.runtime.freeze(at).await.unwrap();
    }
    let heir = world.another().await;
    let Observed::Present(facts) = heir.inspect(at.uid).await.unwrap() else {
        panic!("it is there");
    };
    let frozen = facts.state == WorkloadState::Frozen;
    assert_eq!((facts.epoch, frozen), (Epoch(4), freezes));
    let listed = heir.list().await.unwrap();
    let its = listed.iter().filter(|(uid, _)| *uid == at.uid);
    assert_eq!(its.count(), 1, "{listed:?}");
    // What was decided before is not undone by who has forgotten it.
    let late = heir.delete(fence(32, 1, 9)).await;
    assert!(matches!(late, Err(RuntimeError::Stale(_))), "{late:?}");
    heir.delete(fence(32, 3, 1)).await.unwrap();
    assert_eq!(heir.inspect(at.uid).await, Ok(Observed::Absent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_somebody_removes_has_ended_and_is_remembered_until_it_is_heard_of() {
    let world = World::new().await;
    let at = fence(33, 1, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    let pods = world.pods();
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&name_of(at), &now).await.unwrap();
    let is_lost =
        |seen: &Observed| matches!(seen, Observed::Present(facts) if facts.loss.is_some());
    let seen = world.until(at.uid, is_lost).await;
    let Observed::Present(facts) = seen else {
        panic!("it is remembered");
    };
    assert_eq!(facts.loss, Some(Loss::Removed));
    assert!(matches!(facts.state, WorkloadState::Exited { .. }));
    let refused = world.runtime.create(at, &World::spec()).await;
    assert!(
        matches!(refused, Err(RuntimeError::WrongState { .. })),
        "{refused:?}"
    );
    world.runtime.delete(at).await.unwrap();
    assert_eq!(world.runtime.inspect(at.uid).await, Ok(Observed::Absent));
    world.runtime.create(at, &World::spec()).await.unwrap();
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_pod_has_is_not_taken_from_it() {
    let world = World::new().await;
    let whose = Whose {
        namespace: Namespace::new(world.cluster.namespace()).unwrap(),
        name: Name::new("taken").unwrap(),
    };
    let other: Pod = serde_json::from_value(json!({
        "metadata": {"name": "taken"},
        "spec": {"containers": [{"name": "x", "image": World::images().get("main").unwrap()}]},
    }))
    .unwrap();
    let pods = world.pods();
    let other = pods.create(&PostParams::default(), &other).await.unwrap();
    let spec = WorkloadSpec {
        of: Some(Box::new(whose)),
        ..World::spec()
    };
    let at = fence(34, 1, 1);
    let refused = world.runtime.create(at, &spec).await;
    assert!(
        matches!(refused, Err(RuntimeError::Failed(_))),
        "{refused:?}"
    );
    assert_eq!(world.runtime.inspect(at.uid).await, Ok(Observed::Absent));
    world.runtime.delete(at).await.unwrap();
    let there = pods.get("taken").await.unwrap();
    assert_eq!(there.metadata.uid, other.metadata.uid, "it is left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_open_to_the_delivery_that_a_pod_is_armed_for() {
    let world = World::new().await;
    let at = fence(36, 1, 1);
    let facts = world.runtime.create(at, &World::spec()).await.unwrap();
    let ip = facts.address.ip.unwrap();
    let reach = async |epoch| {
        let stream = TcpStream::connect((&*ip, PORT)).await.unwrap();
        let key = Seal::new(SEAL).door_key(at.uid, epoch);
        forward(stream, PORT, &Secret::from(key.reveal())).await
    };
    assert!(reach(Epoch(1)).await.is_err(), "it is nobody's");
    let arming = Arming {
        epoch: Epoch(1),
        env: StringMap::new(),
        ..Arming::default()
    };
    world.runtime.arm(at, &arming).await.unwrap();
    assert!(reach(Epoch(2)).await.is_err());
    reach(Epoch(1)).await.unwrap();
    // An older call changes nothing, whoever makes it.
    let heir = world.another().await;
    world.runtime.arm(fence(36, 2, 1), &arming).await.unwrap();
    let late = Arming {
        epoch: Epoch(9),
        ..arming
    };
    let late = heir.arm(at, &late).await;
    assert!(matches!(late, Err(RuntimeError::Stale(_))), "{late:?}");
    world.runtime.delete(fence(36, 3, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_pod_before_opens_nothing_after_a_reset() {
    let world = World::new().await;
    let at = fence(37, 1, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    let key = async || {
        let pod = world.pods().get(&name_of(at)).await.unwrap();
        let start = &pod.metadata.annotations.unwrap()["dormouse.dev/start"];
        Seal::new(SEAL).start_key(at.uid, start)
    };
    let asked = async |key: &model::workload::Secret| {
        let ip = world.facts(at.uid).await.address.ip.unwrap();
        let agent = agent_client::Client::new(move || TcpStream::connect(format!("{ip}:{PORT}")));
        let agent = agent.with_key(&Secret::from(key.reveal())).unwrap();
        agent.delivery().await
    };
    let before = key().await;
    asked(&before).await.unwrap();
    world.runtime.reset(fence(37, 2, 1), None).await.unwrap();
    let after = key().await;
    asked(&after).await.unwrap();
    assert!(asked(&before).await.is_err());
    world.runtime.delete(fence(37, 3, 1)).await.unwrap();
}
