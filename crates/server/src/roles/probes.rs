//! Whether a role is ready, and its numbers: `/livez`, `/readyz` and `/metrics` on one port.
//!
//! A process is alive while it answers. It is ready from when it has read what it decides on until it
//! is told to stop, or something it decides on is gone for good. An API server that is away for a while
//! takes no readiness away: what is known goes on being served.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use kit::Tasks;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    config::{Settings, types::OptionalListen},
    metrics::Page,
    serve::bind,
};

/// Writes a role's numbers.
type Numbers = Box<dyn Fn(&mut Page) + Send + Sync>;

/// How a role is. Clones share it.
#[derive(Clone)]
pub(crate) struct Health(Arc<Shared>);

struct Shared {
    ready: watch::Sender<Result<(), String>>,
    numbers: Mutex<Option<Numbers>>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Health")
            .field(&*self.0.ready.borrow())
            .finish()
    }
}

impl Health {
    /// A role that has only just begun, served where it is configured.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub(crate) async fn serve(settings: &Settings, tasks: &Tasks) -> anyhow::Result<Self> {
        let health = Self(Arc::new(Shared {
            ready: watch::channel(Err("it has only just started".to_owned())).0,
            numbers: Mutex::default(),
        }));
        let OptionalListen(Some(listen)) = &settings.metrics_listen else {
            return Ok(health);
        };
        let listener = bind(listen).await?;
        let address: SocketAddr = listener.local_addr().context("read the bound address")?;
        tracing::info!(%address, "probes and metrics");
        let router = Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(health.clone());
        let stop = tasks.stopping().clone();
        tasks.spawn(async move {
            let served = axum::serve(listener, router)
                .with_graceful_shutdown(async move { stop.cancelled().await });
            if let Err(error) = served.await {
                tracing::warn!(%error, "probes are no longer answered");
            }
        });
        Ok(health)
    }

    /// It serves, or stands by to.
    pub(crate) fn ready(&self) {
        self.say(Ok(()));
    }

    /// It does not, and why.
    pub(crate) fn not_ready(&self, why: &str) {
        self.say(Err(why.to_owned()));
    }

    fn say(&self, how: Result<(), String>) {
        self.0.ready.send_if_modified(|now| {
            let changed = *now != how;
            if changed {
                match &how {
                    Ok(()) => tracing::info!("ready"),
                    Err(why) => tracing::info!(why, "not ready"),
                }
                *now = how;
            }
            changed
        });
    }

    /// From now on these are its numbers.
    pub(crate) fn counts(&self, numbers: impl Fn(&mut Page) + Send + Sync + 'static) {
        *self.0.numbers.lock() = Some(Box::new(numbers));
    }

    /// It is ready no more once one of these caches has stopped, which none of them survives.
    pub(crate) fn depends_on(
        &self,
        caches: impl IntoIterator<Item = (&'static str, watch::Receiver<cache::Health>)>,
        tasks: &Tasks,
    ) {
        for (name, mut of_cache) in caches {
            let (health, stop) = (self.clone(), tasks.stopping().clone());
            tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    _ = of_cache.wait_for(|health| !health.is_ready()) => {
                        health.not_ready(&format!("the cache of {name} has stopped"));
                    }
                }
            });
        }
    }
}

async fn readyz(State(health): State<Health>) -> Response {
    match &*health.0.ready.borrow() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    let mut page = Page::default();
    if let Some(numbers) = &*health.0.numbers.lock() {
        numbers(&mut page);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page.text()).into_response()
}
