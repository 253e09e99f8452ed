//! What goes wrong on nodes and on the way to the API server. Only the stand-in can be asked for it.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{batch::v1::Job, networking::v1::NetworkPolicy};
use kube::{Api, api::PostParams};
use model::trouble::Trouble;
use runtime::{Loss, Observed, Outfit, Runtime as _, RuntimeError, WorkloadState};
use serde_json::json;

use standin_kube::Fault;

use crate::world::{World, fence, name_of};

async fn until(is_so: impl AsyncFn() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn has_exited(seen: &Observed) -> bool {
    matches!(seen, Observed::Present(facts) if matches!(facts.state, WorkloadState::Exited { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_said_and_tried_again() {
    let world = World::standin().await;
    let at = fence(1, 1, 1);
    world.kubelet().break_pulls("app:");
    let refused = world.runtime.create(at, &World::spec()).await.unwrap_err();
    assert!(matches!(refused, RuntimeError::Pull(_)), "{refused:?}");
    assert_eq!(refused.trouble(), Trouble::PullBackOff);
    world.until(at.uid, |seen| *seen == Observed::Absent).await;
    world.kubelet().mend_pulls();
    world.runtime.create(at, &World::spec()).await.unwrap();
    // The same in the middle of a swap.
    world.kubelet().break_pulls("other");
    let to = Outfit {
        images: [("main", "other:1")].into_iter().collect(),
        ..Outfit::default()
    };
    let refused = world.runtime.swap_images(at, &to).await.unwrap_err();
    assert!(matches!(refused, RuntimeError::Pull(_)), "{refused:?}");
    let Observed::Present(between) = world.runtime.inspect(at.uid).await.unwrap() else {
        panic!("it is there");
    };
    assert!(!between.runs("main", "other:1") && !between.runs("main", "app:1"));
    world.kubelet().mend_pulls();
    let swapped = world.runtime.swap_images(at, &to).await.unwrap();
    assert!(swapped.runs("main", "other:1"));
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_starts_over_by_itself_has_ended() {
    let world = World::standin().await;
    let (at, namespace) = (fence(2, 1, 1), world.cluster.namespace());
    world.runtime.create(at, &World::spec()).await.unwrap();
    assert!(
        world
            .kubelet()
            .end_container(namespace, &name_of(at), "sandbox", 3)
    );
    let Observed::Present(facts) = world.until(at.uid, has_exited).await else {
        panic!("it is there");
    };
    assert_eq!(facts.state, WorkloadState::Exited { code: 3 });
    assert_eq!((facts.loss, facts.oom_kills), (None, 0));
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_beside_the_sandbox_may_start_over() {
    let world = World::standin().await;
    let (at, namespace) = (fence(3, 1, 1), world.cluster.namespace());
    let mut spec = World::spec();
    spec.images.insert("log", "logger:1");
    let before = world.runtime.create(at, &spec).await.unwrap();
    assert!(
        world
            .kubelet()
            .end_container(namespace, &name_of(at), "log", 1)
    );
    let restarted = async || {
        let pod = world.pods().get(&name_of(at)).await.unwrap();
        let all = pod.status.unwrap().container_statuses.unwrap();
        all.iter()
            .any(|one| one.name == "log" && one.restart_count > 0)
    };
    until(restarted).await;
    let after = world.facts(at.uid).await;
    assert_eq!(after.container_id, before.container_id);
    assert_eq!(after.state, WorkloadState::Running);
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_ran_out_is_told_from_any_other_end() {
    let world = World::standin().await;
    let (at, namespace) = (fence(4, 1, 1), world.cluster.namespace());
    world.runtime.create(at, &World::spec()).await.unwrap();
    assert!(
        world
            .kubelet()
            .run_out_of_memory(namespace, &name_of(at), "sandbox")
    );
    let Observed::Present(facts) = world.until(at.uid, has_exited).await else {
        panic!("it is there");
    };
    assert_eq!(
        (facts.state, facts.oom_kills),
        (WorkloadState::Exited { code: 137 }, 1)
    );
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_is_seen_as_that() {
    let world = World::standin().await;
    let (at, namespace) = (fence(5, 1, 1), world.cluster.namespace());
    world.runtime.create(at, &World::spec()).await.unwrap();
    assert!(world.kubelet().evict(namespace, &name_of(at)));
    let Observed::Present(facts) = world.until(at.uid, has_exited).await else {
        panic!("it is there");
    };
    assert_eq!(facts.loss, Some(Loss::Evicted));
    world.runtime.delete(at).await.unwrap();
    assert_eq!(world.runtime.inspect(at.uid).await, Ok(Observed::Absent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_is_doubt_first_and_then_a_loss() {
    let world = World::standin().await;
    let at = fence(6, 1, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    world.kubelet().lose_node().await;
    // Its processes end a moment later.
    let mut doubt = world.runtime.inspect(at.uid).await;
    while doubt.as_ref().is_ok_and(|seen| seen.runs()) {
        doubt = world.runtime.inspect(at.uid).await;
    }
    assert!(matches!(doubt, Err(RuntimeError::Failed(_))), "{doubt:?}");
    world.kubelet().collect_pods_of_lost_node();
    let Observed::Present(facts) = world.until(at.uid, has_exited).await else {
        panic!("it is remembered");
    };
    assert_eq!(facts.loss, Some(Loss::NodeLost));
    world.kubelet().return_node().await;
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_slow_is_coming_and_can_be_removed() {
    let world = World::standin().await;
    let at = fence(7, 1, 1);
    world.kubelet().delay_starts(Duration::from_secs(15));
    let spec = World::spec();
    let comes = async || world.runtime.inspect(at.uid).await == Ok(Observed::Coming);
    tokio::select! {
        made = world.runtime.create(at, &spec) => panic!("it cannot have started: {made:?}"),
        () = until(comes) => {}
    }
    assert_eq!(world.runtime.inspect(at.uid).await, Ok(Observed::Coming));
    let refused = world.runtime.arm(at, &Default::default()).await;
    assert!(
        matches!(refused, Err(RuntimeError::WrongState { .. })),
        "{refused:?}"
    );
    let deleted = world.runtime.delete(fence(7, 2, 1));
    deleted.await.unwrap();
    assert_eq!(world.runtime.inspect(at.uid).await, Ok(Observed::Absent));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_comes_back_is_followed_again() {
    let world = World::standin().await;
    let at = fence(8, 1, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    world.server().stop().await;
    // What runs is seen and can be armed without it.
    assert_eq!(world.facts(at.uid).await.state, WorkloadState::Running);
    let refused = world.runtime.create(fence(9, 1, 1), &World::spec()).await;
    assert!(
        matches!(refused, Err(RuntimeError::Failed(_))),
        "{refused:?}"
    );
    world.server().resume().await.unwrap();
    world.server().expire_history();
    let mut made = world.runtime.create(fence(9, 1, 1), &World::spec()).await;
    for _ in 0..50 {
        if made.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        made = world.runtime.create(fence(9, 1, 1), &World::spec()).await;
    }
    made.unwrap();
    world.runtime.delete(at).await.unwrap();
    world.runtime.delete(fence(9, 2, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_admitted_is_said_and_made_once_it_is() {
    let world = World::standin().await;
    let (at, faults) = (fence(10, 1, 1), world.server().faults());
    faults.next(1, &Method::POST, "/pods", Fault::Forbidden);
    let refused = world.runtime.create(at, &World::spec()).await.unwrap_err();
    assert!(
        matches!(refused, RuntimeError::NotAdmitted(_)),
        "{refused:?}"
    );
    assert_eq!(refused.trouble(), Trouble::Limited);
    assert!(refused.is_retryable());
    // One that was made after all, whatever was answered.
    faults.next(1, &Method::POST, "/pods", Fault::InternalAfter);
    let doubtful = world.runtime.create(at, &World::spec()).await;
    assert!(
        matches!(doubtful, Err(RuntimeError::Failed(_))),
        "{doubtful:?}"
    );
    let made = world.runtime.create(at, &World::spec()).await.unwrap();
    assert_eq!(made.state, WorkloadState::Running);
    let pods = world.pods().list(&Default::default()).await.unwrap();
    assert_eq!(pods.items.len(), 1);
    world.runtime.delete(at).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_is_called_off_ends_a_worker_that_has_not_started_yet() {
    let world = World::standin_without_daemon().await;
    let at = fence(11, 1, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    world.kubelet().delay_starts(Duration::from_secs(15));
    let to = World::registry();
    let jobs: Api<Job> = Api::namespaced(world.cluster.client(), world.cluster.namespace());
    let there = async || jobs.list(&Default::default()).await.unwrap().items.len();
    let is_frozen = async || world.facts(at.uid).await.state == WorkloadState::Frozen;
    let sent = async || there().await == 1 && is_frozen().await;
    tokio::select! {
        left = world.runtime.capture(at, Some(&to)) => panic!("the worker cannot have started: {left:?}"),
        () = until(sent) => {}
    }
    // It may be frozen at any moment, so whoever calls it off is told to thaw it.
    assert_eq!(there().await, 1);
    assert!(is_frozen().await);
    world.kubelet().delay_starts(Duration::ZERO);
    world.runtime.thaw(fence(11, 2, 1)).await.unwrap();
    assert_eq!(there().await, 0);
    assert_eq!(world.facts(at.uid).await.state, WorkloadState::Running);
    let pods = world.pods().list(&Default::default()).await.unwrap();
    assert_eq!(pods.items.len(), 1, "no worker is left");
    world.runtime.delete(fence(11, 3, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_former_leader_still_has_on_its_way_is_refused_by_the_node() {
    let world = World::standin().await;
    let at = fence(12, 1, 1);
    world.runtime.create(at, &World::spec()).await.unwrap();
    let heir = world.another().await;
    heir.freeze(fence(12, 2, 1)).await.unwrap();
    heir.thaw(fence(12, 3, 1)).await.unwrap();
    let late = world.runtime.freeze(fence(12, 2, 1)).await;
    assert!(matches!(late, Err(RuntimeError::Stale(_))), "{late:?}");
    assert_eq!(world.facts(at.uid).await.state, WorkloadState::Running);
    heir.delete(fence(12, 4, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_could_not_be_removed_runs_on_and_is_nobody_elses() {
    let world = World::standin().await;
    let (at, faults) = (fence(13, 1, 1), world.server().faults());
    let before = world.runtime.create(at, &World::spec()).await.unwrap();
    // One has no reason that is known, the other may mean that another Pod has its name.
    for (generation, fault) in [(2, Fault::Internal), (3, Fault::Conflict)] {
        faults.next(1, &Method::DELETE, "/pods", fault);
        let failed = world.runtime.delete(fence(13, generation, 1)).await;
        assert!(matches!(failed, Err(RuntimeError::Failed(_))), "{failed:?}");
        let there = world.facts(at.uid).await;
        assert_eq!(there.state, WorkloadState::Running);
        faults.next(1, &Method::DELETE, "/pods", fault);
        let failed = world.runtime.reset(fence(13, generation, 2), None).await;
        assert!(matches!(failed, Err(RuntimeError::Failed(_))), "{failed:?}");
        let there = world.facts(at.uid).await;
        assert_eq!(there.container_id, before.container_id);
    }
    world.runtime.reset(fence(13, 4, 1), None).await.unwrap();
    let after = world.facts(at.uid).await;
    assert_ne!(after.container_id, before.container_id);
    world.runtime.delete(fence(13, 5, 1)).await.unwrap();
    assert_eq!(world.runtime.inspect(at.uid).await, Ok(Observed::Absent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_policy_of_another_is_neither_replaced_nor_removed() {
    let world = World::standin().await;
    let at = fence(14, 1, 1);
    let policies: Api<NetworkPolicy> =
        Api::namespaced(world.cluster.client(), world.cluster.namespace());
    let theirs: NetworkPolicy = serde_json::from_value(json!({
        "metadata": {"name": name_of(at)},
        "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}, "policyTypes": ["Ingress"]},
    }))
    .unwrap();
    let theirs = policies
        .create(&PostParams::default(), &theirs)
        .await
        .unwrap();
    let refused = world.runtime.create(at, &World::spec()).await;
    assert!(
        matches!(refused, Err(RuntimeError::Failed(_))),
        "{refused:?}"
    );
    let there = async || policies.get(&name_of(at)).await.unwrap();
    assert_eq!(there().await.spec, theirs.spec);
    policies
        .delete(&name_of(at), &Default::default())
        .await
        .unwrap();
    world.runtime.create(at, &World::spec()).await.unwrap();
    // Somebody puts another in its place.
    policies
        .delete(&name_of(at), &Default::default())
        .await
        .unwrap();
    let mut again = theirs.clone();
    (again.metadata.uid, again.metadata.resource_version) = (None, None);
    let again = policies
        .create(&PostParams::default(), &again)
        .await
        .unwrap();
    let refused = world.runtime.set_network(fence(14, 2, 1), None).await;
    assert!(
        matches!(refused, Err(RuntimeError::Failed(_))),
        "{refused:?}"
    );
    world.runtime.delete(fence(14, 3, 1)).await.unwrap();
    assert_eq!(there().await.metadata.uid, again.metadata.uid);
}
