//! Speaks with one client, from its first byte to its last.

use std::{future::poll_fn, io, pin::Pin, rc::Rc, task::Poll, time::Duration};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    handle::handle,
    lane::{self, Next},
    link::{ClientIo, Link, OverTcp, Stage},
    worker::Worker,
};

const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Connection: close\r\n\r\nThis port speaks HTTPS: use https://.\n";

/// How long a client may go on sending after its last answer, and how long it may pause.
const LINGER: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) async fn connection(
    worker: Rc<Worker>,
    link: Rc<Link>,
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
) {
    // Without it small answers wait for the peer's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection ended");
        return;
    }
    match acceptor {
        None => begin(worker, link, stream).await,
        // What encryption needs is not part of every connection.
        Some(acceptor) => Box::pin(secured(worker, link, stream, acceptor)).await,
    }
}

async fn secured(worker: Rc<Worker>, link: Rc<Link>, stream: TcpStream, acceptor: TlsAcceptor) {
    let shaken = {
        let mut shaking = std::pin::pin!(shake(stream, acceptor));
        poll_fn(|context| {
            link.attend(context.waker());
            // Nobody waits long for a peer that has not asked for anything yet.
            if link.is_doomed() || (link.is_draining() && link.rests()) {
                return Poll::Ready(None);
            }
            shaking.as_mut().poll(context).map(Some)
        })
        .await
    };
    match shaken {
        Some(Ok(Some(stream))) => {
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                link.enter(Stage::Http2);
                let client = ClientIo::new(stream, link.clone());
                Box::pin(http2(worker, link, client)).await;
            } else {
                begin(worker, link, stream).await;
            }
        }
        Some(Ok(None)) => {}
        Some(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        None => tracing::debug!("TLS handshake took too long"),
    }
}

/// The TLS handshake; `None` for a client that speaks plain HTTP, which was told so.
async fn shake(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    // A TLS client begins with 0x16, an HTTP one with the letter of a method.
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        stream.write_all(PLAIN_HTTP).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    acceptor.accept(stream).await.map(Some)
}

/// Plain requests the short way, and from the first that is not plain on by the library.
async fn begin<S: OverTcp>(worker: Rc<Worker>, link: Rc<Link>, stream: S) {
    link.enter(Stage::Http1);
    let client = ClientIo::new(stream, link.clone());
    let next = {
        let mut lane = std::pin::pin!(lane::run(worker.clone(), link.clone(), client));
        poll_fn(|context| {
            link.attend(context.waker());
            if link.is_doomed() {
                return Poll::Ready(Next::Over);
            }
            // What has come already is answered.
            let polled = lane.as_mut().poll(context);
            if polled.is_pending() && link.is_draining() && link.rests() {
                return Poll::Ready(Next::Over);
            }
            polled
        })
        .await
    };
    // What is rare may cost an allocation, so that what is not costs little memory.
    match next {
        Next::Over => {}
        Next::Leave(client) => Box::pin(until_doomed(&link, linger(&link, client))).await,
        Next::Http1(client) => Box::pin(http1(worker, link, client)).await,
        Next::Http2(client) => {
            link.enter(Stage::Http2);
            Box::pin(http2(worker, link, client)).await;
        }
    }
}

async fn http1<S: OverTcp>(worker: Rc<Worker>, link: Rc<Link>, client: ClientIo<S>) {
    let io = TokioIo::new(client);
    let service = {
        let (worker, link) = (worker.clone(), link.clone());
        service_fn(move |request| handle(worker.clone(), link.clone(), request))
    };
    let mut connection = worker.http1.serve_connection(io, service);
    let mut is_told = false;
    let ended = poll_fn(|context| {
        link.attend(context.waker());
        if link.is_doomed() {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut connection).poll(context);
        // The library hangs up on who has a request under way of which it has read nothing yet.
        if polled.is_pending() && !is_told && link.is_draining() && !link.arrives() {
            is_told = true;
            Pin::new(&mut connection).graceful_shutdown();
            context.waker().wake_by_ref();
        }
        polled.map(Some)
    })
    .await;
    match ended {
        Some(Ok(())) => {
            let tunnel = link.take_tunnel();
            let parts = connection.into_parts();
            let client = parts.io.into_inner();
            let rest = async {
                match tunnel {
                    Some(tunnel) => tunnel.run(&link, client, &parts.read_buf).await,
                    None => linger(&link, client).await,
                }
            };
            until_doomed(&link, rest).await;
        }
        // The peer's manners are its own affair.
        Some(Err(error)) => tracing::debug!(%error, "connection ended"),
        None => tracing::debug!("connection ended by the gateway"),
    }
}

/// Does something until it is done, or the connection has had its time.
async fn until_doomed(link: &Link, rest: impl Future<Output = ()>) {
    let mut rest = std::pin::pin!(rest);
    poll_fn(|context| {
        link.attend(context.waker());
        if link.is_doomed() {
            return Poll::Ready(());
        }
        rest.as_mut().poll(context)
    })
    .await;
}

/// Takes leave of a client. One that was refused early may still be sending: closing on it would
/// make its kernel throw away the answer that it has not read yet.
async fn linger(link: &Link, mut client: impl AsyncRead + Unpin) {
    let mut room = [0; 4 << 10];
    let reading = async {
        while !link.is_draining() {
            let read = timeout(SILENCE, client.read(&mut room)).await;
            if !matches!(read, Ok(Ok(1..))) {
                return;
            }
        }
    };
    // How it ends is the client's affair.
    let _ = timeout(LINGER, reading).await;
}

async fn http2<S: OverTcp>(worker: Rc<Worker>, link: Rc<Link>, client: ClientIo<S>) {
    let io = TokioIo::new(client);
    let service = {
        let (worker, link) = (worker.clone(), link.clone());
        service_fn(move |request| handle(worker.clone(), link.clone(), request))
    };
    let mut connection = std::pin::pin!(worker.http2.serve_connection(io, service));
    let mut is_told = false;
    let ended = poll_fn(|context| {
        link.attend(context.waker());
        if link.is_doomed() {
            return Poll::Ready(None);
        }
        if link.is_draining() && !is_told {
            is_told = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context).map(Some)
    })
    .await;
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
