//! `dormouse serve`: puts the parts together, and takes them apart in order.
//!
//! Start: data directory (taken), port (bound), store (opened), identity and token (made once),
//! control loop (synced), kubeconfig (written), then the first connection is accepted. Each step can refuse, and what
//! it leaves behind then is nothing, or something that the next start uses as it is.
//!
//! Stop: a signal ends accepting and watches; requests under way have `drain_timeout` to finish,
//! then the turns of the control loop; then whatever is left is dropped. A second signal ends the process at once: every acknowledged
//! write is durable already.

use std::{fmt::Write as _, path::Path, process, sync::Arc};

use anyhow::{Context as _, bail};
use api::{Authenticator, Limits, ResourceApi};
use cli::kubeconfig::Kubeconfig;
use kit::{Clock, Entropy, SystemClock, Tasks};
use store::Store;
use store_redb::RedbStore;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    config::{Settings, types::Listen},
    control_loop,
    data_dir::{DataDir, write_secret},
    listener,
    tls::{self, Authority, Identity},
    token::Token,
};

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
    let auth = Authenticator::from_token_hashes(vec![token.hash()]);
    let limits = Limits {
        body_bytes: settings.api_max_body_bytes.0,
        watches: settings.api_max_watches.0,
        ..Limits::default()
    };
    let kind = settings.runtime;
    let control = control_loop::start(kind, data_dir.path(), &store, &clock, &entropy).await?;
    let mut api = ResourceApi::new(store, clock, entropy, auth, limits).with_tasks(tasks.clone());
    if let Some(control) = &control {
        api = api.with_readiness(control.readiness.clone());
    }
    let router = api::router(Arc::new(api));

    // Last: a kubeconfig must never name a server that does not come.
    let kubeconfig = data_dir.join("kubeconfig");
    let text = Kubeconfig::new(&url, &ca_pem, token.reveal()).to_yaml()?;
    write_secret(&kubeconfig, &text)?;
    drop(token);
    let max_connections = settings.api_max_connections.0;
    tasks.spawn(listener::serve(
        listener,
        acceptor,
        router,
        max_connections,
        tasks.clone(),
    ));

    announce(&url, settings, &kubeconfig);
    tracing::info!(%address, data_dir = %data_dir.path().display(), "serving");

    let name = signals.next().await;
    tracing::info!(signal = name, grace = %settings.drain_timeout, "stopping");
    let grace = settings.drain_timeout.0;
    let drain = async {
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

async fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
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

/// What a person needs next, on stdout. The token is only ever in files.
fn announce(url: &str, settings: &Settings, kubeconfig: &Path) {
    let mut text = String::new();
    let kubeconfig = kubeconfig.display();
    let _ = write!(
        text,
        "Dormouse {} serves {url}\n\
         Data directory: {}\n\
         Kubeconfig:     {kubeconfig}\n\
         \n\
         In another terminal:\n  \
           export KUBECONFIG={kubeconfig}\n  \
           kubectl get sandboxes\n\
         or, without kubectl:\n  \
           dormouse get sandboxes --kubeconfig {kubeconfig}\n",
        env!("CARGO_PKG_VERSION"),
        settings.data_dir,
    );
    // A closed stdout is no reason not to serve.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
}

/// The signals that stop a server.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
