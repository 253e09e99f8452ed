//! Arming through the real agent. Needs root, and the agent's program beside the tests'.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use agent_client::Client;
use model::{Epoch, workload::Secret};
use runtime::{Arming, Runtime as _, RuntimeError};
use support::{
    agent::{client, host, sh},
    fence_of, spec,
};
use wire::connect::Code;

fn arming(epoch: u32, token: &str) -> Arming {
    Arming {
        epoch: Epoch(epoch),
        env: [("GREETING", "hello")].into_iter().collect(),
        token: Some(Secret::new(token)),
        user: Some("user".into()),
        workdir: Some("/tmp".into()),
    }
}

fn with_token(client: &Client, token: &str) -> Client {
    client.clone().with_token(&token.into()).unwrap()
}

#[tokio::test]
async fn an_armed_agent_serves_who_knows_the_token_and_nobody_before() {
    let host = host();
    let at = support::fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let inside = client(host.runtime(), at.uid);
    // It may not listen yet.
    while inside.health().await.is_err() {
        tokio::task::yield_now().await;
    }
    let early = sh(&inside, "true").await.unwrap_err();
    assert_eq!(early.code(), Some(Code::Unavailable), "{early:?}");
    host.runtime().arm(at, &arming(1, "first")).await.unwrap();
    let nobody = sh(&inside, "true").await.unwrap_err();
    assert_eq!(nobody.code(), Some(Code::Unauthenticated), "{nobody:?}");
    let owner = with_token(&inside, "first");
    let said = sh(
        &owner,
        "echo $GREETING; id -un; pwd; cat /run/dormouse/arming.json 2>&1",
    );
    let said = said.await.unwrap();
    assert!(said.starts_with("hello\nuser\n/tmp\n"), "{said}");
    assert!(
        !said.contains("first"),
        "the token is not in a file inside: {said}"
    );
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn arming_again_changes_what_is_said_and_needs_nothing_but_the_host() {
    let mut host = host();
    let at = support::fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    for _ in 0..2 {
        host.runtime().arm(at, &arming(1, "first")).await.unwrap();
    }
    // Another server, another token for the same delivery.
    host.reopen();
    host.runtime().arm(at, &arming(1, "second")).await.unwrap();
    let inside = client(host.runtime(), at.uid);
    assert!(sh(&with_token(&inside, "first"), "true").await.is_err());
    let said = sh(&with_token(&inside, "second"), "echo $GREETING").await;
    assert_eq!(said.unwrap(), "hello\n");
    let mut wrong = arming(1, "second");
    wrong.env = [("A=B", "c")].into_iter().collect();
    let refused = host.runtime().arm(at, &wrong).await;
    assert!(
        matches!(refused, Err(RuntimeError::Impossible { .. })),
        "{refused:?}"
    );
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_starts_over_is_armed_for_the_same_delivery_or_for_none() {
    let mut host = host();
    let at = support::fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.runtime().arm(at, &arming(1, "first")).await.unwrap();
    host.reopen();
    // A server that has just started knows no fresh sandbox of this kind to compare with.
    let other = support::fence(2, 1);
    host.runtime().create(other, &spec()).await.unwrap();
    let facts = host
        .runtime()
        .swap_images(at, &spec().outfit())
        .await
        .unwrap();
    assert_eq!(facts.epoch, Epoch(1));
    let inside = client(host.runtime(), at.uid);
    let said = sh(&with_token(&inside, "first"), "echo $GREETING").await;
    assert_eq!(said.unwrap(), "hello\n");
    let later = fence_of(at.uid, 2, 1);
    host.runtime().reset(later, None).await.unwrap();
    let inside = client(host.runtime(), at.uid);
    while inside.health().await.is_err() {
        tokio::task::yield_now().await;
    }
    let idle = sh(&with_token(&inside, "first"), "true").await.unwrap_err();
    assert_eq!(idle.code(), Some(Code::Unavailable), "{idle:?}");
    host.runtime().arm(later, &arming(2, "next")).await.unwrap();
    let stranger = sh(&with_token(&inside, "first"), "true").await;
    assert_eq!(stranger.unwrap_err().code(), Some(Code::Unauthenticated));
    assert_eq!(
        sh(&with_token(&inside, "next"), "echo in").await.unwrap(),
        "in\n"
    );
    host.runtime().delete(later).await.unwrap();
}
