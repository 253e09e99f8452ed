//! Names inside, and policies that are made of them.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use network::Options;

use crate::world::{
    BRIEF, ECHO, METADATA, OTHER, PATIENCE, SERVER, Space, TRIES, World, echoes, is_cut, policy,
};

/// The names of this internet: alias or addresses.
fn lookup(name: &str) -> Option<Vec<Ipv4Addr>> {
    let addresses: &[&str] = match name {
        "server.test" | "a.wild.test" | "b.a.wild.test" => &[SERVER],
        "other.test" | "wild.test" => &[OTHER],
        "both.test" => &[SERVER, OTHER],
        "rebind.test" => &[METADATA, "10.1.2.3", "127.0.0.1", "100.87.0.9"],
        name if name.starts_with("many-") => &[SERVER],
        _ => return None,
    };
    Some(addresses.iter().map(|a| a.parse().unwrap()).collect())
}

fn respond(question: &[u8]) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..at + 1 + length]).to_lowercase());
        at += 1 + length;
    }
    let mut answer = question[..at + 5].to_vec();
    answer[2] |= 0x80;
    answer[6..12].copy_from_slice(&[0; 6]);
    match lookup(&labels.join(".")) {
        None => answer[3] = 3,
        Some(addresses) => {
            answer[7] = addresses.len() as u8;
            for address in addresses {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
                answer.extend(address.octets());
            }
        }
    }
    answer
}

/// A name server in the internet; counts the questions it gets.
fn serve_names(world: &World) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let asked = count.clone();
    world.internet.run(move || {
        let socket = UdpSocket::bind("203.0.113.53:53").unwrap();
        let listener = TcpListener::bind("203.0.113.53:53").unwrap();
        let counted = asked.clone();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send_to(&respond(&buffer[..length]), from);
            }
        });
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                asked.fetch_add(1, Ordering::Relaxed);
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut question).unwrap();
                let answer = respond(&question);
                stream
                    .write_all(&(answer.len() as u16).to_be_bytes())
                    .unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
    });
    // The forwarder, on a thread of the host.
    let network = world.network();
    world.host.run(move || {
        thread::spawn(move || {
            let threads = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            threads.unwrap().block_on(async move {
                network.serve_names().unwrap();
                drop(network);
                std::future::pending::<()>().await;
            });
        });
    });
    count
}

fn question(name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = vec![0x55, 0xaa, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, kind, 0, 1]);
    bytes
}

/// What the gateway says: the outcome and the number of records.
fn ask(space: &Space, name: &str, kind: u8) -> Option<(u8, u8)> {
    let question = question(name, kind);
    space.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(BRIEF)).unwrap();
        socket.connect("100.87.0.1:53").unwrap();
        let mut answer = [0; 2048];
        // As resolvers do, again where nothing comes.
        let length = (0..TRIES).find_map(|_| {
            let asked = socket.send(&question);
            let length = asked.and_then(|_| socket.recv(&mut answer));
            if let Err(error) = &length
                && error.kind() == io::ErrorKind::ConnectionRefused
            {
                thread::sleep(BRIEF);
            }
            length.ok()
        })?;
        assert_eq!(answer[..2], [0x55, 0xaa]);
        assert!(length >= question.len());
        Some((answer[3] & 15, answer[7]))
    })
}

#[test]
fn names_are_answered_by_datagram_and_by_connection() {
    let world = World::new();
    serve_names(&world);
    let sandbox = world.sandbox(&policy(None, &[], &[]));
    assert_eq!(ask(&sandbox.space, "both.test", 1), Some((0, 2)));
    assert_eq!(ask(&sandbox.space, "missing.test", 1), Some((3, 0)));
    assert_eq!(
        ask(&sandbox.space, "both.test", 28),
        Some((0, 0)),
        "no way by version 6"
    );
    let asked = question("both.test", 1);
    let answer = sandbox.space.run(move || {
        let mut stream = TcpStream::connect("100.87.0.1:53").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(&(asked.len() as u16).to_be_bytes())
            .unwrap();
        stream.write_all(&asked).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    assert_eq!(answer[7], 2);
    assert!(sandbox.space.misses("100.87.0.1", 53) && sandbox.space.misses("100.87.0.1", 22));
}

#[test]
fn a_named_domain_opens_its_addresses_before_it_is_answered_and_no_others() {
    let world = World::new();
    let asked = serve_names(&world);
    let sandbox = world.sandbox(&policy(
        None,
        &["server.test", "*.wild.test"],
        &["0.0.0.0/0"],
    ));
    let inside = &sandbox.space;
    assert!(inside.misses(SERVER, ECHO));
    for refused in [
        "other.test",
        "wild.test",
        "xserver.test",
        "test",
        "exfiltrated.evil.test",
    ] {
        assert_eq!(ask(inside, refused, 1), Some((3, 0)), "{refused}");
    }
    assert_eq!(
        asked.load(Ordering::Relaxed),
        0,
        "no question left the host"
    );
    assert_eq!(ask(inside, "SERVER.test", 1), Some((0, 1)));
    assert!(inside.reaches(SERVER, ECHO), "{}", world.table());
    assert!(inside.misses(OTHER, ECHO));
    // Another sandbox with the same policy has not asked.
    let other = world.sandbox(&policy(None, &["server.test"], &["0.0.0.0/0"]));
    assert!(other.space.misses(SERVER, ECHO));
    let below = world.sandbox(&policy(None, &["*.wild.test"], &["0.0.0.0/0"]));
    assert_eq!(ask(&below.space, "b.a.wild.test", 1), Some((0, 1)));
    assert!(below.space.reaches(SERVER, ECHO));
}

#[test]
fn a_name_does_not_lead_to_special_addresses() {
    let world = World::new();
    serve_names(&world);
    let sandbox = world.sandbox(&policy(None, &["rebind.test"], &["0.0.0.0/0"]));
    assert_eq!(ask(&sandbox.space, "rebind.test", 1), Some((0, 4)));
    for address in [METADATA, "10.1.2.3"] {
        assert!(sandbox.space.misses(address, ECHO), "{address}");
    }
}

#[test]
fn a_new_policy_keeps_the_connections_of_names_that_it_still_names() {
    let world = World::new();
    serve_names(&world);
    let sandbox = world.sandbox(&policy(
        None,
        &["server.test", "other.test"],
        &["0.0.0.0/0"],
    ));
    let inside = &sandbox.space;
    for name in ["server.test", "other.test"] {
        assert_eq!(ask(inside, name, 1), Some((0, 1)));
    }
    let mut kept = inside.connect(SERVER, ECHO).unwrap();
    let mut cut = inside.connect(OTHER, ECHO).unwrap();
    assert!(echoes(&mut kept) && echoes(&mut cut));
    world.set(&sandbox, &policy(None, &["server.test"], &["0.0.0.0/0"]));
    assert!(echoes(&mut kept));
    assert!(is_cut(&mut cut));
    assert_eq!(ask(inside, "other.test", 1), Some((3, 0)));
}

#[test]
fn the_next_server_keeps_what_names_have_opened() {
    let mut world = World::new();
    serve_names(&world);
    let rules = policy(None, &["server.test"], &["0.0.0.0/0"]);
    let sandbox = world.sandbox(&rules);
    assert_eq!(ask(&sandbox.space, "server.test", 1), Some((0, 1)));
    let mut kept = sandbox.space.connect(SERVER, ECHO).unwrap();
    assert!(echoes(&mut kept));
    world.open(vec![(sandbox.uid, sandbox.address, rules)]);
    assert!(echoes(&mut kept));
    assert!(sandbox.space.reaches(SERVER, ECHO));
    assert!(sandbox.space.misses(OTHER, ECHO));
    // It knows why it was open, and when it is not any more.
    world.set(&sandbox, &policy(None, &["other.test"], &["0.0.0.0/0"]));
    assert!(is_cut(&mut kept));
}

#[test]
fn a_sandbox_that_asks_too_much_is_not_heard_and_others_are() {
    let mut options = Options {
        upstreams: vec!["203.0.113.53:53".parse().unwrap()],
        ..Options::default()
    };
    options.names.rate = 20;
    let world = World::with(options);
    let asked = serve_names(&world);
    let (loud, quiet) = (
        world.sandbox(&policy(None, &[], &[])),
        world.sandbox(&policy(None, &[], &[])),
    );
    loud.space.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("100.87.0.1:53").unwrap();
        for number in 0..500 {
            socket
                .send(&question(&format!("many-{number}"), 1))
                .unwrap();
        }
        let mut answer = [0; 512];
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        while socket.recv(&mut answer).is_ok() {}
    });
    assert!(asked.load(Ordering::Relaxed) < 200, "{asked:?}");
    assert_eq!(ask(&quiet.space, "server.test", 1), Some((0, 1)));
}
