//! A descriptor of ours, watched by the runtime.

#![expect(
    unsafe_code,
    reason = "the runtime asks for a promise about the descriptor"
)]

use std::{io, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor, which must not block.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and stays the same descriptor until it is dropped, and the
    // `AsyncFd` owns it; nobody here takes it out or closes it by number.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}
