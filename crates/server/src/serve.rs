//! `dormouse serve`: puts the parts together, and takes them apart in order.
//!
//! Start: data directory (taken), ports (bound; whoever comes to the HTTP ones of users is told to
//! come again), store (opened), identity, token and seal (made once), keys and control loop (synced),
//! gateway and E2B API (started), kubeconfig (written), then the first connection is accepted. Each
//! step can refuse, and what it leaves behind then is nothing, or something that the next start uses
//! as it is.
//!
//! Another server can take this one's place without refusing anybody: see [`crate::handover`].
//!
//! Stop: a signal ends accepting and watches; requests under way have `drain_timeout` to finish,
//! then the turns of the control loop; then whatever is left is dropped. A second signal ends the
//! process at once: every acknowledged write is durable already. One that is still starting, or is
//! being replaced by one that does not serve yet, stops likewise, and the other with it.

use std::{pin::pin, process, sync::Arc, time::Duration};

use kit::{Clock, Entropy, SystemClock, Tasks};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Settings,
    data_dir::DataDir,
    handover::{
        give::{NotServed, Successor},
        sockets::Sockets,
        take::{self, Taken},
        upgrade::Upgrade,
    },
    supervisor,
};

// The life of a process is here; what it puts together, where it listens and what stops it below.
mod bind;
mod server;
mod signals;

pub(crate) use bind::{bind, bind_for};
pub(crate) use server::given_tls;
use server::{Base, Left, Server};
pub(crate) use signals::Signals;

/// How long a new server may take from having the data directory to serving: clients wait meanwhile.
const STARTING: Duration = Duration::from_secs(120);
/// How long calls on the engine may take to end before it is handed over.
const LETTING_GO: Duration = Duration::from_secs(60);
/// How long what is cut off may take to end. A server that was replaced before is not waited for any longer.
const CUTTING: Duration = Duration::from_secs(5);

/// Runs the server until a signal stops it, or another one has replaced it.
///
/// # Errors
/// If it cannot start, or something is still running when the time to drain is over.
pub(crate) async fn run(settings: &Settings, take_over: bool) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let mut upgrade = Upgrade::new()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    // What outlives a start.
    let around = Tasks::default();
    let (data_dir, sockets, mut earlier, mut serving) = match take_over {
        false => (DataDir::take(&settings.data_dir.0)?, None, None, None),
        true => {
            let taken = tokio::select! {
                biased;
                taken = take::take_over(settings, &clock, &around) => taken?,
                name = signals.next() => {
                    tracing::info!(signal = name, "stopped before it took over");
                    return Ok(());
                }
            };
            let Taken {
                data_dir,
                sockets,
                earlier,
                serving,
            } = taken;
            (data_dir, Some(sockets), earlier, serving)
        }
    };
    let sockets = Arc::new(sockets.unwrap_or_default());
    let mut data_dir = Some(data_dir);
    // Until when those may stay who are inside when another takes over, or could not.
    let ending = CancellationToken::new();
    let mut left: Option<Left> = None;
    loop {
        let base = Base {
            settings,
            clock: &clock,
            entropy: &entropy,
            sockets: &sockets,
        };
        let its_own = data_dir.take();
        let before = earlier.take();
        let mut starting = pin!(async {
            let data_dir = match its_own {
                Some(data_dir) => data_dir,
                None => DataDir::take_within(&settings.data_dir.0, LETTING_GO).await?,
            };
            Server::start(&base, data_dir, before).await
        });
        let mut server = tokio::select! {
            biased;
            started = &mut starting => started?,
            name = signals.next() => {
                tracing::info!(signal = name, "stopped before it served");
                sockets.close();
                if let Some(left) = &left {
                    // What has begun to start has the data directory until this process ends.
                    see_out(left, &ending, settings, &mut signals).await;
                }
                return Ok(());
            }
        };
        sockets.close_unused();
        if let Some(serving) = serving.take() {
            serving.say();
        }
        supervisor::tell_ready();
        if let Some(left) = &left {
            left.envoys_elsewhere.cancel();
        }
        let successor = loop {
            tokio::select! {
                name = signals.next() => {
                    sockets.close();
                    let stopping = async {
                        let finishing = finish(left, &ending, settings);
                        let (stopped, ()) = tokio::join!(server.stop(settings, name), finishing);
                        stopped
                    };
                    return tokio::select! {
                        stopped = stopping => stopped,
                        name = signals.next() => end_at_once(name),
                    };
                }
                Some(successor) = server.successors.next() => break successor,
                () = upgrade.wanted() => upgrade.start(),
            }
        };
        tracing::info!("another server takes over");
        let now_left = {
            let mut releasing = pin!(server.release(&clock, ending.child_token(), &around));
            tokio::select! {
                biased;
                left = &mut releasing => left,
                name = signals.next() => {
                    tracing::info!(signal = name, "stopping: nobody takes over");
                    successor.refuse("it was told to stop").await;
                    // It takes no longer than that, and leaves nothing half done.
                    let left = tokio::select! {
                        left = releasing => left,
                        name = signals.next() => end_at_once(name),
                    };
                    sockets.close();
                    see_out(&left, &ending, settings, &mut signals).await;
                    return Ok(());
                }
            }
        };
        match hand_over(
            successor,
            &now_left,
            &ending,
            &sockets,
            settings,
            &mut signals,
        )
        .await
        {
            Ok(()) => return Ok(()),
            Err(failed) => {
                tracing::error!("{failed}: this one goes on");
                sockets.renew();
                earlier = Some(now_left.inside.clone());
                left = Some(now_left);
            }
        }
    }
}

/// Lets another server go ahead, and what is inside here finish.
///
/// # Errors
/// If it ended before it served, or had to be ended. What it held is free then.
async fn hand_over(
    mut successor: Successor,
    left: &Left,
    ending: &CancellationToken,
    sockets: &Sockets,
    settings: &Settings,
    signals: &mut Signals,
) -> Result<(), NotServed> {
    let ahead = tokio::select! {
        biased;
        ahead = timeout(STARTING, successor.go_ahead(left.inside.clone())) => {
            ahead.unwrap_or(Err(NotServed::Late))
        }
        name = signals.next() => {
            tracing::info!(signal = name, "stopping, and the server that does not serve yet too");
            successor.end().await;
            sockets.close();
            see_out(left, ending, settings, signals).await;
            return Ok(());
        }
    };
    match ahead {
        Ok(()) => {}
        Err(NotServed::Died) => {
            successor.gone().await;
            return Err(NotServed::Died);
        }
        Err(NotServed::Late) => {
            // Two must never have the data directory.
            successor.end().await;
            return Err(NotServed::Late);
        }
    }
    // They are its own now: what nobody accepts is not to be held here.
    sockets.close();
    tracing::info!(grace = %settings.drain_timeout, "replaced: what is inside may finish");
    tokio::select! {
        () = successor.see_out(left.inside.clone()) => tracing::info!("stopped"),
        () = see_out(left, ending, settings, signals) => {}
    }
    Ok(())
}

/// Lets what is inside finish for as long as it may. A signal cuts it off, another one ends the process.
async fn see_out(
    left: &Left,
    ending: &CancellationToken,
    settings: &Settings,
    signals: &mut Signals,
) {
    let inside = &left.inside;
    left.envoys_elsewhere.cancel();
    tokio::select! {
        () = inside.gone() => {}
        () = sleep(settings.drain_timeout.0) => {}
        name = signals.next() => tracing::info!(signal = name, "what is left is cut off"),
    }
    // Also what was inside when an earlier one could not take over.
    ending.cancel();
    tokio::select! {
        _ = timeout(CUTTING, inside.gone()) => tracing::info!("stopped"),
        name = signals.next() => end_at_once(name),
    }
}

/// The same for what was inside when another server could not take over.
async fn finish(left: Option<Left>, ending: &CancellationToken, settings: &Settings) {
    if let Some(Left { inside, .. }) = left {
        let _ = timeout(settings.drain_timeout.0, inside.gone()).await;
        ending.cancel();
        let _ = timeout(CUTTING, inside.gone()).await;
    }
}

fn end_at_once(signal: &str) -> ! {
    tracing::warn!(signal, "second signal: ending at once");
    // Nothing to lose: what was acknowledged is on disk.
    process::exit(1)
}
