//! One that comes late.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use mesh::Role;
use routes::{Snapshot, Table};
use tokio::time::timeout;

use crate::{
    slow::{Gate, Opens, Slow},
    world::{Node, Plan, delete, eventually, linked, route, upsert, v},
};

const MANY: u64 = 100_000;

fn full() -> Arc<Table> {
    let table = Table::default();
    let routes = (0..MANY).map(|n| Arc::new(route(&format!("n{n}"), n + 1)));
    let snapshot = Snapshot {
        version: v(MANY),
        routes: routes.collect(),
    };
    table.replace_all(snapshot, Duration::ZERO);
    Arc::new(table)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_knows_nothing_takes_everything_from_another() {
    let first = Node::start(|plan| plan.book = Some(full())).await;
    let second = Node::start(|plan| {
        plan.book = Some(full());
        plan.seeds = BTreeSet::from([first.address]);
    })
    .await;
    let nodes = [first, second];
    linked(&nodes).await;
    // What is newer than the watch of who tells is told as well.
    nodes[0].mesh.say(upsert("new", MANY + 1));
    nodes[0].mesh.say(delete("n7", MANY + 2));
    assert!(nodes[0].mesh.heard(v(MANY + 2)).await);
    let late = Node::start(|plan| {
        plan.book = Some(Arc::default());
        plan.seeds = nodes.iter().map(|n| n.address).collect();
    })
    .await;
    eventually("it took everything", || late.table.synced()).await;
    assert_eq!(late.content(), nodes[0].content());
    assert_eq!(late.table.stats().routes as u64, MANY);
    assert_eq!(late.table.watched(), v(MANY));
    assert_eq!(late.mesh.stats().counts.snapshots_taken, 1);
    // A late word about what is gone changes nothing.
    nodes[1].mesh.say(upsert("n7", 8));
    nodes[1].mesh.heard(v(8)).await;
    assert_eq!(late.version_of("n7"), None);
}

#[tokio::test]
async fn one_that_knows_nothing_takes_nothing_from_one_like_it() {
    let empty = Node::start(|plan| plan.book = Some(Arc::default())).await;
    let other = Node::start(|plan| {
        plan.book = Some(Arc::default());
        plan.seeds = [empty.address].into();
    })
    .await;
    eventually("they have asked each other", || {
        empty.mesh.stats().counts.rounds > 1 && other.mesh.stats().counts.rounds > 1
    })
    .await;
    assert!(!empty.table.synced() && !other.table.synced());
    assert_eq!(other.mesh.stats().counts.snapshots_taken, 0);
    // The own list of one is the beginning for both.
    let listed = Snapshot {
        version: v(9),
        routes: vec![Arc::new(route("box", 9))],
    };
    empty.table.replace_all(listed, Duration::ZERO);
    eventually("the other took it", || other.table.synced()).await;
    assert_eq!(other.version_of("box"), Some(v(9)));
}

#[tokio::test]
async fn one_whose_watch_hangs_for_long_takes_everything_and_then_only_changes() {
    let nodes = Node::three().await;
    // The others list anew, so they have forgotten what came between.
    let listed = |version| Snapshot {
        version: v(version),
        routes: vec![Arc::new(route("box", 50))],
    };
    nodes[0].table.replace_all(listed(60), Duration::ZERO);
    nodes[1].table.replace_all(listed(60), Duration::ZERO);
    eventually("it took everything", || nodes[2].table.watched() == v(60)).await;
    assert_eq!(nodes[2].version_of("box"), Some(v(50)));
    let taken = nodes[2].mesh.stats().counts.snapshots_taken;
    let rounds = nodes[2].mesh.stats().counts.rounds;
    eventually("rounds pass", || {
        nodes[2].mesh.stats().counts.rounds > rounds + 2
    })
    .await;
    assert_eq!(nodes[2].mesh.stats().counts.snapshots_taken, taken);
}

#[tokio::test]
async fn seeds_may_come_later() {
    let first = Node::start(|_| {}).await;
    let second = Node::start(|plan| plan.role = Role::Control).await;
    second.seeds.send_replace(Some([first.address].into()));
    let nodes = [first, second];
    linked(&nodes).await;
}

/// One joins, and everything waits at a gate: at who gives it, or at who takes it. Whoever writes
/// meanwhile is told that all have heard; it would wait for an hour.
async fn is_heard_meanwhile(at_giver: bool, at_taker: bool) {
    let gate = Arc::new(Gate::default());
    let _opens = Opens(Arc::clone(&gate));
    let slow = |plan: &mut Plan| {
        let gate = Arc::clone(&gate);
        plan.seen = Box::new(|table| Arc::new(Slow { table, gate }));
    };
    let giver = Node::start(|plan| {
        if at_giver {
            slow(plan);
        }
    })
    .await;
    let writer = Node::start(|plan| {
        plan.role = Role::Api;
        plan.book = None;
        plan.ack_timeout = Duration::from_secs(3600);
        plan.seeds = [giver.address].into();
    })
    .await;
    let late = Node::start(|plan| {
        plan.book = Some(Arc::default());
        plan.seeds = [giver.address, writer.address].into();
        if at_taker {
            slow(plan);
        }
    })
    .await;
    eventually("it joins", || gate.is_somebody_there()).await;
    eventually("both are told", || writer.mesh.stats().in_standing == 2).await;
    for version in 5..50 {
        writer.mesh.say(upsert("box", version));
        let heard = timeout(Duration::from_secs(60), writer.mesh.heard(v(version))).await;
        assert_eq!(heard, Ok(true));
        for node in [&giver, &late] {
            assert_eq!(node.version_of("box"), Some(v(version)));
        }
    }
    assert!(!late.table.synced(), "it still joins");
    gate.open();
    eventually("it took everything", || late.table.synced()).await;
    assert_eq!(late.content(), giver.content());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_heard_by_one_that_gathers_everything_meanwhile() {
    is_heard_meanwhile(true, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_heard_by_one_that_adopts_everything_meanwhile() {
    is_heard_meanwhile(false, true).await;
}
