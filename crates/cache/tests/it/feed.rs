//! A route table that is fed from a store.

use std::{sync::Arc, time::Duration};

use cache::{RouteFeed, Watched};
use kit::ManualClock;
use routes::{Limits, Table};
use store::StoreExt as _;

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
