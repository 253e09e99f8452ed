//! A gateway with real sockets, before programs that stand for sandboxes.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests stop at the first surprise, and their tasks end with them"
)]

mod answers;
mod behind;
mod client;
mod half_closed;
mod hostile;
mod http2;
mod lifecycle;
mod loopback;
mod mutants;
mod pods;
mod pool;
mod rows;
mod sandbox;
mod smuggling;
mod streams;
mod tcp;
mod tls;
mod unnoticed;
mod uploads;
mod waking;
mod witness;
mod world;
