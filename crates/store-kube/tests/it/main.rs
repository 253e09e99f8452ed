//! The store on a cluster.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod cluster;
mod conformance;
mod costs;
mod definitions;
mod faults;
mod proofs;
mod silence;
