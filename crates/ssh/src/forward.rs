//! A port of the sandbox, for `ssh -L`.

use std::{io, pin::pin, sync::Arc};

use agent_client::Io;
use bytes::BytesMut;
use futures_util::StreamExt as _;
use russh::{Channel, ChannelWriteHalf, server::Msg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};

use crate::spool::{Bucket, Flow, spool};

/// What is read at once.
const PIECE: usize = 32 << 10;

/// Whether a client that names this host means the sandbox. Nothing else is to be had.
pub(crate) fn is_inside(host: &str, sandbox: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "::1") || host == sandbox
}

/// Moves bytes between a channel and a port, until both directions have ended or one was cut.
pub(crate) async fn join(channel: Channel<Msg>, port: Box<dyn Io>, flow: Arc<Flow>) {
    let (from_client, to_client) = channel.split();
    // A port has no size and takes no signals: dropped here, none is kept.
    let (pump, bucket, _) = spool(from_client, flow.clone());
    let (from_port, to_port) = tokio::io::split(port);
    let moved = async {
        tokio::try_join!(
            inward(bucket, to_port),
            outward(from_port, &to_client, &flow)
        )
    };
    tokio::select! {
        moved = moved => {
            if let Err(error) = moved {
                tracing::debug!(%error, "a forwarded connection was cut");
            }
        }
        closed = pump.run() => tracing::debug!(?closed, "a forwarded connection was closed"),
    }
    // Nobody is left to tell if this fails.
    let _ = to_client.close().await;
}

async fn inward(mut bucket: Bucket, mut port: WriteHalf<Box<dyn Io>>) -> io::Result<()> {
    while let Some(bytes) = bucket.next().await {
        port.write_all(&bytes).await?;
    }
    port.shutdown().await
}

async fn outward(
    port: ReadHalf<Box<dyn Io>>,
    client: &ChannelWriteHalf<Msg>,
    flow: &Flow,
) -> io::Result<()> {
    let mut port = pin!(port);
    loop {
        let mut piece = BytesMut::with_capacity(PIECE);
        if port.read_buf(&mut piece).await? == 0 {
            return client.eof().await.map_err(io::Error::other);
        }
        let sent = flow.sending(client.data_bytes(piece.freeze())).await;
        sent.map_err(io::Error::other)?;
    }
}
