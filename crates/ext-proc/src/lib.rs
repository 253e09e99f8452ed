//! The external processor of an Envoy: routes, authenticates, wakes and counts, by the decisions of
//! the gateway that it stands beside.
//!
//! ```text
//!  client ──▶ Envoy ────────────────────▶ the gateway's entrance ──▶ sandbox      (relay)
//!               │ ▲            └────────────────────────────────────▶ Pod          (direct)
//!          head │ │ go on, with whom it is for; or the whole answer
//!               ▼ │
//!            conversation ──▶ gateway::Front: address ─▶ gate ─▶ state ─▶ wake
//! ```
//!
//! Envoy opens one stream of gRPC for each request and says its head. What it hears is the
//! gateway's own verdict: that the request may go on, or an answer with the gateway's status,
//! headers and body. Nothing is decided here.
//!
//! Only a gateway gets to every port: into network namespaces of its machine, and to what listens on
//! a Pod's loopback. So Envoy sends what may go on to the gateway's entrance, which looks at it
//! again as at everybody's: nothing that comes from an Envoy is trusted. The stream is over then,
//! and the gateway counts the use. Where Pods serve on their own address, Envoy may go there itself
//! ([`Upstream::Direct`]); then the request is held inside by its stream, which lives as long as it.
//!
//! | Module | What it holds |
//! |---|---|
//! | `proto` | the messages, as far as they are used |
//! | `head` | from Envoy's headers to a head |
//! | `reply` | from a verdict to what Envoy is told |
//! | `conversation` | one request |
//! | `server` | connections, start and stop |
//! | `attendance` | whether a connection is of use |
//! | [`metrics`] | what happened, as numbers |

mod attendance;
mod conversation;
mod head;
pub mod metrics;
mod proto;
mod reply;
mod server;

use std::time::Duration;

pub use metrics::{Fault, Metrics};
pub use server::Server;

/// Where Envoy sends what may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    /// To the gateway's entrance, all of it.
    #[default]
    Relay,
    /// To the Pod's address, where there is one; the agent's port, bare ports and sandboxes of the
    /// gateway's machine by the relay.
    Direct,
}

/// How an external processor behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Envoy sends what may go on.
    pub upstream: Upstream,
    /// Bytes of one message of an Envoy's.
    pub message_bytes: usize,
    /// Requests at once on one connection of an Envoy's; it opens more connections for more.
    pub streams: u32,
    /// Connections of Envoys at once; more are closed.
    pub connections: usize,
    /// How long an Envoy may take to begin: from a connection to its first stream, and a stream with the
    /// head of its request, which Envoy sends with it.
    pub silence: Duration,
    /// How long a connection is kept on which there is no request any more.
    pub idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            upstream: Upstream::Relay,
            message_bytes: 1 << 20,
            streams: 4096,
            connections: 1024,
            silence: Duration::from_secs(10),
            idle: Duration::from_secs(300),
        }
    }
}
