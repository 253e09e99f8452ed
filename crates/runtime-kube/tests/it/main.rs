//! The runtime on Pods against a cluster: the stand-in, or with `DORMOUSE_TEST_KUBECONFIG` a real one.
//!
//! `port` holds on any cluster. `faults` is written for the stand-in, which can do what no test may do
//! to a real one.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod daemon;
mod faults;
mod port;
mod worker;
mod world;
