//! What is done inside a sandbox before its owner hears of it, by way of the agent.
//!
//! ```text
//! boot:  start command, once ──▶ ready command, until it succeeds
//! hooks: one after the other: try ──failed──▶ wait ──▶ try again …
//! ```
//!
//! A runtime knows how its sandboxes are reached and keeps note of what was done; here is how it is
//! done. Commands may take as long as their tenants like, so a call waits for them only a moment at a
//! time: [`Flights`] holds what is under way, and whoever asks again finds it.

mod boot;
mod flights;
mod hooks;
mod words;

pub use boot::boot;
pub use flights::{Flight, Flights};
pub use hooks::{Inside, run_hooks};
