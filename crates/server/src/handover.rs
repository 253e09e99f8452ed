//! One server takes the place of another on the same machine, and nobody is refused meanwhile.
//!
//! ```text
//!  old: serves ──────────────────────────▶ stops accepting, ends control, ─▶ answers who is in use, ─▶ ends
//!         │                                closes the store                  drains what is inside
//!         │ listeners              ▲ ready        │ released          ▲ serving      │ use
//!         ▼                        │              ▼                   │              ▼
//!  new: settings, host, format ────┘     lock, store, control, routes ┘ serves ─────────────────▶
//! ```
//!
//! They speak over a socket in the data directory that only its owner can reach. Until the new one is
//! ready nothing has changed for anybody. From when the old one stops accepting until the new one
//! serves, connections wait in the queues of the listeners, which both have.
//!
//! What is inside the old one counts as use until it has ended: it tells the new one, and until it has
//! told, everything is in use. It lets nobody in any more, so that what it said last can only be too
//! much.
//!
//! Whoever dies at whichever moment leaves the other able to go on. A new one that goes before it
//! serves, or does not get on and is ended, leaves the old one, which starts over in its own process
//! with the same listeners, while what was inside goes on. A signal that stops the old one before the
//! new one serves stops both. An old one that goes takes its clients with it, as any crash would; the new one
//! has the listeners and takes the lock that is free.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`sockets`] | the listeners of a process, so that they can be handed over |
//! | [`line`] | what is said, and file descriptors |
//! | [`give`] | the old one's side |
//! | [`take`] | the new one's side |
//! | [`earlier`] | who is in use in the old one |
//! | [`upgrade`] | a server that starts the one that replaces it |

pub(crate) mod earlier;
pub(crate) mod give;
mod line;
pub(crate) mod sockets;
pub(crate) mod take;
#[cfg(test)]
mod tests;
pub(crate) mod upgrade;

use std::{fs::File, io, os::fd::AsRawFd as _, path::Path};

/// The number of what is said. Another one is refused before anything is handed over.
const FORMAT: u32 = 2;
/// The socket in the data directory.
const SOCKET: &str = "handover";

/// Does something with the path of the socket, which may be longer than the kernel takes.
fn at_socket<T>(data: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = File::open(data)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
    act(Path::new(&path))
}
