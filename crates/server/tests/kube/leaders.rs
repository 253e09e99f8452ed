//! Of several control loops one acts, and another one when it is gone.

use std::{collections::BTreeSet, time::Duration};

use http::Method;
use model::{Metadata, Name, SandboxPool, lifecycle::Phase, pool::PoolSpec};
use rustix::process::Signal;
use serde_json::{Value, json};
use store::StoreExt as _;

use crate::installation::{Installation, Role, User};

/// Which of them leads.
pub(crate) fn leader(controls: &[Role]) -> Option<usize> {
    controls.iter().position(|role| role.has_said("\"leads\""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_that_is_told_to_stop_hands_over_at_once() {
    let installation = Installation::new().await;
    let mut roles = installation.start_all(1, 2).await;
    let user = installation.user(&roles).await;
    let first = leader(&roles.controls).unwrap();
    assert!(!roles.controls[1 - first].has_said("\"leads\""));
    let leading = roles.controls.remove(first);
    let kept = user.create(json!({})).await;
    leading.stop().await;
    let next = &roles.controls[0];
    next.says("\"leads\"").await;
    let made = user.create(json!({})).await;
    for id in [&kept.id, &made.id] {
        assert_eq!(user.state(id).await, "running");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_is_killed_amid_claims_costs_no_sandbox_and_doubles_none() {
    let installation = Installation::new().await;
    let metadata = Metadata::new(Some(installation.team.clone()), Name::new("warm").unwrap());
    let spec = PoolSpec::new(Name::new("base").unwrap(), 3, 3, 12);
    let pool = SandboxPool::new(metadata, spec);
    installation.store.create_object(&pool).await.unwrap();
    let mut roles = installation.start_all(1, 2).await;
    let user = installation.user(&roles).await;
    installation.until_idle(3, |_| true).await;
    let first = leader(&roles.controls).unwrap();
    let leading = roles.controls.remove(first);
    let claims = (0..4).map(|_| claim(&user));
    let claiming = futures_util::future::join_all(claims);
    let killing = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        leading.kill();
    };
    let (ids, ()) = tokio::join!(claiming, killing);
    let delivered: BTreeSet<&String> = ids.iter().flatten().collect();
    assert_eq!(
        delivered.len(),
        ids.iter().flatten().count(),
        "one for each"
    );
    roles.controls[0].says("\"leads\"").await;
    // Whoever was not served by the one is by the other.
    let late = claim(&user).await.unwrap();
    for id in delivered.into_iter().chain([&late]) {
        assert_eq!(user.state(id).await, "running", "{id}");
    }
    // And each has a sandbox of its own.
    let sandboxes = installation.sandboxes().await;
    let mut owned = BTreeSet::new();
    for sandbox in &sandboxes {
        if let Some(id) = &sandbox.spec.sandbox_id {
            assert!(owned.insert(id.as_str()), "{id} is there twice");
        }
    }
}

/// Claims a member; nothing if it was not served in time.
async fn claim(user: &User) -> Option<String> {
    let body = json!({"templateID": "warm", "timeout": 600});
    let answer = user.ask(Method::POST, "/sandboxes", body).await;
    let made: Value = answer.json();
    (answer.status == 201).then(|| made["sandboxID"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_that_was_stopped_for_longer_than_its_lease_ends_as_soon_as_it_goes_on() {
    let installation = Installation::new().await;
    let mut roles = installation.start_all(1, 2).await;
    let user = installation.user(&roles).await;
    let first = leader(&roles.controls).unwrap();
    let mut stalled = roles.controls.remove(first);
    stalled.signal(Signal::STOP);
    roles.controls[0].says("\"leads\"").await;
    let made = user.create(json!({})).await;
    stalled.signal(Signal::CONT);
    let status = stalled.end().await;
    assert!(!status.success(), "{status}");
    assert!(stalled.has_said("the lease was lost"));
    assert_eq!(user.state(&made.id).await, "running");
    installation
        .until(&made.id, |s| s.status.phase == Phase::Running)
        .await;
    let running = installation.sandboxes().await;
    assert!(running.iter().all(|s| s.status.phase == Phase::Running));
}
