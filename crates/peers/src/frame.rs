//! What is sent. Unknown fields are ignored: peers may be a version apart.

use model::{Epoch, Uid};
use serde::{Deserialize, Serialize};

/// The use of one delivery of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// Of which sandbox,
    pub uid: Uid,
    /// which delivery.
    pub epoch: Epoch,
    /// What is open now, with what waits for it to wake.
    pub open: u32,
    /// When one was last opened or closed, in microseconds of the gateway's clock.
    pub last: u64,
}

/// One step of the stream of use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// Names the process that speaks: one that starts anew has another.
    pub process: u64,
    /// What its clock shows, in microseconds.
    pub now: u64,
    /// For how long it has noted use, in microseconds.
    pub watched: u64,
    /// What has changed since the last frame; in the first ones everything.
    #[serde(default)]
    pub used: Vec<Used>,
    /// What is not in use and leads nowhere any more.
    #[serde(default)]
    pub gone: Vec<Uid>,
    /// Whether the next frame is part of the same step: until the last one came, nothing is complete.
    #[serde(default)]
    pub more: bool,
}

/// Which version of which record is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SeenQuery {
    /// The namespace of a sandbox.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The version.
    pub version: u64,
}

/// Whether a gateway goes by a version.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Whether it does, in time.
    pub seen: bool,
    /// What its clock shows, in microseconds.
    pub now: u64,
    /// The use of that sandbox after it did; nothing if there was none.
    #[serde(default)]
    pub used: Option<Used>,
}

/// Which delivery is to be drained.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DrainedQuery {
    /// Of which sandbox,
    pub uid: Uid,
    /// which delivery.
    pub epoch: Epoch,
}
