//! The side of the server that is to replace another.

use std::{collections::BTreeMap, io, os::unix::net, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use kit::{Clock, Tasks};
use tokio::{net::UnixStream, sync::watch, time::timeout};

use super::{
    FORMAT, SOCKET, at_socket,
    earlier::{Earlier, Seen},
    line::{FromNew, FromOld, Line, NotHeard},
    sockets::Sockets,
};
use crate::{
    config::{Settings, types::RuntimeKind},
    data_dir::DataDir,
    data_plane::Entry,
    doctor, forwards,
    run::find_agent,
    serve::given_tls,
};

/// How long the other one may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How long the other one may take to let go. It ends by itself if it cannot.
const LETTING_GO: Duration = Duration::from_secs(120);
/// How long the lock of one that has died may outlive it.
const UNLOCKING: Duration = Duration::from_secs(5);

/// What was taken over: the listeners, and who is in use in the other one.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) data_dir: DataDir,
    pub(crate) sockets: Sockets,
    /// Unless it has died.
    pub(crate) earlier: Option<Earlier>,
    pub(crate) serving: Option<Serving>,
}

/// To be told when this server serves.
#[derive(Debug)]
pub(crate) struct Serving(watch::Sender<bool>);

impl Serving {
    /// It does.
    pub(crate) fn say(self) {
        self.0.send_replace(true);
    }
}

/// Takes the place of the server that runs. It goes on if this fails.
///
/// # Errors
/// If this server would not start, none runs, or the one that runs refuses.
pub(crate) async fn take_over(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    tasks: &Tasks,
) -> anyhow::Result<Taken> {
    would_start(settings)?;
    let data = &settings.data_dir.0;
    let connected = at_socket(data, |path| {
        let stream = net::UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    });
    let stream = match connected {
        Err(error) if is_absence(&error) => bail!(
            "no server runs in {} that could be replaced: start without --take-over",
            data.display()
        ),
        other => other.with_context(|| format!("connect to {}", data.join(SOCKET).display()))?,
    };
    let mut line = Line::new(stream);
    let offered = timeout(ANSWER, offered(&mut line)).await;
    let given = offered.context("the server that runs does not answer")??;
    let sockets = Sockets::given(given);
    prepare(settings, &sockets).await?;
    // One that has hung up has said why before, or has died.
    let _ = line.say(&FromNew::Ready).await;
    let data_dir = match timeout(LETTING_GO, released(&mut line)).await {
        Ok(Ok(LetGo::Released)) => DataDir::take(data)?,
        Ok(Ok(LetGo::Refused(why))) => bail!("the server that runs does not let go: {why}"),
        // It has died: what it had is free, as soon as the kernel has noticed.
        Ok(Ok(LetGo::Died) | Err(_)) => {
            tracing::warn!("the server that was to be replaced ended by itself");
            line.peer_gone().await;
            let data_dir = DataDir::take_within(data, UNLOCKING).await?;
            return Ok(Taken {
                data_dir,
                sockets,
                earlier: None,
                serving: None,
            });
        }
        Err(_) => bail!("the server that runs does not let go of {}", data.display()),
    };
    let (told, seen) = watch::channel(Seen::default());
    let (serves, serving) = watch::channel(false);
    tasks.spawn(follow(line, told, serving, Arc::clone(clock)));
    Ok(Taken {
        data_dir,
        sockets,
        earlier: Some(Earlier::new(seen, Arc::clone(clock))),
        serving: Some(Serving(serves)),
    })
}

/// What can be known before the other one has let go.
fn would_start(settings: &Settings) -> anyhow::Result<()> {
    store_redb::check(&settings.data_dir.0)?;
    if settings.e2b_domain.host().is_some() {
        given_tls(settings)?;
    }
    if settings.runtime == RuntimeKind::Local {
        doctor::require(&settings.data_dir.0)?;
        find_agent(None)?;
    }
    Ok(())
}

/// Listens where the other one does not: what cannot be had is known before anything is let go.
async fn prepare(settings: &Settings, sockets: &Sockets) -> anyhow::Result<()> {
    let optional = [
        ("ssh.listen", &settings.ssh_listen),
        ("ext_proc.listen", &settings.ext_proc_listen),
        ("metrics.listen", &settings.metrics_listen),
    ];
    let mut wanted = vec![("listen".to_owned(), &settings.listen)];
    for (setting, at) in optional {
        wanted.extend(at.0.iter().map(|at| (setting.to_owned(), at)));
    }
    let forwards = settings.tcp_forwards.0.iter();
    wanted.extend(forwards.map(|one| (forwards::setting(one), &one.listen)));
    for (setting, at) in wanted {
        let prepared = sockets.prepare(&setting, at).await;
        prepared.with_context(|| format!("listen on {at}, as {setting} says"))?;
    }
    match settings.runtime {
        RuntimeKind::None => Ok(()),
        RuntimeKind::Fake | RuntimeKind::Local => Entry::prepare(settings, sockets),
    }
}

/// Whether nobody is there to connect to.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

async fn offered(line: &mut Line) -> anyhow::Result<BTreeMap<String, Vec<std::net::TcpListener>>> {
    let (format, version) = (FORMAT, env!("CARGO_PKG_VERSION").to_owned());
    line.say(&FromNew::TakeOver { format, version }).await?;
    let mut given: BTreeMap<String, Vec<_>> = BTreeMap::new();
    loop {
        match line.hear().await? {
            Some(FromOld::Sockets { key, count }) => {
                let listeners = line.take_sockets(count)?;
                given.entry(key).or_default().extend(listeners);
            }
            Some(FromOld::Offered) => return Ok(given),
            Some(FromOld::Refused { why }) => {
                bail!("the server that runs does not hand over: {why}")
            }
            Some(FromOld::Released | FromOld::Use { .. }) => {
                bail!("the server that runs says what makes no sense yet")
            }
            None => bail!("the server that runs has hung up: its log says why"),
        }
    }
}

/// What became of the other one.
enum LetGo {
    Released,
    Refused(String),
    Died,
}

/// Waits until the other one has let go.
async fn released(line: &mut Line) -> Result<LetGo, NotHeard> {
    loop {
        match line.hear().await? {
            Some(FromOld::Released) => return Ok(LetGo::Released),
            Some(FromOld::Refused { why }) => return Ok(LetGo::Refused(why)),
            Some(_) => {}
            None => return Ok(LetGo::Died),
        }
    }
}

/// Hears who is in use in the other one until it is gone, and tells it when this one serves.
pub(super) async fn follow(
    mut line: Line,
    told: watch::Sender<Seen>,
    mut serving: watch::Receiver<bool>,
    clock: Arc<dyn Clock>,
) {
    let mut has_said = false;
    loop {
        let heard = tokio::select! {
            heard = line.hear() => heard,
            serves = async { serving.wait_for(|serves| *serves).await.is_ok() }, if !has_said => {
                has_said = true;
                // It hears of it in the end by our silence, and starts over.
                if serves && line.say(&FromNew::Serving).await.is_err() {
                    break;
                }
                continue;
            }
        };
        match heard {
            Ok(Some(FromOld::Use { used, more })) => {
                let now = clock.monotonic();
                told.send_modify(|seen| seen.hear(&used, more, now));
            }
            Ok(Some(_)) => {}
            // That is not that it is gone: who was meant may be inside.
            Err(error @ (NotHeard::NotUnderstood(_) | NotHeard::TooLong)) => {
                let error = anyhow::Error::from(error);
                tracing::warn!("all is in use until the server that was replaced ends: {error:#}");
                told.send_modify(Seen::mishear);
            }
            Ok(None) | Err(NotHeard::Broken(_)) => break,
        }
    }
    let now = clock.monotonic();
    told.send_modify(|seen| seen.go(now));
    tracing::info!("the server that was replaced is gone");
}
