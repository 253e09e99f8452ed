//! Processes that die, come back, are cut off, or do not read.

use std::{collections::BTreeSet, net::SocketAddr, thread, time::Duration};

use kit::Tasks;
use mesh::Why;
use routes::Snapshot;
use tokio::{net::TcpListener, runtime};

use crate::world::{Node, Passing, Plan, Relay, delete, eventually, linked, upsert, v};

/// Three, each behind a relay.
async fn behind_relays(adjust: impl Fn(&mut Plan)) -> (Vec<Node>, Vec<Relay>, Tasks) {
    let tasks = Tasks::default();
    let (mut nodes, mut relays) = (Vec::<Node>::new(), Vec::<Relay>::new());
    for _ in 0..3 {
        let (relay, behind) = Relay::new(&tasks).await;
        let seeds: BTreeSet<SocketAddr> = relays.iter().map(|r| r.address).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        behind.send_replace(Some(listener.local_addr().unwrap()));
        let node = Node::start(|plan| {
            plan.listener = Some(listener);
            plan.advertise = Some(relay.address);
            plan.seeds = seeds;
            adjust(plan);
        })
        .await;
        nodes.push(node);
        relays.push(relay);
    }
    linked(&nodes).await;
    (nodes, relays, tasks)
}

#[test]
fn one_that_is_killed_and_comes_back_at_the_same_address_knows_all_again() {
    let here = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Another runtime is as good as another process: when it goes, its sockets just close.
    let there = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    here.block_on(async {
        let first = Node::start(|_| {}).await;
        let seeds = BTreeSet::from([first.address]);
        let second = Node::start(|plan| plan.seeds = seeds.clone()).await;
        let seeds = BTreeSet::from([first.address, second.address]);
        let asked = seeds.clone();
        let third = there.spawn(async move { Node::start(|plan| plan.seeds = asked).await });
        let third = third.await.unwrap();
        let (address, process) = (third.address, third.mesh.process());
        eventually("all are linked", || {
            [&first, &second]
                .iter()
                .all(|n| n.mesh.stats().in_standing == 2)
        })
        .await;
        // Its address is free when this returns.
        let ending = thread::spawn(move || there.shutdown_timeout(Duration::from_secs(30)));
        ending.join().unwrap();
        eventually("its links are gone", || first.mesh.stats().listeners == 1).await;
        first.mesh.say(upsert("box", 5));
        assert!(!first.mesh.heard(v(5)).await, "somebody is missing");
        assert_eq!(second.version_of("box"), Some(v(5)));
        assert_eq!(third.version_of("box"), None);

        let listener = TcpListener::bind(address).await.unwrap();
        let again = Node::start(|plan| {
            plan.listener = Some(listener);
            plan.seeds = seeds;
            plan.book = Some(std::sync::Arc::default());
        })
        .await;
        assert_ne!(again.mesh.process(), process);
        eventually("it took everything", || again.table.synced()).await;
        assert_eq!(again.version_of("box"), Some(v(5)));
        eventually("it is one of them", || first.mesh.stats().in_standing == 2).await;
        first.mesh.say(upsert("box", 6));
        first.mesh.heard(v(6)).await;
        assert_eq!(again.version_of("box"), Some(v(6)));
        eventually("the old one is known to be gone", || {
            let stats = first.mesh.stats();
            (stats.alive, stats.suspect) == (2, 0)
        })
        .await;
    });
}

#[tokio::test]
async fn what_was_written_while_all_were_apart_is_known_to_all_when_they_are_not() {
    let (nodes, relays, tasks) = behind_relays(|_| {}).await;
    for relay in &relays {
        relay.passing.send_replace(Passing::Cut);
    }
    eventually("all are apart", || {
        nodes.iter().all(|n| n.mesh.stats().dialled == 0)
    })
    .await;
    for (n, node) in nodes.iter().enumerate() {
        for k in 0..100 {
            let version = 10 + u64::try_from(n * 100 + k).unwrap();
            node.mesh.say(upsert(&format!("n{n}-{k}"), version));
        }
        node.mesh.say(delete(&format!("n{n}-7"), 1000 + n as u64));
    }
    assert!(!nodes[0].mesh.heard(v(1000)).await);
    for relay in &relays {
        relay.passing.send_replace(Passing::Freely);
    }
    eventually("all know all", || {
        nodes[0].content().len() == 297 && nodes.iter().all(|n| n.content() == nodes[0].content())
    })
    .await;
    linked(&nodes).await;
    let _ = tasks.drain(Duration::ZERO).await;
}

#[tokio::test]
async fn one_that_nobody_can_dial_still_hears_by_asking() {
    let (nodes, relays, _tasks) = behind_relays(|_| {}).await;
    relays[2].passing.send_replace(Passing::Cut);
    eventually("nobody has a link to it", || {
        nodes[..2].iter().all(|n| n.mesh.stats().dialled == 1)
    })
    .await;
    nodes[0].mesh.say(upsert("box", 5));
    nodes[0].mesh.heard(v(5)).await;
    eventually("it asked", || nodes[2].version_of("box") == Some(v(5))).await;
    // And it is heard.
    nodes[2].mesh.say(upsert("box", 6));
    nodes[2].mesh.heard(v(6)).await;
    assert_eq!(nodes[0].version_of("box"), Some(v(6)));
}

#[tokio::test]
async fn one_that_does_not_read_is_waited_for_once_and_comes_back() {
    let (nodes, relays, _tasks) = behind_relays(|plan| {
        plan.max_said = 64;
        plan.ack_timeout = Duration::from_secs(3);
        // Late, but not given up.
        plan.silence = Some(Duration::from_secs(60));
    })
    .await;
    relays[2].passing.send_replace(Passing::Held);
    nodes[0].mesh.say(upsert("box", 5));
    assert!(!nodes[0].mesh.heard(v(5)).await);
    assert_eq!(nodes[1].version_of("box"), Some(v(5)));
    assert_eq!(nodes[0].mesh.stats().counts.late, 1);
    // A queue that overflows is no reason to wait either, and the others hear of everything.
    for k in 0..5000 {
        nodes[0].mesh.say(upsert(&format!("n{k}"), 10 + k));
        if k % 50 == 0 {
            nodes[0].mesh.heard(v(10 + k)).await;
        }
    }
    nodes[0].mesh.heard(v(5009)).await;
    assert_eq!(nodes[1].content().len(), 5001);
    let stats = nodes[0].mesh.stats();
    assert_eq!(stats.counts.late, 1, "it is waited for once");
    assert!(stats.counts.overflowed > 0);
    relays[2].passing.send_replace(Passing::Freely);
    eventually("it has caught up by asking", || {
        nodes[2].content() == nodes[0].content()
    })
    .await;
    let silent = nodes[0].mesh.stats().counts.ended;
    assert_eq!(silent.get(&Why::Slow), None);
    // Its own list has what it was not told of; then it is waited for again.
    let listed = Snapshot {
        version: v(6000),
        routes: nodes[0].table.routes(),
    };
    nodes[2].table.replace_all(listed, Duration::ZERO);
    eventually("it is in good standing", || {
        nodes[0].mesh.stats().in_standing == 2
    })
    .await;
    nodes[0].mesh.say(upsert("box", 7000));
    assert!(nodes[0].mesh.heard(v(7000)).await);
    assert_eq!(nodes[2].version_of("box"), Some(v(7000)));
}

#[tokio::test]
async fn a_link_that_is_silent_is_closed_and_made_again() {
    let (nodes, relays, _tasks) = behind_relays(|_| {}).await;
    relays[1].passing.send_replace(Passing::Held);
    eventually("it is given up", || {
        nodes[0]
            .mesh
            .stats()
            .counts
            .ended
            .contains_key(&Why::Silent)
    })
    .await;
    relays[1].passing.send_replace(Passing::Freely);
    linked(&nodes).await;
}
