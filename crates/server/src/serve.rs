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

use std::{path::Path, pin::pin, process, sync::Arc, time::Duration};

use ::auth::{Audit, Keys, Seal};
use anyhow::{Context as _, bail};
use api::{Authenticator, Limits, ResourceApi};
use cli::kubeconfig::Kubeconfig;
use control::events::StoredEvents;
use kit::{Clock, Entropy, SystemClock, Tasks};
use runtime_local::LocalRuntime;
use rustls::ServerConfig;
use store::Store;
use store_redb::RedbStore;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    announce::{Announcement, announce},
    audit_trail,
    config::{
        Settings,
        types::{Listen, RuntimeKind},
    },
    control_loop::{self, ControlLoop, Engine, Parts, SYNC_TIMEOUT},
    data_dir::{DataDir, write_secret},
    data_plane::{DataPlane, Entry, Foundation, SealedTokens},
    gc::{self, Collector},
    handover::{
        earlier::{Earlier, Teller},
        give::{self, NotServed, Successor, Successors},
        sockets::Sockets,
        take::{self, Taken},
        upgrade::Upgrade,
    },
    image, listener,
    metrics::{self, Sources},
    sleep::GatewayUse,
    ssh_door::ensure_host_key,
    supervisor,
    tls::{self, Authority, Identity},
    token::Token,
};

/// What SSH clients know the server by, in the data directory.
const SSH_HOST_KEY: &str = "ssh_host_ed25519_key";

/// How long requests that need the store, and turns of the control loop, have to end before it is handed
/// over: whoever comes new waits as long.
const SETTLING: Duration = Duration::from_secs(5);
/// How long who keeps a connection and asks all the time has to hear that it ends: served as ever, so
/// nobody waits for it.
const FAREWELL: Duration = Duration::from_millis(100);
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

/// What is the same for every start in a process.
#[derive(Clone, Copy, Debug)]
struct Base<'a> {
    settings: &'a Settings,
    clock: &'a Arc<dyn Clock>,
    entropy: &'a Arc<Entropy>,
    sockets: &'a Arc<Sockets>,
}

/// What is left of a server that has let go.
#[derive(Debug)]
struct Left {
    /// Who is inside.
    inside: Earlier,
    /// To be cancelled when Envoys are answered by another, or by nobody any more.
    envoys_elsewhere: CancellationToken,
}

/// A server that runs.
#[derive(Debug)]
struct Server {
    data_dir: DataDir,
    store: Arc<RedbStore>,
    running: Option<(ControlLoop, DataPlane)>,
    local: Option<LocalRuntime>,
    audit: Audit,
    /// The server that this one has replaced.
    earlier: Option<Earlier>,
    tasks: Tasks,
    /// Those that are ready to replace it.
    successors: Successors,
}

impl Server {
    /// Starts it, ready to serve.
    ///
    /// # Errors
    /// If a step refuses.
    async fn start(
        base: &Base<'_>,
        data_dir: DataDir,
        earlier: Option<Earlier>,
    ) -> anyhow::Result<Self> {
        let Base {
            settings,
            clock,
            entropy,
            sockets,
        } = *base;
        let listener = bind_for("listen", &settings.listen, sockets).await?;
        let address = listener.local_addr().context("read the bound address")?;
        // Early: reading everything takes a while, and a refused connection says nothing.
        let entry = match settings.runtime {
            RuntimeKind::None => None,
            RuntimeKind::Fake | RuntimeKind::Local => {
                let tls = domain_tls(settings, &data_dir, clock)?;
                Some(Entry::open(settings, tls, sockets)?)
            }
        };
        let closing = open_store(data_dir.path(), clock, entropy)?;
        let store: Arc<dyn Store> = closing.clone();
        let authority = Authority::ensure(&data_dir.ensure_pki()?, &**clock)?;
        let ca_pem = authority.pem.clone();
        let names = tls::names_for(&settings.listen.host);
        let identity = Arc::new(Identity::new(authority, names, clock.clone())?);
        let acceptor = TlsAcceptor::from(Arc::new(identity.server_config()?));
        let token = Token::ensure(&data_dir.join("token"), entropy)?;

        let url = format!(
            "https://{}",
            Listen::authority(settings.listen.client_host(), address.port())
        );
        let tasks = Tasks::default();
        let admins = Authenticator::from_token_hashes(vec![token.hash()]);
        let limits = Limits {
            body_bytes: settings.api_max_body_bytes.0,
            watches: settings.api_max_watches.0,
            ..Limits::default()
        };
        let keys = Keys::start(
            store.clone(),
            entropy.clone(),
            Instant::now() + SYNC_TIMEOUT,
            &tasks,
        )
        .await
        .context("read API keys")?;
        let audit = Audit::open(&data_dir.join("audit"), ::auth::audit::Options::default())?;
        let mut api = ResourceApi::new(
            keys.store(),
            clock.clone(),
            entropy.clone(),
            admins.clone(),
            limits,
        )
        .with_tasks(tasks.clone());
        let mut collector = None;
        let images = image::options(settings);
        let (mut local, image_admins) = (None, admins.clone());
        let engine = Engine::open(settings.runtime, data_dir.path(), images.clone())?;
        let running = match engine.zip(entry) {
            None => None,
            Some((engine, entry)) => {
                local.clone_from(&engine.local);
                collector = engine.local.clone().map(|runtime| {
                    Arc::new(Collector {
                        store: store.clone(),
                        runtime,
                        clock: clock.clone(),
                        grace: settings.gc_grace.0,
                        admins: admins.clone(),
                    })
                });
                let seal = Seal::new(Token::ensure(&data_dir.join("seal"), entropy)?.hash());
                let used = Arc::new(GatewayUse::after(earlier.clone()));
                let tokens = Arc::new(SealedTokens(seal.clone()));
                let options = control::Options {
                    // The data directory is this process's alone.
                    claims_alone: true,
                    ..control_loop::options(settings)
                };
                let events = StoredEvents::start(store.clone(), clock.clone(), engine.tasks());
                let control = control_loop::start(Parts {
                    engine: &engine,
                    store: &store,
                    clock,
                    entropy,
                    activity: used.clone(),
                    followers: used.clone(),
                    waiters: used.clone(),
                    events: Arc::new(events),
                    tokens,
                    reception: None,
                    keys: keys.clone(),
                    options,
                })
                .await?;
                api = api.with_plugins(control.say.plugins.clone());
                let on = Foundation {
                    settings,
                    store: &store,
                    control: &control,
                    engine: &engine,
                    keys,
                    admins,
                    seal,
                    audit: audit.clone(),
                    clock,
                    entropy,
                    entry,
                    sockets,
                    ssh: match settings.ssh_listen.0 {
                        Some(_) => Some(ensure_host_key(&data_dir.join(SSH_HOST_KEY), entropy)?),
                        None => None,
                    },
                };
                let plane = DataPlane::start(on, &used, &tasks).await?;
                if let Some(listen) = &settings.metrics_listen.0 {
                    let listener = bind_for("metrics.listen", listen, sockets).await?;
                    serve_metrics(listener, plane.sources.clone(), &tasks);
                }
                api = api.with_readiness(control.readiness.clone());
                Some((control, plane))
            }
        };
        let mut router = api::router(Arc::new(api));
        let spool = image::spool::Spool::open(data_dir.path());
        let its_images = image::serve::Images {
            spool: spool.context("make room for images that are sent")?,
            compression: images.compression,
            images: match &local {
                Some(local) => local.images().clone(),
                None => {
                    ::images::Store::open(data_dir.path(), images).context("open the images")?
                }
            },
            records: store.clone(),
            data: data_dir.path().to_owned(),
            admins: image_admins,
            tasks: tasks.clone(),
        };
        router = router.merge(image::serve::router(Arc::new(its_images)));
        if let Some(collector) = collector {
            collector.start(settings.gc_interval.0, &tasks);
            router = router.merge(gc::router(collector));
        }
        // Made only where it can be used, and so is shown.
        let first_key = match &running {
            Some(_) => ::auth::manage::ensure_first_key(&*store, entropy)
                .await
                .context("make the first API key")?,
            None => None,
        };

        // Last: a kubeconfig must never name a server that does not come.
        let kubeconfig = data_dir.join("kubeconfig");
        let mut access = Kubeconfig::new(&url, &ca_pem, token.reveal());
        if let Some(plain) = running.as_ref().and_then(|(_, p)| p.addresses().first()) {
            let host = settings.e2b_listen.client_host();
            access = access.with_e2b(&format!("http://{}", Listen::authority(host, plain.port())));
        }
        let text = access.to_yaml()?;
        write_secret(&kubeconfig, &text)?;
        drop(token);
        let router = audit_trail::recorded(router, audit.clone(), clock.clone());
        let max_connections = settings.api_max_connections.0;
        tasks.spawn(listener::serve(
            listener,
            acceptor,
            router,
            max_connections,
            tasks.clone(),
        ));

        announce(&Announcement {
            url: &url,
            settings,
            kubeconfig: &kubeconfig,
            ca: &data_dir.join("pki/ca.crt"),
            e2b: running.as_ref().map(|(_, plane)| plane.addresses()),
            forwards: running
                .as_ref()
                .map_or(&[], |(_, plane)| &plane.forwards.at),
            ssh: running.as_ref().and_then(|(_, plane)| plane.ssh.as_ref()),
            first_key,
        });
        tracing::info!(%address, data_dir = %data_dir.path().display(), "serving");
        Ok(Self {
            successors: give::listen(data_dir.path(), Arc::clone(sockets), &tasks)?,
            data_dir,
            store: closing,
            running,
            local,
            audit,
            earlier,
            tasks,
        })
    }

    /// Stops it, as a signal asks.
    async fn stop(self, settings: &Settings, name: &str) -> anyhow::Result<()> {
        tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
        let grace = settings.drain_timeout.0;
        // Before anything takes time.
        self.successors.turn_away().await;
        let mut control = None;
        if let Some((its_loop, plane)) = self.running {
            plane.drain(grace).await;
            control = Some(its_loop);
        }
        let drained = self.tasks.drain(grace).await;
        // After the requests: their last writes are intent like any other.
        if let Some(control) = control {
            control.drain(grace).await;
        }
        match drained {
            Ok(()) => {
                tracing::info!("stopped");
                Ok(())
            }
            Err(left) => bail!(
                "{left} connections or requests were still running after {} and were dropped",
                settings.drain_timeout
            ),
        }
    }

    /// Stops everything but what is inside, which `late` cuts off, and gives the data directory back.
    async fn release(self, clock: &Arc<dyn Clock>, late: CancellationToken, tasks: &Tasks) -> Left {
        if let Some((_, plane)) = &self.running {
            plane.say_goodbye();
            sleep(FAREWELL).await;
            plane.leave().await;
            plane.settle(SETTLING).await;
        }
        if let Err(left) = self.tasks.drain(SETTLING).await {
            tracing::warn!(left, "requests did not end before another server took over");
        }
        let (over, envoys_elsewhere) = (CancellationToken::new(), CancellationToken::new());
        let activity = match self.running {
            Some((control, plane)) => {
                control.drain(SETTLING).await;
                let (activity, over) = (plane.activity(), over.clone());
                let elsewhere = envoys_elsewhere.clone();
                tasks.spawn(async move {
                    plane.empty(late, elsewhere).await;
                    over.cancel();
                });
                activity
            }
            None => {
                over.cancel();
                gateway::Activity::new(Arc::clone(clock))
            }
        };
        if let Some(local) = &self.local
            && timeout(LETTING_GO, local.hand_over()).await.is_err()
        {
            // Two must never work on the same sandboxes. What one process holds ends with it.
            tracing::error!("the engine has not let go of its sandboxes: ending at once");
            process::exit(1);
        }
        // The other one writes it from now on.
        self.audit.close().await;
        self.store.close().await;
        self.data_dir.release();
        let teller = Teller {
            activity,
            earlier: self.earlier,
            clock: Arc::clone(clock),
        };
        Left {
            inside: teller.tell(over, tasks),
            envoys_elsewhere,
        }
    }
}

fn serve_metrics(listener: TcpListener, sources: Sources, tasks: &Tasks) {
    let stop = tasks.stopping().clone();
    tasks.spawn(async move {
        let served = axum::serve(listener, metrics::router(sources))
            .with_graceful_shutdown(async move { stop.cancelled().await });
        if let Err(error) = served.await {
            tracing::warn!(%error, "the page for Prometheus is no longer served");
        }
    });
}

pub(crate) async fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
    bind_for("", listen, &Sockets::default()).await
}

/// The same for a setting, where something may listen for it already.
pub(crate) async fn bind_for(
    setting: &str,
    listen: &Listen,
    sockets: &Sockets,
) -> anyhow::Result<TcpListener> {
    let hint = "choose another with --listen, or port 0 for any free one";
    match sockets.listen(setting, listen).await {
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("another process listens on {listen} already: stop it, or {hint}")
        }
        other => other.with_context(|| format!("listen on {listen} ({hint})")),
    }
}

fn open_store(
    directory: &Path,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<Entropy>,
) -> anyhow::Result<Arc<RedbStore>> {
    let options = store_redb::Options::default();
    let store = RedbStore::open(directory, clock.clone(), entropy.clone(), options)?;
    Ok(Arc::new(store))
}

/// TLS for the domain, where there is one: with the certificate that is given, or one of the local
/// authority.
fn domain_tls(
    settings: &Settings,
    data_dir: &DataDir,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let Some(domain) = settings.e2b_domain.host() else {
        return Ok(None);
    };
    let config = match given_tls(settings)? {
        Some(given) => given,
        None => {
            let authority = Authority::ensure(&data_dir.ensure_pki()?, &**clock)?;
            let names = tls::names_of_domain(domain);
            Arc::new(Identity::new(authority, names, clock.clone())?).server_config()?
        }
    };
    Ok(Some(Arc::new(config)))
}

/// TLS for the domain with the certificate that is given, where one is.
///
/// # Errors
/// If only half of it is given, or it cannot be used.
pub(crate) fn given_tls(settings: &Settings) -> anyhow::Result<Option<ServerConfig>> {
    match (&settings.e2b_certificate.0, &settings.e2b_key.0) {
        (Some(certificate), Some(key)) => Ok(Some(tls::given(certificate, key)?)),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            bail!("e2b.certificate and e2b.key go together: give both, or neither")
        }
    }
}

/// The signals that stop a server.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        })
    }

    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
