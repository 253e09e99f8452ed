//! SSH into sandboxes: `ssh SANDBOX_ID@host` with the key of somebody of its team.
//!
//! ```text
//!  client ─▶ doors (bounds) ─▶ visitor (who is it?) ─▶ session ─▶ process of the agent inside
//!                                     │                   └ sftp ─▶ the agent's own SFTP server
//!                                     └─ a port (-L) ──────────────▶ the sandbox's port
//! ```
//!
//! The server's side of SSH ends here: no sandbox has a daemon or a host key. What a client asks
//! for is asked of the agent, as the sandbox's own user, and nothing else is to be had: no ports of
//! other machines, none of the server's, no forwarded agents or displays.
//!
//! What must stay true:
//! 1. A sandbox that is not there, is another team's, or takes no such key, is refused in the same
//!    words and after the same time.
//! 2. Nothing of the sandbox is asked, and nothing is woken, before the key was proved.
//! 3. What a client can hold without a key is little, for a short time, and bounded in number.
//! 4. A client that leaves ends what it started.
//! 5. What is kept for a connection, with a key or without, is bounded.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`sandboxes`] | the port to everything else |
//! | [`host_key`] | who the server is |
//! | `doors` | how many may come in |
//! | `server` | listening |
//! | `visitor` | one client: its key, its channels |
//! | `session` | a shell, a command, or files |
//! | `wish` | what a session is to be started with |
//! | `forward` | a port |
//! | `spool` | a client's bytes until somebody takes them |

mod doors;
mod forward;
pub mod host_key;
pub mod sandboxes;
mod server;
mod session;
mod spool;
mod visitor;
mod wish;

pub use doors::Limits;
pub use host_key::HostKey;
pub use sandboxes::{Guest, Sandboxes};
pub use server::serve;
