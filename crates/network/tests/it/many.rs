//! Many of them, and what is left of them.

use std::{collections::BTreeSet, net::UdpSocket, thread};

use crate::world::{BRIEF, ECHO, OTHER, SERVER, TRIES, World, policy};

#[test]
fn two_hundred_sandboxes_each_have_their_own_address_and_leave_nothing() {
    let mut world = World::new();
    let sandboxes: Vec<_> = (0..200)
        .map(|number| {
            let deny = if number % 2 == 0 {
                &[][..]
            } else {
                &[OTHER][..]
            };
            world.sandbox(&policy(None, &[], deny))
        })
        .collect();
    let addresses: BTreeSet<_> = sandboxes.iter().map(|one| one.address).collect();
    assert_eq!(addresses.len(), 200);
    assert_eq!(world.links().len(), 200);
    for (number, one) in sandboxes.iter().enumerate() {
        assert!(one.space.reaches(SERVER, ECHO), "{number}");
        if number % 2 == 0 {
            assert!(one.space.reaches(OTHER, ECHO), "{number}");
        } else {
            assert!(one.space.misses(OTHER, ECHO), "{number}");
        }
    }
    let network = world.network();
    for one in &sandboxes {
        network.detach(one.uid).unwrap();
    }
    assert!(
        sandboxes[0].space.misses(SERVER, ECHO),
        "it is forgotten at once"
    );
    drop(sandboxes);
    world.wait_for_no_links();
    let table = world.table();
    assert_eq!(
        table.matches("elements = ").count(),
        1,
        "what is special: {table}"
    );
    drop((network, world.network.take()));
    let left = world
        .host
        .shell("nft list ruleset; ip route; ip address | grep 100.87");
    assert!(
        !left.contains("dormouse") && !left.contains("100.87"),
        "{left}"
    );
}

#[test]
fn a_sandbox_has_no_more_connections_than_it_may() {
    let world = World::with(network::Options {
        connections: 20,
        ..network::Options::default()
    });
    let (one, two) = (
        world.sandbox(&policy(None, &[], &[])),
        world.sandbox(&policy(None, &[], &[])),
    );
    let answered = one.space.run(|| {
        let socket = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((SERVER, ECHO)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let mut silent: Vec<_> = (0..40).map(|_| socket()).collect();
        let mut answered = Vec::new();
        // Who is not heard asks again, so that who is heard has not been lucky.
        for _ in 0..TRIES {
            let enough = answered.len() >= 15;
            for socket in &silent {
                // It may be told at once that it is refused.
                let _ = socket.send(b"hello");
            }
            thread::sleep(BRIEF);
            let heard = |socket: &UdpSocket| socket.recv(&mut [0; 16]).is_ok();
            let (more, rest) = silent.into_iter().partition(heard);
            answered.extend::<Vec<_>>(more);
            silent = rest;
            if enough {
                break;
            }
        }
        answered.len()
    });
    assert!((15..=22).contains(&answered), "{answered}");
    assert!(two.space.reaches(SERVER, ECHO), "another has its own");
}

#[test]
fn engines_of_one_host_share_a_block_without_meeting() {
    let world = World::new();
    let second = world.host.run(|| {
        let network = network::Network::open("another", network::Options::default()).unwrap();
        network.adopt(Vec::new()).unwrap();
        std::sync::Arc::new(network)
    });
    let mut addresses = BTreeSet::new();
    let mut spaces = Vec::new();
    for network in [world.network(), second.clone()] {
        for _ in 0..5 {
            let space = crate::world::Space::new();
            let uid = crate::world::next_uid();
            let policy = network.compile(None).unwrap();
            let address = network.attach(uid, space.tid, space.netlink(), policy);
            assert!(addresses.insert(address.unwrap()));
            assert!(space.reaches(SERVER, ECHO));
            spaces.push((network.clone(), uid, space));
        }
    }
    for (network, uid, _) in &spaces {
        network.detach(*uid).unwrap();
    }
    drop(second);
}
