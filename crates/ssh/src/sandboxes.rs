//! What this needs of others.

use std::{any::Any, fmt::Debug, io, num::NonZeroU16, sync::Arc};

use agent_client::{Client, Io};
use async_trait::async_trait;

/// Somebody with a key, at a sandbox of its team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The sandbox's id.
    pub sandbox: Arc<str>,
    /// The team.
    pub team: Arc<str>,
    /// What the team calls the key.
    pub key: Arc<str>,
}

/// The sandboxes, and the keys that open them.
#[async_trait]
pub trait Sandboxes: Send + Sync + Debug + 'static {
    /// Whose key this is, if it opens that sandbox. The key is its algorithm and its bytes, as in a
    /// file `.pub`. Looks in memory only, and is asked again while the guest is there.
    fn admit(&self, sandbox: &str, key: &str) -> Option<Guest>;

    /// Somebody has logged in. The sandbox is woken if it sleeps, and in use until what is answered
    /// is dropped.
    ///
    /// # Errors
    /// If it cannot be woken.
    async fn enter(&self, guest: &Guest) -> io::Result<Box<dyn Any + Send>>;

    /// The agent of the guest's sandbox.
    ///
    /// # Errors
    /// If it cannot be spoken to at all.
    fn agent(&self, guest: &Guest) -> io::Result<Client>;

    /// A port of the guest's sandbox.
    ///
    /// # Errors
    /// If nothing listens there, or the sandbox is gone.
    async fn port(&self, guest: &Guest, port: NonZeroU16) -> io::Result<Box<dyn Io>>;
}
