//! Bare streams to ports: through HTTP, and for the server's own use.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use gateway::{OpenError, Proof, To, WakeError, address::Port};
use model::{Epoch, Namespace};
use routes::{Gate, State};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    client::{Client, get, once},
    sandbox::{Program, raw},
    waking::{Script, asleep, world},
    world::{World, eventually},
};

/// Sends back what it reads, and says goodbye after its peer has.
async fn echo(world: &World) -> Program {
    raw(world.ip, 0, |mut stream, _| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

fn ask(port: u16, more: &[(&str, &str)]) -> String {
    let mut headers = vec![("Connection", "Upgrade"), ("Upgrade", "dormouse-tcp")];
    headers.extend(more);
    get(&format!("/-/box/{port}/"), &headers)
}

fn number(port: u16) -> Port {
    Port::parse(port.to_string().as_bytes()).unwrap()
}

fn team() -> Namespace {
    Namespace::new("team").unwrap()
}

#[tokio::test]
async fn bytes_pass_both_ways_once_and_each_side_ends_for_itself() {
    let world = World::new();
    let program = echo(&world).await;
    let route = world.apply(world.route("box"));
    let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut client = Client::connect(world.address()).await;
    // The first bytes come with the head, before there is anybody to read them.
    client
        .send([ask(program.port, &[]).as_bytes(), &sent[..1000]].concat())
        .await;
    let head = client.head().await;
    assert_eq!(head.status, 101);
    assert_eq!(head.header("upgrade"), Some("dormouse-tcp"));
    let early = client.take_early();
    let (mut read, mut write) = client.stream.split();
    let sending = async {
        write.write_all(&sent[1000..]).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut back = early;
    let (read, ()) = tokio::join!(read.read_to_end(&mut back), sending);
    read.unwrap();
    assert!(back == sent, "{} bytes came back", back.len());
    eventually(|| world.gateway.activity().of(route.uid).unwrap().open == 0).await;
    world.quiet().await;
    assert_eq!(program.taken(), 1);
}

#[tokio::test]
async fn a_bare_port_wants_the_same_token_and_the_agents_is_not_to_be_had() {
    let world = World::new();
    let program = echo(&world).await;
    world.apply(world.secured("box"));
    let refused = once(world.address(), ask(program.port, &[])).await;
    assert_eq!(refused.status, 403);
    let wrong = [("e2b-traffic-access-token", "nonsense")];
    assert_eq!(
        once(world.address(), ask(program.port, &wrong))
            .await
            .status,
        403
    );
    assert_eq!(program.taken(), 0);
    let agent = [("x-access-token", &*world.agent_token("box"))];
    let answer = once(world.address(), ask(49983, &agent)).await;
    assert_eq!(answer.status, 404, "not even with its token");
    let token = world.traffic_token("box");
    let mut client = Client::connect(world.address()).await;
    let right = [("e2b-traffic-access-token", token.as_str())];
    client.send(ask(program.port, &right)).await;
    assert_eq!(client.head().await.status, 101);
    client.send("hello").await;
    assert_eq!(client.read_exact(5).await, b"hello");

    let streams = world.gateway.streams();
    let team = team();
    let open = |proof| {
        let streams = streams.clone();
        async move {
            streams
                .open(To::Id("box"), number(program.port), proof)
                .await
        }
    };
    assert_eq!(
        open(Proof::Token(None)).await.unwrap_err(),
        OpenError::Denied
    );
    open(Proof::Token(Some(token.as_bytes()))).await.unwrap();
    open(Proof::Team(&team)).await.unwrap();
    open(Proof::Operator).await.unwrap();
    let agent = streams.open(To::Id("box"), Port::AGENT, Proof::Operator);
    assert_eq!(agent.await.unwrap_err(), OpenError::Denied);
}

#[tokio::test]
async fn a_foreign_sandbox_is_like_an_unknown_one_and_is_not_woken() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    world.apply(asleep(&world, State::Paused));
    let other = Namespace::new("other").unwrap();
    let streams = world.gateway.streams();
    for id in ["box", "nothing"] {
        let port = number(80);
        let open = streams.open(To::Id(id), port, Proof::Team(&other)).await;
        assert_eq!(open.unwrap_err(), OpenError::NotFound, "{id}");
        let agent = streams.open_agent(id, &other).await;
        assert_eq!(agent.unwrap_err(), OpenError::NotFound, "{id}");
    }
    assert_eq!(script.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn bytes_are_held_until_the_sandbox_is_awake_and_delivered_once() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let program = echo(&world).await;
    let route = world.apply(asleep(&world, State::Paused));
    let mut awake = route.clone();
    awake.state = State::Running;
    let says = script.says.lock().await;
    let mut client = Client::connect(world.address()).await;
    client.send(ask(program.port, &[]) + "sent at once").await;
    eventually(|| script.waiting.load(Ordering::SeqCst) == 1).await;
    assert_eq!(world.gateway.activity().of(route.uid).unwrap().open, 1);
    let mut says = says;
    *says = Some(Ok(world.apply(awake)));
    drop(says);
    assert_eq!(client.head().await.status, 101);
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.read_to_end().await, b"sent at once");

    // By its name too, and what cannot be woken says so.
    let (namespace, name) = (&route.namespace, &route.name);
    world.apply(asleep(&world, State::Paused));
    *script.says.lock().await = Some(Err(WakeError::Failed));
    let to = To::Name(namespace, name);
    let streams = world.gateway.streams();
    let open = streams.open(to, number(program.port), Proof::Operator);
    assert_eq!(open.await.unwrap_err(), OpenError::NotWoken);
    let mut shut = asleep(&world, State::Paused);
    shut.wake_on_traffic = false;
    world.apply(shut);
    let open = streams.open(to, number(program.port), Proof::Operator);
    assert_eq!(open.await.unwrap_err(), OpenError::NotFound);
}

#[tokio::test]
async fn bytes_for_a_sandbox_that_was_put_to_sleep_under_a_stream_wake_it() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let program = echo(&world).await;
    let mut running = asleep(&world, State::Running);
    running.traffic = Gate::Open;
    world.apply(running.clone());
    let streams = world.gateway.streams();
    let opened = streams.open(To::Id("box"), number(program.port), Proof::Operator);
    let mut stream = opened.await.unwrap();
    world.apply(asleep(&world, State::Paused));
    *script.says.lock().await = Some(Ok(running));
    stream.write_all(b"good morning").await.unwrap();
    assert_eq!(script.calls.load(Ordering::SeqCst), 1);
    let mut back = [0; 12];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"good morning");
}

#[tokio::test]
async fn a_stream_to_one_that_is_awake_before_the_table_hears_of_it_waits_no_more() {
    let script = Arc::new(Script::default());
    let world = world(&script, Duration::from_secs(60));
    let program = echo(&world).await;
    let mut woken = world.apply(asleep(&world, State::Resuming));
    woken.state = State::Running;
    *script.says.lock().await = Some(Ok(woken));
    let streams = world.gateway.streams();
    let opened = streams.open(To::Id("box"), number(program.port), Proof::Operator);
    let mut stream = opened.await.unwrap();
    let mut back = [0; 5];
    for _ in 0..2 {
        stream.write_all(b"hello").await.unwrap();
        stream.read_exact(&mut back).await.unwrap();
    }
    assert_eq!(script.calls.load(Ordering::SeqCst), 1);
    // What is newer counts again.
    let mut woken = world.apply(asleep(&world, State::Paused));
    woken.state = State::Running;
    *script.says.lock().await = Some(Ok(woken));
    for _ in 0..2 {
        stream.write_all(b"hello").await.unwrap();
        stream.read_exact(&mut back).await.unwrap();
    }
    assert_eq!(script.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_stream_counts_as_use_and_is_cut_when_its_delivery_is_over() {
    let world = World::new();
    let program = echo(&world).await;
    let route = world.apply(world.route("box"));
    let streams = world.gateway.streams();
    let port = number(program.port);
    let is_in_use = || world.gateway.activity().of(route.uid).unwrap().open;
    let team = team();
    let mut stream = streams
        .open(To::Id("box"), port, Proof::Team(&team))
        .await
        .unwrap();
    assert_eq!(is_in_use(), 1);
    let mut client = Client::connect(world.address()).await;
    client.send(ask(program.port, &[])).await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(is_in_use(), 2);
    let mut next = world.route("box");
    next.epoch = Epoch(2);
    world.apply(next);
    let mut byte = [0];
    let end = stream.read(&mut byte).await.unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    drop(stream);
    let (rest, end) = client.read_to_any_end().await;
    assert!(rest.is_empty() && end.is_err(), "a reset, not a goodbye");
    eventually(|| program.open() == 0).await;
    let closed = streams.open(To::Id("box"), number(1), Proof::Operator);
    assert_eq!(closed.await.unwrap_err(), OpenError::PortClosed);
}
