//! Flights over a real control loop and a runtime that misbehaves on request.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod flights;
mod news;
mod world;
