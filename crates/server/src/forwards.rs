//! Ports of the host that lead into sandboxes, for whoever runs the server: any protocol over TCP,
//! without a key, waking the sandbox if it may be woken.
//!
//! Who reaches such a port reaches the sandbox's: where it listens is the rule of who may. A client
//! is accepted only when there is room for it; until then it waits in the kernel's queue.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use gateway::{Proof, Streams, To, address::Port};
use kit::Tasks;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::AbortHandle,
    time::sleep,
};

use crate::{
    config::{
        Settings,
        forwards::{Forward, Target},
    },
    handover::sockets::Sockets,
};

/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Ports that lead into sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    /// Where they are.
    pub(crate) at: Vec<(SocketAddr, Forward)>,
    /// What lets clients in.
    pub(crate) accepting: Vec<AbortHandle>,
}

/// Listens where `tcp.forwards` says.
///
/// # Errors
/// If an address cannot be had.
pub(crate) async fn start(
    settings: &Settings,
    sockets: &Sockets,
    streams: &Streams,
    tasks: &Tasks,
) -> anyhow::Result<Forwards> {
    let slots = Arc::new(Semaphore::new(settings.tcp_max_connections.0));
    let mut started = Forwards::default();
    for forward in &settings.tcp_forwards.0 {
        let listener = sockets
            .listen(&setting(forward), &forward.listen)
            .await
            .with_context(|| format!("listen for tcp.forwards {forward}"))?;
        let address = listener.local_addr().context("read the bound address")?;
        started.at.push((address, forward.clone()));
        let accepting = tasks.spawn(accept(
            listener,
            forward.clone(),
            streams.clone(),
            slots.clone(),
            tasks.clone(),
        ));
        started.accepting.push(accepting.abort_handle());
    }
    Ok(started)
}

/// What one of them is known by.
pub(crate) fn setting(forward: &Forward) -> String {
    format!("tcp.forwards {forward}")
}

async fn accept(
    listener: TcpListener,
    forward: Forward,
    streams: Streams,
    slots: Arc<Semaphore>,
    tasks: Tasks,
) {
    loop {
        let next = async {
            // Never closed, so there is always a permit in the end.
            let slot = slots.clone().acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            biased;
            () = tasks.stopping().cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok((client, peer)) => {
                let (forward, streams) = (forward.clone(), streams.clone());
                tasks.spawn(serve(client, peer, forward, streams, slot));
            }
            Err(error) => {
                tracing::warn!(%error, %forward, "cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(
    mut client: TcpStream,
    peer: SocketAddr,
    forward: Forward,
    streams: Streams,
    _slot: Option<OwnedSemaphorePermit>,
) {
    let to = match &forward.to {
        Target::Id(id) => To::Id(id.as_str()),
        Target::Name(namespace, name) => To::Name(namespace, name),
    };
    let moved = async {
        client.set_nodelay(true)?;
        let mut sandbox = streams
            .open(to, Port::from(forward.port), Proof::Operator)
            .await?;
        copy_bidirectional(&mut client, &mut sandbox).await?;
        anyhow::Ok(())
    };
    if let Err(error) = moved.await {
        tracing::info!(%error, %peer, %forward, "a forwarded connection was closed");
        // Closing now sends a reset: nobody takes a part for the whole.
        let _ = client.set_zero_linger();
    }
}
