use agent::Args;
use http::{Method, StatusCode};
use sha2::{Digest as _, Sha256};
use wire::{
    connect::{Code, Codec, Error},
    process::{ListRequest, ListResponse},
};

use crate::client::{request, serve, serve_with};

const TOKEN: (&str, &str) = ("x-access-token", "secret");

fn sign(text: &str) -> String {
    use base64::Engine as _;
    let hash = base64::engine::general_purpose::STANDARD_NO_PAD.encode(Sha256::digest(text));
    format!("v1_{hash}").replace('+', "%2B").replace('/', "%2F")
}

#[tokio::test]
async fn health_says_nothing_and_is_never_cached() {
    let agent = serve().await;
    let answer = agent.get("/health", &[]).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("cache-control"), "no-store");
    assert!(answer.body.is_empty());
}

#[tokio::test]
async fn init_is_answered_with_what_this_is() {
    let agent = serve().await;
    for message in [
        "",
        "{}",
        r#"{"envVars":null,"somethingNew":1,"timestamp":"2026-11-15T00:00:00Z","lifecycleID":"x"}"#,
    ] {
        let answer = agent.post("/init", &[], message).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{message}");
        assert_eq!(answer.header("x-envd-version"), wire::envd::ENVD_VERSION);
        assert_eq!(answer.header("x-dormouse-agent-protocol"), "1");
    }
    assert_eq!(
        agent.post("/init", &[], "{").await.status,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        agent.post("/init", &[], "[]").await.status,
        StatusCode::BAD_REQUEST
    );
    for (message, status, named) in [
        (r#"{"caBundle":"x"}"#, 400, "caBundle"),
        (r#"{"volumeMounts":[{"name":"v"}]}"#, 501, "volumeMounts"),
        (r#"{"envVars":{"A=":"b"}}"#, 400, "A="),
    ] {
        let answer = agent.post("/init", &[], message).await;
        assert_eq!(answer.status, status, "{message}");
        assert!(answer.text().contains(named), "{message}");
    }
    agent
        .post(
            "/init",
            &[],
            r#"{"envVars":{"A":"1"},"hyperloopIP":"10.1.2.3"}"#,
        )
        .await;
    assert_eq!(
        agent.get("/envs", &[]).await.json(),
        serde_json::json!({"A": "1", "E2B_SANDBOX": "true", "E2B_EVENTS_ADDRESS": "http://10.1.2.3"})
    );
    agent.post("/init", &[], r#"{"envVars":{"B":"2"}}"#).await;
    assert_eq!(
        agent.get("/envs", &[]).await.json()["A"],
        serde_json::Value::Null
    );
}

#[tokio::test]
async fn a_sealed_agent_serves_nobody_before_init() {
    let agent = serve_with(Args {
        sealed: true,
        ..Args::default()
    })
    .await;
    assert_eq!(agent.get("/health", &[]).await.status, 204);
    for (method, path) in [
        (Method::GET, "/envs"),
        (Method::GET, "/files?path=/etc/passwd"),
        (Method::POST, "/files?path=/tmp/never"),
        (Method::POST, "/process.Process/Start"),
        (Method::POST, "/filesystem.Filesystem/Stat"),
        (Method::POST, "/files/compose"),
    ] {
        let answer = agent.send(request(method, path, &[], "{}")).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    let first = r#"{"accessToken":"secret","timestamp":"2026-11-15T00:00:01Z"}"#;
    assert_eq!(agent.post("/init", &[], first).await.status, 204);
    assert_eq!(agent.get("/envs", &[]).await.status, 401);
    assert_eq!(agent.get("/envs", &[TOKEN]).await.status, 200);
    let older = r#"{"envVars":{"A":"b"},"timestamp":"2026-11-15T00:00:00Z"}"#;
    let answer = agent.post("/init", &[TOKEN], older).await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("x-dormouse-init-stale"), "true");
}

#[tokio::test]
async fn metrics_are_plausible() {
    let agent = serve().await;
    for _ in 0..2 {
        let metrics: wire::envd::Metrics =
            serde_json::from_slice(&agent.get("/metrics", &[]).await.body).unwrap();
        assert!(metrics.ts > 1_600_000_000);
        assert!(metrics.cpu_count >= 1 && metrics.cpu_used_pct >= 0.0);
        assert!(
            metrics.mem_total > 0 && metrics.mem_used > 0 && metrics.mem_used <= metrics.mem_total
        );
        assert_eq!(metrics.mem_total_mib, metrics.mem_total >> 20);
        assert!(metrics.disk_total > 0 && metrics.disk_used <= metrics.disk_total);
    }
}

#[tokio::test]
async fn once_a_token_is_set_everything_needs_it() {
    let agent = serve().await;
    assert_eq!(
        agent
            .post("/init", &[], r#"{"accessToken":"secret"}"#)
            .await
            .status,
        204
    );
    assert_eq!(
        agent.get("/health", &[]).await.status,
        StatusCode::NO_CONTENT
    );
    let json = ("content-type", "application/json");
    for (method, path) in [
        (Method::GET, "/metrics"),
        (Method::GET, "/envs"),
        (Method::GET, "/nothing"),
        (Method::POST, "/process.Process/List"),
        (Method::POST, "/process.Process/Start"),
        (Method::POST, "/filesystem.Filesystem/Stat"),
        (Method::POST, "/files/compose"),
    ] {
        for wrong in [
            json,
            ("x-access-token", ""),
            ("x-access-token", "secre"),
            ("x-access-token", "secret2"),
        ] {
            let answer = agent
                .send(request(method.clone(), path, &[json, wrong], "{}"))
                .await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.json()["code"], 401);
        }
    }
    let listed: Result<ListResponse, Error> = agent
        .call(
            Codec::Json,
            "/process.Process/List",
            &ListRequest {},
            &[TOKEN],
        )
        .await;
    assert!(listed.unwrap().processes.is_empty());
    assert_eq!(agent.get("/envs", &[TOKEN]).await.status, StatusCode::OK);
    // From inside the sandbox nobody can take the agent over.
    for message in ["{}", r#"{"accessToken":"mine"}"#, r#"{"envVars":{}}"#] {
        assert_eq!(
            agent.post("/init", &[], message).await.status,
            StatusCode::UNAUTHORIZED
        );
    }
    assert_eq!(
        agent
            .post("/init", &[TOKEN], r#"{"accessToken":"next"}"#)
            .await
            .status,
        204
    );
    assert_eq!(
        agent.get("/envs", &[TOKEN]).await.status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn files_open_to_signatures() {
    let agent = serve().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f g").to_str().unwrap().to_owned();
    let query = format!("path={}", file.replace(' ', "+"));
    agent
        .post("/init", &[], r#"{"accessToken":"secret"}"#)
        .await;
    let octets = ("content-type", "application/octet-stream");
    let write = sign(&format!("{file}:write::secret"));
    let read = sign(&format!("{file}:read::secret"));
    let get = async |query: String| agent.get(&format!("/files?{query}"), &[]).await;

    let answer = agent
        .post(&format!("/files?{query}&signature={write}"), &[octets], "x")
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(get(format!("{query}&signature={read}")).await.text(), "x");
    for (query, message) in [
        (query.clone(), "missing signature query parameter"),
        (format!("{query}&signature={write}"), "invalid signature"),
        (format!("{query}2&signature={read}"), "invalid signature"),
        (
            format!("{query}&username=root&signature={read}"),
            "invalid signature",
        ),
        (
            format!("{query}&signature={read}&signature_expiration=99999999999"),
            "invalid signature",
        ),
    ] {
        let answer = get(query).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert_eq!(answer.json()["message"], message);
    }
    for (expiration, text) in [
        ("99999999999", "x"),
        (
            "1",
            r#"{"code":401,"message":"signature is already expired"}"#,
        ),
    ] {
        let signature = sign(&format!("{file}:read:root:secret:{expiration}"));
        let answer = get(format!(
            "{query}&username=root&signature={signature}&signature_expiration={expiration}"
        ))
        .await;
        assert_eq!(answer.text(), text);
    }
    // A token in the header counts, and a wrong one is not saved by a signature.
    let path = format!("/files?{query}&signature={read}");
    assert_eq!(
        agent.get(&path, &[("x-access-token", "no")]).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        agent.get(&format!("/files?{query}"), &[TOKEN]).await.text(),
        "x"
    );
}

#[tokio::test]
async fn browsers_may_ask_from_anywhere() {
    let agent = serve().await;
    let asked = [
        ("origin", "https://x.test"),
        (
            "access-control-request-headers",
            "connect-protocol-version,x-y",
        ),
    ];
    let answer = agent
        .send(request(
            Method::OPTIONS,
            "/process.Process/Start",
            &asked,
            "",
        ))
        .await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert_eq!(
        answer.header("access-control-allow-headers"),
        "connect-protocol-version,x-y"
    );
    let answer = agent.get("/health", &asked).await;
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert!(
        answer
            .header("access-control-expose-headers")
            .contains("Connect-Protocol-Version")
    );
}

#[tokio::test]
async fn a_unary_error_has_its_status() {
    let agent = serve().await;
    let message = wire::process::ProcessRequest {
        process: Some(wire::process::ProcessSelector {
            pid: Some(3_999_999),
            tag: None,
        }),
    };
    let answer: Result<wire::process::Empty, Error> = agent
        .call(Codec::Proto, "/process.Process/CloseStdin", &message, &[])
        .await;
    assert_eq!(answer.unwrap_err().code, Code::NotFound);
}
