//! Meshes over real TLS on loopback.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad;
mod faults;
mod joining;
mod slow;
mod world;

use std::sync::Arc;

use mesh::{Heard, Role};
use model::Version;
use parking_lot::Mutex;
use routes::Message;
use world::{Node, delete, eventually, upsert, v};

#[tokio::test]
async fn what_one_writes_all_know_when_it_is_told_that_they_do() {
    let nodes = Node::three().await;
    nodes[0].mesh.say(upsert("box", 5));
    assert!(nodes[0].mesh.heard(v(5)).await);
    for node in &nodes {
        assert_eq!(node.version_of("box"), Some(v(5)));
    }
    nodes[1].mesh.say(delete("box", 6));
    assert!(nodes[1].mesh.heard(v(6)).await);
    for node in &nodes {
        assert_eq!(node.version_of("box"), None);
    }
    let stats = nodes[2].mesh.stats();
    assert_eq!(stats.counts.applied, 2);
    assert!(stats.bytes_sent > 0 && stats.bytes_received > 0);
}

#[tokio::test]
async fn what_was_heard_from_others_is_not_pushed_on() {
    let nodes = Node::three().await;
    nodes[0].mesh.say(upsert("box", 5));
    assert!(nodes[0].mesh.heard(v(5)).await);
    let sent: Vec<u64> = nodes.iter().map(|n| n.mesh.stats().counts.sent).collect();
    assert_eq!(sent, [2, 0, 0]);
}

/// A replica of the API: no table, but a list of what it heard.
#[derive(Debug, Default)]
struct Listener(Mutex<Vec<Message>>);

impl Heard for Listener {
    fn heard(&self, message: &Message) {
        self.0.lock().push(message.clone());
    }

    fn watched(&self) -> Version {
        v(1)
    }
}

#[tokio::test]
async fn a_replica_without_a_table_hears_and_is_heard() {
    let nodes = Node::three().await;
    let ear = Arc::new(Listener::default());
    let api = Node::start(|plan| {
        plan.role = Role::Api;
        plan.book = None;
        plan.ear = Some(Arc::clone(&ear) as Arc<dyn Heard>);
        plan.seeds = nodes.iter().map(|n| n.address).collect();
    })
    .await;
    eventually("all are linked", || {
        api.mesh.stats().in_standing == 3 && nodes.iter().all(|n| n.mesh.stats().in_standing == 3)
    })
    .await;
    nodes[2].mesh.say(upsert("box", 5));
    assert!(nodes[2].mesh.heard(v(5)).await);
    assert_eq!(*ear.0.lock(), [upsert("box", 5)]);
    api.mesh.say(upsert("box", 6));
    assert!(api.mesh.heard(v(6)).await);
    for node in &nodes {
        assert_eq!(node.version_of("box"), Some(v(6)));
    }
    assert_eq!(
        api.mesh.stats().counts.rounds,
        0,
        "it has nothing to ask for"
    );
}

#[tokio::test]
async fn who_leaves_is_not_waited_for() {
    let nodes = Node::three().await;
    nodes[2].mesh.leave().await;
    eventually("the others know", || {
        let stats = nodes[0].mesh.stats();
        (stats.listeners, stats.down) == (1, 1)
    })
    .await;
    assert!(!nodes[2].mesh.heard(v(4)).await, "nobody is told any more");
}

#[tokio::test]
async fn a_wall_clock_that_is_an_hour_off_changes_nothing() {
    let nodes = Node::three().await;
    let late = Node::start(|plan| {
        plan.hours_off = 1;
        plan.seeds = nodes.iter().map(|n| n.address).collect();
    })
    .await;
    eventually("it is one of them", || late.mesh.stats().in_standing == 3).await;
    late.mesh.say(upsert("box", 5));
    assert!(late.mesh.heard(v(5)).await);
    assert_eq!(nodes[0].version_of("box"), Some(v(5)));
    nodes[0].mesh.say(upsert("box", 6));
    assert!(nodes[0].mesh.heard(v(6)).await);
    assert_eq!(late.version_of("box"), Some(v(6)));
}

#[tokio::test]
async fn a_member_is_found_through_another() {
    let first = Node::start(|_| {}).await;
    let second = Node::start(|plan| plan.seeds = [first.address].into()).await;
    let third = Node::start(|plan| plan.seeds = [first.address].into()).await;
    eventually("all are linked", || {
        [&first, &second, &third]
            .iter()
            .all(|n| n.mesh.stats().in_standing == 2)
    })
    .await;
    assert_eq!(third.mesh.stats().alive, 2);
}
