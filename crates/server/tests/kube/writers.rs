//! What those can do who may write the objects of their own namespace: nothing to others.

use std::time::Duration;

use http::Method;
use model::{Metadata, Name, Namespace, Sandbox, lifecycle::Phase, sandbox::SandboxSpec};
use serde_json::{Value, json};
use store::{StoreError, StoreExt as _};

use crate::{http::send, installation::Installation, lives::limit_running};

fn manifest(namespace: &Namespace, name: &str) -> Sandbox {
    let metadata = Metadata::new(Some(namespace.clone()), Name::new(name).unwrap());
    let spec = SandboxSpec {
        template: Some(Name::new("base").unwrap()),
        ..SandboxSpec::default()
    };
    Sandbox::new(metadata, spec)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_id_in_another_namespaces_manifest_gets_nobody_elses_traffic() {
    let installation = Installation::new().await;
    let roles = installation.start_all(1, 1).await;
    let user = installation.user(&roles).await;
    let victim = user.create(json!({"secure": true})).await;
    let token = [("x-access-token", victim.token.as_str())];
    let gateway = roles.gateways[0].url().await;
    let file = format!(
        "{gateway}/-/{}/49983/files?path=/tmp/a&username=root",
        victim.id
    );
    let headers = [token[0], ("content-type", "application/octet-stream")];
    let written = send(Method::POST, &file, &headers, "the owner's").await;
    written.unwrap().is(200);
    let raw = installation
        .until(&victim.id, |s| s.status.phase == Phase::Running)
        .await;
    // The whole record, with its proof, under another name and in another namespace.
    let thieves = Namespace::new("thieves").unwrap();
    let mut stolen = manifest(&thieves, "stolen");
    stolen.spec = raw.spec.clone();
    stolen.metadata.annotations = raw.metadata.annotations.clone();
    installation.store.create_object(&stolen).await.unwrap();
    let mut copied = manifest(&installation.team, "copied");
    copied.spec = raw.spec.clone();
    copied.metadata.annotations = raw.metadata.annotations.clone();
    installation.store.create_object(&copied).await.unwrap();
    let copied = installation
        .until("copied", |s| s.status.phase == Phase::Running)
        .await;
    assert_ne!(copied.spec.sandbox_id, raw.spec.sandbox_id);
    let read = send(Method::GET, &file, &token, "").await.unwrap();
    assert_eq!(read.is(200).text(), "the owner's");
    // Nor does it belong to somebody else for being called so.
    loop {
        let mut renamed = installation.until(&victim.id, |_| true).await;
        renamed.spec.owner.as_mut().unwrap().team = thieves.clone();
        renamed.spec.sandbox_id = copied.spec.sandbox_id.clone();
        match installation.store.update_spec(&renamed).await {
            Ok(_) => break,
            // Somebody else was first.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let back = installation
        .until(&victim.id, |s| s.spec.owner == raw.spec.owner)
        .await;
    assert_eq!(back.spec.sandbox_id, raw.spec.sandbox_id);
    assert_eq!(user.state(&victim.id).await, "running");
    while !installation
        .events_of(&victim.id)
        .contains(&"ChangeIgnored".to_owned())
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(roles);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_manifest_that_names_a_pool_is_no_member_of_it() {
    let installation = Installation::new().await;
    let roles = installation.start_all(1, 1).await;
    let mut forged = manifest(&installation.team, "forged");
    forged.spec.pool = Some(Name::new("warm").unwrap());
    installation.store.create_object(&forged).await.unwrap();
    let refused = installation
        .until("forged", |s| {
            let conditions = &s.status.conditions;
            conditions.iter().any(|c| &*c.reason == "Invalid")
        })
        .await;
    assert_eq!(refused.status.phase, Phase::Pending);
    installation.store.delete_object(&refused).await.unwrap();
    drop(roles);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_deleted_and_is_applied_again_as_it_was_is_weighed_again() {
    let installation = Installation::new().await;
    limit_running(&installation, 1).await;
    let roles = installation.start_all(1, 1).await;
    let user = installation.user(&roles).await;
    let first = user.create(json!({})).await;
    let kept = installation
        .until(&first.id, |s| s.status.phase == Phase::Running)
        .await;
    let path = format!("/sandboxes/{}", first.id);
    user.ask(Method::DELETE, &path, Value::Null).await.is(204);
    let key = kept.key();
    while installation
        .store
        .find::<SandboxSpec>(&key)
        .await
        .unwrap()
        .is_some()
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    user.create(json!({})).await;
    let again = Sandbox::new(kept.metadata.clone(), kept.spec.clone());
    installation.store.create_object(&again).await.unwrap();
    let refused = installation
        .until(&first.id, |s| {
            let conditions = &s.status.conditions;
            conditions.iter().any(|c| &*c.reason == "Limited")
        })
        .await;
    assert_eq!(refused.status.phase, Phase::Pending);
    drop(roles);
}
