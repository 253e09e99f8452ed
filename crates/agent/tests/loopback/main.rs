//! The agent as its clients see it: over a socket, in both codecs.
//!
//! These run as root, because an agent does: it changes users and owners.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod access;
mod client;
mod files;
mod filesystem;
mod first_process;
mod forward;
#[path = "../handed/mod.rs"]
mod handed;
mod input;
mod pid_one;
mod process;
mod watch;
