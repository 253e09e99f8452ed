//! The table of answers, row by row.

use std::time::Duration;

use gateway::metrics::Outcome;
use routes::{Address, Gate, State, TokenHash};
use serde_json::json;

use crate::{
    client::{Client, get, once, request},
    sandbox::program,
    world::{Setup, World},
};

const AGENT: u16 = 49983;

fn to(id: &str, port: u16) -> [(String, String); 2] {
    [
        ("E2b-Sandbox-Id".to_owned(), id.to_owned()),
        ("E2b-Sandbox-Port".to_owned(), port.to_string()),
    ]
}

fn with<'a>(to: &'a [(String, String); 2], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all: Vec<_> = to.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    all.extend_from_slice(more);
    all
}

#[tokio::test]
async fn unknown_dead_and_sleeping_sandboxes_were_not_found() {
    let world = World::new();
    let program = program(world.ip, 0).await;
    for (id, state) in [
        ("dead", State::Dead),
        ("paused", State::Paused),
        ("pausing", State::Pausing),
        ("resuming", State::Resuming),
        ("unknown", State::Unknown),
        ("creating", State::Creating),
        ("idle", State::Idle),
    ] {
        let mut route = world.route(id);
        route.state = state;
        world.apply(route);
    }
    // With nothing to dial, or opted in where nothing wakes.
    let mut nowhere = world.route("nowhere");
    nowhere.address = None;
    world.apply(nowhere);
    let mut opted = world.route("opted");
    (opted.state, opted.wake_on_traffic) = (State::Paused, true);
    world.apply(opted);
    let all = [
        "never", "dead", "paused", "pausing", "resuming", "unknown", "creating", "idle", "nowhere",
        "opted",
    ];
    for id in all {
        for port in [program.port, AGENT] {
            let answer = once(world.address(), get("/health", &with(&to(id, port), &[]))).await;
            assert_eq!(answer.status, 502, "{id}");
            let expected = json!({
                "sandboxId": id, "message": "The sandbox was not found", "code": 502, "port": port,
            });
            assert_eq!(answer.json(), expected);
            assert_eq!(answer.header("content-type"), Some("application/json"));
        }
    }
    assert_eq!(program.taken(), 0);
    assert_eq!(world.ended(Outcome::NotFound), 20);
}

#[tokio::test]
async fn a_port_on_which_nothing_listens_is_not_open() {
    let world = World::new();
    world.apply(world.route("box"));
    let mut inside = world.route("inside");
    inside.address = Some(Address::Netns);
    world.apply(inside);
    for id in ["box", "inside"] {
        let answer = once(world.address(), get("/", &with(&to(id, 1), &[]))).await;
        assert_eq!(answer.status, 502);
        let message = "The sandbox is running but port is not open";
        let expected = json!({"sandboxId": id, "message": message, "code": 502, "port": 1});
        assert_eq!(answer.json(), expected);
    }
    // It was tried more than once, on both loopbacks.
    let opened = world
        .inside
        .opened
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(opened >= 4, "{opened}");
    assert_eq!(world.ended(Outcome::PortClosed), 2);
}

#[tokio::test]
async fn a_sandbox_that_is_gone_from_the_machine_was_not_found() {
    let world = World::new();
    let mut route = world.route("box");
    route.address = Some(Address::Netns);
    world.apply(route);
    world
        .inside
        .is_absent
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let answer = once(world.address(), get("/", &with(&to("box", 80), &[]))).await;
    assert_eq!(answer.json()["message"], "The sandbox was not found");
}

#[tokio::test]
async fn the_agents_port_wants_its_token_and_others_the_traffic_token() {
    let world = World::new();
    let agent = program(world.ip, AGENT).await;
    let web = program(world.ip, 0).await;
    world.apply(world.secured("box"));
    let (secret, traffic) = (world.agent_token("box"), world.traffic_token("box"));
    let ask = async |port: u16, more: &[(&str, &str)]| {
        once(
            world.address(),
            get("/mirror", &with(&to("box", port), more)),
        )
        .await
    };

    for wrong in [
        vec![],
        vec![("X-Access-Token", "guess")],
        vec![("e2b-traffic-access-token", traffic.as_str())],
    ] {
        let answer = ask(AGENT, &wrong).await;
        assert_eq!(answer.status, 401, "{wrong:?}");
        assert_eq!(answer.json()["code"], 401);
    }
    for wrong in [
        vec![],
        vec![("e2b-traffic-access-token", "guess")],
        vec![("X-Access-Token", secret.as_str())],
    ] {
        let answer = ask(web.port, &wrong).await;
        assert_eq!(answer.status, 403, "{wrong:?}");
        assert_eq!(answer.json()["code"], 403);
    }
    assert_eq!((agent.taken(), web.taken()), (0, 0));

    let answer = ask(AGENT, &[("X-Access-Token", &secret)]).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains(&secret), "the agent checks it too");
    let answer = ask(
        web.port,
        &[
            ("E2B-Traffic-Access-Token", &traffic),
            ("X-Access-Token", "own"),
        ],
    )
    .await;
    assert_eq!(answer.status, 200);
    assert!(
        !answer.body.contains(&traffic),
        "the sandbox need not know it"
    );
    assert!(answer.body.contains("x-access-token: own"));
}

#[tokio::test]
async fn tokens_come_before_state() {
    let world = World::new();
    let mut route = world.secured("box");
    (route.state, route.wake_on_traffic) = (State::Paused, true);
    world.apply(route);
    let answer = once(world.address(), get("/", &with(&to("box", AGENT), &[]))).await;
    assert_eq!(answer.status, 401);
    let answer = once(world.address(), get("/", &with(&to("box", 80), &[]))).await;
    assert_eq!(answer.status, 403);
    let signed = get(
        "/files?path=a&signature=v1_no",
        &with(&to("box", AGENT), &[]),
    );
    assert_eq!(once(world.address(), signed).await.status, 401);
}

#[tokio::test]
async fn a_closed_gate_is_closed_for_everybody() {
    let world = World::new();
    let mut route = world.route("box");
    (route.agent, route.traffic) = (Gate::Closed, Gate::Closed);
    world.apply(route);
    for (port, status) in [(AGENT, 401), (80, 403)] {
        let more = [("X-Access-Token", "x"), ("e2b-traffic-access-token", "x")];
        let answer = once(
            world.address(),
            get("/files?signature=v1_x", &with(&to("box", port), &more)),
        )
        .await;
        assert_eq!(answer.status, status);
    }
}

#[tokio::test]
async fn preflights_pass_without_a_token() {
    let world = World::new();
    let agent = program(world.ip, AGENT).await;
    let web = program(world.ip, 0).await;
    world.apply(world.secured("box"));
    let asks = [
        ("Origin", "https://page.test"),
        ("Access-Control-Request-Method", "POST"),
    ];
    for port in [AGENT, web.port] {
        let answer = once(
            world.address(),
            request("OPTIONS", "/mirror", &with(&to("box", port), &asks), ""),
        )
        .await;
        assert_eq!(answer.status, 200);
        let answer = once(
            world.address(),
            request("OPTIONS", "/mirror", &with(&to("box", port), &[]), ""),
        )
        .await;
        assert_ne!(
            answer.status, 200,
            "an OPTIONS without an origin is not one"
        );
        let answer = once(
            world.address(),
            request("POST", "/mirror", &with(&to("box", port), &asks), "x"),
        )
        .await;
        assert_ne!(answer.status, 200, "and a POST is none");
    }
    assert_eq!((agent.taken(), web.taken()), (1, 1));
}

#[tokio::test]
async fn a_preflight_that_wants_more_needs_a_token() {
    let world = World::new();
    let web = program(world.ip, 0).await;
    world.apply(world.secured("box"));
    let asks = [
        ("Origin", "https://page.test"),
        ("Access-Control-Request-Method", "POST"),
    ];
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    for (more, body) in [
        (&upgrade[..], ""),
        (&[("Transfer-Encoding", "chunked")], "0\r\n\r\n"),
        (&[("Content-Length", "1")], "x"),
    ] {
        let headers = [&asks[..], more].concat();
        let to = to("box", web.port);
        let text = request("OPTIONS", "/upgrade", &with(&to, &headers), "") + body;
        assert_eq!(once(world.address(), &text).await.status, 403, "{text}");
    }
    assert_eq!(web.taken(), 0);
}

#[tokio::test]
async fn routes_of_the_platform_are_nobodys() {
    let world = World::new();
    let agent = program(world.ip, AGENT).await;
    world.apply(world.secured("box"));
    let token = world.agent_token("box");
    for path in [
        "/init",
        "//init",
        "/%69nit",
        "/x/../init",
        "/freeze",
        "/upgrade?x=1",
    ] {
        let to = to("box", AGENT);
        let headers = with(&to, &[("X-Access-Token", &token)]);
        let answer = once(world.address(), request("POST", path, &headers, "{}")).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["code"], 404);
        let path = format!("/-/box/{AGENT}{path}");
        let answer = once(
            world.address(),
            request("POST", &path, &[("X-Access-Token", &token)], "{}"),
        )
        .await;
        assert_eq!(answer.status, 404, "{path}");
    }
    assert_eq!(agent.taken(), 0);
}

#[tokio::test]
async fn bad_addresses_are_bad_requests() {
    let world = World::new();
    world.apply(world.route("box"));
    let bad = [
        get("/", &[("E2b-Sandbox-Id", "box")]),
        get("/", &[("E2b-Sandbox-Port", "80")]),
        get("/", &with(&to("box", 80), &[("E2b-Sandbox-Id", "other")])),
        get(
            "/",
            &[("E2b-Sandbox-Id", "box"), ("E2b-Sandbox-Port", "080")],
        ),
        get(
            "/",
            &[("E2b-Sandbox-Id", "box"), ("E2b-Sandbox-Port", "+80")],
        ),
        get(
            "/",
            &[("E2b-Sandbox-Id", "BOX"), ("E2b-Sandbox-Port", "80")],
        ),
        get("/", &[("Host", "02280-box.sbx.test")]),
        get("/", &[("Host", "www.sbx.test")]),
        get("/", &[("Host", "a"), ("Host", "b")]),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        get("/-/box/x/", &[]),
        get("/", &[]),
        "CONNECT box:80 HTTP/1.1\r\nHost: box:80\r\n\r\n".to_owned(),
    ];
    for text in bad {
        let answer = once(world.address(), &text).await;
        assert_eq!(answer.status, 400, "{text}");
        assert_eq!(answer.json()["code"], 400, "{text}");
    }
}

#[tokio::test]
async fn before_the_first_sync_nothing_is_missing() {
    let world = World::with(Setup {
        is_synced: false,
        ..Setup::default()
    });
    let answer = once(world.address(), get("/", &with(&to("box", 80), &[]))).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_sandbox_that_hangs_up_gives_no_answer() {
    let world = World::new();
    world.apply(world.route("box"));
    for answer in [
        &b""[..],
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ] {
        let program = crate::sandbox::script(world.ip, answer).await;
        let seen = once(
            world.address(),
            get("/", &with(&to("box", program.port), &[])),
        )
        .await;
        assert_eq!(seen.status, 502);
        assert_eq!(
            seen.json()["message"],
            "The sandbox closed the connection without an answer"
        );
    }
}

#[tokio::test]
async fn too_many_at_once_are_told_so() {
    let mut setup = Setup::default();
    setup.options.limits.open_per_sandbox = 1;
    let world = World::with(setup);
    let program = program(world.ip, 0).await;
    world.apply(world.route("box"));
    let mut first = crate::client::Client::connect(world.address()).await;
    first
        .send(request(
            "POST",
            "/echo",
            &with(&to("box", program.port), &[("Content-Length", "5")]),
            "",
        ))
        .await;
    first.head().await;
    let second = once(
        world.address(),
        get("/mirror", &with(&to("box", program.port), &[])),
    )
    .await;
    assert_eq!(second.status, 429);
    assert_eq!(second.header("retry-after"), Some("1"));
    first.send("hello").await;
    assert_eq!(first.read_exact(5).await, b"hello");
    crate::world::eventually(|| world.ended(Outcome::Forwarded) == 1).await;
    let third = once(
        world.address(),
        get("/mirror", &with(&to("box", program.port), &[])),
    )
    .await;
    assert_eq!(third.status, 200);
}

#[tokio::test]
async fn signed_urls_of_a_token_that_is_not_known_here_are_the_agents_to_judge() {
    let world = World::new();
    let agent = program(world.ip, AGENT).await;
    let mut route = world.secured("box");
    route.agent = Gate::Token(TokenHash([9; 32]));
    world.apply(route);
    let host = [("Host", "49983-box.sbx.test")];
    let answer = once(
        world.address(),
        get("/files?path=a&signature=v1_any", &host),
    )
    .await;
    assert_eq!(answer.status, 200, "the program here judges nothing");
    assert_eq!(agent.taken(), 1);
    for path in [
        "/files?path=a",
        "/files?path=a&signature=",
        "/mirror?signature=v1_x",
        "/files/compose?signature=v1_x",
    ] {
        let answer = once(world.address(), get(path, &host)).await;
        assert_eq!(answer.status, 401, "{path}");
    }
    // A wrong token is not made good by a signature.
    let wrong = [host[0], ("X-Access-Token", "guess")];
    assert_eq!(
        once(world.address(), get("/files?signature=v1_x", &wrong))
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn a_signed_url_without_an_address_finds_its_sandbox() {
    use base64::Engine as _;
    use sha2::Digest as _;
    let world = World::new();
    let agent = program(world.ip, AGENT).await;
    for id in ["one", "two", "three"] {
        world.apply(world.secured(id));
    }
    world.apply(world.route("open"));
    let sign = |id: &str, path: &str, operation: &str, expiration: &str| {
        let token = world.agent_token(id);
        let text = format!("{path}:{operation}:root:{token}{expiration}");
        let hash = sha2::Sha256::digest(text);
        let code = base64::engine::general_purpose::STANDARD_NO_PAD.encode(hash);
        format!("v1_{}", code.replace('+', "%2B").replace('/', "%2F"))
    };
    let good = sign("two", "/a b", "read", "");
    for spelled in ["/a+b", "/a%20b", "%2Fa%20b"] {
        let path = format!("/files?path={spelled}&username=root&signature={good}");
        let answer = once(world.address(), get(&path, &[])).await;
        assert_eq!(answer.status, 200, "{spelled}");
    }
    let upload = sign("three", "x", "write", ":4102444800");
    let path =
        format!("/files?path=x&username=root&signature={upload}&signature_expiration=4102444800");
    assert_eq!(
        once(world.address(), request("POST", &path, &[], "data"))
            .await
            .status,
        200
    );
    // Three of one sandbox over one connection, and one of another's over its own.
    assert_eq!(agent.taken(), 2);

    let old = sign("two", "x", "read", ":1");
    for path in [
        "/files?path=/a&username=root&signature=v1_wrong".to_owned(),
        format!("/files?path=/other&username=root&signature={good}"),
    ] {
        let answer = once(world.address(), get(&path, &[])).await;
        assert_eq!(answer.status, 401, "{path}");
    }
    // In the words that clients know.
    let path = format!("/files?path=x&username=root&signature={old}&signature_expiration=1");
    let answer = once(world.address(), get(&path, &[])).await;
    assert_eq!(answer.status, 401);
    assert_eq!(
        answer.body,
        r#"{"code":401,"message":"signature is already expired"}"#
    );
}

#[tokio::test]
async fn who_is_refused_while_sending_gets_the_answer() {
    let world = World::new();
    let mut client = Client::connect(world.address()).await;
    let more = [("Content-Length", "200000")];
    client
        .send(request(
            "POST",
            "/files",
            &with(&to("never", AGENT), &more),
            "",
        ))
        .await;
    // Longer than the answer takes.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        client.send([b'x'; 10_000]).await;
    }
    let answer = client.answer().await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.header("connection"),
        Some("close"),
        "nothing else is sent into it"
    );
}

#[tokio::test]
async fn what_is_for_no_sandbox_goes_to_the_inner_service() {
    let router = axum::Router::new()
        .route(
            "/v2/sandboxes",
            axum::routing::post(async |body: String| format!("api got {body}")),
        )
        .fallback(async || (axum::http::StatusCode::NOT_FOUND, "api knows no such path"));
    let world = World::with(Setup {
        fallback: Some(router),
        ..Setup::default()
    });
    world.apply(world.route("box"));
    for host in ["localhost", "api.sbx.test:8443", "127.0.0.1", "machine"] {
        let text = request("POST", "/v2/sandboxes", &[("Host", host)], "{}");
        let answer = once(world.address(), text).await;
        assert_eq!(
            (answer.status, &*answer.body),
            (200, "api got {}"),
            "{host}"
        );
    }
    let answer = once(world.address(), get("/x", &[])).await;
    assert_eq!(
        (answer.status, &*answer.body),
        (404, "api knows no such path")
    );
    // A bad address is not the API's.
    let answer = once(
        world.address(),
        get("/v2/sandboxes", &[("E2b-Sandbox-Id", "box")]),
    )
    .await;
    assert_eq!(answer.status, 400);
    assert_eq!(world.ended(Outcome::Fallback), 5);
}

#[tokio::test]
async fn a_browser_gets_a_page_and_everybody_a_request_id() {
    let world = World::new();
    let answer = once(
        world.address(),
        get(
            "/",
            &[("Host", "80-box.sbx.test"), ("Sec-Fetch-Mode", "navigate")],
        ),
    )
    .await;
    assert_eq!(answer.status, 502);
    assert!(answer.body.contains("The sandbox was not found"));
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    assert_eq!(answer.header("x-request-id").unwrap().len(), 16);
    let answer = once(
        world.address(),
        get(
            "/",
            &[("Host", "80-box.sbx.test"), ("X-Request-Id", "mine-7")],
        ),
    )
    .await;
    assert_eq!(answer.header("x-request-id"), Some("mine-7"));
}
