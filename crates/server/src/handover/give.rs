//! The side of the server that runs.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use kit::Tasks;
use rustix::process::getuid;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    time::timeout,
};

use super::{
    FORMAT, at_socket,
    earlier::Earlier,
    line::{FromNew, FromOld, Line, MOST_SOCKETS},
    sockets::Sockets,
};

/// How long a new server may take to see whether it would start.
const PREPARING: Duration = Duration::from_secs(60);
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listens for a server that is to replace this one. It must have the data directory: what an earlier
/// one left there is removed.
///
/// # Errors
/// If the socket cannot be made.
pub(crate) fn listen(
    data: &Path,
    sockets: Arc<Sockets>,
    tasks: &Tasks,
) -> anyhow::Result<mpsc::Receiver<Successor>> {
    let bound = at_socket(data, |path| {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        // Nobody else gets into the directory before that either.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    let listener = bound.context("listen for a server that is to replace this one")?;
    let (ready, successors) = mpsc::channel(1);
    let desk = Arc::new(Desk {
        sockets,
        ready,
        places: Semaphore::new(1),
    });
    let (its_tasks, stop) = (tasks.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (desk, stop) = (Arc::clone(&desk), stop.clone());
                    its_tasks.spawn(async move {
                        tokio::select! {
                            biased;
                            () = stop.cancelled() => {}
                            () = desk.receive(stream) => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a server that is to replace this one");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    });
    Ok(successors)
}

/// Where servers come that are to replace this one.
#[derive(Debug)]
struct Desk {
    sockets: Arc<Sockets>,
    ready: mpsc::Sender<Successor>,
    /// One at a time.
    places: Semaphore,
}

impl Desk {
    async fn receive(&self, stream: UnixStream) {
        // The mode of the socket says the same; who has gone around it is told nothing.
        let asks = stream.peer_cred().map(|peer| peer.uid());
        if asks.ok() != Some(getuid().as_raw()) {
            tracing::warn!("somebody who is not this user wanted to take over");
            return;
        }
        let line = Line::new(stream);
        match timeout(PREPARING, self.offer(line)).await {
            Ok(Ok(Some(successor))) => {
                // Who leaves now is found to be gone there.
                let _ = self.ready.send(successor).await;
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a server that was to replace this one left"),
            Err(_) => tracing::warn!("a server that was to replace this one did not get ready"),
        }
    }

    /// Hands over the listeners, and waits for the other one to be ready.
    async fn offer(&self, mut line: Line) -> io::Result<Option<Successor>> {
        let Some(FromNew::TakeOver { format, version }) = line.hear().await? else {
            return Ok(None);
        };
        let refusal = match (format, self.places.try_acquire()) {
            (FORMAT, Ok(place)) => {
                tracing::info!(version, "another server is about to take over");
                for (key, listeners) in self.sockets.share()? {
                    for some in listeners.chunks(MOST_SOCKETS) {
                        let (key, count) = (key.clone(), some.len());
                        let what = FromOld::Sockets { key, count };
                        line.say_with(&what, some).await?;
                    }
                }
                line.say(&FromOld::Offered).await?;
                return match line.hear().await? {
                    Some(FromNew::Ready) => {
                        // From here on there is no other: this server ends or starts over.
                        place.forget();
                        Ok(Some(Successor { line }))
                    }
                    _ => {
                        tracing::warn!("it did not get ready, and nothing has changed");
                        Ok(None)
                    }
                };
            }
            (FORMAT, Err(_)) => "another one is taking over already".to_owned(),
            (format, _) => format!(
                "it hands over by format {FORMAT}, not {format}: stop it and start the new one"
            ),
        };
        tracing::warn!(refusal, "a server was not let take over");
        line.say(&FromOld::Refused { why: refusal }).await?;
        Ok(None)
    }
}

/// A server that is ready to replace this one.
#[derive(Debug)]
pub(crate) struct Successor {
    line: Line,
}

/// Why it did not replace this one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotServed {
    #[error("the server that was to replace this one ended before it served")]
    Died,
    #[error("the server that was to replace this one did not serve in time and was ended")]
    Late,
}

impl Successor {
    /// The data directory is its own now. Tells it who is in use here until it serves.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) async fn go_ahead(&mut self, mut inside: Earlier) -> Result<(), NotServed> {
        let died = |_| NotServed::Died;
        self.line.say(&FromOld::Released).await.map_err(died)?;
        loop {
            tokio::select! {
                heard = self.line.hear() => match heard {
                    Ok(Some(FromNew::Serving)) => return Ok(()),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return Err(NotServed::Died),
                },
                (used, is_last) = inside.news() => {
                    self.line.say(&FromOld::Use { used }).await.map_err(died)?;
                    if is_last {
                        return match self.line.hear().await {
                            Ok(Some(FromNew::Serving)) => Ok(()),
                            Ok(_) | Err(_) => Err(NotServed::Died),
                        };
                    }
                }
            }
        }
    }

    /// Does not let it go ahead: it ends, and takes nothing.
    pub(crate) async fn refuse(self, why: &str) {
        // One that is gone needs to know nothing.
        let _ = self.line.say(&FromOld::Refused { why: why.into() }).await;
    }

    /// Ends it, and waits until it has left nothing that it held.
    pub(crate) async fn end(self) {
        self.line.end_peer();
        self.line.peer_gone().await;
    }

    /// Waits until one that died has left nothing that it held.
    pub(crate) async fn gone(self) {
        self.line.peer_gone().await;
    }

    /// Goes on telling it until nobody is inside.
    pub(crate) async fn see_out(self, mut inside: Earlier) {
        loop {
            let (used, is_last) = inside.news().await;
            // One that is gone needs to know nothing; who is inside stays all the same.
            if self.line.say(&FromOld::Use { used }).await.is_err() {
                return inside.gone().await;
            }
            if is_last {
                return;
            }
        }
    }
}
