//! A client of the agent inside a sandbox.
//!
//! The agent is reached over whatever carries bytes: a socket dialled inside the sandbox's network
//! namespace, a pod's address, a tunnel. A [`Client`] is given a way to dial, speaks HTTP/1 over
//! what it gets, and offers the agent's calls with types.
//!
//! ```text
//! Client ─▶ connection (dial, reuse) ─▶ hyper
//!   ├─ calls    health, init, and every call of one message
//!   ├─ process  start, connect, and the events of a process
//!   └─ files    content up and down
//! forward       a stream to another port, through the agent
//! ```
//!
//! Nothing here waits by its own clock: who wants a call to end sooner drops its future, which
//! closes the connection it uses. A process lives on when its events are no longer listened to.

mod calls;
mod connection;
mod error;
mod files;
mod forward;
mod process;

pub use calls::Hello;
pub use connection::{Client, Io};
pub use error::{Error, Result};
pub use files::Download;
pub use forward::{ForwardError, forward};
pub use process::{Event, Process, StartOptions, by_pid, by_tag};
