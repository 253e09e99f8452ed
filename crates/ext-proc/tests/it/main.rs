//! A real Envoy before a gateway with real sockets, with programs that stand for sandboxes.
//!
//! What is asked through Envoy and of the gateway itself must be answered alike.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests stop at the first surprise, and their tasks end with them"
)]

mod envoy;
mod hostile;
mod http2;
mod leaving;
mod parity;
mod streams;
mod support;

#[path = "../../../gateway/tests/it/client.rs"]
#[allow(dead_code, reason = "the gateway's tests need more of it")]
mod client;
#[path = "../../../gateway/tests/it/loopback.rs"]
mod loopback;
#[path = "../../../gateway/tests/it/sandbox.rs"]
#[allow(dead_code, reason = "the gateway's tests need more of it")]
mod sandbox;
#[path = "../../../gateway/tests/it/world.rs"]
#[allow(dead_code, reason = "the gateway's tests need more of it")]
mod world;
