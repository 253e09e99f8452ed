//! What is not use of a sandbox, though it comes to its port: questions of browsers, and whoever has
//! not shown that they may.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Method, Request, StatusCode};
use hyper::body::Frame;
use routes::{Route, State};

use crate::{
    client::{Answer, get, once, request},
    http2::{self, channel},
    sandbox::{Program, program, raw, read_head},
    waking::{self, Script},
    world::{World, eventually},
};

const AGENT: u16 = 49983;
const ASKS: [(&str, &str); 2] = [
    ("Origin", "https://page.test"),
    ("Access-Control-Request-Method", "POST"),
];

struct Here {
    world: World,
    web: Program,
    _agent: Program,
}

impl Here {
    async fn new() -> Self {
        let world = World::new();
        let (web, agent) = (program(world.ip, 0).await, program(world.ip, AGENT).await);
        Self {
            world,
            web,
            _agent: agent,
        }
    }

    async fn ask(&self, text: String) -> Answer {
        once(self.world.address(), text).await
    }

    /// Whether a gateway has seen use of it.
    fn is_used(&self) -> bool {
        let uid = self.world.route("box").uid;
        self.world.gateway.activity().of(uid).is_some()
    }
}

#[tokio::test]
async fn a_browsers_question_is_answered_inside_and_is_no_use() {
    let here = Here::new().await;
    for route in [here.world.route("box"), here.world.secured("box")] {
        here.world.apply(route);
        for port in [here.web.port, AGENT] {
            let host = format!("{port}-box.sbx.test");
            let headers = [("Host", host.as_str()), ASKS[0], ASKS[1]];
            let answer = here.ask(request("OPTIONS", "/mirror", &headers, "")).await;
            assert_eq!(answer.status, 200);
            assert!(
                answer.body.starts_with("OPTIONS /mirror"),
                "{}",
                answer.body
            );
        }
    }
    assert!(!here.is_used());
    let token = here.world.traffic_token("box");
    let host = format!("{}-box.sbx.test", here.web.port);
    let headers = [
        ("Host", host.as_str()),
        ("E2b-Traffic-Access-Token", token.as_str()),
    ];
    assert_eq!(here.ask(get("/mirror", &headers)).await.status, 200);
    assert!(here.is_used());
}

#[tokio::test]
async fn who_shows_a_wrong_token_or_signature_uses_nothing() {
    let here = Here::new().await;
    here.world.apply(here.world.secured("box"));
    let web = format!("{}-box.sbx.test", here.web.port);
    let agent = format!("{AGENT}-box.sbx.test");
    let asked = [
        (get("/", &[("Host", &web)]), 403),
        (
            get("/", &[("Host", &web), ("E2b-Traffic-Access-Token", "no")]),
            403,
        ),
        (
            get("/health", &[("Host", &agent), ("X-Access-Token", "no")]),
            401,
        ),
        (
            get("/files?path=a&signature=v1_no", &[("Host", &agent)]),
            401,
        ),
    ];
    for (text, status) in asked {
        assert_eq!(here.ask(text.clone()).await.status, status, "{text}");
    }
    assert!(!here.is_used());
}

#[tokio::test]
async fn in_http2_a_question_with_a_body_is_a_request_like_others() {
    let here = Here::new().await;
    here.world.apply(here.world.secured("box"));
    let mut client = http2::client(&here.world).await;
    let asks = |body| {
        let host = format!("http://{}-box.sbx.test/mirror", here.web.port);
        let mut request = Request::builder().method(Method::OPTIONS).uri(host);
        for (name, value) in ASKS {
            request = request.header(name, value);
        }
        request.body(body).unwrap()
    };
    let answer = client.send_request(asks(http2::full(""))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let (frames, body) = channel();
    frames.send(Frame::data("DELETE".into())).await.unwrap();
    let answer = client.send_request(asks(body)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert!(!here.is_used());
}

#[tokio::test]
async fn a_question_that_is_not_answered_wakes_nobody() {
    let script = Arc::new(Script::default());
    let world = waking::world(&script, Duration::from_secs(60));
    let silent = raw(world.ip, 0, |mut stream, _| async move {
        read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let open = Route {
        wake_on_traffic: true,
        ..world.secured("box")
    };
    let asleep = Route {
        state: State::Paused,
        ..open.clone()
    };
    let host = format!("{}-box.sbx.test", silent.port);
    world.apply(open.clone());
    let headers = [("Host", host.as_str()), ASKS[0], ASKS[1]];
    let asking = once(world.address(), request("OPTIONS", "/", &headers, ""));
    let sleeping = async {
        eventually(|| silent.taken() == 1).await;
        world.apply(asleep.clone());
    };
    let (answer, ()) = tokio::join!(asking, sleeping);
    assert_eq!(answer.status, 502);
    // The same where the library has read it.
    world.apply(open);
    let mut client = http2::client(&world).await;
    let mut asks = Request::builder()
        .method(Method::OPTIONS)
        .uri(format!("http://{host}/"));
    for (name, value) in ASKS {
        asks = asks.header(name, value);
    }
    let asking = client.send_request(asks.body(http2::full("")).unwrap());
    let sleeping = async {
        eventually(|| silent.taken() == 2).await;
        world.apply(asleep);
    };
    let (answer, ()) = tokio::join!(asking, sleeping);
    assert_eq!(answer.unwrap().status(), StatusCode::BAD_GATEWAY);
    assert_eq!(script.calls.load(Ordering::SeqCst), 0);
}
