//! After a 101: bytes both ways, until both sides have ended.
//!
//! A WebSocket whose time is over is told so, where it stands between two frames; who speaks something
//! else sees the connection end.

use std::{future::poll_fn, io, pin::pin, task::Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use crate::{
    frames::{Framed, Frames, GOING_AWAY},
    link::{ClientIo, Link, Open, OverTcp, Stage},
    tcp::Stream,
};

const BUFFER_BYTES: usize = 16 << 10;

/// The sandbox's side of a tunnel that waits for the client's.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) sandbox: Far,
    /// The tunnel counts as use until it ends.
    pub(crate) open: Open,
}

/// How the sandbox's side was had.
#[derive(Debug)]
pub(crate) enum Far {
    /// A program inside agreed to speak another protocol, and may have begun.
    Upgraded(TcpStream, Bytes),
    /// The same, and the protocol is that of WebSockets.
    Socket(TcpStream, Bytes),
    /// The client asked for the port itself.
    Bare(Box<Stream>),
}

impl Tunnel {
    /// Moves bytes. What either side sent right after its head comes first.
    pub(crate) async fn run<S: OverTcp>(self, link: &Link, mut client: ClientIo<S>, early: &[u8]) {
        link.enter(Stage::Tunnel);
        let moved = match self.sandbox {
            Far::Upgraded(stream, begun) => upgraded(&mut client, stream, &begun, early).await,
            Far::Socket(stream, begun) => socket(link, &mut client, stream, &begun, early).await,
            Far::Bare(stream) => join(&mut client, *stream, early).await,
        };
        if let Err(error) = moved {
            // One side ended without a goodbye; so does the other.
            tracing::debug!(%error, "tunnel ended");
            link.cut();
        }
        drop(self.open);
    }
}

async fn upgraded(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    sandbox: TcpStream,
    begun: &[u8],
    early: &[u8],
) -> io::Result<()> {
    client.write_all(begun).await?;
    join(client, sandbox, early).await
}

/// A WebSocket, until it ends or its time is over.
async fn socket(
    link: &Link,
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    sandbox: TcpStream,
    begun: &[u8],
    early: &[u8],
) -> io::Result<()> {
    let mut frames = Frames::default();
    let ended = {
        let mut framed = Framed {
            client,
            frames: &mut frames,
        };
        let mut moving = pin!(upgraded(&mut framed, sandbox, begun, early));
        link.may_take_leave(true);
        poll_fn(|context| {
            link.attend(context.waker());
            if link.is_leaving() {
                return Poll::Ready(None);
            }
            moving.as_mut().poll(context).map(Some)
        })
        .await
    };
    let left = match ended {
        Some(ended) => ended,
        None if frames.is_between() => {
            client.write_all(&GOING_AWAY).await?;
            client.shutdown().await
        }
        None => Err(io::ErrorKind::TimedOut.into()),
    };
    link.may_take_leave(false);
    left
}

async fn join(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mut sandbox: impl AsyncRead + AsyncWrite + Unpin,
    early: &[u8],
) -> io::Result<()> {
    sandbox.write_all(early).await?;
    copy_bidirectional_with_sizes(client, &mut sandbox, BUFFER_BYTES, BUFFER_BYTES).await?;
    Ok(())
}
