//! A route table that is fed from a store.

use std::{sync::Arc, time::Duration};

use cache::{RouteFeed, Watched};
use kit::ManualClock;
use model::Version;
use routes::{Deletion, Limits, Message, Route, Snapshot, Table, Writer};
use store::StoreExt as _;
use tokio::time::timeout;

use crate::world::{World, at};

#[tokio::test(start_paused = true)]
async fn a_record_that_is_no_sandbox_keeps_no_other_from_its_route() {
    let world = World::new();
    world.create("before").await;
    world.put_garbage("listed").await;
    let table = Arc::new(Table::new(Limits::default()));
    let feed = RouteFeed {
        store: world.store.clone(),
        table: Arc::clone(&table),
        clock: Arc::new(ManualClock::starting_at(0)),
        entropy: Arc::clone(&world.entropy),
        watched: Watched::default(),
    };
    world.tasks.spawn(async move { feed.follow(|_| {}).await });
    let has = |name: &str| {
        let key = at(name);
        table.find(&key.namespace.unwrap(), &key.name).is_some()
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(has("before") && !has("listed"));
    world.put_garbage("told").await;
    let after = world.create("after").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(has("before") && has("after") && !has("told"));
    world.memory.delete_object(&after).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!has("after"));
}

/// A feed of a table that a peer has told everything, as of a version.
fn told(world: &World, version: Version) -> (Arc<Table>, Watched) {
    let table = Arc::new(Table::new(Limits::default()));
    let routes = Vec::new();
    table.adopt(Snapshot { version, routes }, Duration::ZERO);
    let watched = Watched::default();
    let feed = RouteFeed {
        store: world.store.clone(),
        table: Arc::clone(&table),
        clock: Arc::new(ManualClock::starting_at(0)),
        entropy: Arc::clone(&world.entropy),
        watched: watched.clone(),
    };
    world.tasks.spawn(async move { feed.follow(|_| {}).await });
    (table, watched)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_behind_what_others_told_went_back() {
    let world = World::new();
    world.create("box").await;
    let ahead = Version::from_u64(world.memory.version().to_u64() + 5);
    let (table, watched) = told(&world, ahead);
    let soon = timeout(Duration::from_secs(25), watched.went_back()).await;
    assert!(soon.is_err(), "a list may lag");
    assert_eq!(table.routes().len(), 0);
    timeout(Duration::from_secs(60), watched.went_back())
        .await
        .expect("it is told that the store went back");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_catches_up_with_what_others_told_is_taken() {
    let world = World::new();
    world.create("one").await;
    let ahead = Version::from_u64(world.memory.version().to_u64() + 1);
    let (table, watched) = told(&world, ahead);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(table.routes().len(), 0);
    world.create("two").await;
    let soon = timeout(Duration::from_secs(60), watched.went_back()).await;
    assert!(soon.is_err());
    assert_eq!(table.routes().len(), 2);
    assert!(table.everything().is_some());
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_said_and_the_watch_did_not_bring_is_looked_up_in_the_store() {
    let world = World::new();
    let made = world.create("box").await;
    let (table, _) = told(&world, Version::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (lists, real) = (world.store.lists(), Route::of(&made).unwrap());
    let wrong = Route {
        version: Version::from_u64(real.version.to_u64() + 1),
        wake_on_traffic: true,
        ..real.clone()
    };
    table.apply(Writer::Peer, Message::from(wrong), Duration::ZERO);
    // The version that the peer named is another's.
    world.create("other").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.store.lists(), lists + 1);
    let found = table.find(&real.namespace, &real.name);
    assert_eq!(found.as_deref(), Some(&real));
    assert_eq!(table.stats().counts.refuted, 1);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_a_peer_said_and_the_watch_did_not_bring_hides_nothing_for_long() {
    let world = World::new();
    let made = world.create("box").await;
    let (table, _) = told(&world, Version::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (lists, real) = (world.store.lists(), Route::of(&made).unwrap());
    let gone = || {
        Message::Delete(Deletion {
            namespace: real.namespace.clone(),
            name: real.name.clone(),
            version: Version::from_u64(world.memory.version().to_u64() + 1),
        })
    };
    table.apply(Writer::Peer, gone(), Duration::ZERO);
    assert_eq!(table.find(&real.namespace, &real.name), None);
    // The version that the peer named is another's.
    world.create("other").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.store.lists(), lists + 1);
    let found = table.find(&real.namespace, &real.name);
    assert_eq!(found.as_deref(), Some(&real));
    assert_eq!(table.stats().counts.refuted_deletes, 1);
    // One that is so is not doubted.
    table.apply(Writer::Peer, gone(), Duration::ZERO);
    world.memory.delete_object(&made).await.unwrap();
    world.create("third").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.store.lists(), lists + 1);
    assert_eq!(table.find(&real.namespace, &real.name), None);
}
