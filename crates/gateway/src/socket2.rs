//! WebSockets of clients that speak HTTP/2 (RFC 8441).
//!
//! Such a client asks with an extended CONNECT, and its stream becomes the socket. The program in
//! the sandbox is asked in HTTP/1, with the key that this wants, and agrees with a 101; the client
//! is told 200.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use hyper::{ext::Protocol, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional},
    net::TcpStream,
};

use crate::{body::Body, link::Open, metrics::Outcome, worker::Worker};

/// What `Upgrade` says to the program.
pub(crate) const PROTOCOL: &[u8] = b"websocket";

/// Whether a request asks for a socket in this way.
pub(crate) fn is_asked<B>(request: &Request<B>) -> bool {
    let protocol = request.extensions().get::<Protocol>();
    protocol.is_some_and(|protocol| protocol.as_str().as_bytes() == PROTOCOL)
}

/// A key: different each time, and not secret.
pub(crate) fn key(worker: &Worker) -> String {
    let entropy = &worker.shared.ports.entropy;
    let bits = [entropy.u64().to_be_bytes(), entropy.u64().to_be_bytes()];
    STANDARD.encode(bits.concat())
}

/// Goes on with the bytes of both sides, and answers the client.
pub(crate) fn join(
    worker: &Worker,
    client: OnUpgrade,
    mut response: Response<()>,
    (mut sandbox, begun): (TcpStream, Bytes),
    mut open: Open,
) -> Response<Body> {
    open.ended(Outcome::Forwarded);
    worker.tasks.run(async move {
        let moved = async {
            let client = client.await.map_err(std::io::Error::other)?;
            let mut client = TokioIo::new(client);
            client.write_all(&begun).await?;
            copy_bidirectional(&mut client, &mut sandbox).await
        };
        if let Err(error) = moved.await {
            tracing::debug!(%error, "tunnel ended");
        }
        drop(open);
    });
    *response.status_mut() = StatusCode::OK;
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_ACCEPT,
    ] {
        response.headers_mut().remove(name);
    }
    response.map(|()| Body::none())
}
