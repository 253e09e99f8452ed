//! The roles of an installation on Kubernetes, each a process of its own.
//!
//! ```text
//!  dormouse api ──intent──▶ API server ◀──watch── dormouse gateway ◀──bytes── client
//!       ▲                      ▲                      ▲  ▲
//!       │                      │ observed             │  │ use, have seen?
//!       │                      └── dormouse control ──┼──┘
//!       │                          (one leads) ▲ ──▶ Pods
//!       └───── what each of them wrote ────────┴──────┘
//! ```
//!
//! The parts are those of one machine; what stands behind the ports differs: the store is the API
//! server, the runtime is Pods, and what parts of one process told each other in memory goes between
//! processes: use by [`peers`], changes of routes by [`mesh`]. What makes sense on one machine only
//! (images of this host, builds, logs of processes, the resource API, which is the API server's) is not
//! here.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`ground`] | what every role stands on: the cluster, the secrets, where gateways are |
//! | [`probes`] | whether a role is ready, and its numbers |
//! | [`control`], [`api`], [`gateway`], [`node`] | the roles |
//! | [`company`], [`announcing`] | the other processes, and a store that tells them what was written |
//! | [`written`], [`waking`] | what a gateway makes of what they say, and how it wakes sandboxes |
//! | [`far`] | gateways as control asks for them, and the other side of it; what an API tells and hears |
//! | [`events`] | what people read, also as Events of Kubernetes |

mod announcing;
pub(crate) mod api;
mod company;
pub(crate) mod control;
mod events;
mod far;
pub(crate) mod gateway;
mod ground;
pub(crate) mod node;
mod probes;
mod waking;
mod written;

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use rustls::ServerConfig;
use tokio::time::Instant;

use crate::{config::Settings, serve::Signals, tls};

/// How long those who send traffic may take to hear that a process is not ready any more.
const UNLISTED: Duration = Duration::from_secs(2);
/// How long what outlives the requests has to end, at least.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// How long what outlives the requests has to end, if they had until then: both have one time together, so
/// that whoever runs this process knows how long it takes to stop.
fn afterwards(until: Instant) -> Duration {
    until
        .saturating_duration_since(Instant::now())
        .max(AFTERWARDS)
}

/// TLS with the certificate that is given. Without one it is left to whoever stands before us.
fn given_tls(settings: &Settings) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    match (&settings.e2b_certificate.0, &settings.e2b_key.0) {
        (Some(certificate), Some(key)) => Ok(Some(Arc::new(tls::given(certificate, key)?))),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            bail!("e2b.certificate and e2b.key go together: give both, or neither")
        }
    }
}

/// Lets what is under way finish. A second signal ends the process at once.
async fn finish(drain: impl Future<Output = usize>, signals: &mut Signals) -> anyhow::Result<()> {
    tokio::select! {
        left = drain => match left {
            0 => {
                tracing::info!("stopped");
                Ok(())
            }
            left => bail!("{left} connections or requests were still running and were dropped"),
        },
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: ending at once");
            std::process::exit(1)
        }
    }
}
