//! How far the routes have come, for clients who say how far they have.
//!
//! Who changed a sandbox through the API was told at which version. A request that carries it is not
//! decided on routes that are older: it waits a while, before anything is looked up, and is told to
//! come again if that was not enough. Waiting counts as no use and wakes nobody. It needs no token, so
//! only so many may wait.

use std::fmt::Debug;

use async_trait::async_trait;
use model::Version;
use tokio::time::Instant;

use crate::{
    address::Field,
    admit::{self, Entry},
    answer::Refusal,
    decide::Asking,
    gateway::Shared,
};

/// How many may wait for that at once.
pub(crate) const MOST: usize = 1024;

/// Knows how far the routes have come.
#[async_trait]
pub trait Progress: Send + Sync + Debug {
    /// Whether the change of this version is known here, or everything up to it.
    fn has_reached(&self, version: Version) -> bool;

    /// Waits until it is. Answers whether it was, in time.
    async fn reach(&self, version: Version, deadline: Instant) -> bool;
}

/// Where nobody follows versions: everything counts as known.
#[derive(Clone, Copy, Debug)]
pub struct Timeless;

#[async_trait]
impl Progress for Timeless {
    fn has_reached(&self, _: Version) -> bool {
        true
    }

    async fn reach(&self, _: Version, _: Instant) -> bool {
        true
    }
}

/// The version that a request says its client has seen; nothing if it says none.
pub(crate) fn read(field: Field<'_>) -> Result<Option<Version>, Refusal> {
    let text = match field {
        Field::Absent => return Ok(None),
        Field::One(text) => std::str::from_utf8(text).ok(),
        Field::Many => None,
    };
    let version = text.and_then(|text| text.trim_ascii().parse().ok());
    version.map(Some).ok_or(Refusal::BadVersion)
}

/// Lets a request in whose client has seen a version that was not known here, once it is.
pub(crate) async fn catch_up(
    shared: &Shared,
    asking: &Asking<'_>,
    told: u64,
    version: Version,
) -> Entry {
    let Ok(_seat) = shared.behind.try_acquire() else {
        return Entry::Refuse(Refusal::Overloaded.into());
    };
    let deadline = Instant::now() + shared.options.limits.version_patience;
    shared.ports.progress.reach(version, deadline).await;
    match admit::enter(shared, asking, told) {
        Entry::Behind(_) => Entry::Refuse(Refusal::Behind.into()),
        entry => entry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_once_or_refused() {
        assert_eq!(read(Field::Absent), Ok(None));
        assert_eq!(read(Field::One(b"7")), Ok(Some(Version::from_u64(7))));
        for bad in [&b""[..], b"x", b"-1", b"18446744073709551616", b"\xff"] {
            assert_eq!(read(Field::One(bad)), Err(Refusal::BadVersion));
        }
        assert_eq!(read(Field::Many), Err(Refusal::BadVersion));
    }
}
