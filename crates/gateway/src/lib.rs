//! The gateway: moves bytes between clients and the ports of sandboxes.
//!
//! ```text
//!  client ──▶ link ──▶ handle: address ─▶ gate ─▶ state ──▶ forward ──▶ pool or dial ──▶ sandbox
//!               ▲                │         (401, 403)  │                                   │
//!               │                └─▶ the API           └─▶ wake                            │
//!               └───────────────────── body (relay) ◀──────────────────────────────────────┘
//! ```
//!
//! Threads share nothing on the way of a request but the route table, which readers do not lock,
//! and one record of use per sandbox. Each thread has its own listeners on the same addresses, its
//! own clients and its own kept connections to sandboxes. One task serves one client: it also
//! drives the connection to the sandbox, so that bytes cross no queue, and when either side goes
//! the other is told by being dropped.
//!
//! What must stay true:
//! 1. An address is parsed once. What was checked is what is dialled.
//! 2. Tokens come before state: who has none learns nothing and wakes nothing.
//! 3. A connection is kept under (uid, epoch, port) and serves nothing else.
//! 4. A request is sent twice only if nothing of it was sent before, or if that does no harm.
//! 5. An answer that ends early is a reset for the client, never an end.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`address`] | whom a request is for |
//! | `names`, `glance` | what a head says that matters here, in one look |
//! | `codec` | HTTP/1 on the wire |
//! | [`gate`] | who may pass to which port, and what becomes of who passed |
//! | `signature` | signed URLs of files |
//! | `answer` | what the gateway answers by itself |
//! | [`wake`] | the port for waking |
//! | [`progress`] | how far the routes have come, for clients who say how far they have |
//! | `decide`, `admit` | what to do with a request, and who goes in |
//! | [`front`] | the same for somebody else who moves the bytes |
//! | `handle` | from a request to its answer |
//! | `headers` | what a head loses and gains on the way |
//! | `forward`, `exchange`, `h2c`, `dial`, `forwarded`, `upstream`, `pool` | the sandbox's side |
//! | `link`, `serve`, `body`, `upload`, `tunnel`, `frames`, `socket2` | the client's side |
//! | `lane` | the short way from one to the other, for plain HTTP/1.1 |
//! | [`tcp`] | bare streams of bytes to ports, for tunnels, SSH and fixed forwards |
//! | [`doors`], `worker`, [`gateway`] | addresses, threads, start and stop |
//! | [`activity`], [`metrics`], [`options`] | what others may see and set |

pub mod activity;
pub mod address;
mod admit;
mod answer;
mod body;
mod codec;
mod decide;
mod dial;
pub mod doors;
mod exchange;
mod forward;
mod forwarded;
mod frames;
pub mod front;
pub mod gate;
pub mod gateway;
mod glance;
mod h2c;
mod handle;
mod headers;
mod lane;
mod link;
pub mod metrics;
mod names;
pub mod options;
mod pool;
pub mod progress;
mod serve;
mod signature;
mod socket2;
pub mod tcp;
mod tunnel;
mod upload;
mod upstream;
pub mod wake;
mod worker;

pub use activity::{Activity, Held, NotIn, Use};
pub use doors::{Attendant, Doors, Listen};
pub use forwarded::Forwarded;
pub use front::Front;
pub use gate::{Passage, passage};
pub use gateway::{Gateway, Ports, StartError};
pub use metrics::Metrics;
pub use options::{Limits, Options};
pub use progress::{Progress, Timeless};
pub use routes::WakeError;
pub use tcp::{OpenError, Proof, Stream, Streams, To};
pub use wake::{NoWake, Wake, Watch};
