//! The network on a real kernel: a host, an internet and sandboxes, each a namespace of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod many;
mod names;
mod reach;
mod restart;
mod world;
