//! Clients of HTTP/2, and gRPC.

use std::net::SocketAddr;

use bytes::Bytes;
use ext_proc::Upstream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{client::conn, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::{
    sandbox::{program, raw},
    support::Stage,
};

/// One request, over HTTP/2 from its first byte.
async fn ask(
    to: SocketAddr,
    host: &str,
    path: &str,
    kind: &str,
) -> (Response<()>, Bytes, HeaderMap) {
    let stream = tokio::net::TcpStream::connect(to).await.unwrap();
    let handshake = conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{host}{path}"))
        .header("content-type", kind)
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(b"\0\0\0\0\0")))
        .unwrap();
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    (Response::from_parts(head, ()), body.to_bytes(), trailers)
}

#[tokio::test]
async fn a_client_of_http2_is_answered_through_envoy_as_by_the_gateway() {
    let stage = Stage::new(Upstream::Relay).await;
    let program = program(stage.world.ip, 0).await;
    stage.world.apply(stage.world.route("runs"));
    for (host, status) in [
        (format!("{}-runs.sbx.test", program.port), StatusCode::OK),
        ("80-never.sbx.test".into(), StatusCode::BAD_GATEWAY),
        ("0-runs.sbx.test".into(), StatusCode::BAD_REQUEST),
    ] {
        let (own, body, _) = ask(stage.world.address(), &host, "/echo", "text/plain").await;
        let (theirs, same, _) = ask(stage.envoy.address, &host, "/echo", "text/plain").await;
        assert_eq!((own.status(), theirs.status()), (status, status));
        assert_eq!(
            own.headers().get("content-type"),
            theirs.headers().get("content-type")
        );
        assert_eq!(body, same);
    }
}

#[tokio::test]
async fn grpc_gets_to_its_sandbox_and_a_refusal_is_one_of_grpc() {
    let stage = Stage::new(Upstream::Relay).await;
    let server = raw(stage.world.ip, 0, |stream, _| async move {
        let service = service_fn(|_| async {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let body = Full::new(Bytes::from_static(b"\0\0\0\0\0"));
            let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
            let mut response = Response::new(body);
            let kind = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert("content-type", kind);
            Ok::<_, std::convert::Infallible>(response)
        });
        let builder = http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
    })
    .await;
    stage.world.apply(stage.world.route("runs"));
    let host = format!("{}-runs.sbx.test", server.port);
    let (head, body, trailers) = ask(
        stage.envoy.address,
        &host,
        "/service/Call",
        "application/grpc",
    )
    .await;
    assert_eq!((head.status(), body.len()), (StatusCode::OK, 5));
    assert_eq!(trailers["grpc-status"], "0");
    let refused = "80-never.sbx.test";
    let (head, _, trailers) = ask(
        stage.envoy.address,
        refused,
        "/service/Call",
        "application/grpc",
    )
    .await;
    assert_eq!(head.status(), StatusCode::OK);
    let all = [head.headers().clone(), trailers];
    let status = all.iter().find_map(|headers| headers.get("grpc-status"));
    // Unavailable.
    assert_eq!(status.unwrap(), "14");
}
