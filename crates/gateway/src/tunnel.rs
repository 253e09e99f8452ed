//! After a 101: bytes both ways, until both sides have ended.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use crate::{
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
    /// The client asked for the port itself.
    Bare(Box<Stream>),
}

impl Tunnel {
    /// Moves bytes. What either side sent right after its head comes first.
    pub(crate) async fn run<S: OverTcp>(self, link: &Link, mut client: ClientIo<S>, early: &[u8]) {
        link.enter(Stage::Tunnel);
        let moved = async {
            match self.sandbox {
                Far::Upgraded(stream, begun) => {
                    client.write_all(&begun).await?;
                    join(&mut client, stream, early).await
                }
                Far::Bare(stream) => join(&mut client, *stream, early).await,
            }
        };
        if let Err(error) = moved.await {
            // One side ended without a goodbye; so does the other.
            tracing::debug!(%error, "tunnel ended");
            link.cut();
        }
        drop(self.open);
    }
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
