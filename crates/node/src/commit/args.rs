//! `dormouse commit`: what a worker's Job tells it.
//!
//! No argument is a secret: passwords are in a file.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use images::RegistryOptions;
use runtime::node::{Rank, Report};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Order, capture, thaw, write_report};
use crate::{
    containerd::{Containerd, NAMESPACE, SOCKET},
    error::{NodeError, Result},
    guard::ContainerId,
};

/// The largest layer, unless told otherwise.
const MAX_LAYER_BYTES: u64 = 64 << 30;

/// Captures what a sandbox on this node has written, and pushes it. Started as a Job by `dormouse
/// control`, on the sandbox's own node.
#[derive(Clone, Debug, Args)]
pub struct CommitArgs {
    /// The sandbox's container.
    #[arg(long)]
    container_id: ContainerId,
    /// The uid of its Pod.
    #[arg(long)]
    pod_uid: Box<str>,
    /// How new the order is: its generation and its operation, with a dot between them.
    #[arg(long, default_value_t)]
    rank: Rank,
    /// Let it go on, and do nothing else.
    #[arg(long, conflicts_with = "registry")]
    thaw: bool,
    /// Where its layer goes: a host and port, maybe with a path.
    #[arg(long, required_unless_present = "thaw")]
    registry: Option<Box<str>>,
    /// Docker's config.json with the passwords of registries.
    #[arg(long)]
    docker_config: Option<PathBuf>,
    /// A registry that may be reached without TLS, by host and port.
    #[arg(long = "insecure-registry")]
    insecure_registries: Vec<String>,
    /// Certificates in PEM that are trusted besides the host's.
    #[arg(long)]
    ca_file: Option<PathBuf>,
    /// A directory of the worker's own, with room for the layer twice.
    #[arg(long, default_value = "/scratch")]
    scratch: PathBuf,
    /// The largest layer, in bytes.
    #[arg(long, default_value_t = MAX_LAYER_BYTES)]
    max_layer_bytes: u64,
    /// Where containerd listens.
    #[arg(long, default_value = SOCKET)]
    containerd_socket: PathBuf,
    /// Where the kubelet's containers are in containerd.
    #[arg(long, default_value = NAMESPACE)]
    containerd_namespace: String,
    /// Where it says how it went.
    #[arg(long, default_value = "/dev/termination-log")]
    report: PathBuf,
}

impl CommitArgs {
    /// Does it, and says how it went.
    ///
    /// # Errors
    /// If that cannot even be said.
    pub async fn run(self) -> Result<ExitCode> {
        let stopping = CancellationToken::new();
        let tasks = kit::Tasks::default();
        let disk = |source| NodeError::Disk {
            doing: "listen for signals",
            source,
        };
        let mut terminate = signal(SignalKind::terminate()).map_err(disk)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(disk)?;
        let stop = stopping.clone();
        tasks.spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::warn!("told to stop: what was done is undone");
            stop.cancel();
        });
        let containerd = Containerd::new(&self.containerd_socket, &self.containerd_namespace);
        let report = match self.registry {
            None => thaw(&containerd, &self.container_id, &self.pod_uid, self.rank).await,
            Some(registry) => {
                let registries = RegistryOptions {
                    docker_config: self.docker_config,
                    insecure: self.insecure_registries.into_iter().collect(),
                    ca_file: self.ca_file,
                    ..RegistryOptions::default()
                };
                let order = Order {
                    container: self.container_id,
                    pod: self.pod_uid,
                    rank: self.rank,
                    registry,
                    scratch: self.scratch,
                    max_layer_bytes: self.max_layer_bytes,
                    images: images::Options {
                        registry: registries,
                        ..images::Options::default()
                    },
                };
                capture(&containerd, &order, &stopping).await
            }
        };
        write_report(&report, &self.report)?;
        Ok(match report {
            Report::Captured { .. } | Report::Thawed => ExitCode::SUCCESS,
            Report::Failed { error, frozen, .. } => {
                tracing::error!(%error, frozen, "not done");
                ExitCode::FAILURE
            }
        })
    }
}
