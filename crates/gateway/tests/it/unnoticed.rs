//! What is not use of a sandbox, though it comes to its port: questions of browsers, and whoever has
//! not shown that they may.

use http::{Method, Request, StatusCode};
use hyper::body::Frame;

use crate::{
    client::{Answer, get, once, request},
    http2::{self, channel},
    sandbox::{Program, program},
    world::World,
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
