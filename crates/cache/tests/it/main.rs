//! The cache against the memory store, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod changes;
mod convergence;
mod feed;
mod find;
mod flaky;
mod hold;
mod relist;
mod start;
mod wait;
mod world;
