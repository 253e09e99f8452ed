//! What reaches what.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    thread,
};

use crate::world::{
    BRIEF, ECHO, METADATA, OTHER, PATIENCE, PRIVATE, SERVER, World, echo_connections, echoes,
    is_cut, policy,
};

#[test]
fn by_default_the_internet_is_reached_and_nothing_else() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &[], &[]));
    let inside = &sandbox.space;
    assert!(inside.reaches(SERVER, ECHO), "{}", world.table());
    assert!(inside.reaches_by_datagram("0.0.0.0", SERVER, ECHO));
    for address in PRIVATE.iter().chain([&METADATA]) {
        // The host itself gets there: it is the policy that is in the way.
        assert!(world.host.reaches(address, ECHO), "{address}");
        assert!(inside.misses(address, ECHO), "{address}");
        assert!(
            inside.misses_by_datagram("0.0.0.0", address, ECHO),
            "{address}"
        );
    }
}

#[test]
fn allow_and_deny_do_what_they_say() {
    let world = World::new();
    let table = [
        (policy(Some(false), &[], &[]), [false, false, false]),
        (policy(None, &[], &[SERVER]), [false, true, false]),
        (
            policy(None, &[], &["203.0.113.0/24"]),
            [false, false, false],
        ),
        (policy(None, &[OTHER], &["0.0.0.0/0"]), [false, true, false]),
        (
            policy(Some(false), &["203.0.113.16/28"], &[]),
            [false, true, false],
        ),
        (
            policy(None, &[SERVER], &["203.0.113.0/24", SERVER]),
            [true, false, false],
        ),
        (policy(None, &[PRIVATE[0]], &[]), [true, true, true]),
        (
            policy(None, &["10.0.0.0/8"], &["0.0.0.0/0"]),
            [false, false, true],
        ),
        (policy(None, &["0.0.0.0/0"], &[]), [true, true, false]),
    ];
    for (policy, expected) in &table {
        let sandbox = world.sandbox(policy);
        let inside = &sandbox.space;
        for (to, may) in [SERVER, OTHER, PRIVATE[0]].into_iter().zip(*expected) {
            let (is_so, is_so_by_datagram) = if may {
                (
                    inside.reaches(to, ECHO),
                    inside.reaches_by_datagram("0.0.0.0", to, ECHO),
                )
            } else {
                (
                    inside.misses(to, ECHO),
                    inside.misses_by_datagram("0.0.0.0", to, ECHO),
                )
            };
            assert!(is_so, "{may} {to} {policy:?}");
            assert!(is_so_by_datagram, "{may} {to} {policy:?}");
        }
    }
}

#[test]
fn the_host_is_not_reached_by_any_policy() {
    let world = World::new();
    let everything = policy(
        None,
        &[
            "0.0.0.0/0",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "203.0.113.254",
            "100.87.0.1",
        ],
        &[],
    );
    world.host.run(|| {
        echo_connections(TcpListener::bind(("0.0.0.0", 9000)).unwrap());
        echo_connections(TcpListener::bind(("::", 9001)).unwrap());
        let socket = UdpSocket::bind(("0.0.0.0", 9000)).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
    });
    for sandbox in [
        world.sandbox(&policy(None, &[], &[])),
        world.sandbox(&everything),
    ] {
        for host in ["203.0.113.254", "100.87.0.1", "127.0.0.1"] {
            assert!(sandbox.space.misses(host, 9000), "{host}");
            assert!(sandbox.space.misses(host, 9001), "{host}");
            assert!(
                sandbox.space.misses_by_datagram("0.0.0.0", host, 9000),
                "{host}"
            );
        }
        assert!(sandbox.space.pings_in_vain("100.87.0.1"));
        // Where the host's end has no address of version 6, its own multicast does not lead there.
        let listed = sandbox
            .space
            .shell("ip -6 address show dev eth0; ip -6 route show dev eth0");
        assert!(
            !listed.contains("inet6") && !listed.contains("default"),
            "{listed}"
        );
        let listed = world.host.shell("ip -6 address show | grep -A2 dm");
        assert!(!listed.contains("inet6"), "{listed}");
    }
}

#[test]
fn a_sandbox_that_gives_itself_an_address_of_version_6_reaches_nothing_by_it() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &["0.0.0.0/0"], &[]));
    world
        .host
        .run(|| echo_connections(TcpListener::bind(("::", 9001)).unwrap()));
    // More than it could do without the right to change its network.
    sandbox.space.ip("-6 address add fe80::5/64 dev eth0 nodad");
    sandbox
        .space
        .ip("-6 route add default via fe80::1 dev eth0");
    let link = world
        .links()
        .first()
        .unwrap()
        .trim_end_matches(':')
        .split('@')
        .next()
        .unwrap()
        .to_owned();
    world
        .host
        .ip(&format!("-6 address add fe80::1/64 dev {link} nodad"));
    world.host.shell("sysctl -w net.ipv6.conf.all.forwarding=1");
    world.host.ip("-6 address add 2001:db8::1/64 dev up0 nodad");
    let dial = "python3 -c \"import socket; socket.create_connection(('fe80::1%eth0', 9001), 1); print('in')\"; \
                python3 -c \"import socket; socket.create_connection(('2001:db8::1', 9001), 1); print('in')\"";
    let said = sandbox.space.shell(dial);
    assert!(!said.contains("in\n"), "{said}");
}

#[test]
fn sandboxes_do_not_reach_each_other() {
    let world = World::new();
    let wide = policy(None, &["100.87.0.0/16", "0.0.0.0/0"], &[]);
    let (one, two) = (world.sandbox(&wide), world.sandbox(&wide));
    for space in [&one.space, &two.space] {
        space.run(|| echo_connections(TcpListener::bind(("0.0.0.0", 9000)).unwrap()));
    }
    let address = two.address.to_string();
    assert!(two.space.reaches(&address, 9000), "it listens");
    assert!(one.space.misses(&address, 9000));
    assert!(one.space.misses_by_datagram("0.0.0.0", &address, 9000));
    assert!(one.space.pings_in_vain(&address));
}

#[test]
fn nothing_begins_outside() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &["10.0.0.0/8"], &[]));
    sandbox
        .space
        .run(|| echo_connections(TcpListener::bind(("0.0.0.0", 9000)).unwrap()));
    let address = sandbox.address.to_string();
    assert!(world.host.misses(&address, 9000));
    assert!(world.host.pings_in_vain(&address));
    world
        .internet
        .ip("route add 100.87.0.0/16 via 203.0.113.254");
    assert!(world.internet.misses(&address, 9000));
    assert!(world.internet.pings_in_vain(&address));
    assert!(sandbox.space.reaches(SERVER, ECHO));
}

#[test]
fn a_forged_source_goes_nowhere() {
    let world = World::new();
    let one = world.sandbox(&policy(None, &[], &[]));
    let two = world.sandbox(&policy(None, &[], &[]));
    let forged = [
        two.address,
        Ipv4Addr::new(203, 0, 113, 77),
        Ipv4Addr::new(10, 1, 2, 9),
    ];
    for source in forged {
        one.space.ip(&format!("address add {source}/32 dev lo"));
    }
    let arrived = || world.internet.shell("grep Udp: /proc/net/snmp");
    assert!(
        one.space
            .reaches_by_datagram(&one.address.to_string(), SERVER, ECHO)
    );
    let before = arrived();
    for source in forged {
        assert!(
            one.space
                .misses_by_datagram(&source.to_string(), SERVER, ECHO),
            "{source}"
        );
        assert!(
            one.space
                .misses_by_datagram(&source.to_string(), "100.87.0.1", 53),
            "{source}"
        );
    }
    assert_eq!(arrived(), before, "nothing left the host");
    assert!(two.space.reaches(SERVER, ECHO));
}

#[test]
fn echo_requests_follow_the_policy() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &[SERVER], &["0.0.0.0/0"]));
    assert!(sandbox.space.pings(SERVER));
    for other in [OTHER, METADATA, PRIVATE[0]] {
        assert!(sandbox.space.pings_in_vain(other), "{other}");
    }
}

#[test]
fn a_new_policy_cuts_what_it_forbids_and_nothing_else() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &[], &[]));
    let mut kept = sandbox.space.connect(SERVER, ECHO).unwrap();
    let mut cut = sandbox.space.connect(OTHER, ECHO).unwrap();
    assert!(echoes(&mut kept) && echoes(&mut cut));
    let policies = [
        policy(None, &[SERVER], &["0.0.0.0/0"]),
        policy(None, &["203.0.113.0/28"], &["0.0.0.0/0"]),
        policy(None, &["203.0.113.8/29", "10.0.0.0/8"], &["0.0.0.0/0"]),
        policy(Some(false), &["203.0.113.0/29", "203.0.113.10"], &[]),
        policy(None, &[], &[OTHER]),
        policy(None, &[SERVER], &["203.0.113.0/24"]),
    ];
    for policy in &policies {
        world.set(&sandbox, policy);
        assert!(echoes(&mut kept), "{policy:?}");
        assert!(sandbox.space.misses(OTHER, ECHO), "{policy:?}");
    }
    assert!(is_cut(&mut cut), "it was reset, or hears nothing");
    world.set(&sandbox, &policy(Some(false), &[], &[]));
    assert!(is_cut(&mut kept));
    world.set(&sandbox, &policy(None, &[], &[]));
    assert!(sandbox.space.reaches(OTHER, ECHO));
}

#[test]
fn what_is_sent_to_a_sandbox_after_the_cut_does_not_arrive() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &[], &[]));
    let (server, inside) = (
        world
            .internet
            .run(|| UdpSocket::bind((SERVER, 7001)).unwrap()),
        sandbox.space.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()),
    );
    for socket in [&server, &inside] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    inside.connect((SERVER, 7001)).unwrap();
    inside.send(b"begin").unwrap();
    let mut buffer = [0; 16];
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(b"one", from).unwrap();
    assert!(inside.recv(&mut buffer).is_ok());
    world.set(&sandbox, &policy(Some(false), &[], &[]));
    server.send_to(b"two", from).unwrap();
    inside.set_read_timeout(Some(BRIEF)).unwrap();
    assert!(inside.recv(&mut buffer).is_err());
}
