//! The external processor for Envoys, beside the gateway of this process: see docs/envoy.md.

use ::ext_proc::{Fault, Metrics, Options, Server, Upstream};
use anyhow::{Context as _, bail};
use gateway::{Gateway, metrics::Outcome};
use kit::Tasks;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Settings, types::EnvoyUpstream},
    handover::sockets::Sockets,
    metrics::Page,
    roles,
    serve::bind_for,
    tls,
};

/// `dormouse ext-proc`: a gateway that is there for Envoys.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    if settings.ext_proc_listen.0.is_none() {
        bail!(
            "ext_proc.listen is empty: say where Envoys find this, as --ext-proc-listen 127.0.0.1:3001"
        );
    }
    roles::gateway::run(settings).await
}

/// Where Envoys are served.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) metrics: Metrics,
    /// Once it is cancelled, what is not certain is left to the gateway's entrance.
    pub(crate) leaving: CancellationToken,
}

/// Serves Envoys where `ext_proc.listen` says, until the tasks are asked to stop.
///
/// # Errors
/// If the address or the certificate cannot be had.
pub(crate) async fn start(
    settings: &Settings,
    sockets: &Sockets,
    gateway: &Gateway,
    tasks: &Tasks,
) -> anyhow::Result<Option<Opened>> {
    let Some(listen) = &settings.ext_proc_listen.0 else {
        return Ok(None);
    };
    let tls = match (
        settings.ext_proc_tls.0,
        &settings.e2b_certificate.0,
        &settings.e2b_key.0,
    ) {
        (false, _, _) => None,
        (true, Some(certificate), Some(key)) => Some(tls::given(certificate, key)?.into()),
        (true, _, _) => bail!("ext_proc.tls needs e2b.certificate and e2b.key"),
    };
    let options = Options {
        upstream: match settings.ext_proc_upstream {
            EnvoyUpstream::Relay => Upstream::Relay,
            EnvoyUpstream::Direct => Upstream::Direct,
        },
        ..Options::default()
    };
    let listener = bind_for("ext_proc.listen", listen, sockets).await?;
    let server = Server::start(listener, tls, gateway.front(), options)
        .context("start the external processor")?;
    tracing::info!(address = %server.address(), upstream = %settings.ext_proc_upstream, "serving Envoys");
    let opened = Opened {
        metrics: server.metrics(),
        leaving: server.leave_to_gateway(),
    };
    let (stopping, grace) = (tasks.stopping().clone(), settings.drain_timeout.0);
    tasks.spawn(async move {
        stopping.cancelled().await;
        if let Err(left) = server.drain(grace).await {
            tracing::warn!(left, "connections of Envoys were cut");
        }
    });
    Ok(Some(opened))
}

/// What Envoys asked, and what they were told.
pub(crate) fn lines(page: &mut Page, seen: &Metrics) {
    for (name, kind, help, value) in [
        (
            "dormouse_ext_proc_streams",
            "gauge",
            "Requests of Envoys that are open",
            seen.open(),
        ),
        (
            "dormouse_ext_proc_streams_total",
            "counter",
            "Requests that Envoys have shown",
            seen.begun(),
        ),
        (
            "dormouse_ext_proc_passed_total",
            "counter",
            "Requests that went on to a sandbox",
            seen.passed(),
        ),
        (
            "dormouse_ext_proc_unaddressed_total",
            "counter",
            "Requests that went on and were for no sandbox",
            seen.unaddressed(),
        ),
        (
            "dormouse_ext_proc_undecided_total",
            "counter",
            "Requests that were left to the gateway while another server took over",
            seen.undecided(),
        ),
        (
            "dormouse_ext_proc_waited_total",
            "counter",
            "Requests that waited for their sandbox",
            seen.waited(),
        ),
    ] {
        page.family(name, kind, help);
        page.line(name, &[], value);
    }
    let name = "dormouse_ext_proc_answers_total";
    page.family(
        name,
        "counter",
        "Requests that were answered in the sandbox's stead",
    );
    for outcome in Outcome::ALL {
        page.line(
            name,
            &[("outcome", outcome.label())],
            seen.answered(outcome),
        );
    }
    let name = "dormouse_ext_proc_faults_total";
    page.family(name, "counter", "What Envoys did that they should not");
    for fault in Fault::ALL {
        page.line(name, &[("kind", fault.label())], seen.faults(fault));
    }
}
