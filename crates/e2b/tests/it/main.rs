//! The API from the outside, over the memory store, the real control loop and the fake runtime.

#![expect(clippy::unwrap_used, reason = "tests")]

mod admins;
mod ahead;
mod bad_input;
mod creates;
mod foreign;
mod forks;
mod handover;
mod lifecycle;
mod lists;
mod others;
mod pools;
mod races;
mod snapshots;
mod support;
