//! Ports of a sandbox, reached through a real agent.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod closed;

use std::net::SocketAddr;

use agent::{Agent, Args};
use agent_client::{Client, ForwardError, forward};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use wire::{
    Secret,
    envd::{Delivery, InitRequest},
};

struct Served {
    address: SocketAddr,
    tasks: kit::Tasks,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

fn serve() -> Served {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = kit::Tasks::default();
    let stop = tasks.stopping().clone();
    let agent = Agent::new(&Args {
        init_key_hash: Some(Sha256::digest("key").into()),
        ..Args::default()
    });
    tasks.spawn(async move {
        tokio::select! {
            served = agent.serve(listener) => served.unwrap(),
            () = stop.cancelled() => {}
        }
    });
    Served { address, tasks }
}

async fn reach(at: SocketAddr, port: u16, door: &str) -> Result<TcpStream, ForwardError> {
    let stream = TcpStream::connect(at).await.unwrap();
    forward(stream, port, &door.into()).await
}

#[tokio::test]
async fn a_port_is_reached_with_the_key_of_its_delivery() {
    let served = serve();
    let at = served.address;
    let agent = Client::new(move || TcpStream::connect(at));
    let control = agent.clone().with_key(&Secret::from("key")).unwrap();
    let program = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = program.local_addr().unwrap().port();
    assert!(matches!(
        reach(at, port, "door").await,
        Err(ForwardError::NotYours)
    ));
    let delivery = Delivery {
        generation: 1,
        operation: 1,
        epoch: 1,
    };
    let settings = InitRequest {
        delivery: Some(delivery),
        door_key: Some("door".into()),
        ..InitRequest::default()
    };
    assert!(agent.init(&settings).await.is_err());
    control.init(&settings).await.unwrap();
    assert!(agent.delivery().await.is_err());
    assert_eq!(control.delivery().await.unwrap(), delivery);

    let mut outside = reach(at, port, "door").await.unwrap();
    let (mut inside, _) = program.accept().await.unwrap();
    // What speaks first is heard whole, whenever it speaks.
    inside.write_all(b"220 ready\r\n\r\nHTTP").await.unwrap();
    inside.shutdown().await.unwrap();
    let mut heard = String::new();
    outside.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "220 ready\r\n\r\nHTTP");

    let (_taken, nobody) = closed::port();
    let closed = reach(at, nobody.port(), "door").await;
    assert!(
        matches!(closed, Err(ForwardError::PortClosed)),
        "{closed:?}"
    );
    let guessed = reach(at, nobody.port(), "a door").await;
    assert!(
        matches!(guessed, Err(ForwardError::Protocol(_))),
        "{guessed:?}"
    );
}

#[tokio::test]
async fn whatever_else_has_the_address_is_told_from_an_agent() {
    for (said, shows) in [
        ("HTTP/1.1 200 OK\r\n\r\n", "Protocol"),
        ("HTTP/1.1 404 Not Found\r\n\r\n", "NotYours"),
        ("SSH-2.0-x\r\n\r\n", "Protocol"),
        ("", "Unreachable"),
    ] {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = other.local_addr().unwrap();
        let answer = async {
            let (mut stream, _) = other.accept().await.unwrap();
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked).await.unwrap();
            // In two parts, as networks do.
            let (first, rest) = said.split_at(said.len() / 2);
            stream.write_all(first.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(rest.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let (reached, ()) = tokio::join!(reach(at, 80, "door"), answer);
        let reached = format!("{:?}", reached.unwrap_err());
        assert!(reached.starts_with(shows), "{said:?}: {reached}");
    }
}
