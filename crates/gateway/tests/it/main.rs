//! A gateway with real sockets, before programs that stand for sandboxes.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests stop at the first surprise, and their tasks end with them"
)]

mod answers;
mod client;
mod hostile;
mod lifecycle;
mod pool;
mod sandbox;
mod streams;
mod tcp;
mod tls;
mod waking;
mod world;
