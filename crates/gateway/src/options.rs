//! How a gateway behaves, and what one client or sandbox can hold of it.

use std::time::Duration;

/// How a gateway behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many threads move bytes; each has its own listeners, connections and pool.
    pub threads: usize,
    /// The domain of which sandboxes are subdomains.
    pub domain: Option<Box<str>>,
    /// How long a request waits for its sandbox to wake.
    pub wake_timeout: Duration,
    /// Whether somebody trusted stands in front, whose `X-Forwarded-*` are kept.
    pub trusts_forwarded: bool,
    /// What is bounded.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            domain: None,
            wake_timeout: Duration::from_secs(60),
            trusts_forwarded: false,
            limits: Limits::default(),
        }
    }
}

/// What is bounded. Times of clients are measured in whole seconds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections of clients in all; the next ones wait in the kernel's queue.
    pub connections: usize,
    /// Open requests, streams and sockets of one sandbox; more are answered 429.
    pub open_per_sandbox: u32,
    /// Bytes of a head, either way.
    pub head_bytes: usize,
    /// Bytes of a request's body; longer ones are answered 413, or cut where they turn out to be. 0 for
    /// no bound.
    pub body_bytes: u64,
    /// Bytes of a body in memory, per direction.
    pub buffer_bytes: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// For a TLS handshake.
    pub handshake_timeout: Duration,
    /// From the first byte of a head to its last.
    pub head_timeout: Duration,
    /// A client that owes some of a request's body and sends none of it.
    pub body_timeout: Duration,
    /// A connection without a request. Longer than clients keep theirs, so that they close first.
    pub idle_timeout: Duration,
    /// The same, when all connections are taken.
    pub idle_timeout_when_full: Duration,
    /// A request or tunnel in which no byte moves. Clients and agents ping every 50 seconds.
    pub silence_timeout: Duration,
    /// A peer that does not read what it is sent.
    pub stall_timeout: Duration,
    /// For one try to connect to a sandbox.
    pub connect_timeout: Duration,
    /// For how long a refused connection is tried again: what was just started may not listen yet.
    pub connect_patience: Duration,
    /// How long routes may take to come as far as a client says that it has.
    pub version_patience: Duration,
    /// How long who was let in just before the end has for a first request.
    pub arrival_timeout: Duration,
    /// Kept connections to one port of one sandbox, per thread.
    pub kept_per_port: usize,
    /// Kept connections per thread.
    pub kept: usize,
    /// How long one is kept.
    pub keep_timeout: Duration,
    /// How many sandboxes are tried for a signed URL that names none.
    pub signature_candidates: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            open_per_sandbox: 2048,
            head_bytes: 64 << 10,
            body_bytes: 16 << 30,
            buffer_bytes: 128 << 10,
            streams: 250,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(330),
            idle_timeout_when_full: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            connect_patience: Duration::from_millis(900),
            version_patience: Duration::from_secs(1),
            arrival_timeout: Duration::from_millis(500),
            kept_per_port: 128,
            kept: 1024,
            keep_timeout: Duration::from_secs(60),
            signature_candidates: 16_384,
        }
    }
}
