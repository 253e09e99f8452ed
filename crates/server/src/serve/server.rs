//! A server on one machine: its parts are put together, and taken apart in order.

use std::{path::Path, process, sync::Arc, time::Duration};

use ::auth::{Audit, Keys, Seal};
use anyhow::{Context as _, bail};
use api::{Authenticator, Limits, ResourceApi};
use cli::kubeconfig::Kubeconfig;
use control::events::StoredEvents;
use kit::{Clock, Entropy, Tasks};
use runtime_local::LocalRuntime;
use rustls::ServerConfig;
use store::Store;
use store_redb::RedbStore;
use tokio::{
    net::TcpListener,
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
        give::{self, Successors},
        sockets::Sockets,
    },
    image, listener,
    metrics::{self, Sources},
    sleep::GatewayUse,
    ssh_door::ensure_host_key,
    tls::{self, Authority, Identity},
    token::Token,
};

use super::{LETTING_GO, bind::bind_for};

/// What SSH clients know the server by, in the data directory.
const SSH_HOST_KEY: &str = "ssh_host_ed25519_key";

/// How long requests that need the store, and turns of the control loop, have to end before it is handed
/// over: whoever comes new waits as long.
const SETTLING: Duration = Duration::from_secs(5);
/// How long who keeps a connection and asks all the time has to hear that it ends: served as ever, so
/// nobody waits for it.
const FAREWELL: Duration = Duration::from_millis(100);
/// What is the same for every start in a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base<'a> {
    pub(super) settings: &'a Settings,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) entropy: &'a Arc<Entropy>,
    pub(super) sockets: &'a Arc<Sockets>,
}

/// What is left of a server that has let go.
#[derive(Debug)]
pub(super) struct Left {
    /// Who is inside.
    pub(super) inside: Earlier,
    /// To be cancelled when Envoys are answered by another, or by nobody any more.
    pub(super) envoys_elsewhere: CancellationToken,
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct Server {
    data_dir: DataDir,
    store: Arc<RedbStore>,
    running: Option<(ControlLoop, DataPlane)>,
    local: Option<LocalRuntime>,
    audit: Audit,
    /// The server that this one has replaced.
    earlier: Option<Earlier>,
    tasks: Tasks,
    /// Those that are ready to replace it.
    pub(super) successors: Successors,
}

impl Server {
    /// Starts it, ready to serve.
    ///
    /// # Errors
    /// If a step refuses.
    pub(super) async fn start(
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
    pub(super) async fn stop(self, settings: &Settings, name: &str) -> anyhow::Result<()> {
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
    pub(super) async fn release(
        self,
        clock: &Arc<dyn Clock>,
        late: CancellationToken,
        tasks: &Tasks,
    ) -> Left {
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
