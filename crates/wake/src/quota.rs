//! What a team may have awake, asked before a sandbox is told to wake.

use std::fmt::Debug;

use model::{Sandbox, Version};
use thiserror::Error;

/// The team may not have another sandbox awake now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the team's limit of running sandboxes is reached")]
pub struct TeamLimit;

/// Knows what teams may have.
pub trait Quota: Send + Sync + Debug {
    /// Takes what this sandbox counts for once it is awake.
    ///
    /// # Errors
    /// If its team may not have that much more.
    fn reserve(&self, sandbox: &Sandbox) -> Result<Box<dyn Reserved>, TeamLimit>;
}

/// What was taken. Dropped, it is given back.
pub trait Reserved: Send {
    /// The sandbox was told to wake, at this version of its record.
    fn written(self: Box<Self>, version: Version);
}

/// Where nobody is limited.
#[derive(Clone, Copy, Debug)]
pub struct NoQuota;

impl Quota for NoQuota {
    fn reserve(&self, _: &Sandbox) -> Result<Box<dyn Reserved>, TeamLimit> {
        Ok(Box::new(Self))
    }
}

impl Reserved for NoQuota {
    fn written(self: Box<Self>, _: Version) {}
}
