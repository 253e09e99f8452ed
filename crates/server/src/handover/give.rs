//! The side of the server that runs.

use std::{
    collections::BTreeMap, fs, io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use kit::Tasks;
use model::Uid;
use rustix::process::getuid;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{
        Semaphore,
        mpsc::{self, error::SendError},
    },
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    FORMAT, at_socket,
    earlier::{Earlier, Mark},
    line::{FromNew, FromOld, Line, MOST_SOCKETS, NotHeard, Used},
    sockets::Sockets,
};

/// How long a new server may take to see whether it would start.
const PREPARING: Duration = Duration::from_secs(60);
/// How long it may take to tell those who wanted to replace this server that they do not.
const TURNING_AWAY: Duration = Duration::from_secs(1);
/// What they are told.
const ENDING: &str = "it is about to end";
/// As many are told of in one message.
const TOLD_AT_ONCE: usize = 2_000;
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
) -> anyhow::Result<Successors> {
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
    let tasks = tasks.child();
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
                    its_tasks.spawn(async move { desk.receive(stream, &stop).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a server that is to replace this one");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    });
    Ok(Successors {
        ready: successors,
        tasks,
    })
}

/// Those who are ready to replace this server.
#[derive(Debug)]
pub(crate) struct Successors {
    ready: mpsc::Receiver<Successor>,
    /// Receive them.
    tasks: Tasks,
}

impl Successors {
    /// The next one.
    pub(crate) async fn next(&mut self) -> Option<Successor> {
        self.ready.recv().await
    }

    /// Lets nobody take over any more. Whoever was about to hears of it: one who only found this server
    /// gone would take it for dead, and serve.
    pub(crate) async fn turn_away(mut self) {
        self.ready.close();
        if self.tasks.drain(TURNING_AWAY).await.is_err() {
            tracing::warn!("a server that was to replace this one does not listen");
        }
        while let Ok(successor) = self.ready.try_recv() {
            successor.refuse(ENDING).await;
        }
    }
}

/// Where servers come that are to replace this one.
#[derive(Debug)]
struct Desk {
    sockets: Arc<Sockets>,
    ready: mpsc::Sender<Successor>,
    /// One at a time.
    places: Semaphore,
}

/// What came of one that wanted to replace this server.
enum Offer {
    Ready,
    Left,
    Refused(String),
}

impl Desk {
    async fn receive(&self, stream: UnixStream, stop: &CancellationToken) {
        // The mode of the socket says the same; who has gone around it is told nothing.
        let asks = stream.peer_cred().map(|peer| peer.uid());
        if asks.ok() != Some(getuid().as_raw()) {
            tracing::warn!("somebody who is not this user wanted to take over");
            return;
        }
        let mut line = Line::new(stream);
        let offer = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(Offer::Refused(ENDING.into())),
            offer = timeout(PREPARING, self.offer(&mut line)) => {
                offer.unwrap_or_else(|_| Ok(Offer::Refused("it was not ready in time".into())))
            }
        };
        let successor = Successor::new(line);
        match offer {
            Ok(Offer::Ready) => {
                // Who leaves now is found to be gone there.
                if let Err(SendError(successor)) = self.ready.send(successor).await {
                    successor.refuse(ENDING).await;
                }
            }
            Ok(Offer::Refused(why)) => {
                tracing::warn!(why, "a server was not let take over");
                successor.refuse(&why).await;
            }
            Ok(Offer::Left) => tracing::warn!("a server that was to replace this one left"),
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!("a server that was to replace this one left: {error:#}");
            }
        }
    }

    /// Hands over the listeners, and waits for the other one to be ready.
    async fn offer(&self, line: &mut Line) -> Result<Offer, NotHeard> {
        let Some(FromNew::TakeOver { format, version }) = line.hear().await? else {
            return Ok(Offer::Left);
        };
        let refusal = match (format, self.places.try_acquire(), line.foreign()) {
            (FORMAT, _, Some(kind)) => format!(
                "the new server runs in another {kind} namespace: start it in the same {kind} \
                 namespace, or stop the one that runs first"
            ),
            (FORMAT, Ok(place), None) => {
                tracing::info!(version, "another server is about to take over");
                for (key, listeners) in self.sockets.share()? {
                    for some in listeners.chunks(MOST_SOCKETS) {
                        let (key, count) = (key.clone(), some.len());
                        let what = FromOld::Sockets { key, count };
                        line.say_with(&what, some).await?;
                    }
                }
                line.say(&FromOld::Offered).await?;
                return Ok(match line.hear().await? {
                    Some(FromNew::Ready) => {
                        // From here on there is no other: this server ends or starts over.
                        place.forget();
                        Offer::Ready
                    }
                    _ => Offer::Left,
                });
            }
            (FORMAT, Err(_), None) => "another one is taking over already".to_owned(),
            (format, _, _) => format!(
                "it hands over by format {FORMAT}, not {format}: stop it and start the new one"
            ),
        };
        Ok(Offer::Refused(refusal))
    }
}

/// A server that is ready to replace this one.
#[derive(Debug)]
pub(crate) struct Successor {
    line: Line,
    /// Whom it was told of.
    told: BTreeMap<Uid, Mark>,
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
    pub(super) const fn new(line: Line) -> Self {
        let told = BTreeMap::new();
        Self { line, told }
    }

    /// The data directory is its own now. Tells it who is in use here until it serves.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) async fn go_ahead(&mut self, mut inside: Earlier) -> Result<(), NotServed> {
        let died = |_| NotServed::Died;
        self.line.say(&FromOld::Released).await.map_err(died)?;
        let mut was_last = false;
        loop {
            tokio::select! {
                heard = self.line.hear() => match heard {
                    Ok(Some(FromNew::Serving)) => return Ok(()),
                    Ok(Some(_)) | Err(NotHeard::NotUnderstood(_) | NotHeard::TooLong) => {}
                    Ok(None) | Err(NotHeard::Broken(_)) => return Err(NotServed::Died),
                },
                (news, is_last) = inside.news(&mut self.told), if !was_last => {
                    was_last = is_last;
                    tell(&self.line, &news).await.map_err(died)?;
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
    pub(crate) async fn see_out(mut self, mut inside: Earlier) {
        loop {
            let (news, is_last) = inside.news(&mut self.told).await;
            // One that is gone needs to know nothing; who is inside stays all the same.
            if tell(&self.line, &news).await.is_err() {
                return inside.gone().await;
            }
            if is_last {
                return;
            }
        }
    }
}

/// Tells of who is in use. That nothing is new is news, too.
async fn tell(line: &Line, mut news: &[Used]) -> io::Result<()> {
    loop {
        let (some, rest) = news.split_at(news.len().min(TOLD_AT_ONCE));
        let (used, more) = (some.to_vec(), !rest.is_empty());
        line.say(&FromOld::Use { used, more }).await?;
        if !more {
            return Ok(());
        }
        news = rest;
    }
}
