//! After a 101: bytes both ways, until both sides have ended.

use std::io;

use hyper::client::conn::http1::Parts;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional_with_sizes};

use crate::{
    link::{ClientIo, Link, Open, OverTcp, Stage},
    upstream::Socket,
};

const BUFFER_BYTES: usize = 16 << 10;

/// The sandbox's side of a tunnel that waits for the client's.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) sandbox: Parts<TokioIo<Socket>>,
    /// The tunnel counts as use until it ends.
    pub(crate) open: Open,
}

impl Tunnel {
    /// Moves bytes. What either side sent right after its head comes first.
    pub(crate) async fn run<S: OverTcp>(self, link: &Link, mut client: ClientIo<S>, early: &[u8]) {
        link.enter(Stage::Tunnel);
        let mut sandbox = self.sandbox.io.into_inner();
        let moved = async {
            sandbox.write_all(early).await?;
            client.write_all(&self.sandbox.read_buf).await?;
            copy_bidirectional_with_sizes(&mut client, &mut sandbox, BUFFER_BYTES, BUFFER_BYTES)
                .await?;
            io::Result::Ok(())
        };
        if let Err(error) = moved.await {
            // One side ended without a goodbye; so does the other.
            tracing::debug!(%error, "tunnel ended");
            link.cut();
        }
        drop(self.open);
    }
}
