//! The worker that captures what a sandbox has written: freeze, capture, push, report.
//!
//! ```text
//!  runs ──freeze──▶ frozen ──capture──▶ layer here ──push──▶ image there ──▶ report, still frozen
//!                     └───────── any failure, or a signal: as it was found, and why ─────────┘
//! ```
//!
//! It acts only while its order is the newest that was heard of the container ([`crate::orders`]): one
//! that starts late, when its pause was called off, freezes nothing, and one that is overtaken reports no
//! capture.
//!
//! The worker leaves a sandbox frozen only if it succeeded, or found it so. One that is killed leaves
//! it frozen, too; whoever had it started finds it ended without a report, and asks again or thaws.

mod args;
mod blobs;
mod overlay;
mod report;

use std::{path::PathBuf, sync::Arc, time::Duration};

use images::{
    Flight, Login, Pushed, Store,
    layer::{Earlier, Ids, Written, capture_all},
};
use model::Digest;
use runtime::node::{Rank, Report};
use tokio_util::sync::CancellationToken;

pub use args::CommitArgs;
pub use report::write as write_report;

use crate::{
    containerd::{Containerd, State},
    error::{NodeError, Result},
    guard::{ContainerId, Sandbox},
};
use blobs::OfNode;
use overlay::Overlay;

/// Tries of a thaw before it is left to whoever reads the report.
const THAWS: u32 = 5;
/// The first wait between them.
const BETWEEN: Duration = Duration::from_millis(200);

/// What a worker is asked.
#[derive(Clone, Debug)]
pub struct Order {
    /// The sandbox's container.
    pub container: ContainerId,
    /// The uid of its Pod.
    pub pod: Box<str>,
    /// How new the order is.
    pub rank: Rank,
    /// Where its layer goes: a host and port, maybe with a path.
    pub registry: Box<str>,
    /// A directory of the worker's own.
    pub scratch: PathBuf,
    /// The largest layer, in bytes.
    pub max_layer_bytes: u64,
    /// How registries are reached, and how layers are compressed.
    pub images: images::Options,
}

/// Captures a sandbox, and leaves it frozen if that succeeds.
pub async fn capture(
    containerd: &Containerd,
    order: &Order,
    stopping: &CancellationToken,
) -> Report {
    let found = async {
        let sandbox = Sandbox::find(containerd, &order.container, Some(&order.pod)).await?;
        let state = sandbox.state().await?;
        Ok((sandbox, state))
    };
    let (sandbox, state) = match found.await {
        Ok(found) => found,
        // Another worker may have frozen it: only who has looked knows that it is not.
        Err(error) => return failed(&error, error.is_retryable()),
    };
    let work = async {
        // It goes on even if the worker is told to stop: what it did is undone below.
        sandbox.freeze(order.rank).await?;
        tokio::select! {
            biased;
            () = stopping.cancelled() => Err(NodeError::Stopped),
            report = keep(&sandbox, order) => report,
        }
    };
    match work.await {
        Ok(report) => report,
        Err(error) => {
            tracing::warn!(%error, "the sandbox is not captured");
            let frozen = match state {
                State::Running => !let_go(&sandbox, order.rank).await,
                State::Frozen | State::Unknown => true,
                State::Ended => false,
            };
            failed(&error, frozen)
        }
    }
}

/// Lets a sandbox go on.
pub async fn thaw(
    containerd: &Containerd,
    container: &ContainerId,
    pod: &str,
    rank: Rank,
) -> Report {
    let sandbox = match Sandbox::find(containerd, container, Some(pod)).await {
        Ok(sandbox) => sandbox,
        Err(error) => return failed(&error, true),
    };
    match sandbox.thaw(rank).await {
        Ok(_) => Report::Thawed,
        Err(error @ NodeError::Stale { .. }) => failed(&error, true),
        Err(_) if let_go(&sandbox, rank).await => Report::Thawed,
        Err(error) => failed(&error, !matches!(error, NodeError::Ended(_))),
    }
}

fn failed(error: &NodeError, frozen: bool) -> Report {
    Report::failed(
        &error.to_string(),
        error.is_retryable(),
        error.field(),
        frozen,
    )
}

/// Thaws with patience. Answers whether it goes on, or has nothing to go on with.
async fn let_go(sandbox: &Sandbox, rank: Rank) -> bool {
    for attempt in 0..THAWS {
        match sandbox.thaw(rank).await {
            Ok(_) | Err(NodeError::Ended(_) | NodeError::Absent(_)) => return true,
            // It is as somebody newer wants it.
            Err(NodeError::Stale { .. }) => {
                let state = sandbox.state().await;
                return matches!(state, Ok(State::Running | State::Ended));
            }
            Err(error) => tracing::warn!(%error, "it cannot be thawed yet"),
        }
        tokio::time::sleep(BETWEEN * 2_u32.pow(attempt)).await;
    }
    false
}

/// Brings what a frozen sandbox has written to its registry.
async fn keep(sandbox: &Sandbox, order: &Order) -> Result<Report> {
    let (containerd, container) = (sandbox.containerd(), sandbox.container());
    let files = |why: &str| NodeError::Files {
        id: container.id.clone(),
        why: why.into(),
    };
    let overlay = Overlay::of(&containerd.mounts(container).await?).map_err(files)?;
    let image = containerd.image(&container.image).await?;
    let image = image.ok_or_else(|| files("the node does not know its image any more"))?;
    let name = name_of(containerd, &container.image, &image).await?;
    let store = open(order).await?;
    let blobs = Arc::new(OfNode(containerd.clone()));
    let foreign = store.look_at(&name, &image, blobs).await?;
    // What it was resumed from becomes part of its layer again.
    let parent = foreign.layer();
    if parent.is_some() && overlay.lowers.len() != foreign.layers() {
        let why = "the node keeps its image in other layers than it has";
        return Err(files(why));
    }
    let most = order.max_layer_bytes;
    let (layer, size) = archive(&store, overlay, parent.is_some(), most).await?;
    tracing::info!(%layer, size, "captured");
    let flight = store.carry(layer.clone(), foreign, &order.registry, Login::Configured)?;
    let pushed = wait(flight).await?;
    tracing::info!(image = %pushed.reference, "pushed");
    // What ran meanwhile may have written more, or half of something.
    sandbox.stands(order.rank).await?;
    if sandbox.state().await? != State::Frozen {
        return Err(NodeError::Disturbed(container.id.clone()));
    }
    Ok(Report::Captured {
        layer,
        size,
        parent,
        image: pushed.reference,
    })
}

async fn wait(flight: Flight<Pushed>) -> Result<Pushed> {
    Ok(flight.wait(|_| {}).await?)
}

async fn open(order: &Order) -> Result<Store> {
    let (scratch, options) = (order.scratch.clone(), order.images.clone());
    let opened = tokio::task::spawn_blocking(move || Store::open(&scratch, options)).await;
    let opened = opened.map_err(std::io::Error::other);
    let opened = opened.map_err(|source| NodeError::Disk {
        doing: "open the worker's directory",
        source,
    })?;
    Ok(opened?)
}

async fn archive(
    store: &Store,
    overlay: Overlay,
    goes_on: bool,
    most: u64,
) -> Result<(Digest, u64)> {
    let blobs = store.blobs();
    let archived = tokio::task::spawn_blocking(move || {
        let lowers: Vec<_> = overlay.lowers.iter().map(PathBuf::as_path).collect();
        let earlier = lowers.split_first().filter(|_| goes_on);
        let written = Written {
            upper: &overlay.upper,
            earlier: earlier.map(|(layer, image)| Earlier { layer, image }),
            // A kubelet's containers have the ids that they seem to have.
            ids: Ids::Same,
        };
        capture_all(written, &blobs, "capture.new", most, |_| Ok(None))
    });
    let archived = archived.await.map_err(std::io::Error::other);
    let archived = archived.map_err(|source| NodeError::Disk {
        doing: "capture the sandbox",
        source,
    })?;
    Ok(archived?)
}

/// A name of an image that leads to a registry, if it has one: a kubelet's containers may know their
/// image by nothing but its id.
async fn name_of(containerd: &Containerd, name: &str, image: &Digest) -> Result<String> {
    let is_id = |name: &str| name.starts_with("sha256:");
    if !is_id(name) {
        return Ok(name.into());
    }
    let names = containerd.names(image).await?;
    let named = names.into_iter().find(|other| !is_id(other));
    Ok(named.unwrap_or_else(|| name.into()))
}
