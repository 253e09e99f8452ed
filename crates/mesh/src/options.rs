//! What a mesh is told at its start.

use std::{net::SocketAddr, time::Duration};

use crate::frame::Role;

/// How long a link may be silent, unless somebody says otherwise. Who dialled says something each
/// `sync_interval`, and hears an acknowledgement: more than half of this, and links that work are ended.
pub const SILENCE: Duration = Duration::from_secs(4);

/// What a mesh is told at its start. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Which installation: those of another are refused.
    pub cluster: String,
    /// What this process does.
    pub role: Role,
    /// Where others reach it.
    pub address: SocketAddr,
    /// How often one of the others is asked what this process lacks.
    pub sync_interval: Duration,
    /// How long an acknowledgement is waited for, before who owes it is not waited for any more.
    pub ack_timeout: Duration,
    /// How long a link may be silent.
    pub silence: Duration,
    /// How many of the own sayings are kept for those who have not acknowledged them.
    pub max_said: usize,
    /// How many links there may be, each way.
    pub max_links: usize,
    /// How many routes a full snapshot may have.
    pub max_snapshot: usize,
}

impl Options {
    /// The defaults, for a process of this installation.
    #[must_use]
    pub fn new(cluster: impl Into<String>, role: Role, address: SocketAddr) -> Self {
        Self {
            cluster: cluster.into(),
            role,
            address,
            sync_interval: Duration::from_secs(1),
            ack_timeout: Duration::from_millis(100),
            silence: SILENCE,
            max_said: 1 << 14,
            max_links: 512,
            max_snapshot: 4 << 20,
        }
    }
}
