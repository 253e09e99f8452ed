//! Pods: real agents at addresses that change hands.

use std::{net::IpAddr, sync::Arc};

use agent::{Agent, Args};
use agent_client::Client;
use auth::Seal;
use gateway::Forwarded;
use model::{Epoch, Uid};
use routes::Route;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpStream, task::JoinHandle};
use wire::{
    Secret,
    envd::{Delivery, InitRequest, PORT},
};

use crate::{
    client::{get, once},
    sandbox::program,
    world::{Setup, World},
};

const SEAL: [u8; 32] = [7; 32];

fn world() -> World {
    World::with(Setup {
        pods: Arc::new(Forwarded::new(Seal::new(SEAL))),
        ..Setup::default()
    })
}

/// The agent of a Pod, as its runtime has it started and armed.
struct Pod {
    ip: IpAddr,
    uid: Uid,
    task: JoinHandle<()>,
}

impl Pod {
    async fn start(ip: IpAddr, uid: Uid) -> Self {
        let key = Seal::new(SEAL).init_key(uid);
        let agent = Agent::new(&Args {
            init_key_hash: Some(Sha256::digest(key.reveal()).into()),
            ..Args::default()
        });
        let listener = std::net::TcpListener::bind((ip, PORT)).unwrap();
        let task = tokio::spawn(async move { agent.serve(listener).await.unwrap() });
        Self { ip, uid, task }
    }

    async fn arm(&self, epoch: Epoch) {
        let (seal, at) = (Seal::new(SEAL), self.ip);
        let agent = Client::new(move || TcpStream::connect((at, PORT)));
        let secret = |of: model::workload::Secret| Secret::from(of.reveal());
        let agent = agent.with_key(&secret(seal.init_key(self.uid))).unwrap();
        let settings = InitRequest {
            door_key: Some(secret(seal.door_key(self.uid, epoch))),
            delivery: Some(Delivery {
                generation: epoch.0.into(),
                operation: 1,
                epoch: epoch.0,
            }),
            ..InitRequest::default()
        };
        agent.init(&settings).await.unwrap();
    }

    async fn end(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn ask(world: &World, route: &Route, port: u16, path: &str) -> (u16, String) {
    let id = route.id.as_ref().unwrap();
    let host = format!("{port}-{id}.sbx.test");
    let answer = once(world.address(), get(path, &[("Host", &host)])).await;
    (answer.status, answer.body)
}

const CLOSED: &str = "port is not open";

#[tokio::test]
async fn every_port_is_reached_through_the_agent() {
    let world = world();
    let route = world.apply(world.route("box"));
    let pod = Pod::start(world.ip, route.uid).await;
    let program = program(world.ip, 0).await;
    // Armed for nobody, it serves nobody.
    assert_eq!(ask(&world, &route, program.port, "/number").await.0, 502);
    pod.arm(route.epoch).await;
    let route = world.apply(route);
    for _ in 0..3 {
        let answer = ask(&world, &route, program.port, "/number").await;
        assert_eq!(answer, (200, "0".to_owned()));
    }
    assert_eq!(program.taken(), 1, "the way through the agent is kept");
    assert_eq!(ask(&world, &route, PORT, "/health").await.0, 204);
    let port = program.port;
    drop(program);
    let other = crate::sandbox::program(world.ip, 0).await;
    let (status, body) = ask(&world, &route, port, "/number").await;
    assert!(status == 502 && body.contains(CLOSED), "{status} {body}");
    // An agent that is away for a moment takes nothing away for longer.
    let (ip, uid) = (pod.ip, pod.uid);
    pod.end().await;
    assert_eq!(ask(&world, &route, other.port, "/number").await.0, 502);
    let pod = Pod::start(ip, uid).await;
    pod.arm(route.epoch).await;
    assert_eq!(ask(&world, &route, other.port, "/number").await.0, 200);
    pod.end().await;
}

#[tokio::test]
async fn an_address_that_is_anothers_by_now_is_never_served() {
    let world = world();
    let (old, new) = (world.apply(world.route("old")), world.route("new"));
    let program = program(world.ip, 0).await;
    // Another sandbox's Pod was given the address; the gateway has not heard of it.
    let pod = Pod::start(world.ip, new.uid).await;
    pod.arm(new.epoch).await;
    let (status, body) = ask(&world, &old, program.port, "/number").await;
    assert_eq!(status, 502);
    assert!(
        !body.contains(CLOSED),
        "nothing is told of the other: {body}"
    );
    let new = world.apply(new);
    assert_eq!(ask(&world, &new, program.port, "/number").await.0, 200);
    // The same Pod's next delivery.
    let next = Route {
        epoch: Epoch(new.epoch.0 + 1),
        ..new.clone()
    };
    let next = world.apply(next);
    assert_eq!(ask(&world, &next, program.port, "/number").await.0, 502);
    pod.arm(next.epoch).await;
    let next = world.apply(next);
    assert_eq!(ask(&world, &next, program.port, "/number").await.0, 200);
    // What is armed for the next one is closed to who still means the last.
    world.apply(new.clone());
    let stale = ask(&world, &new, PORT, "/health").await;
    assert_eq!(stale.0, 502, "{stale:?}");
    assert_eq!(program.taken(), 2, "one connection for each delivery");
    pod.end().await;
}
