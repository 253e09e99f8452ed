//! A sandbox's life across processes.

use std::time::Duration;

use http::Method;
use model::{
    Metadata, Name, Sandbox, SandboxPool, Spec as _,
    lifecycle::Phase,
    pool::PoolSpec,
    sandbox::SandboxSpec,
    team::{Quotas, TeamSpec},
    template::TemplateSpec,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use store::{StoreError, StoreExt as _};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{http::send, installation::Installation};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sandbox_is_made_used_put_to_sleep_woken_by_traffic_and_ended_by_different_processes() {
    let installation = Installation::new().await;
    let roles = installation.start_all(2, 2).await;
    let user = installation.user(&roles).await;
    let made = user
        .create(json!({"secure": true, "autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    let token = [("x-access-token", made.token.as_str())];
    let [one, other] = [roles.gateways[0].url().await, roles.gateways[1].url().await];
    let file = |gateway: &str| {
        let id = &made.id;
        format!("{gateway}/-/{id}/49983/files?path=/tmp/kept&username=root")
    };
    let headers = [token[0], ("content-type", "application/octet-stream")];
    let written = send(Method::POST, &file(&one), &headers, "by one gateway").await;
    written.unwrap().is(200);
    let read = send(Method::GET, &file(&other), &token, "").await.unwrap();
    assert_eq!(read.is(200).text(), "by one gateway");
    roles.gateways[1].shows("dormouse_routes 1").await;
    // Who has no token is not let in, wherever it comes.
    send(Method::GET, &file(&other), &[], "")
        .await
        .unwrap()
        .is(401);

    let path = format!("/sandboxes/{}", made.id);
    let pause = user
        .ask(Method::POST, &format!("{path}/pause"), json!({}))
        .await;
    pause.is(204);
    assert_eq!(user.state(&made.id).await, "paused");
    let read = send(Method::GET, &file(&one), &token, "").await.unwrap();
    assert_eq!(read.is(200).text(), "by one gateway");
    assert_eq!(user.state(&made.id).await, "running");

    user.ask(Method::DELETE, &path, Value::Null).await.is(204);
    let gone = send(Method::GET, &file(&other), &token, "").await.unwrap();
    gone.is(502);
    for role in roles
        .gateways
        .into_iter()
        .chain(roles.controls)
        .chain([roles.api])
    {
        role.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn use_at_any_gateway_keeps_a_sandbox_awake_and_so_does_one_that_cannot_be_asked() {
    let installation = Installation::new().await;
    let roles = installation.start_all(2, 1).await;
    let user = installation.user(&roles).await;
    let made = user.create(json!({"autoPause": true})).await;
    // Somebody is inside, by the second gateway.
    let gateway = roles.gateways[1].address("serving", "address").await;
    let mut inside = TcpStream::connect(gateway).await.unwrap();
    let head = format!(
        "POST /-/{}/49983/files?path=/tmp/half&username=root HTTP/1.1\r\nHost: here\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nthe first half",
        made.id
    );
    inside.write_all(head.as_bytes()).await.unwrap();
    roles.gateways[1]
        .shows("dormouse_gateway_dials_total 1")
        .await;
    // Longer than a gateway may be silent and still count as one that says who is inside.
    idle_after(&installation, &made.id, 4).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(user.state(&made.id).await, "running");
    // It cannot say so any more, nor that it is over.
    roles.gateways[1].signal(Signal::STOP);
    drop(inside);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(user.state(&made.id).await, "running");
    // The other one may have to be asked again where there is much else to do.
    roles.controls[0]
        .shows("dormouse_gateways_unreachable 1")
        .await;
    // Now it can.
    roles.gateways[1].signal(Signal::CONT);
    installation
        .until(&made.id, |s| s.status.phase == Phase::Paused)
        .await;
}

/// Sets the idle timeout of a sandbox that runs, whatever else is written meanwhile.
pub(crate) async fn idle_after(installation: &Installation, name: &str, seconds: u32) {
    loop {
        let mut now = installation
            .until(name, |s| s.status.phase == Phase::Running)
            .await;
        now.spec.timeouts.idle_seconds = Some(seconds);
        match installation.store.update_spec(&now).await {
            Ok(_) => return,
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_kubectl_applies_is_weighed_before_it_is_acted_on() {
    let installation = Installation::new().await;
    limit_running(&installation, 1).await;
    let roles = installation.start_all(1, 1).await;
    let apply = |name: &str, spec: SandboxSpec| {
        let metadata = Metadata::new(Some(installation.team.clone()), Name::new(name).unwrap());
        Sandbox::new(metadata, spec)
    };
    let spec = SandboxSpec {
        template: Some(Name::new("base").unwrap()),
        ..SandboxSpec::default()
    };
    let first = apply("first", spec.clone());
    installation.store.create_object(&first).await.unwrap();
    let first = installation
        .until("first", |s| s.status.phase == Phase::Running)
        .await;
    let owner = first.spec.owner.as_ref().unwrap();
    assert_eq!(owner.team, installation.team);
    assert!(first.spec.sandbox_id.is_some());
    // Whoever writes an owner and an id into a manifest gets no further by that.
    let mut forged = apply("second", spec);
    forged.spec.owner = first.spec.owner.clone();
    forged.spec.sandbox_id = first.spec.sandbox_id.clone();
    installation.store.create_object(&forged).await.unwrap();
    let refused = installation
        .until("second", |s| {
            s.status
                .conditions
                .iter()
                .any(|c| &*c.kind == "Admitted" && &*c.reason == "Limited")
        })
        .await;
    assert_eq!(refused.status.phase, Phase::Pending);
    while !installation
        .events_of("second")
        .contains(&"Limited".to_owned())
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Once there is room it goes on by itself, under an id of its own.
    installation.store.delete_object(&first).await.unwrap();
    let second = installation
        .until("second", |s| s.status.phase == Phase::Running)
        .await;
    assert_ne!(second.spec.sandbox_id, forged.spec.sandbox_id);
    drop(roles);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_template_that_changes_is_rolled_out_to_the_idle_members_of_its_pools() {
    let installation = Installation::new().await;
    let metadata = Metadata::new(Some(installation.team.clone()), Name::new("warm").unwrap());
    let pool = SandboxPool::new(metadata, PoolSpec::new(Name::new("base").unwrap(), 2, 2, 6));
    installation.store.create_object(&pool).await.unwrap();
    let roles = installation.start_all(1, 1).await;
    let before = installation.until_idle(2, |_| true).await;
    let key = model::Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: Name::new("base").unwrap(),
    };
    let template = installation.store.find::<TemplateSpec>(&key).await.unwrap();
    let mut template = template.unwrap();
    template.spec.image = "localhost/debian:2".into();
    installation.store.update_spec(&template).await.unwrap();
    installation
        .until_idle(2, |now| !before.contains(now))
        .await;
    drop(roles);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn traffic_wakes_no_more_than_a_team_may_have() {
    let installation = Installation::new().await;
    limit_running(&installation, 1).await;
    let roles = installation.start_all(1, 1).await;
    let user = installation.user(&roles).await;
    let asleep = user
        .create(json!({"autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    let pause = format!("/sandboxes/{}/pause", asleep.id);
    user.ask(Method::POST, &pause, json!({})).await.is(204);
    let other = user.create(json!({})).await;
    let gateway = roles.gateways[0].url().await;
    let file = format!(
        "{gateway}/-/{}/49983/files?path=/etc/hostname&username=root",
        asleep.id
    );
    let token = [("x-access-token", asleep.token.as_str())];
    let refused = send(Method::GET, &file, &token, "").await.unwrap();
    assert!(
        refused.status >= 429,
        "{}: {}",
        refused.status,
        refused.text()
    );
    assert_eq!(user.state(&asleep.id).await, "paused");
    while !installation
        .events_of(&asleep.id)
        .contains(&"Limited".to_owned())
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let path = format!("/sandboxes/{}", other.id);
    user.ask(Method::DELETE, &path, Value::Null).await.is(204);
    let read = send(Method::GET, &file, &token, "").await.unwrap();
    read.is(200);
    drop(roles);
}

/// Lets a team have so many awake.
pub(crate) async fn limit_running(installation: &Installation, most: u32) {
    let key = model::Key {
        kind: TeamSpec::KIND,
        namespace: None,
        name: Name::new(installation.team.as_str()).unwrap(),
    };
    let team = installation.store.find::<TeamSpec>(&key).await.unwrap();
    let mut team = team.unwrap();
    team.spec.quotas = Quotas {
        running_sandboxes: Some(most),
        ..Quotas::default()
    };
    installation.store.update_spec(&team).await.unwrap();
}
