//! `dormouse serve`: puts the parts together, and takes them apart in order.
//!
//! Start: data directory (taken), ports (bound; whoever comes to the HTTP ones of users is told to
//! come again), store (opened), identity, token and seal (made once), keys and control loop (synced),
//! gateway and E2B API (started), kubeconfig (written), then the first connection is accepted. Each
//! step can refuse, and what it leaves behind then is nothing, or something that the next start uses
//! as it is.
//!
//! Stop: a signal ends accepting and watches; requests under way have `drain_timeout` to finish,
//! then the turns of the control loop; then whatever is left is dropped. A second signal ends the
//! process at once: every acknowledged write is durable already.

use std::{path::Path, process, sync::Arc};

use ::auth::{Audit, Keys, Seal};
use anyhow::{Context as _, bail};
use api::{Authenticator, Limits, ResourceApi};
use cli::kubeconfig::Kubeconfig;
use control::{events::StoredEvents, history::Retention};
use kit::{Clock, Entropy, SystemClock, Tasks};
use rustls::ServerConfig;
use store::Store;
use store_redb::RedbStore;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    announce::{Announcement, announce},
    audit_trail,
    config::{
        Settings,
        types::{Listen, RuntimeKind},
    },
    control_loop::{self, Engine, Parts, SYNC_TIMEOUT},
    data_dir::{DataDir, write_secret},
    data_plane::{DataPlane, Entry, Foundation, SealedTokens},
    gc::{self, Collector},
    image, listener,
    metrics::{self, Sources},
    sleep::GatewayUse,
    ssh_door::ensure_host_key,
    tls::{self, Authority, Identity},
    token::Token,
};

/// What SSH clients know the server by, in the data directory.
const SSH_HOST_KEY: &str = "ssh_host_ed25519_key";

/// Runs the server until a signal stops it.
///
/// # Errors
/// If it cannot start, or something is still running when the time to drain is over.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());

    let data_dir = DataDir::take(&settings.data_dir.0)?;
    let listener = bind(&settings.listen).await?;
    let address = listener.local_addr().context("read the bound address")?;
    // Early: reading everything takes a while, and a refused connection says nothing.
    let entry = match settings.runtime {
        RuntimeKind::None => None,
        RuntimeKind::Fake | RuntimeKind::Local => {
            let tls = domain_tls(settings, &data_dir, &clock)?;
            Some(Entry::open(settings, tls)?)
        }
    };
    let store = open_store(data_dir.path(), &clock, &entropy)?;

    let authority = Authority::ensure(&data_dir.ensure_pki()?, &*clock)?;
    let ca_pem = authority.pem.clone();
    let names = tls::names_for(&settings.listen.host);
    let identity = Arc::new(Identity::new(authority, names, clock.clone())?);
    let acceptor = TlsAcceptor::from(Arc::new(identity.server_config()?));
    let token = Token::ensure(&data_dir.join("token"), &entropy)?;

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
    let (mut of_engine, image_admins) = (None, admins.clone());
    let engine = Engine::open(settings.runtime, data_dir.path(), images.clone())?;
    let running = match engine.zip(entry) {
        None => None,
        Some((engine, entry)) => {
            of_engine = engine.local.as_ref().map(|local| local.images().clone());
            collector = engine.local.clone().map(|runtime| {
                Arc::new(Collector {
                    store: store.clone(),
                    runtime,
                    clock: clock.clone(),
                    grace: settings.gc_grace.0,
                    admins: admins.clone(),
                })
            });
            let seal = Seal::new(Token::ensure(&data_dir.join("seal"), &entropy)?.hash());
            let used = Arc::new(GatewayUse::default());
            let tokens = Arc::new(SealedTokens(seal.clone()));
            let options = control::Options {
                drain_timeout: settings.wake_drain_timeout.0,
                history: Retention {
                    keep: settings.history_keep.0,
                    most: settings.history_max_records.0,
                    ..Retention::default()
                },
                // The data directory is this process's alone.
                claims_alone: true,
                ..control::Options::default()
            };
            let events = StoredEvents::start(store.clone(), clock.clone(), engine.tasks());
            let control = control_loop::start(Parts {
                engine: &engine,
                store: &store,
                clock: &clock,
                entropy: &entropy,
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
                clock: &clock,
                entropy: &entropy,
                entry,
                ssh: match settings.ssh_listen.0 {
                    Some(_) => Some(ensure_host_key(&data_dir.join(SSH_HOST_KEY), &entropy)?),
                    None => None,
                },
            };
            let plane = DataPlane::start(on, &used, &tasks).await?;
            if let Some(listen) = &settings.metrics_listen.0 {
                serve_metrics(bind(listen).await?, plane.sources.clone(), &tasks);
            }
            api = api.with_readiness(control.readiness.clone());
            Some((control, plane))
        }
    };
    let mut router = api::router(Arc::new(api));
    let its_images = image::serve::Images {
        compression: images.compression,
        images: match of_engine {
            Some(its) => its,
            None => ::images::Store::open(data_dir.path(), images).context("open the images")?,
        },
        records: store.clone(),
        data: data_dir.path().to_owned(),
        admins: image_admins,
        tasks: tasks.clone(),
    };
    its_images
        .clear_spool()
        .context("remove what an import left")?;
    router = router.merge(image::serve::router(Arc::new(its_images)));
    if let Some(collector) = collector {
        collector.start(settings.gc_interval.0, &tasks);
        router = router.merge(gc::router(collector));
    }
    // Made only where it can be used, and so is shown.
    let first_key = match &running {
        Some(_) => ::auth::manage::ensure_first_key(&*store, &entropy)
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
    let router = audit_trail::recorded(router, audit, clock.clone());
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
        forwards: running.as_ref().map_or(&[], |(_, plane)| &plane.forwards),
        ssh: running.as_ref().and_then(|(_, plane)| plane.ssh.as_ref()),
        first_key,
    });
    tracing::info!(%address, data_dir = %data_dir.path().display(), "serving");

    let name = signals.next().await;
    tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
    let grace = settings.drain_timeout.0;
    let drain = async {
        let mut control = None;
        if let Some((its_loop, plane)) = running {
            plane.drain(grace).await;
            control = Some(its_loop);
        }
        let drained = tasks.drain(grace).await;
        // After the requests: their last writes are intent like any other.
        if let Some(control) = control {
            control.drain(grace).await;
        }
        drained
    };
    tokio::select! {
        drained = drain => match drained {
            Ok(()) => {
                tracing::info!("stopped");
                Ok(())
            }
            Err(left) => bail!(
                "{left} connections or requests were still running after {} and were dropped",
                settings.drain_timeout
            ),
        },
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: ending at once");
            // Nothing to lose: what was acknowledged is on disk.
            process::exit(1)
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
    let hint = "choose another with --listen, or port 0 for any free one";
    match TcpListener::bind((listen.host.as_str(), listen.port)).await {
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
) -> anyhow::Result<Arc<dyn Store>> {
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
    let config = match (&settings.e2b_certificate.0, &settings.e2b_key.0) {
        (Some(certificate), Some(key)) => tls::given(certificate, key)?,
        (None, None) => {
            let authority = Authority::ensure(&data_dir.ensure_pki()?, &**clock)?;
            let names = tls::names_of_domain(domain);
            Arc::new(Identity::new(authority, names, clock.clone())?).server_config()?
        }
        (Some(_), None) | (None, Some(_)) => {
            bail!("e2b.certificate and e2b.key go together: give both, or neither")
        }
    };
    Ok(Some(Arc::new(config)))
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
