//! The table: the same request of the gateway and through Envoy, answered alike.
//!
//! Envoy adds to an answer, by its nature, `date`, and nothing else with the example's
//! configuration. It gives a request without an id one, which the gateway does only when it refuses,
//! and tells the sandbox where the request came from.

use std::{collections::BTreeSet, sync::Arc};

use ext_proc::Upstream;
use gateway::metrics::Outcome;
use routes::State;

use crate::{
    client::{Answer, get, request},
    sandbox::program,
    support::{ByName, HASTY, Stage},
    world::{Setup, World},
};

/// What the table is about: a header of either that is not compared.
fn is_by_nature(name: &str) -> bool {
    ["date", "connection", "x-request-id"].contains(&name)
}

fn headers(answer: &Answer) -> BTreeSet<String> {
    let lines = answer.head.lines().skip(1).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let name = name.to_ascii_lowercase();
        (!is_by_nature(&name)).then(|| format!("{name}: {}", value.trim()))
    });
    lines.collect()
}

/// Whether the answers of both ways are the same, as far as they can be.
fn are_alike(own: &Answer, theirs: &Answer, is_mirrored: bool) -> bool {
    let id = |answer: &Answer| answer.header("x-request-id").map(str::to_owned);
    let same_id = match (id(own), id(theirs)) {
        (Some(own), Some(theirs)) => own != "mine" || own == theirs,
        (own, _) => own.is_none(),
    };
    if !is_mirrored {
        return same_id && headers(own) == headers(theirs) && own.body == theirs.body;
    }
    // What a sandbox hears of who sent it is longer.
    let but_length = |answer: &Answer| {
        let mut headers = headers(answer);
        headers.retain(|line| !line.starts_with("content-length"));
        headers
    };
    let same_body = mirrored(&own.body) == mirrored(&theirs.body);
    same_id && same_body && but_length(own) == but_length(theirs)
}

/// What a sandbox was sent, but for who sent it.
fn mirrored(body: &str) -> BTreeSet<String> {
    let of_sender = ["x-forwarded-", "x-request-id", "x-envoy-external-address"];
    let is_of_sender = |line: &str| of_sender.iter().any(|name| line.starts_with(name));
    let lines = body.lines().filter(|line| !is_of_sender(line));
    lines.map(str::to_owned).collect()
}

/// Sandboxes in every state.
fn populate(world: &World) {
    for id in ["wakes", "slow", "gone", "failed", "late", "full", "limit"] {
        let mut asleep = world.route(id);
        (asleep.state, asleep.wake_on_traffic) = (State::Paused, true);
        world.apply(asleep);
    }
    let mut stays = world.route("stays");
    stays.state = State::Paused;
    world.apply(stays);
    let mut dead = world.route("dead");
    dead.state = State::Dead;
    world.apply(dead);
    let mut secured = world.secured("sleeps");
    (secured.state, secured.wake_on_traffic) = (State::Paused, true);
    world.apply(secured);
    world.apply(world.secured("secured"));
    world.apply(world.route("runs"));
    let mut masked = world.route("masked");
    masked.mask_host = Some("inner.test:${PORT}".into());
    world.apply(masked);
}

/// What each row asks, and the status that is expected.
fn rows(world: &World, open: u16) -> Vec<(&'static str, u16, String)> {
    let at = |address: String, path: &str, more: &[(&str, &str)]| {
        let host = format!("{address}.sbx.test");
        get(path, &[&[("Host", host.as_str())], more].concat())
    };
    let plain = |address: &str| at(address.to_owned(), "/mirror", &[]);
    let port = open.to_string();
    let (agent, traffic) = (world.agent_token("secured"), world.traffic_token("secured"));
    let by_headers = [
        ("E2b-Sandbox-Id", "runs"),
        ("E2b-Sandbox-Port", port.as_str()),
    ];
    let preflight = "OPTIONS / HTTP/1.1\r\nHost: 80-sleeps.sbx.test\r\nOrigin: http://a\r\n\
         Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-b\r\n\r\n";
    let host = format!("{open}-runs.sbx.test");
    let host = [("Host", host.as_str())];
    let chunked = format!(
        "POST /mirror HTTP/1.1\r\n{}: {}\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        host[0].0, host[0].1
    );
    vec![
        (
            "by its host",
            200,
            at(format!("{open}-runs"), "/mirror?a=b%20c", &[]),
        ),
        ("by headers", 200, get("/mirror", &by_headers)),
        (
            "by its path",
            200,
            get(&format!("/-/runs/{open}/mirror?x"), &[]),
        ),
        (
            "by its path, without one of its own",
            404,
            get(&format!("/-/runs/{open}"), &[]),
        ),
        (
            "its id in upper case",
            200,
            at(format!("{open}-RUNS"), "/mirror", &[]),
        ),
        (
            "another status",
            404,
            at(format!("{open}-runs"), "/nowhere", &[]),
        ),
        ("a body", 200, request("POST", "/mirror", &host, "hello")),
        ("a body in chunks", 200, chunked),
        (
            "cookies and more",
            200,
            at(
                format!("{open}-runs"),
                "/mirror",
                &[("Cookie", "a=b; c=d"), ("X-Own", "1"), ("Accept", "*/*")],
            ),
        ),
        (
            "its own id",
            200,
            at(
                format!("{open}-runs"),
                "/mirror",
                &[("X-Request-Id", "mine")],
            ),
        ),
        (
            "trailers of an answer",
            200,
            at(format!("{open}-runs"), "/trailers", &[("TE", "trailers")]),
        ),
        (
            "another host for the sandbox",
            200,
            at(format!("{open}-masked"), "/mirror", &[]),
        ),
        (
            "the traffic token",
            200,
            at(
                format!("{open}-secured"),
                "/mirror",
                &[("e2b-traffic-access-token", &traffic)],
            ),
        ),
        ("asleep, woken", 200, plain(&format!("{open}-wakes"))),
        ("asleep, woken slowly", 200, plain(&format!("{open}-slow"))),
        ("unknown", 502, plain("80-never")),
        (
            "unknown, its head",
            502,
            plain("80-never").replacen("GET", "HEAD", 1),
        ),
        (
            "unknown, to a person",
            502,
            at("80-never".into(), "/", &[("Sec-Fetch-Mode", "navigate")]),
        ),
        (
            "unknown, with its own id",
            502,
            at("80-never".into(), "/", &[("X-Request-Id", "mine")]),
        ),
        ("killed or expired", 502, plain("80-dead")),
        ("asleep, not to be woken", 502, plain("80-stays")),
        ("gone while it was woken", 502, plain("80-gone")),
        ("nothing listens", 502, plain("9-runs")),
        ("no token for the agent", 401, plain("49983-secured")),
        (
            "a wrong token for the agent",
            401,
            at(
                "49983-secured".into(),
                "/files",
                &[("X-Access-Token", "wrong")],
            ),
        ),
        (
            "a wrong signature",
            401,
            at("49983-sleeps".into(), "/files?path=a&signature=v1_no", &[]),
        ),
        (
            "no token for the agent that sleeps",
            401,
            plain("49983-sleeps"),
        ),
        ("no token for traffic", 403, plain("80-secured")),
        (
            "the agent's token for traffic",
            403,
            at(
                "80-secured".into(),
                "/",
                &[("e2b-traffic-access-token", &agent)],
            ),
        ),
        (
            "a route of the platform's",
            404,
            at(
                "49983-secured".into(),
                "/init",
                &[("X-Access-Token", &agent)],
            ),
        ),
        (
            "a browser's question to one that sleeps",
            204,
            preflight.to_owned(),
        ),
        ("waking failed", 503, plain("80-failed")),
        ("waking took too long", 503, plain("80-late")),
        ("too many wait", 503, plain("80-full")),
        ("the team's limit", 429, plain("80-limit")),
        ("a port that cannot be", 400, plain("99999-runs")),
        ("an id that cannot be", 400, plain("80-run_s")),
        (
            "one header without the other",
            400,
            get("/", &[("E2b-Sandbox-Id", "runs")]),
        ),
        (
            "a header twice",
            400,
            get(
                "/",
                &[
                    ("E2b-Sandbox-Id", "runs"),
                    ("E2b-Sandbox-Id", "dead"),
                    ("E2b-Sandbox-Port", "80"),
                ],
            ),
        ),
        ("nobody", 400, get("/", &[])),
        ("a path that is no address", 400, get("/-/runs", &[])),
        (
            "a body that is too long",
            413,
            request("POST", "/mirror", &host, &"x".repeat(2000)),
        ),
    ]
}

fn setup() -> Setup {
    let mut setup = Setup {
        wake: Arc::new(ByName),
        ..Setup::default()
    };
    setup.options.limits.body_bytes = 1000;
    setup
}

#[tokio::test]
async fn what_is_asked_through_envoy_is_answered_as_the_gateway_answers_it() {
    for upstream in [Upstream::Relay, Upstream::Direct] {
        let stage = Stage::with_changes(upstream, setup(), HASTY).await;
        let program = program(stage.world.ip, 0).await;
        populate(&stage.world);
        let mut failures = Vec::new();
        for (what, status, request) in rows(&stage.world, program.port) {
            let (own, theirs) = if request.starts_with("HEAD") {
                let own = head(stage.world.address(), &request).await;
                (own, head(stage.envoy.address, &request).await)
            } else {
                stage.both(&request).await
            };
            let is_mirrored = request.contains("/mirror") && status == 200;
            if (own.status, theirs.status) != (status, status)
                || !are_alike(&own, &theirs, is_mirrored)
            {
                failures.push(format!("{what}: {status}\n{own:?}\n{theirs:?}"));
            }
        }
        assert!(failures.is_empty(), "{upstream:?}\n{}", failures.join("\n"));
        let metrics = stage.server.metrics();
        assert_eq!(metrics.answered(Outcome::NotWoken), 3);
        assert!(metrics.waited() >= 6, "{}", metrics.waited());
        assert!(
            ext_proc::Fault::ALL
                .iter()
                .all(|fault| metrics.faults(*fault) == 0)
        );
    }
}

/// One request for a head.
async fn head(to: std::net::SocketAddr, request: &str) -> Answer {
    let mut client = crate::client::Client::connect(to).await;
    client.send(request).await;
    client.head().await
}

#[tokio::test]
async fn before_the_routes_are_known_envoy_is_told_so() {
    let setup = Setup {
        is_synced: false,
        ..Setup::default()
    };
    let stage = Stage::with(Upstream::Relay, setup).await;
    let (own, theirs) = stage.both(&get("/", &[("Host", "80-any.sbx.test")])).await;
    assert_eq!((own.status, theirs.status), (503, 503));
    assert_eq!(headers(&theirs), headers(&own));
    assert_eq!(theirs.body, own.body);
}

#[tokio::test]
async fn what_is_for_no_sandbox_goes_on_to_the_api_where_there_is_one() {
    let api = axum::Router::new().fallback(|| async { "the API" });
    let setup = Setup {
        fallback: Some(api),
        ..Setup::default()
    };
    let stage = Stage::with(Upstream::Relay, setup).await;
    for asked in [
        get("/sandboxes", &[]),
        get("/", &[("Host", "api.sbx.test")]),
    ] {
        let (own, theirs) = stage.both(&asked).await;
        assert_eq!((own.status, theirs.status), (200, 200));
        assert_eq!((&*own.body, &*theirs.body), ("the API", "the API"));
    }
    assert_eq!(stage.server.metrics().unaddressed(), 2);
}

#[tokio::test]
async fn more_than_one_sandbox_may_have_open_are_refused_alike() {
    let mut setup = Setup::default();
    setup.options.limits.open_per_sandbox = 0;
    let stage = Stage::with(Upstream::Relay, setup).await;
    stage.world.apply(stage.world.route("runs"));
    let (own, theirs) = stage.both(&get("/", &[("Host", "80-runs.sbx.test")])).await;
    assert_eq!((own.status, theirs.status), (429, 429));
    assert_eq!(headers(&theirs), headers(&own));
    assert_eq!(theirs.body, own.body);
}

#[tokio::test]
async fn a_processor_that_is_gone_lets_nothing_pass() {
    let stage = Stage::new(Upstream::Relay).await;
    let program = program(stage.world.ip, 0).await;
    stage.world.apply(stage.world.route("runs"));
    let Stage {
        world,
        server,
        envoy,
    } = stage;
    server
        .drain(std::time::Duration::from_secs(5))
        .await
        .unwrap();
    let host = format!("{}-runs.sbx.test", program.port);
    let answer = crate::client::once(envoy.address, get("/mirror", &[("Host", &host)])).await;
    assert!(answer.status >= 500, "{}", answer.status);
    assert_eq!(program.taken(), 0);
    drop(world);
}

#[tokio::test]
async fn what_clients_claim_of_where_they_come_from_is_not_what_a_sandbox_hears() {
    for upstream in [Upstream::Relay, Upstream::Direct] {
        let stage = Stage::new(upstream).await;
        let program = program(stage.world.ip, 0).await;
        stage.world.apply(stage.world.route("runs"));
        let host = format!("{}-runs.sbx.test", program.port);
        let asked = get(
            "/mirror",
            &[
                ("Host", &host),
                ("X-Forwarded-Host", "forged.test"),
                ("X-Forwarded-Prefix", "/forged"),
                ("Forwarded", "for=forged;host=forged.test"),
            ],
        );
        let answer = crate::client::once(stage.envoy.address, asked).await;
        assert_eq!(answer.status, 200);
        let heard = answer.body.to_ascii_lowercase();
        assert!(!heard.contains("forged"), "{upstream:?}\n{heard}");
        let said = format!("x-forwarded-host: {host}");
        assert!(heard.contains(&said), "{upstream:?}\n{heard}");
    }
}
