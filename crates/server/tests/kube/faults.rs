//! What becomes of an installation whose API server is away, forgets, or lacks something: only the
//! stand-in can do that to itself.

use std::time::Duration;

use cluster_kube::lease::candidate::Rules;
use http::Method;
use serde_json::{Value, json};
use standin_kube::faults::{Fault, Rule};
use tokio::time::Instant;

use crate::{installation::Installation, leaders::leader};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_api_server_that_was_away_for_a_while_needs_no_hands() {
    let installation = Installation::new().await;
    // One that cannot renew its lease in time ends, and the other takes over.
    let roles = installation.start_all(1, 2).await;
    let user = installation.user(&roles).await;
    let kept = user.create(json!({})).await;
    let first = leader(&roles.controls).unwrap();
    let standin = installation.cluster.as_standin().unwrap();
    let begun = Instant::now();
    standin.stop().await;
    // At least one renewal fails.
    tokio::time::sleep(Duration::from_secs(3)).await;
    // What is known is served on, and nobody is restarted for it.
    assert_eq!(user.state(&kept.id).await, "running");
    for role in roles.gateways.iter().chain([&roles.api]) {
        role.probe("/readyz").await.is(200);
    }
    standin.resume().await.unwrap();
    let away = begun.elapsed();
    let made = user.create(json!({})).await;
    for id in [&kept.id, &made.id] {
        assert_eq!(user.state(id).await, "running");
    }
    let rules = Rules::default();
    // It renewed its lease up to a while before, and has two more tries.
    if away + rules.every * 3 < rules.renew_within {
        let next = &roles.controls[1 - first];
        assert!(!next.has_said("\"leads\""), "after {away:?}");
    }
    let path = format!("/sandboxes/{}", kept.id);
    user.ask(Method::DELETE, &path, Value::Null).await.is(204);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_that_expired_are_made_again_and_miss_nothing() {
    let installation = Installation::new().await;
    let roles = installation.start_all(1, 1).await;
    let user = installation.user(&roles).await;
    let kept = user.create(json!({})).await;
    let standin = installation.cluster.as_standin().unwrap();
    standin.expire_history();
    let made = user.create(json!({})).await;
    for id in [&kept.id, &made.id] {
        assert_eq!(user.state(id).await, "running");
    }
    let path = format!("/sandboxes/{}", kept.id);
    user.ask(Method::DELETE, &path, Value::Null).await.is(204);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_that_does_not_know_our_kinds_is_waited_for_and_the_log_says_so() {
    let installation = Installation::bare().await;
    let control = installation.start("control", &[]);
    let gateway = installation.start("gateway", &[]);
    for role in [&control, &gateway] {
        role.says("is not installed: run `dormouse install`").await;
        let answer = role.probe("/readyz").await.is(503);
        assert!(
            answer.text().contains("is not installed"),
            "{}",
            answer.text()
        );
        role.probe("/livez").await.is(200);
    }
    installation.define().await;
    installation.furnish().await;
    for role in [&control, &gateway] {
        role.ready().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_role_that_may_not_elect_says_which_right_it_lacks() {
    let installation = Installation::new().await;
    let standin = installation.cluster.as_standin().unwrap();
    standin.faults().add(Rule {
        method: None,
        path: "/leases".into(),
        fault: Fault::Forbidden,
        times: u32::MAX,
    });
    let control = installation.start("control", &[]);
    control
        .says("not allowed to get the lease dormouse-control")
        .await;
    let answer = control.probe("/readyz").await.is(503);
    assert!(
        answer
            .text()
            .contains("grant get, create and update of leases")
    );
    // Whoever grants it need do no more.
    standin.faults().clear();
    control.ready().await;
}
