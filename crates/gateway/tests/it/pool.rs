//! Kept connections: used again, never for anybody else, and never when they have ended.

use model::{Epoch, SandboxId};
use routes::State;
use tokio::io::AsyncWriteExt as _;

use crate::{
    client::{Client, get, once, request},
    sandbox::{program, raw, read_head},
    world::{World, eventually},
};

fn host(id: &str, port: u16) -> String {
    format!("{port}-{id}.sbx.test")
}

#[tokio::test]
async fn a_connection_is_used_again_by_the_next_client() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    for _ in 0..20 {
        let answer = once(
            world.address(),
            get("/number", &[("Host", &host("box", program.port))]),
        )
        .await;
        assert_eq!(answer.body, "0");
    }
    assert_eq!(program.taken(), 1);
    let seen = world.gateway.metrics().snapshot();
    assert_eq!((seen.dials, seen.reuses), (1, 19));
}

#[tokio::test]
async fn another_delivery_never_gets_the_connection_of_the_last() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let mut route = world.apply(world.route("first"));
    let ask = async |id: &str| {
        once(
            world.address(),
            get("/number", &[("Host", &host(id, program.port))]),
        )
        .await
    };
    assert_eq!(ask("first").await.body, "0");
    for (number, id) in ["second", "third"].into_iter().enumerate() {
        route.epoch = Epoch(route.epoch.0 + 1);
        let old = route.id.replace(SandboxId::new(id).unwrap()).unwrap();
        world.apply(route.clone());
        assert_eq!(
            ask(id).await.body,
            (number + 1).to_string(),
            "a connection of its own"
        );
        assert_eq!(
            ask(old.as_str()).await.status,
            502,
            "the old id leads nowhere"
        );
    }
    // What the last owners left is let go.
    eventually(|| program.open() == 1).await;
}

#[tokio::test]
async fn sandboxes_do_not_share_connections_even_to_one_address() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    world.apply(world.route("one"));
    world.apply(world.route("two"));
    for (id, number) in [("one", "0"), ("two", "1"), ("one", "0"), ("two", "1")] {
        let answer = once(
            world.address(),
            get("/number", &[("Host", &host(id, program.port))]),
        )
        .await;
        assert_eq!(answer.body, number);
    }
}

#[tokio::test]
async fn connections_to_a_sandbox_that_is_gone_are_let_go() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    let mut route = world.apply(world.route("box"));
    once(
        world.address(),
        get("/number", &[("Host", &host("box", program.port))]),
    )
    .await;
    assert_eq!(program.open(), 1);
    route.state = State::Dead;
    world.apply(route);
    eventually(|| program.open() == 0).await;
}

#[tokio::test]
async fn a_connection_that_was_closed_while_kept_is_not_used() {
    let world = World::new();
    // Says that it keeps the connection and closes it nevertheless: the rudest kind.
    let program = raw(world.ip, 0, |mut stream, number| async move {
        let head = read_head(&mut stream).await;
        let body = format!("{number} {}", head.split(' ').next().unwrap());
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    world.apply(world.route("box"));
    let mut client = Client::connect(world.address()).await;
    for number in 0..200 {
        let method = if number % 2 == 0 { "GET" } else { "DELETE" };
        let text = request(method, "/", &[("Host", &host("box", program.port))], "");
        let answer = client.ask(text).await;
        assert_eq!(answer.status, 200, "{number}");
    }
    // What may not be sent twice finds out first.
    for number in 0..50 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let text = request("POST", "/", &[("Host", &host("box", program.port))], "");
        let answer = client.ask(text).await;
        assert_eq!(answer.status, 200, "{number}");
    }
}

#[tokio::test]
async fn a_request_that_may_not_be_repeated_is_sent_once() {
    let world = World::new();
    // The first request of a connection is answered, the second is read and never is.
    let program = raw(world.ip, 0, |mut stream, _| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        read_head(&mut stream).await;
    })
    .await;
    world.apply(world.route("box"));
    let host = host("box", program.port);
    let ask = async |method: &str| {
        once(
            world.address(),
            request(method, "/", &[("Host", &host)], ""),
        )
        .await
        .status
    };
    assert_eq!(ask("POST").await, 200);
    assert_eq!(ask("POST").await, 502, "it may have been done");
    assert_eq!(program.taken(), 1);
    assert_eq!(ask("POST").await, 200);
    assert_eq!(ask("GET").await, 200, "asking again does no harm");
    assert_eq!(program.taken(), 3);
}

#[tokio::test]
async fn an_answer_before_the_whole_request_ends_the_connection() {
    let world = World::new();
    let program = raw(world.ip, 0, |mut stream, number| async move {
        read_head(&mut stream).await;
        let answer = format!("HTTP/1.1 413 Too Large\r\nContent-Length: 1\r\n\r\n{number}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    world.apply(world.route("box"));
    let host = host("box", program.port);
    for number in ["0", "1"] {
        let mut client = Client::connect(world.address()).await;
        client
            .send(request(
                "POST",
                "/",
                &[("Host", &host), ("Content-Length", "100000")],
                "",
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!((answer.status, &*answer.body), (413, number));
        assert_eq!(answer.header("connection"), Some("close"));
    }
}
