//! What can be chosen.

use std::time::Duration;

/// How sandboxes are woken.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether traffic wakes anything at all.
    pub enabled: bool,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Requests that may wait for one sandbox.
    pub max_parked_per_sandbox: usize,
    /// Requests that may wait in all.
    pub max_parked: usize,
    /// Sandboxes that may be on their way to being awake at once; more of them take turns.
    pub max_concurrent: usize,
    /// A woken sandbox has at least this long before its timeout.
    pub least: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            enabled: true,
            timeout: Duration::from_secs(60),
            max_parked_per_sandbox: 2048,
            max_parked: 16_384,
            max_concurrent: 64,
            least: Duration::from_secs(300),
        }
    }
}
