//! Start and stop.

use std::{net::Ipv4Addr, time::Duration};

use crate::{
    client::{Client, get, request},
    sandbox::program,
    world::{Setup, World, eventually},
};

#[tokio::test]
async fn a_drain_lets_requests_finish_and_nothing_begin() {
    let mut setup = Setup::default();
    setup.options.threads = 2;
    let world = World::with(setup);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let address = world.address();
    let host = format!("{}-box.sbx.test", program.port);
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(Client::connect(address).await);
    }
    let mut busy = Client::connect(address).await;
    busy.send(request(
        "POST",
        "/echo",
        &[("Host", &host), ("Content-Length", "2")],
        "",
    ))
    .await;
    busy.head().await;
    let metrics = world.gateway.metrics();
    eventually(|| metrics.snapshot().open == 9).await;
    let drained = tokio::spawn(world.gateway.drain(Duration::from_secs(600)));
    for client in &mut idle {
        assert_eq!(client.read_to_end().await, b"");
    }
    // Each thread lets go of its own listener; the last of them may be a moment behind.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    busy.send("ok").await;
    assert_eq!(busy.read_to_end().await, b"ok");
    assert_eq!(drained.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_drain_does_not_wait_for_ever() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let mut busy = Client::connect(world.address()).await;
    busy.send(request(
        "POST",
        "/echo",
        &[("Host", &host), ("Content-Length", "2")],
        "",
    ))
    .await;
    busy.head().await;
    assert_eq!(world.gateway.drain(Duration::from_millis(50)).await, Err(1));
    let _ = busy.read_to_any_end().await;
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_that_names_it() {
    let world = World::new();
    let taken = gateway::Listen {
        address: world.address(),
        tls: None,
    };
    let ports = gateway::Ports {
        routes: world.table.clone(),
        inside: world.inside.clone(),
        wake: std::sync::Arc::new(gateway::NoWake),
        seal: None,
        clock: std::sync::Arc::new(kit::SystemClock::default()),
        entropy: std::sync::Arc::new(kit::Entropy::seeded(1)),
    };
    let refusal =
        gateway::Gateway::start(ports, gateway::Options::default(), vec![taken], None).unwrap_err();
    assert!(
        refusal.to_string().contains(&world.address().to_string()),
        "{refusal}"
    );
    assert_eq!(world.address().ip(), Ipv4Addr::LOCALHOST);
}

#[tokio::test]
async fn use_is_known_while_it_lasts_and_when_it_was_afterwards() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let activity = world.gateway.activity();
    assert_eq!(activity.of(route.uid), None);
    let host = format!("{}-box.sbx.test", program.port);
    let mut client = Client::connect(world.address()).await;
    client
        .send(request(
            "POST",
            "/echo",
            &[("Host", &host), ("Content-Length", "2")],
            "",
        ))
        .await;
    client.head().await;
    let seen = activity.of(route.uid).unwrap();
    assert_eq!((seen.epoch, seen.open), (route.epoch, 1));
    assert!(seen.last <= activity.watched());
    client.send("ok").await;
    client.read_exact(2).await;
    eventually(|| activity.of(route.uid).unwrap().open == 0).await;
    // What was refused was no use.
    let other = world.apply(world.secured("other"));
    // The answer that came before the whole request was the last on its connection.
    let mut client = Client::connect(world.address()).await;
    client.ask(get("/", &[("Host", "80-other.sbx.test")])).await;
    assert_eq!(activity.of(other.uid), None);
}
