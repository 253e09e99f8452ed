//! What builds stand on.

use std::{any::Any, fmt::Debug, sync::Arc};

use async_trait::async_trait;
use auth::{Ledger, Seal};
use cache::{PoolCache, SandboxCache, SnapshotCache, TemplateCache};
use kit::{Clock, Entropy};
use model::{Digest, Uid};
use runtime::Inside;
use store::Store;
use thiserror::Error;

use crate::recipe::Identity;

/// Where an image comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A registry: what its name leads to now.
    Registry {
        /// The image.
        name: String,
        /// As whom it is pulled.
        identity: Identity,
        /// Whether clients may have it anyway, wherever it is.
        trusted: bool,
    },
    /// This host: the image of a template.
    Here(String),
}

/// An image that is here.
#[derive(Debug)]
pub struct Made {
    /// Its name, by digest: it means this image for ever.
    pub image: String,
    /// What it says about the environment of processes.
    pub env: Vec<String>,
    /// Keeps it here until a record does.
    pub hold: Box<dyn Any + Send + Sync>,
}

/// Why there is no image.
#[derive(Debug, Error)]
#[error("{said}")]
pub struct WorkshopError {
    /// In words for whoever asked; no secret is among them.
    pub said: Box<str>,
}

/// Makes images.
#[async_trait]
pub trait Workshop: Send + Sync + Debug {
    /// Brings an image here.
    async fn fetch(&self, source: &Source) -> Result<Made, WorkshopError>;

    /// Makes an image of a captured layer and what it was captured on. `called` is for people.
    async fn commit(&self, layer: &Digest, called: &str) -> Result<Made, WorkshopError>;

    /// The last of what the start command of a sandbox has said.
    async fn output(&self, sandbox: Uid) -> Vec<String>;
}

/// What builds stand on.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Where records are.
    pub store: Arc<dyn Store>,
    /// Sandboxes.
    pub sandboxes: SandboxCache,
    /// Pools.
    pub pools: PoolCache,
    /// Templates: the same cache that the control loop looks at.
    pub templates: TemplateCache,
    /// Snapshots: likewise.
    pub snapshots: SnapshotCache,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<Entropy>,
    /// What agents demand.
    pub seal: Seal,
    /// What teams may have.
    pub ledger: Arc<Ledger>,
    /// The way into sandboxes.
    pub inside: Arc<dyn Inside>,
    /// What makes images.
    pub workshop: Arc<dyn Workshop>,
}
