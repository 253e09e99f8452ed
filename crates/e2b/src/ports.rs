//! What this API needs of others besides records and keys: what sandboxes use, what they log, and
//! who administrates.

use std::fmt;

use async_trait::async_trait;
use model::{
    Key, Level, Namespace, Sandbox, SandboxId, Timestamp, Version, template::ImagePullPolicy,
};
use thiserror::Error;

/// What a sandbox used at one moment. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// Processors it may use.
    pub cpu_count: u32,
    /// Per cent of them in use; 100 for all of one.
    pub cpu_used_percent: f32,
    /// Memory in use, without caches.
    pub memory_used: u64,
    /// Memory it may use.
    pub memory_total: u64,
    /// Memory in use as cache.
    pub memory_cache: u64,
    /// Disk in use.
    pub disk_used: u64,
    /// Disk it may use.
    pub disk_total: u64,
}

/// Knows what sandboxes used.
pub trait MetricsSource: Send + Sync + fmt::Debug {
    /// What a delivery used from `start` to `end`, both included, oldest first.
    fn range(&self, id: &SandboxId, start: Timestamp, end: Timestamp) -> Vec<Sample>;

    /// What it used last.
    fn latest(&self, id: &SandboxId) -> Option<Sample>;
}

/// Knows administrators, who may act for any team.
pub trait Admins: Send + Sync + fmt::Debug {
    /// Whether the value of an `Authorization` header is one of theirs.
    fn admits(&self, authorization: &[u8]) -> bool;
}

/// Knows what those who carry traffic know.
#[async_trait]
pub trait Followers: Send + Sync + fmt::Debug {
    /// Waits until traffic for this sandbox goes by this version of its record or a newer one, or
    /// a while: who is told of a sandbox uses it at once.
    async fn have_seen(&self, key: &Key, version: Version);
}

/// Knows of sandboxes that have answered somebody before their records say that they are awake.
pub trait Unsaid: Send + Sync + fmt::Debug {
    /// Those of a team.
    fn of(&self, team: &Namespace) -> Vec<Key>;
}

/// Knows images by their names.
#[async_trait]
pub trait Images: Send + Sync + fmt::Debug {
    /// A name that can only be the image which this one leads to now, for a team.
    ///
    /// # Errors
    /// See [`ImageProblem`].
    async fn pin(
        &self,
        team: &Namespace,
        image: &str,
        pull: ImagePullPolicy,
    ) -> Result<Box<str>, ImageProblem>;
}

/// Why an image cannot be had.
#[derive(Clone, Debug, Error)]
pub enum ImageProblem {
    /// There is none of that name, or it is not for us.
    #[error("{0}")]
    Wrong(Box<str>),
    /// Nobody can say now.
    #[error("{0}")]
    Later(Box<str>),
}

/// One line of a sandbox's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When.
    pub at: Timestamp,
    /// How bad.
    pub level: Level,
    /// Who says so, as `lifecycle`.
    pub logger: Box<str>,
    /// What.
    pub message: Box<str>,
    /// More of it.
    pub fields: Vec<(Box<str>, Box<str>)>,
}

/// Knows what sandboxes logged, besides what the records say of their life.
#[async_trait]
pub trait LogSource: Send + Sync + fmt::Debug {
    /// The lines of a delivery, oldest first, as far as they are kept.
    async fn lines(&self, sandbox: &Sandbox) -> Vec<LogLine>;
}

/// Where nothing is measured or logged, nobody administrates, nobody follows, and images are known by
/// name only.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl MetricsSource for Nothing {
    fn range(&self, _: &SandboxId, _: Timestamp, _: Timestamp) -> Vec<Sample> {
        Vec::new()
    }

    fn latest(&self, _: &SandboxId) -> Option<Sample> {
        None
    }
}

impl Admins for Nothing {
    fn admits(&self, _: &[u8]) -> bool {
        false
    }
}

#[async_trait]
impl LogSource for Nothing {
    async fn lines(&self, _: &Sandbox) -> Vec<LogLine> {
        Vec::new()
    }
}

#[async_trait]
impl Images for Nothing {
    async fn pin(
        &self,
        _: &Namespace,
        image: &str,
        _: ImagePullPolicy,
    ) -> Result<Box<str>, ImageProblem> {
        Ok(image.into())
    }
}

impl Unsaid for Nothing {
    fn of(&self, _: &Namespace) -> Vec<Key> {
        Vec::new()
    }
}

#[async_trait]
impl Followers for Nothing {
    async fn have_seen(&self, _: &Key, _: Version) {}
}
