//! The API from the outside, over the memory store.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bad_input;
mod deletes;
mod discovery;
mod guards;
mod patches;
mod plugins;
mod reads;
mod slow_clients;
mod support;
mod watches;
mod writes;
